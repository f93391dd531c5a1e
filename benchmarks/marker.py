"""Measure what marking a TCP packet costs in the kernel, and how long a decision takes to the wire.

The kernel runs the tc/eBPF program on packets of our own (BPF_PROG_TEST_RUN), the socket cookie and all map
look-ups included, beside the same program on flows it leaves alone. Before any time is taken every codepoint
is tried, IPv4 and IPv6: one wrong one ends the benchmark.

Then a TCP connection runs through a bed, decided by the engine in the agent: from its answer to the map, from
the marker to the router, and from the answer to its first packet at the router. That packet waits for its
turn: the question was asked 8 packets before.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.benchmarks.rows import Row, UnsupportedMachineError
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.testbed.host import router_log, tcp
from swiftqueue.testbed.host.checks import capability
from swiftqueue.testbed.host.hosts import Bed, run_folder
from swiftqueue.testbed.host.programs import MARK_OBJECT, PROJECT, run_marker
from swiftqueue.testbed.host.run import PROFILES

RUNS: Final = 200_000
WANTED_NS: Final = 500.0
MODEL: Final = PROJECT / "docs" / "laboratory" / "models" / "figure8" / "rfc9332"
RATE_MBPS: Final = 40.0
CONNECTION_S: Final = 4.0
BATCH_US: Final = 8 * 1500 * 8 / RATE_MBPS  # time of 8 packets on the link: us = byte · bit/byte / (bit/us)


def measure(rounds: int) -> list[Row]:
    """Measure nanoseconds per packet; the ratio is the reference's time divided by ours.

    Raises:
        UnsupportedMachineError: this machine cannot run it.
        RuntimeError: a codepoint was wrong.

    """
    if reason := capability("tc_bpf").why_not:
        raise UnsupportedMachineError(reason)
    found = [run_marker("bench", MARK_OBJECT, RUNS) for _ in range(rounds)]
    for one in found:
        if one["right"] != one["tried"]:
            raise RuntimeError(f"{one['right']} of {one['tried']} codepoints are right: the marker is broken")
    names = {
        "marked with another codepoint": "rewritten_ns",
        "marked as the kernel had": "kept_ns",
        "plain, the decision is over": "stale_ns",
        "marked with a codepoint and a DSCP": "with_dscp_ns",
    }
    unregistered = float(median(one["unregistered_ns"] for one in found))
    rows = []
    for name, key in names.items():
        ours = float(median(one[key] for one in found))
        rows.append(Row(name, ours, unregistered, "an unregistered flow", unregistered / ours, "ns", rounds))
    dearest = max(row.ours for row in rows)
    rows.append(Row("dearest of them", dearest, WANTED_NS, "wanted", WANTED_NS / dearest, "ns", rounds))
    share = sum(one["right"] for one in found) / sum(one["tried"] for one in found)
    rows.append(Row("right codepoints", 100 * share, 100.0, "wanted", share, "%", rounds))
    if reason := tcp.why_not() or agent_process.why_not_built():
        print(f"decision to wire is left out: {reason}")
        return rows
    return rows + _to_the_wire(rounds)


def _to_the_wire(rounds: int) -> list[Row]:
    """Return the rows of a connection's decisions; the reference is the time of a batch on the link."""
    found = [_connection() for _ in range(rounds)]
    if wrong := sum(one.wrong for one in found):
        raise RuntimeError(f"{wrong} packets came to the router with another codepoint than the marker's")

    def row(name: str, quantile: float, each: list[NDArray[np.float64]]) -> Row:
        ours = float(median(float(np.quantile(one, quantile)) for one in each))
        return Row(name, ours, BATCH_US, "8 packets on a link of 40 Mbit/s", BATCH_US / ours, "us", rounds)

    to_map = [one.answer_to_map_us_D for one in found]
    to_router = [one.marked_to_router_us_N for one in found]
    to_wire = [one.answer_to_wire_us_D for one in found]
    share = 100 * float(median(one.decided_share for one in found))
    return [
        row("answer to map, p99", 0.99, to_map),
        row("marker to router, p99", 0.99, to_router),
        row("answer to its first packet at the router, p50", 0.5, to_wire),
        row("answer to its first packet at the router, p99", 0.99, to_wire),
        Row("packets with a decision", share, 100.0, "all", share / 100, "%", rounds),
    ]


def _connection() -> tcp.Delays:
    """Run one connection through a bed, decided by the engine in the agent."""
    with run_folder() as folder:
        here = Path(folder)
        (here / "1").symlink_to(MODEL)
        options = [f"--listen={here / 'agent.sock'}", f"--local={here / '1'}", "--guard=off"]
        bed_of_ours = Bed(rate_mbps=RATE_MBPS, log=here / "router", queue=PROFILES["uncoupled"])
        with agent_process.running_agent(options) as said, bed_of_ours as bed:
            next(said)  # the first line says that it is ready
            with tcp.marked(bed, here / "agent.sock", log=here / "follow") as on:
                tcp.summary(on.connection(CONNECTION_S))
        return tcp.delays(here / "follow", router_log.read(here / "router"))
