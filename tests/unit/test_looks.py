"""Planned looks: further seeds until a change is settled, with the false alarms of one test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from lab_rows import NO_NOISE, run_row, table

from swiftqueue.laboratory.report.comparison import Place
from swiftqueue.laboratory.report.judging import SETTLED
from swiftqueue.laboratory.report.looks import keep, load, looked, planned, said, settled_at, settled_places
from swiftqueue.laboratory.runs.results import SCHEMA

SEEDS = 20
SPREAD = 0.3  # of the logarithm, from seed to seed


def test_looks_are_planned_from_the_fewest_seeds_to_all() -> None:
    assert planned(5) == [5]
    assert planned(20) == [5, 8, 12, 18, 20]
    with pytest.raises(
        ValueError, match=r"^--until-settled: 4 seeds settle nothing; give --seeds 5 or more$"
    ):
        planned(4)


def drawn(rng: np.random.Generator, ratio: float) -> tuple[dict[int, float], dict[int, float]]:
    """A control and default marking, by seed: what they have in common, and a ratio that varies."""
    common = rng.lognormal(0, 1, SEEDS)
    ours = common * ratio * rng.lognormal(0, SPREAD, SEEDS)
    return dict(enumerate(ours)), dict(enumerate(common))


@pytest.mark.slow
def test_where_nothing_changes_false_alarms_stay_below_the_level() -> None:
    """Looking five times without the correction, more than twice as many are wrong."""
    rng, looks, draws = np.random.default_rng(18), planned(SEEDS), 600
    nulls = [drawn(rng, 1) for _ in range(draws)]
    alarms = sum(settled_at(*null, looks, len(looks)) is not None for null in nulls)
    uncorrected = sum(settled_at(*null, looks, 1) is not None for null in nulls)
    assert alarms / draws <= SETTLED
    assert uncorrected / draws > 2 * SETTLED


def test_a_large_change_is_settled_at_the_first_look_and_a_small_one_later() -> None:
    rng, looks = np.random.default_rng(1), planned(SEEDS)
    at = {
        ratio: [settled_at(*drawn(rng, ratio), looks, len(looks)) for _ in range(100)] for ratio in (5, 0.7)
    }
    assert at[5].count(5) >= 95
    later = [look for look in at[0.7] if look]
    assert len(later) > 50
    assert np.mean(later) > 8


def test_places_are_asked_together(tmp_path: Path) -> None:
    rows = [
        run_row(control, seed, 10_000 * part * noise, scenario="mine", point=point, at=at)
        for at, (point, parts) in enumerate({"gain": (1, 0.5), "none": (1, 1)}.items())
        for seed, noise in enumerate(NO_NOISE, 1)
        for control, part, noise in (("default", parts[0], 1.0), ("model", parts[1], 1 + 2 * (noise - 1)))
    ]
    found = looked(table(rows), "mine", planned(5))
    assert [(row["point"], row["settled_at"], row["seeds"]) for row in found] == [
        ("gain", 5, 5),
        ("none", None, 5),
    ]
    assert settled_places(found) == {Place("mine", "gain", "uncoupled")}
    assert said(found)[0] == "mine gain uncoupled, model: P99 -50.0 %, settled at 5 seeds"
    assert said(found)[1].endswith("not settled by 5 seeds")
    few = table(rows).with_columns(queueing_packets=pl.lit(9_999.0))  # too few for P99
    unjudged = looked(few, "mine", planned(5))
    assert {(row["chance"], row["settled_at"]) for row in unjudged} == {(None, None)}
    assert len(settled_places(unjudged)) == 2  # further seeds would be in vain
    assert said(unjudged)[1].endswith("fewer than 100 packets of a run: more --seconds are needed")
    keep(tmp_path, found)
    keep(tmp_path, found[:1])
    assert load(tmp_path)["settled_at"].to_list() == [5]
    assert looked(table([]).select(list(SCHEMA)), "mine", planned(5)) == []
