"""Forms of the model side by side, each beside the one that it would take the place of.

Each point of a scenario `rules-*` has a model that gives another latency, the mean or a quantile, or all
quantiles and a rule on a probability. Those of `figure8-finetuned` have one whose head is tuned during the
run, or not.
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
MEAN: Final = "mean"  # the point that the others are compared with
TUNED: Final = "figure8-finetuned"
NEVER: Final = "never"
FIGURES: Final = (QUEUEING_P99, QUEUEING_P999, QUEUEING_MAX, MOVED, CHOICE_RIGHT, REGRET)
ASKED: Final = (QUEUEING_P99, REGRET)


def ruled(runs: pl.DataFrame, prefix: str = PREFIX, today: str = MEAN, axis: str = "rule") -> list[str]:
    """Return a table for each place: each point's figures, and its changes against today's."""
    here = runs.filter(pl.col("scenario").str.starts_with(prefix))
    settled = _settled(here, today)
    titles = [f"{m.title.removeprefix('queueing ')}, {m.unit}" for m in FIGURES]
    changes = [f"{m.title.removeprefix('queueing ')} from `{today}`" for m in ASKED]
    lines: list[str] = []
    for scenario, profile in dict.fromkeys((p.scenario, p.profile) for p in places(here)):
        points = _points(here, scenario, profile, today)
        if not points:
            continue
        lines += [
            "",
            f"**{scenario.removeprefix(prefix) or scenario}, `{profile}`** ({sample(here, *points)})",
            "",
        ]
        lines += head_of([axis, "P99 against default", *titles, *changes])
        default = [cell(here, points[0], "default", measure).text for measure in FIGURES]
        lines.append(row_of(["`default`", NONE, *default, *[NONE] * len(ASKED)]))
        for place in points:
            found = change_of(here, place, "model", QUEUEING_P99)
            figures = [cell(here, place, "model", measure).text for measure in FIGURES]
            against = [_against(here, place, measure, today, settled) for measure in ASKED]
            lines.append(row_of([place.point, percent(found) if found else NONE, *figures, *against]))
    return lines[1:] or ["Not run."]


def against_today(runs: pl.DataFrame, place: Place, measure: Measure, today: str = MEAN) -> Estimate | None:
    """Return the change from today's point to a place's; None of today's itself, or of what was not run."""
    if place.point == today:
        return None
    ours, base = (by_seed(runs, each, "model", measure) for each in (place, place._replace(point=today)))
    return paired_change(ours, base)


def _settled(runs: pl.DataFrame, today: str) -> set[tuple[Place, Measure]]:
    """What is settled not to be zero, corrected (Holm) for all that is asked of all places together."""
    asked = {
        (place, measure): found
        for place in places(runs)
        for measure in ASKED
        if (found := against_today(runs, place, measure, today)) and _can_be(runs, place, measure, found)
    }
    chances = corrected([2 * each.chance(0, below=each.mean < 0) for each in asked.values()])  # two-sided
    return {key for key, chance in zip(asked, chances, strict=True) if chance < SETTLED}


def _can_be(runs: pl.DataFrame, place: Place, measure: Measure, found: Estimate) -> bool:
    """Whether so many seeds, and packets that a quantile rests on, could settle it."""
    enough = measure not in TAILS or (rests_on(runs, place, measure) or 0) >= FEWEST_PACKETS
    return enough and found.n >= FEWEST_SEEDS


def _against(
    runs: pl.DataFrame, place: Place, measure: Measure, today: str, settled: set[tuple[Place, Measure]]
) -> str:
    found = against_today(runs, place, measure, today)
    if found is None:
        return NONE
    if (place, measure) in settled:
        return f"**{percent(found)}**"
    why = NOT_SETTLED if _can_be(runs, place, measure, found) else "too few to judge"
    return f"{percent(found)} {why}"


def _points(runs: pl.DataFrame, scenario: str, profile: str, today: str) -> list[Place]:
    """Points that were run, today's first, then by name."""
    here = [p for p in places(runs) if (p.scenario, p.profile) == (scenario, profile)]
    ran = [place for place in here if by_seed(runs, place, "model", QUEUEING_P99)]
    return sorted(ran, key=lambda place: (place.point != today, place.point))
