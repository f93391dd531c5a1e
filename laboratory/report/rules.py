"""Rules of the controller side by side: which of a packet's forecasts in both queues is compared.

Each point of a scenario `rules-*` has a model that gives another latency: the mean, or a quantile.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from laboratory.report.comparison import (
    NOT_SETTLED,
    Place,
    by_seed,
    change_of,
    percent,
    places,
    rests_on,
)
from laboratory.report.judging import FEWEST_PACKETS, FEWEST_SEEDS, SETTLED
from laboratory.report.measures import (
    CHOICE_RIGHT,
    MOVED,
    QUEUEING_MAX,
    QUEUEING_P99,
    QUEUEING_P999,
    REGRET,
    TAILS,
    Measure,
)
from laboratory.report.tables import NONE, cell, head_of, row_of, sample
from models.scoring.intervals import Estimate, corrected, paired_change

PREFIX: Final = "rules-"
TODAY: Final = "mean"  # the point that the others are compared with
FIGURES: Final = (QUEUEING_P99, QUEUEING_P999, QUEUEING_MAX, MOVED, CHOICE_RIGHT, REGRET)
ASKED: Final = (QUEUEING_P99, REGRET)


def ruled(runs: pl.DataFrame) -> list[str]:
    """Return a table for each place: each rule's figures, and its changes against today's rule."""
    here = runs.filter(pl.col("scenario").str.starts_with(PREFIX))
    settled = _settled(here)
    titles = [f"{m.title.removeprefix('queueing ')}, {m.unit}" for m in FIGURES]
    changes = [f"{m.title.removeprefix('queueing ')} against `{TODAY}`" for m in ASKED]
    lines: list[str] = []
    for scenario, profile in dict.fromkeys((p.scenario, p.profile) for p in places(here)):
        points = _rules(here, scenario, profile)
        if not points:
            continue
        lines += ["", f"**{scenario.removeprefix(PREFIX)}, `{profile}`** ({sample(here, *points)})", ""]
        lines += head_of(["rule", "P99 against default", *titles, *changes])
        default = [cell(here, points[0], "default", measure).text for measure in FIGURES]
        lines.append(row_of(["`default`", NONE, *default, *[NONE] * len(ASKED)]))
        for place in points:
            found = change_of(here, place, "model", QUEUEING_P99)
            figures = [cell(here, place, "model", measure).text for measure in FIGURES]
            against = [_against(here, place, measure, settled) for measure in ASKED]
            lines.append(row_of([place.point, percent(found) if found else NONE, *figures, *against]))
    return lines[1:] or ["Not run."]


def against_today(runs: pl.DataFrame, place: Place, measure: Measure) -> Estimate | None:
    """Return the change from today's rule to a place's; None of today's itself, or of what was not run."""
    if place.point == TODAY:
        return None
    ours, today = (by_seed(runs, each, "model", measure) for each in (place, place._replace(point=TODAY)))
    return paired_change(ours, today)


def _settled(runs: pl.DataFrame) -> set[tuple[Place, Measure]]:
    """What is settled not to be zero, corrected (Holm) for all that is asked of all places together."""
    asked = {
        (place, measure): found
        for place in places(runs)
        for measure in ASKED
        if (found := against_today(runs, place, measure)) and _can_be(runs, place, measure, found)
    }
    chances = corrected([2 * each.chance(0, below=each.mean < 0) for each in asked.values()])  # two-sided
    return {key for key, chance in zip(asked, chances, strict=True) if chance < SETTLED}


def _can_be(runs: pl.DataFrame, place: Place, measure: Measure, found: Estimate) -> bool:
    """Whether so many seeds, and packets that a quantile rests on, could settle it."""
    enough = measure not in TAILS or (rests_on(runs, place, measure) or 0) >= FEWEST_PACKETS
    return enough and found.n >= FEWEST_SEEDS


def _against(runs: pl.DataFrame, place: Place, measure: Measure, settled: set[tuple[Place, Measure]]) -> str:
    found = against_today(runs, place, measure)
    if found is None:
        return NONE
    if (place, measure) in settled:
        return f"**{percent(found)}**"
    why = NOT_SETTLED if _can_be(runs, place, measure, found) else "too few to judge"
    return f"{percent(found)}, {why}"


def _rules(runs: pl.DataFrame, scenario: str, profile: str) -> list[Place]:
    """Places with a rule that was run, today's first, then by level."""
    here = [p for p in places(runs) if (p.scenario, p.profile) == (scenario, profile)]
    ran = [place for place in here if by_seed(runs, place, "model", QUEUEING_P99)]
    return sorted(ran, key=lambda place: (place.point != TODAY, place.point))
