"""What marking a TCP packet costs in the kernel: the tc/eBPF program beside itself on flows it leaves alone.

The kernel runs the program on packets of our own (BPF_PROG_TEST_RUN), the socket cookie and both map look-ups
in it. Before any time is taken every codepoint is tried, IPv4 and IPv6: one wrong one ends the benchmark.
"""

from __future__ import annotations

from statistics import median
from typing import Final

from benchmarks.rows import Row
from laboratory.bed.checks import capability
from laboratory.bed.programs import MARK_OBJECT, run_marker

RUNS: Final = 200_000
WANTED_NS: Final = 500.0


def measure(rounds: int) -> list[Row]:
    """Measure ns a packet; ratio is the reference's time by ours.

    Raises:
        RuntimeError: this machine cannot run it, or a codepoint was wrong.

    """
    if reason := capability("tc_bpf").why_not:
        raise RuntimeError(reason)
    found = [run_marker("bench", MARK_OBJECT, RUNS) for _ in range(rounds)]
    for one in found:
        if one["right"] != one["tried"]:
            raise RuntimeError(f"{one['right']} of {one['tried']} codepoints are right: the marker is broken")
    names = {
        "marked with another codepoint": "rewritten_ns",
        "marked as the kernel had": "kept_ns",
        "plain, the decision is over": "stale_ns",
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
    return rows
