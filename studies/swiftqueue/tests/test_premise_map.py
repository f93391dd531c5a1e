"""The map between the premise and the standard: what a square says, and that its picture has all of them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import polars as pl
from lab_rows import NO_NOISE, run_row

from swiftqueue.laboratory.runs.results import SCHEMA
from swiftqueue.laboratory.scenarios.files import environment_at, load, path_of
from swiftqueue.models.scoring.plot_style import svg
from swiftqueue.studies.swiftqueue.map_picture import premise_map
from swiftqueue.studies.swiftqueue.premise_map import (
    GUARDED,
    SCENARIO,
    Setting,
    counted,
    mapped,
    settings_of,
    square,
)

STEPS, COUPLINGS, WEIGHTS = ("1ms", "5ms"), (0, 2), (0.5, 0.1)


def parameters(step: str, coupling: float, weight: float) -> str:
    attributes = {"LStep": step, "CouplingFactor": str(coupling), "CWeight": str(weight)}
    return json.dumps({"bottlenecks": [{"rate_bps": 100_000_000, "disc": {"attributes": attributes}}]})


def rows(model: float, seeds: int = 5, packets: float = 1e6, **figures: Any) -> pl.DataFrame:
    """All settings; the oracle halves P99 everywhere, the model makes it such a part of default's."""
    found = []
    for step, coupling, weight in itertools.product(STEPS, COUPLINGS, WEIGHTS):
        place: dict[str, Any] = {"scenario": SCENARIO, "point": f"{step} {coupling} {weight}"}
        place["packets"] = packets
        place["parameters"] = parameters(step, coupling, weight)
        for seed, noise in enumerate(NO_NOISE[:seeds], 1):
            found.append(run_row("default", seed, 10_000.0, **place))
            found.append(run_row("oracle", seed, 5_000.0 * noise, **place))
            found.append(run_row("model", seed, 10_000.0 * model * noise, **place, **figures))
    return pl.DataFrame(found, schema=SCHEMA)


def words(runs: pl.DataFrame, control: str) -> set[str]:
    found = [square(runs, place, control) for place in settings_of(runs).values()]
    return {one.word for one in found if one}


def test_a_square_says_what_is_settled() -> None:
    assert words(rows(0.5), "oracle") == {"pays"}
    assert words(rows(1.5), "model") == {"harms"}
    assert words(rows(1.0), "model") == {"open"}
    assert words(rows(0.5, classic_share=0.05), "model") == {"another limit"}
    assert words(rows(1.5, seeds=4), "model") == {"open"}


def test_a_square_of_few_packets_judges_no_p99() -> None:
    few = rows(1.5, packets=9_999)
    assert words(few, "model") == words(few, "oracle") == {"few packets"}
    assert mapped(few)[-1].endswith("| no; P99 not judged |")
    said = " ".join(" ".join(counted(few)).split())
    assert "Nothing is settled at 0, nor for want of packets at 8. P99 is not judged at 8 in all," in said
    longer = rows(1.0, packets=9_999, queueing_max_us=90_000.0).with_columns(
        pl.col("queueing_max_us").fill_null(50_000.0)
    )
    assert words(longer, "model") == {"another limit"}
    assert mapped(longer)[-1].endswith("| harms: the longest wait; P99 not judged |")
    assert "breaks only another limit at 8 (the longest wait at 8)." in " ".join(
        " ".join(counted(longer)).split()
    )
    assert "too few packets to judge P99" in svg(lambda: premise_map(few)).decode()


def test_settings_are_read_from_the_runs() -> None:
    assert set(settings_of(rows(1.0))) == {
        Setting(step_ms, coupling, share)
        for step_ms, coupling, share in itertools.product((1.0, 5.0), (0.0, 2.0), (0.5, 0.9))
    }


def test_the_table_has_a_row_for_each_setting() -> None:
    lines = mapped(rows(1.5))
    assert len([line for line in lines if line.startswith("| 0.")]) == 8
    assert lines[-1].startswith("| 0.9 | 2 | 5 | 10.00 | -50.0 % (")
    assert lines[-1].endswith("| harms: P99 |")
    assert "it pays at 8, harms P99 at 0," in " ".join(counted(rows(1.5)))
    assert mapped(rows(1.0).clear()) == counted(rows(1.0).clear()) == ["Not run."]


def test_the_map_with_the_guard_has_the_controls_that_were_run() -> None:
    runs = rows(1.5).filter(pl.col("control") != "oracle")
    guarded = pl.concat([rows(0.5), runs.with_columns(scenario=pl.lit(GUARDED))])
    [head] = [line for line in mapped(guarded, GUARDED) if line.startswith("| L's share")]
    assert head.endswith("| default P99, ms | model: P99 | model, moved, % | model, settled |")
    said = " ".join(counted(guarded, GUARDED))
    assert "oracle" not in said
    assert "harms P99 at 8" in said
    assert mapped(guarded) == mapped(rows(0.5)), "the other map is as it was"


def test_the_picture_has_a_number_in_each_square() -> None:
    drawn = svg(lambda: premise_map(rows(12.0))).decode()
    assert drawn.count(">-50 %<") == drawn.count(">× 12<") == 8
    assert drawn.count(">of 10 ms<") == 16
    for said in ("P99 falls", "P99 grows", "not settled", "L has 90 % of the link"):
        assert said in drawn


def test_the_map_between_premise_and_standard_is_a_grid() -> None:
    """Its corner is the premise itself: only these three attributes are named, beside the profile's."""
    name = "premise-map"
    scenario = load(path_of(name))
    assert scenario.axis is not None
    found = {}
    for point in scenario.axis.points:
        (link,) = environment_at(scenario, point, name).bottlenecks
        assert link.disc is not None
        assert set(link.disc.texts()) == {"LStep", "CouplingFactor", "CWeight"}
        found[tuple(link.disc.texts().values())] = point
    grid = itertools.product(("1ms", "5ms", "20ms"), ("0", "1", "2"), ("0.5", "0.1"))
    assert set(found) == set(grid)
    assert found["20ms", "0", "0.5"] == "20 ms, k 0, L 50 %"
