"""Between the premise and the standard: what a choice of queue changes over DualPI2's three settings."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from swiftqueue.laboratory.report.comparison import Comparison, Place, by_seed, compare, percent
from swiftqueue.laboratory.report.measures import MOVED, MS, QUEUEING_P99
from swiftqueue.laboratory.report.tables import NONE, WRAPPED, cell, controls_run, head_of, row_of, sample
from swiftqueue.laboratory.runs.results import COMPLETE
from swiftqueue.models.scoring.intervals import Estimate

SCENARIO: Final = "premise-map"
GUARDED: Final = "premise-map-guarded"
SHOWN: Final = {"oracle": "who sees both queues", "model": "the model"}


@dataclass(frozen=True)
class Setting:
    """A bottleneck's three settings."""

    step_ms: float  # sojourn above which all of L is marked
    coupling: float
    l4s_share: float  # L's share of the link, while both queues have packets


@dataclass(frozen=True)
class Square:
    """A control's changes at one setting."""

    change: Estimate  # change of P99
    found: Comparison

    @property
    def word(self) -> str:
        """Return `pays`, `harms` (P99) or `another limit` where settled, else `few packets` or `open`."""
        p99 = self.found.found.get(QUEUEING_P99)
        if p99 is not None and p99.beyond:
            return "harms"
        if self.found.judged == "harms":
            return "another limit"
        if p99 is not None and p99.below_zero:
            return "pays"
        return "few packets" if self.found.few_packets else "open"

    @property
    def is_settled(self) -> bool:
        """Return whether the word is a settled one."""
        return self.word not in ("few packets", "open")

    @property
    def broken(self) -> list[str]:
        """Return the limits that are settled to be broken."""
        return [one.limit.name for one in self.found.broken() if one.beyond]


def settings_of(runs: pl.DataFrame, scenario: str = SCENARIO) -> dict[Setting, Place]:
    """Return the settings that a map ran, each with its place in the results."""
    found = {}
    done = runs.filter(pl.col("scenario") == scenario, pl.col("status") == COMPLETE)
    first = done.unique(["point", "profile"], keep="first", maintain_order=True)
    for row in first.select("point", "profile", "parameters").iter_rows(named=True):
        setting = _setting(json.loads(row["parameters"]))
        found[setting] = Place(scenario, row["point"], row["profile"])
    return found


def square(runs: pl.DataFrame, place: Place, control: str) -> Square | None:
    """Return what a control changes at a setting; None where it was not run."""
    found = compare(runs, place, control)
    return Square(found.queueing, found) if found else None


def mapped(runs: pl.DataFrame, scenario: str = SCENARIO) -> list[str]:
    """Return a map as a table: a row for each setting, columns for each control that was run."""
    here, places = runs.filter(pl.col("scenario") == scenario), settings_of(runs, scenario)
    if not places:
        return ["Not run."]
    shown = _shown(here, places)
    columns = [f"{who}{what}" for who in shown for what in (": P99", ", moved, %", ", settled")]
    head = ["L's share", "coupling", "L's step, ms", "default P99, ms", *(f"`{c}`" for c in columns)]
    head = [text.replace("`model", "model").replace("`oracle", "oracle").replace("`", "") for text in head]
    order = sorted(places, key=lambda s: (s.l4s_share, s.coupling, s.step_ms))
    lines = [*textwrap.wrap(f"{sample(here, *places.values())}.", **WRAPPED), "", *head_of(head)]
    for setting in order:
        place = places[setting]
        row = [f"{setting.l4s_share:g}", f"{setting.coupling:g}", f"{setting.step_ms:g}"]
        row.append(cell(here, place, "default", QUEUEING_P99).text)
        for control in shown:
            one = square(here, place, control)
            row += [NONE] * 3 if one is None else _cells(here, place, control, one)
        lines.append(row_of(row))
    return lines


def counted(runs: pl.DataFrame, scenario: str = SCENARIO) -> list[str]:
    """Say at how many settings of a map each control pays, harms and is not settled."""
    here, places = runs.filter(pl.col("scenario") == scenario), settings_of(runs, scenario)
    if not places:
        return ["Not run."]
    lines = []
    for control in _shown(here, places):
        squares = [found for place in places.values() if (found := square(here, place, control))]
        words = [one.word for one in squares]
        few = sum(one.found.few_packets for one in squares)
        lower = sum(one.change.mean < 0 for one in squares)
        others = Counter(name for one in squares if one.word == "another limit" for name in one.broken)
        named = ", ".join(f"{name} at {count}" for name, count in others.most_common())
        said = (
            f"- `{control}` ({SHOWN[control]}), of {len(squares)} settings: "
            f"it pays at {words.count('pays')}, harms P99 at {words.count('harms')}, "
            f"breaks only another limit at {words.count('another limit')}"
            f"{f' ({named})' if named else ''}. Nothing is settled at {words.count('open')}, nor for want of "
            f"packets at {words.count('few packets')}. P99 is not judged at {few} in all, "
            f"and lower by its mean at {lower}."
        )
        lines += textwrap.wrap(said, **WRAPPED)
    return lines


def _shown(runs: pl.DataFrame, places: Mapping[Setting, Place]) -> list[str]:
    """Return the controls of the map that were run."""
    return [control for control in controls_run(runs, list(places.values())) if control in SHOWN]


def _cells(runs: pl.DataFrame, place: Place, control: str, one: Square) -> list[str]:
    moved = list(by_seed(runs, place, control, MOVED).values())
    share = f"{sum(moved) / len(moved) * 100:.0f}" if moved else NONE
    return [percent(one.change), share, _settled(one)]


def _settled(one: Square) -> str:
    """Return what is settled, and whether P99 was not judged."""
    said = f"harms: {', '.join(one.broken)}" if one.broken else "pays" if one.word == "pays" else "no"
    return f"{said}; P99 not judged" if one.found.few_packets else said


def _setting(run: dict[str, Any]) -> Setting:
    attributes = run["bottlenecks"][0]["disc"]["attributes"]
    return Setting(
        step_ms=float(attributes["LStep"].removesuffix("ms")),
        coupling=float(attributes["CouplingFactor"]),
        l4s_share=round(1 - float(attributes["CWeight"]), 3),
    )


def default_ms(runs: pl.DataFrame, place: Place) -> float:
    """Return the mean P99 wait under default marking, ms."""
    waits = list(by_seed(runs, place, "default", QUEUEING_P99).values())
    return sum(waits) / len(waits) * MS
