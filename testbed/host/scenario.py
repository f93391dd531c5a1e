"""`swiftqueue bed run figure8`: runs a scenario of the laboratory with a real kernel's packets.

The run is the laboratory's own `run.json`; the bed takes one bottleneck of it, its profile, and groups of
flows that send messages. L4S flows have DCTCP of struct_ops and ECT(1), classic flows the kernel's Cubic and
ECT(0). The controls `random` and `oracle` move S1's packets at the router's door; `model` and `last_latency`
mark them on host a, by an agent and by the follower's own rule. All figures are of the router's log.

Shapes: N packets of some connections, in the order of the log; A of their ACKs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.laboratory.runs import results
from swiftqueue.laboratory.runs.resolve import Cell, Model, cells, control_of, resolve
from swiftqueue.laboratory.runs.rows import described
from swiftqueue.laboratory.scenarios.controls import MATCHED
from swiftqueue.laboratory.scenarios.schema import Scenario
from swiftqueue.pipelines.simulators import PROJECT
from swiftqueue.testbed.host import router_log, tcp, tcp_traffic
from swiftqueue.testbed.host.checks import capability
from swiftqueue.testbed.host.hosts import ADDRESS_B, Bed, run_folder
from swiftqueue.testbed.host.lateness import router_error
from swiftqueue.testbed.host.marking import ended, marked, unforeseen_share
from swiftqueue.testbed.host.programs import (
    DCTCP,
    DCTCP_OBJECT,
    HOLDER,
    OF_SCENARIOS,
    build_hash,
    wait_for_name,
)
from swiftqueue.testbed.host.run import PROFILES
from swiftqueue.testbed.host.runs import CONTROLS, check_same, keep, load
from swiftqueue.testbed.host.tcp import PORT, running, summary, urgent

ECT0: Final = 2
RULE: Final = {
    "random": {"burst_packets": 8},
    "oracle": {"rate_us": 20_000},
}  # router parameters by kind
CDF_LEVELS: Final = np.linspace(0, 1, 201)
LEVELS: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
SIZES: Final = PROJECT / "simulation" / "model" / "message-sizes.h"


def why_not() -> str | None:
    """Return a line if this machine cannot run the bed, else None."""
    return tcp.why_not() or capability("dctcp").why_not


def sizes_of(name: str) -> list[list[float]]:
    """Return the points of a distribution of message sizes: bytes, and the share at most as large.

    Raises:
        ValueError: there is no distribution of this name.

    """
    word = "".join(part.capitalize() for part in name.split("_"))
    found = re.search(rf"k{word}Bytes{{{{(.*?)}}}};", SIZES.read_text(), re.DOTALL)
    if found is None:
        raise ValueError(f"sizes {name}: {SIZES.name} has none of this name")
    pairs = re.findall(r"{([\d.e]+), ([\d.e]+)}", found[1])
    return [[float(value), float(share)] for value, share in pairs]


def run(
    name: str,
    scenario: Scenario,
    output: Path,
    report: Callable[[str], None],
    *,
    models: Mapping[str, Model] | None = None,
) -> pl.DataFrame:
    """Run a scenario's missing rows one by one; return all rows of the file.

    Args:
        name: name under which the rows are kept.
        scenario: scenario of the laboratory.
        output: folder of `bed.parquet`.
        report: called with a line for each run.
        models: models of control `model`, by profile; a profile without one has no such run.

    Raises:
        RuntimeError: this machine cannot run the bed, or a program failed; the line says why.
        ValueError: the bed lacks something, or the folder's runs have another length or program.

    """
    if scenario.environment.uplinks:
        raise ValueError(f"{name}: the bed has one link, no uplinks")
    if reason := why_not():
        raise RuntimeError(reason)
    program = build_hash(*OF_SCENARIOS)
    asked_for = {"source": "kernel", "scenario": name, "seconds": scenario.seconds, "program": program}
    check_same(output, load(output), asked_for)
    wanted = [cell for cell in cells(name, scenario) if cell.control in CONTROLS]
    # Random marking has the share that another control moved.
    wanted.sort(key=lambda cell: (cell.seed, cell.profile, cell.control == "random"))
    for number, cell in enumerate(wanted, 1):
        done = load(output).filter(source="kernel", status=results.COMPLETE)
        model = (models or {}).get(cell.profile) if cell.control == "model" else None
        if cell.control == "model" and model is None:
            report(f"{cell.words()}: not run, --artifact has no model of this profile")
            continue
        share, share_of = _share(done, cell) if cell.control == "random" else (0.0, None)
        control = control_of(scenario.environment, cell.control, model=model, share=share)
        asked = resolve(scenario, cell, control, [])
        same = done.filter(*(pl.col(key) == value for key, value in cell.key().items() if value is not None))
        if described_as(asked) in same["parameters"]:
            continue
        report(f"{cell.words()} (run {number} of {len(wanted)}, {scenario.seconds:g} s)")
        row = _row(scenario, cell, asked, model)
        keep(output, [row | {"program": program, "share_of": share_of}])
    return load(output)


def described_as(asked: Mapping[str, Any]) -> str:
    """Return a run's column `parameters`: its input, with its model's hash and its share."""
    return json.dumps(asked, sort_keys=True)


def _share(done: pl.DataFrame, cell: Cell) -> tuple[float, str]:
    """Return the share that the model moved in the same place, or else the oracle, and its name."""
    same = done.filter(scenario=cell.scenario, profile=cell.profile, seed=cell.seed)
    for control in MATCHED:
        if len(found := same.filter(control=control)):
            return float(found["moved_share"][0]), control
    raise RuntimeError(f"{cell.words()}: needs the share of {' or '.join(MATCHED)}, and neither was run")


def _row(scenario: Scenario, cell: Cell, asked: Mapping[str, Any], model: Model | None) -> dict[str, Any]:
    control = asked["control"]
    groups = list(groups_of(asked))
    (link,) = asked["bottlenecks"]
    delay_ms = link["delay_ms"] + asked["senders"][0]["delay_ms"] + asked["receivers"][0]["delay_ms"]
    with run_folder() as folder, ExitStack() as stack:
        log = Path(folder) / "router"
        wait_for_name(DCTCP)
        hold = running([str(HOLDER), "hold", str(DCTCP_OBJECT), DCTCP], "the holder of DCTCP")
        stack.enter_context(hold)
        bed = Bed(
            rate_mbps=link["rate_bps"] / 1e6,
            delay_ms=delay_ms,
            seed=cell.seed,
            log=log,
            queue=queue_of(cell.profile, link["buffer_bytes"]),
            rule=rule_of(control),
        )
        with bed:
            for group in groups:
                words = urgent(sys.executable, tcp_traffic.__file__, "take", ADDRESS_B, group["port"])
                take = bed.b(*words, group["control"])
                stack.enter_context(running(take, "a receiver"))
            programs = stack.enter_context(marked(bed, control, groups, model, Path(folder)))
            told = json.dumps(groups)
            words = [sys.executable, tcp_traffic.__file__, "messages", ADDRESS_B, scenario.seconds, cell.seed]
            begin_ns = bed.now_ns()
            summary(subprocess.Popen(bed.a(*urgent(*words, told)), stdout=subprocess.PIPE, text=True))
            followed = ended(programs)
        if not bed.summary:
            raise RuntimeError("the router ended before its time: its log is not whole")
        records = router_log.read(log)
    span_ns = (begin_ns + int(scenario.warmup_s * 1e9), begin_ns + int(scenario.seconds * 1e9))
    return {
        "source": "kernel",
        **cell.key(),
        **described(scenario),
        "status": results.COMPLETE,
        "artifact": model.content if model else None,
        "seconds": scenario.seconds,
        "warmup_s": scenario.warmup_s,
        "parameters": described_as(asked),
        "reordering": "RACK (RFC 8985)",
        "cpu_s": bed.summary["cpu_s"],
        **figures(records, groups, span_ns),
        **router_error(records, delay_ms * 1e6, span_ns),
        "unforeseen_share": unforeseen_share(followed, records, groups) if cell.control == "model" else None,
    }


def queue_of(profile: str, buffer_bytes: int) -> dict[str, object]:
    """Return the queue's parameters, as simulation/helper/queue-profiles.cc limits it."""
    limits: dict[str, object] = {"max_bytes": buffer_bytes}
    if profile == "uncoupled":
        limits = {"l_max_bytes": buffer_bytes, "c_max_bytes": buffer_bytes, "max_bytes": 2 * buffer_bytes}
    return dict(PROFILES[profile]) | limits


def rule_of(control: Mapping[str, Any]) -> dict[str, object]:
    """Return the router's options for moving S1's L4S packets, which go to PORT.

    Raises:
        ValueError: the control has another burst or time constant (testbed/router/rules.h).

    """
    for key, value in RULE.get(control["kind"], {}).items():
        if control[key] != value:
            raise ValueError(f"controls.{control['kind']}.{key} is {control[key]}; the router has {value}")
    if control["kind"] == "random":
        return {"rule-port": PORT, "move-share": control["share"]}
    if control["kind"] == "oracle":
        return {"rule-port": PORT, "move-margin-us": control["margin_us"]}
    return {}


def groups_of(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a run's groups for `tcp_traffic.py messages`, each with its own port; S1's L4S flows have PORT.

    Raises:
        ValueError: the bed has no such flows.

    """
    l4s = asked["control"]["kind"] != "no_l4s"
    port = PORT
    for sender in asked["senders"]:
        for group in sender["groups"]:
            marked = group["ecn"] == "ect1"
            traffic = group["traffic"]
            if traffic["kind"] != "messages" or group["tcp"] != ("dctcp" if marked else "cubic"):
                what = f"{traffic['kind']} of {group['tcp']}"
                raise ValueError(f"the bed has messages of DCTCP and Cubic, not {what}")
            yield {
                "port": port,
                "s1": sender is asked["senders"][0],
                "l4s": marked,
                "control": DCTCP if marked and l4s else "cubic",
                "flows": group["flows"],
                "start_s": group["start_s"],
                "rate_bps": traffic["rate_bps"],
                "sizes": sizes_of(traffic["sizes"]),
            }
            port += 1


def figures(
    records: NDArray[Any], groups: Sequence[Mapping[str, Any]], span_ns: tuple[int, int]
) -> dict[str, Any]:
    """Return the laboratory's figures from a router's log, for packets between two times.

    Raises:
        RuntimeError: no packet of S1's L4S flows came.

    """
    found = {
        group["port"]: _Group(records, group["port"], span_ns, l4s=group["control"] == DCTCP)
        for group in groups
    }
    s1 = [group for group in groups if group["s1"]]
    chosen = found[next(group["port"] for group in s1 if group["l4s"])]
    if not len(chosen.wait_us):
        raise RuntimeError("no packet of S1's L4S flows came to the router")
    goodput = {port: group.goodput_bps for port, group in found.items()}
    total = sum(goodput.values())
    s1_l4s = sum(goodput[group["port"]] for group in s1 if group["l4s"])
    s1_classic = sum(goodput[group["port"]] for group in s1 if not group["l4s"])
    classic = sum(goodput[group["port"]] for group in groups if not group["l4s"])
    return {
        "queueing_mean_us": float(chosen.wait_us.mean()),
        **_quantiles("queueing", chosen.wait_us, ("p50", "p90", "p99", "p999", "max")),
        **_quantiles("one_way", chosen.one_way_us, ("p50", "p90", "p99")),
        **_quantiles("rtt", chosen.rtt_us, ("p50", "p90", "p99")),
        "queueing_cdf_us": np.quantile(chosen.wait_us, CDF_LEVELS).tolist(),
        "rtt_cdf_us": np.quantile(chosen.rtt_us, CDF_LEVELS).tolist() if len(chosen.rtt_us) else None,
        "queueing_packets": float(len(chosen.wait_us)),
        "packets": float(chosen.sent),
        "moved_share": chosen.moved / chosen.sent,
        "retransmitted_share": chosen.again / chosen.sent,
        "dropped_share": chosen.lost / chosen.sent,
        "s1_l4s_goodput_bps": s1_l4s,
        "s1_classic_goodput_bps": s1_classic,
        "s1_goodput_bps": s1_l4s + s1_classic,
        "cross_goodput_bps": total - s1_l4s - s1_classic,
        "classic_share": classic / total if total else None,
    }


class _Group:
    """A group's data packets in a router's log; in an L4S group the packets with ECT(0) were moved."""

    def __init__(self, records: NDArray[Any], port: int, span_ns: tuple[int, int], *, l4s: bool) -> None:
        forward = np.isin(records["kind"], (router_log.FORWARD, router_log.DROPPED, router_log.REFUSED))
        data = forward & (records["destination_port"] == port) & (records["headers"] > 0)
        data &= records["bytes"] > records["headers"]
        ours = records[data]
        ours = ours[np.argsort(ours["arrived_ns"], kind="stable")]
        counted = ours[(ours["arrived_ns"] >= span_ns[0]) & (ours["arrived_ns"] < span_ns[1])]
        passed = counted[counted["kind"] == router_log.FORWARD]
        self.sent = len(counted)
        self.lost = self.sent - len(passed)
        self.moved = int(((counted["moved"] == 1) | (l4s & (counted["ecn"] == ECT0))).sum())
        self.wait_us = (passed["started_ns"] - passed["arrived_ns"]) / 1e3
        self.one_way_us = (passed["due_ns"] - passed["arrived_ns"]) / 1e3
        self.again, acknowledged, trips = 0, 0, []
        back = records[(records["kind"] == router_log.BACK) & (records["source_port"] == port)]
        for source in np.unique(ours["source_port"]):
            own = ours[ours["source_port"] == source]
            acks = back[back["destination_port"] == source]
            first = own["sequence"][0]
            begin_N = _from(first, own["sequence"])
            end_N = begin_N + own["bytes"] - own["headers"]
            acked_A = np.maximum.accumulate(_from(first, acks["acknowledged"]))
            again_N = begin_N < np.maximum.accumulate(np.concatenate([[0], end_N[:-1]]))
            now_N = (own["arrived_ns"] >= span_ns[0]) & (own["arrived_ns"] < span_ns[1])
            self.again += int((again_N & now_N).sum())
            if not len(acks):
                continue
            # Karn: no ACK says which of two transmissions it is for.
            repeated_N = np.isin(begin_N, begin_N[again_N])
            at_N = np.searchsorted(acked_A, end_N)
            chosen_N = now_N & ~repeated_N & (at_N < len(acks))
            delivered_ns = acks["due_ns"][at_N[chosen_N]]
            trips.append((delivered_ns - own["arrived_ns"][chosen_N]) / 1e3)
            when_A = (acks["arrived_ns"] >= span_ns[0]) & (acks["arrived_ns"] < span_ns[1])
            if when_A.any():
                acknowledged += int(np.ptp(acked_A[when_A]))
        self.rtt_us = np.concatenate(trips) if trips else np.zeros(0)
        self.goodput_bps = acknowledged * 8 / ((span_ns[1] - span_ns[0]) / 1e9)


def _from(first: np.uint32, numbers: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return sequence numbers as bytes since the first; they wrap at 2^32, and a flow has fewer than 2^31."""
    away = (numbers - first).astype(np.uint32)
    return np.asarray(away.astype(np.int32), np.int64)


def _quantiles(name: str, values: NDArray[np.float64], which: Sequence[str]) -> dict[str, Any]:
    if not len(values):
        return {f"{name}_{key}_us": None for key in which}
    found = np.quantile(values, [LEVELS[key] for key in which])
    return {f"{name}_{key}_us": float(value) for key, value in zip(which, found, strict=True)}
