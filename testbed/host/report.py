"""Compares the kernel's rows with the simulator's in direction, and reports the router's lateness."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from swiftqueue.laboratory.report import tables as lab
from swiftqueue.laboratory.report.comparison import LIMITS, JudgedChange, Limit, compare, percent, places
from swiftqueue.laboratory.report.judging import NO_HARM
from swiftqueue.laboratory.report.measures import QUEUEING_MAX, QUEUEING_P90, QUEUEING_P99
from swiftqueue.testbed.host.lateness import errors_of
from swiftqueue.testbed.host.runs import CONTROLS, ROUTER

SOURCES: Final = {"kernel": "kernel", "ns3": "ns-3"}
OPEN: Final = "open"
NOT_MEASURED: Final = "not measured"
ASKED: Final = (Limit("P90", QUEUEING_P90, NO_HARM), *LIMITS)  # P99 where a run has enough packets


@dataclass(frozen=True)
class SourcePair:
    """A control's change of one measure in both sources."""

    place: str
    control: str
    kernel: JudgedChange
    ns3: JudgedChange

    @property
    def direction(self) -> str:
        """`agree` or `disagree` where both changes are settled not to be zero, else `open`."""
        ways = [one.above_zero - one.below_zero for one in (self.kernel, self.ns3)]
        if 0 in ways:
            return OPEN
        return "agree" if ways[0] == ways[1] else "disagree"

    def as_json(self) -> dict[str, Any]:
        """Return plain values; a change is a share of the default, with its 95 % interval."""
        found: dict[str, Any] = {"place": self.place, "control": self.control}
        found["measure"] = self.kernel.limit.name
        for name in SOURCES:
            change = getattr(self, name).change
            found[name] = {"mean": change.mean, "low": change.low, "high": change.high}
        return found | {"direction": self.direction}


def pairs(rows: pl.DataFrame) -> list[SourcePair]:
    """Return every change that both sources have."""
    found = []
    by_source = {name: rows.filter(source=name).drop("source") for name in SOURCES}
    for place in places(rows):
        for control in CONTROLS[1:]:
            kernel, ns3 = (compare(by_source[name], place, control, ASKED) for name in SOURCES)
            if kernel is None or ns3 is None:
                continue
            both = [measure for measure in kernel.found if measure in ns3.found]
            found += [SourcePair(place.words(), control, kernel.found[one], ns3.found[one]) for one in both]
    return found


def agreement(rows: pl.DataFrame) -> list[str]:
    """Return a table for each place, with every measure's change in both sources and their agreement."""
    found = pairs(rows)
    if not found:
        return ["Nothing to compare yet: `swiftqueue bed run figure8`, `swiftqueue lab run bed-figure8`."]
    lines = []
    for place, some in itertools.groupby(found, key=lambda one: one.place):
        lines += [f"**{place}**", "", *lab.head_of(["control", "change of", *SOURCES.values(), "direction"])]
        for one in some:
            changes = [percent(getattr(one, name).change) for name in SOURCES]
            lines.append(lab.row_of([f"`{one.control}`", one.kernel.limit.name, *changes, one.direction]))
        lines.append("")
    counts = dict.fromkeys(("agree", "disagree", OPEN), 0) | Counter(one.direction for one in found)
    told = ", ".join(f"{count} {word}" for word, count in counts.items())
    one_sign = sum(one.kernel.change.mean * one.ns3.change.mean > 0 for one in found)
    return [*lines, f"Of {len(found)} changes: {told}. By their means alone {one_sign} have one sign."]


def side_by_side(rows: pl.DataFrame) -> list[str]:
    """Return a line for each place and control: both sources' changes of the waits; bold is settled."""
    found = pairs(rows)
    if not found:
        return ["Nothing is published yet: `swiftqueue bed report --publish`."]
    wanted = [limit.name for limit in ASKED if limit.measure in (QUEUEING_P99, QUEUEING_MAX)]
    by_row = {(one.place, one.control, one.kernel.limit.name): one for one in found}
    lines = lab.head_of(
        ["place", "control", *(f"{name}, {of}" for name in wanted for of in SOURCES.values())]
    )
    for place, control in dict.fromkeys((one.place, one.control) for one in found):
        cells = []
        for name in wanted:
            pair = by_row.get((place, control, name))
            cells += [_settled_bold(getattr(pair, of)) if pair else lab.NONE for of in SOURCES]
        lines.append(lab.row_of([place, f"`{control}`", *cells]))
    return lines


def _settled_bold(found: JudgedChange) -> str:
    said = percent(found.change)
    return f"**{said}**" if found.above_zero or found.below_zero else said


def router_errors(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Return for each scenario of the kernel its number of runs, how many have the router's error, and it."""
    by_scenario = rows.filter(source="kernel").group_by("scenario", maintain_order=True)
    return [{"scenario": name, **errors_of(runs.select(*ROUTER).to_dicts())} for (name,), runs in by_scenario]


def router_table(rows: pl.DataFrame) -> list[str]:
    """Return the result of `router_errors` as a table, with medians of the runs and the worst."""
    lines = lab.head_of(
        ["scenario", "runs measured", *(f"{q}, µs" for q in ("P50", "P99", "P99.9")), "stalled, %"]
    )
    for one in router_errors(rows):
        cells = [NOT_MEASURED if one[name] is None else _median_and_worst(name, one[name]) for name in ROUTER]
        lines.append(lab.row_of([one["scenario"], f"{one['measured']} of {one['runs']}", *cells]))
    return lines


def _median_and_worst(name: str, found: dict[str, float]) -> str:
    median, worst = found["median"], found["worst"]
    if name == "stalled_share":
        return f"{100 * median:.2f}, at worst {100 * worst:.2f}"
    return f"{median:,.1f}, at worst {worst:,.1f}"
