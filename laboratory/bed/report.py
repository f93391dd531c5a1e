"""Where the kernel's rows and the simulator's agree in direction: the changes against default marking."""

from __future__ import annotations

from typing import Final

import polars as pl

from laboratory.bed.runs import CONTROLS
from laboratory.report import tables as lab
from laboratory.report.comparison import LIMITS, Judged, Limit, compare, percent, places
from laboratory.report.judging import NO_HARM
from laboratory.report.measures import QUEUEING_P90

SOURCES: Final = {"kernel": "kernel", "ns3": "ns-3"}
OPEN: Final = "open"
ASKED: Final = (Limit("P90", QUEUEING_P90, NO_HARM), *LIMITS)  # P99 where a run has packets enough


def agreement(rows: pl.DataFrame) -> list[str]:
    """A table for each place: every measure's change in both sources, and whether they have one direction."""
    lines: list[str] = []
    by_source = {name: rows.filter(source=name).drop("source") for name in SOURCES}
    counts = {"agree": 0, "disagree": 0, OPEN: 0}
    one_sign = 0
    for place in places(rows):
        table = []
        for control in CONTROLS[1:]:
            found = {name: compare(runs, place, control, ASKED) for name, runs in by_source.items()}
            kernel, ns3 = found["kernel"], found["ns3"]
            if kernel is None or ns3 is None:
                continue
            for measure in [one for one in kernel.found if one in ns3.found]:
                pair = kernel.found[measure], ns3.found[measure]
                verdict = _verdict(*pair)
                counts[verdict] += 1
                one_sign += pair[0].change.mean * pair[1].change.mean > 0
                cells = [percent(one.change) for one in pair]
                table.append(lab.row_of([f"`{control}`", pair[0].limit.name, *cells, verdict]))
        if table:
            lines += [f"**{place.words()}**", ""] if lines == [] else ["", f"**{place.words()}**", ""]
            lines += [*lab.head_of(["control", "change of", *SOURCES.values(), "direction"]), *table]
    if not lines:
        return ["Nothing to compare yet: `swiftqueue bed run figure8`, `swiftqueue lab run bed-figure8`."]
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    total = f"Of {sum(counts.values())} changes: {told}. By their means alone {one_sign} have one sign."
    return [*lines, "", total]


def _verdict(kernel: Judged, ns3: Judged) -> str:
    """`agree` or `disagree` where both changes are settled not to be zero, else `open`."""
    ways = [one.above_zero - one.below_zero for one in (kernel, ns3)]
    if 0 in ways:
        return OPEN
    return "agree" if ways[0] == ways[1] else "disagree"
