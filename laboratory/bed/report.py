"""Where the kernel's rows and the simulator's agree in direction; how late the router was in the kernel's."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from laboratory.bed.runs import CONTROLS, ROUTER
from laboratory.report import tables as lab
from laboratory.report.comparison import LIMITS, Judged, Limit, compare, percent, places
from laboratory.report.judging import NO_HARM
from laboratory.report.measures import QUEUEING_P90

SOURCES: Final = {"kernel": "kernel", "ns3": "ns-3"}
OPEN: Final = "open"
NOT_MEASURED: Final = "not measured"
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


def router_errors(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Of each scenario of the kernel: its runs, how many say the router's error, and those figures."""
    out = []
    for (scenario,), runs in rows.filter(source="kernel").group_by("scenario", maintain_order=True):
        measured = runs.drop_nulls("stalled_share")
        found: dict[str, Any] = {"scenario": scenario, "runs": len(runs), "measured": len(measured)}
        for name in ROUTER:
            figures = measured[name]
            found[name] = {"median": figures.median(), "worst": figures.max()} if len(measured) else None
        out.append(found)
    return out


def router_table(rows: pl.DataFrame) -> list[str]:
    """What `router_errors` finds as a table: medians of the runs, and the worst."""
    lines = lab.head_of(
        ["scenario", "runs measured", *(f"{q}, µs" for q in ("P50", "P99", "P99.9")), "stalled, %"]
    )
    for one in router_errors(rows):
        cells = [NOT_MEASURED if one[name] is None else _median_and_worst(name, one[name]) for name in ROUTER]
        lines.append(lab.row_of([one["scenario"], f"{one['measured']} of {one['runs']}", *cells]))
    return lines


def _median_and_worst(name: str, found: dict[str, float | None]) -> str:
    median, worst = found["median"], found["worst"]
    if median is None or worst is None:  # too few packets outside stalls
        return NOT_MEASURED
    if name == "stalled_share":
        return f"{100 * median:.2f}, at worst {100 * worst:.2f}"
    return f"{median:,.1f}, at worst {worst:,.1f}"


def _verdict(kernel: Judged, ns3: Judged) -> str:
    """`agree` or `disagree` where both changes are settled not to be zero, else `open`."""
    ways = [one.above_zero - one.below_zero for one in (kernel, ns3)]
    if 0 in ways:
        return OPEN
    return "agree" if ways[0] == ways[1] else "disagree"
