"""What a scenario may say, and what of it is checked before anything is simulated.

A scenario is an environment (links, senders, traffic), how long and with which seeds it is run, under which
queue profiles and controls, and an axis of points that each change some keys of the environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

LARGEST_PACKET_BYTES: Final = 1500  # IP length
TRAINING_SEEDS_FROM: Final = 1000  # judged seeds are below, so no model is judged on what it was trained on
PROFILES: Final = ("rfc9332", "premise")
CONTROLS: Final = (
    "default",
    "no_l4s",
    "random",
    "oracle",
    "oracle_in_order",
    "last_latency",
    "model",
)


class Checked(BaseModel):
    """A part of a scenario: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class Messages(Checked):
    """Poisson messages."""

    kind: Literal["messages"]
    mbps: Positive
    sizes: Literal["web_search", "hadoop"]


class Greedy(Checked):
    """Always something to send."""

    kind: Literal["greedy"]


class Video(Checked):
    """A frame at each tick, unpaced."""

    kind: Literal["video"]
    mbps: Positive
    frames_per_s: Positive


class ConstantRate(Checked):
    """Packets at equal gaps."""

    kind: Literal["cbr"]
    mbps: Positive
    packet_bytes: Annotated[int, Field(ge=1, le=1472)]


class Replay(Checked):
    """The statistics of a packet table: its folder (relative to the project's), and its trace."""

    kind: Literal["replay"]
    packets: str
    trace: str | None = None  # may be left out where the folder holds one


Traffic = Annotated[Messages | Greedy | Video | ConstantRate | Replay, Field(discriminator="kind")]


class Group(Checked):
    """Flows that are alike, of one sender to one receiver."""

    flows: Annotated[int, Field(ge=0, le=2000)]
    tcp: Literal["dctcp", "prague", "cubic", "bbr", "udp"]
    ecn: Literal["ect1", "ect0", "not_ect"]
    receiver: str
    start_s: Annotated[list[NotNegative], Field(min_length=2, max_length=2)] = [0.0, 1.0]
    dupack_threshold: Annotated[int, Field(ge=3)] | Literal["ncr"] = 3
    traffic: Traffic


class Bottleneck(Checked):
    """A link with a dual queue; the delay is its part of the path's."""

    mbps: Positive
    buffer_bdp: Positive  # limit of the queue, in bandwidth-delay products of this link and `rtt_ms`


class Receiver(Checked):
    """Where flows end: the router it hangs on, and how much farther away it is than `rtt_ms`."""

    router: Annotated[int, Field(ge=1)] = 1
    extra_rtt_ms: NotNegative = 0.0


class Sender(Checked):
    """Where flows begin: the router it hangs on, its groups by name."""

    router: Annotated[int, Field(ge=0)] = 0
    groups: dict[str, Group]


class LastLatency(Checked):
    """Control `last_latency`: see simulation/doc/lab.md."""

    threshold_ms: Positive
    stale_ms: Positive


class Oracle(Checked):
    """Controls `oracle` and `oracle_in_order`: see simulation/doc/lab.md."""

    margin_us: NotNegative
    rate_us: NotNegative


class Random(Checked):
    """Control `random`: moved for so many successive packets together."""

    burst_packets: Annotated[int, Field(ge=1)]
    share: Share | None  # None: what the model moved in the same run, or else the oracle


class Model(Checked):
    """Control `model`: the sender agent's controller."""

    inference_us: NotNegative
    until_decided: Literal["default", "previous"]
    margin_us: NotNegative
    margin_share: NotNegative
    max_moved_unacked: Annotated[int, Field(ge=0)]
    finetune_every_s: Positive | None  # None: the head stays
    finetune_span_s: Positive
    finetune_apply_after_s: NotNegative


class Settings(Checked):
    """Parameters of the controls."""

    moved_ecn: Literal["ect0", "not_ect"]
    acks: Literal["selective", "cumulative"]  # from which ACKs S1 learns latencies
    random: Random
    oracle: Oracle
    last_latency: LastLatency
    model: Model


class Explore(Checked):
    """How traces to train on explore: the share of S1's bursts, and the bursts' lengths, a trace each."""

    share: Share
    burst_packets: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    seconds: Positive
    seeds: Annotated[list[Annotated[int, Field(ge=TRAINING_SEEDS_FROM, le=2**31)]], Field(min_length=1)]


class Environment(Checked):
    """Links, senders and traffic; senders are in order, the first is S1, captured and controlled."""

    rtt_ms: Positive  # base round trip of the nearest receiver over all bottlenecks
    bottlenecks: Annotated[list[Bottleneck], Field(min_length=1)]
    receivers: Annotated[dict[str, Receiver], Field(min_length=1)]
    senders: Annotated[dict[str, Sender], Field(min_length=1)]
    controls: Settings

    @model_validator(mode="after")
    def _sound(self) -> Environment:
        last = len(self.bottlenecks)
        for i, link in enumerate(self.bottlenecks):
            limit = buffer_bytes(link, self.rtt_ms)
            if limit < LARGEST_PACKET_BYTES:
                raise ValueError(
                    f"bottlenecks.{i}.buffer_bdp: {link.buffer_bdp:g} is a queue of {limit} bytes, smaller "
                    f"than a packet of {LARGEST_PACKET_BYTES}"
                )
        for name, receiver in self.receivers.items():
            if receiver.router > last:
                raise ValueError(f"receivers.{name}.router: {receiver.router} is beyond the last, {last}")
        for name, sender in self.senders.items():
            for key, group in sender.groups.items():
                where = f"senders.{name}.groups.{key}"
                if group.receiver not in self.receivers:
                    known = ", ".join(self.receivers)
                    raise ValueError(f"{where}.receiver: there is no {group.receiver!r}, there is {known}")
                if self.receivers[group.receiver].router <= sender.router:
                    raise ValueError(
                        f"{where}.receiver: {group.receiver!r} is not behind the sender's router"
                    )
                if group.tcp in ("dctcp", "prague") and group.ecn != "ect1":
                    raise ValueError(f"{where}.ecn: {group.tcp} is always ect1")
        if sum(g.flows for g in next(iter(self.senders.values())).groups.values()) == 0:
            first = next(iter(self.senders))
            raise ValueError(f"senders.{first}.groups: the captured sender has no flow")
        return self


class Point(Checked):
    """A point of the axis: which keys of the environment it changes, by their path."""

    set: dict[str, Any]
    at: float | None = None  # place on a numeric axis


class Axis(Checked):
    """What a sweep varies."""

    label: str
    points: Annotated[dict[str, Point], Field(min_length=1)]
    log: bool = False  # whether plots have a logarithmic axis


class Scenario(Checked):
    """A whole scenario file."""

    about: str
    figure: str | None = None  # of the paper, that it redraws
    seconds: Positive
    warmup_s: NotNegative
    seeds: Annotated[list[Annotated[int, Field(ge=1, lt=TRAINING_SEEDS_FROM)]], Field(min_length=1)]
    profiles: Annotated[list[Literal["rfc9332", "premise"]], Field(min_length=1)]
    controls: Annotated[list[str], Field(min_length=1)]
    explore: Explore
    environment: Environment
    axis: Axis | None = None

    @model_validator(mode="after")
    def _sound(self) -> Scenario:
        if self.warmup_s >= self.seconds:
            raise ValueError(f"warmup_s: {self.warmup_s:g} s leave nothing of {self.seconds:g} s")
        check_controls("controls", self.controls)
        for key, values in (("seeds", self.seeds), ("profiles", self.profiles)):
            _check_once(key, values)
        return self


def check_controls(key: str, controls: Sequence[str]) -> None:
    """Raise ValueError, which names `key`, unless these are controls, each once, the default among them."""
    if unknown := [control for control in controls if control not in CONTROLS]:
        raise ValueError(f"{key}: there is no {unknown[0]!r}, there is {', '.join(CONTROLS)}")
    if "default" not in controls:
        raise ValueError(f"{key}: default must be among them, every other is compared with it")
    _check_once(key, controls)


def _check_once(key: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        raise ValueError(f"{key}: one stands there twice")


def buffer_bytes(link: Bottleneck, rtt_ms: float) -> int:
    """Limit of a link's queue. bytes = BDP · bit/s · ms / (bit/byte · ms/s)."""
    return round(link.buffer_bdp * link.mbps * 1e6 * rtt_ms / (8 * 1e3))
