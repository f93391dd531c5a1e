"""Planned looks: a place gets further seeds only until what is asked there is settled.

Who looks again and again, and stops at the first look that settles something, is wrong more often than one
who looks once. So the looks are planned before the first run, each is tested at the level divided by their
number and by the number of places (Bonferroni): over all of them a false alarm stays below the level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from swiftqueue.common.atomic import new_file
from swiftqueue.laboratory.report.comparison import FEW_PACKETS, Place, by_seed, compare, places
from swiftqueue.laboratory.report.judging import FEWEST_SEEDS, SETTLED
from swiftqueue.laboratory.report.measures import QUEUEING_P99
from swiftqueue.laboratory.runs.results import COMPLETE, kept_table
from swiftqueue.models.scoring.intervals import paired_change

FILE: Final = "looks.parquet"
GROWTH: Final = 1.5  # factor of the number of seeds from one look to the next
SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "scenario": pl.String,
    "point": pl.String,
    "profile": pl.String,
    "control": pl.String,
    "looks": pl.List(pl.Int64),  # planned, in seeds
    "places": pl.Int64,  # places that were asked together
    "seeds": pl.Int64,  # seeds that were run
    "change": pl.Float64,  # change of P99 against default
    "chance": pl.Float64,  # chance at the last look, corrected for looks and places; null: too few packets
    "settled_at": pl.Int64,  # seeds at the look that settled it; null where none did
}
By = Mapping[int, float]


def planned(seeds: int) -> list[int]:
    """Return after how many seeds one looks, where there are so many.

    Raises:
        ValueError: there are too few to settle anything.
    """
    if seeds < FEWEST_SEEDS:
        raise ValueError(
            f"--until-settled: {seeds} seeds settle nothing; give --seeds {FEWEST_SEEDS} or more"
        )
    looks = [FEWEST_SEEDS]
    while looks[-1] < seeds:
        looks.append(min(seeds, math.ceil(looks[-1] * GROWTH)))
    return looks


def chance_of(ours: By, base: By, asked: int) -> float:
    """Return the two-sided chance of such a change if there were none, times the number of questions.

    Args:
        ours: a measure of the control by seed.
        base: the measure under default marking, by seed.
        asked: how many looks and places it is corrected for, as their product.
    """
    change = paired_change(ours, base)
    if change is None or change.n < FEWEST_SEEDS:
        return 1.0
    return min(1.0, asked * 2 * change.chance(0, below=change.mean < 0))


def settled_at(ours: By, base: By, looks: Sequence[int], asked: int) -> int | None:
    """Return the seeds at the first look that settles a change; None where none does."""
    seeds = sorted(set(ours) & set(base))
    for look in looks:
        if look > len(seeds):
            break
        first = set(seeds[:look])
        if chance_of({s: ours[s] for s in first}, {s: base[s] for s in first}, asked) < SETTLED:
            return look
    return None


def controls_of(runs: pl.DataFrame, place: Place) -> list[str]:
    """Return the controls that are judged at a place: the model, or without it every one but `default`."""
    here = runs.filter(
        pl.col("status") == COMPLETE,
        pl.col("scenario") == place.scenario,
        pl.col("point") == place.point,
        pl.col("profile") == place.profile,
    )
    found = sorted(set(here["control"]) - {"default"})
    return ["model"] if "model" in found else found


def looked(runs: pl.DataFrame, scenario: str, looks: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each place of a scenario and control that is asked there."""
    at = [place for place in places(runs) if place.scenario == scenario]
    rows = []
    for place in at:
        base = by_seed(runs, place, "default", QUEUEING_P99)
        for control in controls_of(runs, place):
            ours = by_seed(runs, place, control, QUEUEING_P99)
            found = compare(runs, place, control)
            is_judged = found is None or not found.few_packets
            asked = len(looks) * len(at) * len(controls_of(runs, place))
            rows.append(
                {
                    "scenario": place.scenario,
                    "point": place.point,
                    "profile": place.profile,
                    "control": control,
                    "looks": list(looks),
                    "places": len(at),
                    "seeds": len(set(ours) & set(base)),
                    "change": found.queueing.mean if found else None,
                    "chance": chance_of(ours, base, asked) if is_judged else None,
                    "settled_at": settled_at(ours, base, looks, asked) if is_judged else None,
                }
            )
    return rows


def settled_places(rows: Sequence[Mapping[str, Any]]) -> set[Place]:
    """Return the places that get no further seeds: all is settled, or rests on too few packets."""
    at = {Place(row["scenario"], row["point"], row["profile"]) for row in rows}
    still = {
        Place(row["scenario"], row["point"], row["profile"])
        for row in rows
        if row["settled_at"] is None and row["chance"] is not None
    }
    return at - still


def load(output: Path) -> pl.DataFrame:
    """Return what was looked at in an output folder; nothing yet is an empty table.

    Raises:
        ValueError: the file is damaged, or another version of this project made it.
    """
    return kept_table(output / FILE, SCHEMA, "swiftqueue lab run --until-settled")


def keep(output: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put the rows in the place of those of the same scenarios."""
    new = pl.DataFrame([dict(row) for row in rows], schema=SCHEMA)
    old = load(output).filter(~pl.col("scenario").is_in(new["scenario"].unique().to_list()))
    with new_file(output / FILE) as partial:
        pl.concat([old, new]).write_parquet(partial, compression="zstd")


def said(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each row: at how many seeds it was settled, or what would settle it."""
    lines = []
    for row in rows:
        where = " ".join(part for part in (row["scenario"], row["point"], row["profile"]) if part)
        at = row["settled_at"]
        how = f"settled at {at} seeds" if at else f"not settled by {row['seeds']} seeds"
        if row["chance"] is None:
            how = f"which {FEW_PACKETS} of a run: more --seconds are needed"
        change = "not measured" if row["change"] is None else f"P99 {row['change'] * 100:+.1f} %"
        lines.append(f"{where}, {row['control']}: {change}, {how}")
    return lines
