"""The controls that a scenario may run under, and their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import Field

from swiftqueue.laboratory.scenarios.checked import (
    BurstPackets,
    Microseconds,
    Milliseconds,
    ScenarioPart,
    Seconds,
    Share,
    check_once,
)

CONTROLS: Final = (
    "default",
    "no_l4s",
    "random",
    "oracle",
    "oracle_in_order",
    "last_latency",
    "virtual_queue",
    "model",
)
LADDER: Final = (
    "constant_share",
    "flow_split",
    "always",
    "last_latency_batched",
    "virtual_queue_batched",
    "anchor",
    "placebo",
    "oracle_late",
    "oracle_batched",
)
"""Controls that stand beside the model on the ladder of information (docs/LABORATORY.md)."""
AGENT_RULE: Final = "agent_rule"
"""Control of the sender agent with `--rule last-latency`."""
FOR_UPLINKS: Final = ("least_mean", "least_latency", "least_srtt", AGENT_RULE)
"""Controls that compare both uplinks by the latencies of S1's packets over them."""
TREES: Final = "trees"
"""Control of a second model, boosted trees; a folder of this name beside the model has them."""
ALL_CONTROLS: Final = (*CONTROLS, *LADDER, *FOR_UPLINKS, TREES)
AGENTS: Final = ("model", TREES, AGENT_RULE, *(name for name in LADDER if name != "flow_split"))
"""Controls that are set up like `model`."""
MATCHED: Final = ("model", "oracle")  # controls whose moved share `random` takes, the first that was run
NOT_FOR_UPLINKS: Final = ("no_l4s", "last_latency", "last_latency_batched")
VIEWED_BY: Final = ("oracle", "oracle_in_order", "oracle_late", "oracle_batched")  # need a view of the queues


class LastLatency(ScenarioPart):
    """Control `last_latency`, which follows the last latency of a flow."""

    threshold_ms: Milliseconds  # latency from which packets are moved
    stale_ms: Milliseconds  # age from which a latency counts no more


class VirtualQueue(ScenarioPart):
    """Control `virtual_queue`: see simulation/doc/lab.md."""

    margin_us: Microseconds = 1000.0  # least predicted gain, in µs, for which a packet is moved


class LeastMean(ScenarioPart):
    """Control `least_mean`: the means of both uplinks, as gateways keep them."""

    every_s: Seconds = 1.0  # span of a mean; then both are compared
    margin_us: Microseconds = 5000.0  # how much less the other mean must be for a change


class Oracle(ScenarioPart):
    """Controls `oracle` and `oracle_in_order`, which see both queues."""

    margin_us: Microseconds  # least difference of the waits, in µs, for which a packet is moved
    rate_us: Microseconds  # time over which arrivals are averaged, in µs


class Random(ScenarioPart):
    """Control `random`: moves `burst_packets` successive packets together."""

    burst_packets: BurstPackets  # packets of a burst
    share: Share | None  # share that is moved; None: the model's in the same run, or else the oracle's


class ModelControl(ScenarioPart):
    """Control `model`: the sender agent's controller."""

    inference_us: Microseconds  # delay of an answer
    until_decided: Literal["default", "previous"]  # queue of a flow's packets until the answer
    margin_us: Microseconds  # least predicted gain, in µs, for which a flow changes queues
    margin_share: Annotated[float, Field(ge=0, le=1e6)]  # least gain as a share; both must hold
    max_moved_unacked: Annotated[int, Field(ge=0, le=1_000_000_000)]  # most moved packets in flight
    max_moved_share: Share = 0.0  # the same as a share of S1's packets in flight, if that is more
    guard: bool = False  # whether the agent's guard stops moving where it is not settled to help
    finetune_every_s: Annotated[float, Field(ge=0.1, le=1e5)] | None  # time between two heads; None: one head
    finetune_span_s: Seconds  # time whose packets tune a head
    finetune_apply_after_s: Annotated[float, Field(ge=0, le=1e5)]  # time until a new head answers


class Ladder(ScenarioPart):
    """Parameters of the controls that stand beside the model on the ladder of information."""

    constant_share: Share = 0.75  # share of the batches that `constant_share` moves
    flow_share: Share = 0.5  # share of the flows that `flow_split` moves
    shift_s: Seconds = 10.0  # delay of the placebo's decisions after the model's


class ControlSettings(ScenarioPart):
    """Parameters of the controls."""

    moved_ecn: Literal["ect0", "not_ect"]  # codepoint of moved packets
    acks: Literal["selective", "cumulative"]  # ACKs from which S1 learns latencies
    # Answer of S1's DCTCP to the mark of a moved packet: as to any mark, or as to a loss (`classic`)
    moved_response: Literal["scalable", "classic"] = "scalable"
    random: Random
    oracle: Oracle
    last_latency: LastLatency
    virtual_queue: VirtualQueue = VirtualQueue()
    least_mean: LeastMean = LeastMean()
    hold: Literal["packet", "batch", "write"] = (
        "packet"  # span of a decision; a write is a message or a frame
    )
    model: ModelControl
    ladder: Ladder = Ladder()


def check_controls(key: str, controls: Sequence[str]) -> None:
    """Check that these are controls, each once, with the default among them.

    Raises:
        ValueError: they are not; the line names `key`.
    """
    if unknown := [control for control in controls if control not in ALL_CONTROLS]:
        raise ValueError(f"{key}: there is no {unknown[0]!r}, there is {', '.join(ALL_CONTROLS)}")
    if "default" not in controls:
        raise ValueError(f"{key}: default must be among them, every other is compared with it")
    check_once(key, controls)
