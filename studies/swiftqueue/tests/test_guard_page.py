"""The guard's tables: what the model changes without it and with it, and what is settled harm."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import polars as pl
from guard_binding import MOST_ADVANTAGE, MOST_GROWTH
from lab_rows import NO_NOISE, run_row

from swiftqueue.laboratory.report.changes import along_axis, harm, in_places
from swiftqueue.laboratory.report.comparison import Place
from swiftqueue.laboratory.runs.resolve import GUARD, Model, control_of
from swiftqueue.laboratory.runs.results import SCHEMA
from swiftqueue.laboratory.scenarios.files import environment_at, load, names, path_of
from swiftqueue.serving.agent.bindings.controller import ControllerParams
from swiftqueue.studies.swiftqueue.guard import PLACES, SHIPPED, kept


def rows(off: float, on: float, seeds: int = 5, packets: float = 1e6, **figures: Any) -> pl.DataFrame:
    """Figure 8 where the model's P99 is such a part of default's, without the guard and with it."""
    found = []
    for point, part in (("off", off), ("on", on)):
        for seed, noise in enumerate(NO_NOISE[:seeds], 101):
            place: dict[str, Any] = {"scenario": "shipped-guard-figure8", "point": point, "packets": packets}
            place["queueing_p999_us"] = 20_000.0
            found.append(run_row("default", seed, 10_000.0, **place))
            found.append(run_row("model", seed, 10_000.0 * part * noise, **place, **figures))
    return pl.DataFrame(found, schema=SCHEMA)


def at(point: str) -> Place:
    return Place("shipped-guard-figure8", point, "uncoupled")


def test_what_is_kept_is_the_ratio_of_the_gains() -> None:
    assert kept(rows(off=0.6, on=0.7))[-1].endswith("| 75 % | 80 % or more | 5 |")
    assert kept(rows(off=1.2, on=1.0))[-1].endswith("| – | 80 % or more | 5 |")
    assert kept(rows(off=0.6, on=0.7).filter(pl.col("point") == "off")) == ["Not run."]


def test_harm_is_named_where_it_is_settled() -> None:
    runs = rows(off=1.5, on=1.0)
    assert (harm(runs, at("off")), harm(runs, at("on"))) == ("P99", "none")
    assert harm(rows(off=0.6, on=0.6, classic_share=0.05), at("on")) == "classic share"
    assert harm(rows(off=1.5, on=1.0, seeds=3), at("off")) == "3 of 5 seeds"


def test_what_is_not_judged_is_said() -> None:
    """P99 asks for 10,000 packets of each run, P99.9 for ten times as many."""
    few = rows(off=1.5, on=1.0, packets=99_999)
    assert (harm(few, at("off")), harm(few, at("on"))) == ("P99; P99.9 unjudged", "none; P99.9 unjudged")
    fewer = rows(off=1.5, on=1.0, packets=9_999)
    assert harm(fewer, at("off")) == "none; P99, P99.9, RTT P99 unjudged"


def test_the_sample_is_that_of_the_place_with_the_fewest_packets() -> None:
    runs = rows(off=0.6, on=0.7).with_columns(
        packets=pl.when(pl.col("point") == "on").then(20_000.0).otherwise(pl.col("packets"))
    )
    assert along_axis(runs, SHIPPED, "guard")[0] == (
        "**figure8** (5 seeds; of a run, P99 rests on 200 packets or more, P99.9 on 20, the longest on one)"
    )


def test_the_table_has_both_points_side_by_side() -> None:
    lines = along_axis(rows(off=0.6, on=0.7), SHIPPED, "guard")
    assert [line.split(" | ")[1] for line in lines if line.startswith("| `uncoupled`")] == ["off", "on"] * 2
    assert along_axis(rows(off=0.6, on=0.7).filter(pl.col("control") == "default"), SHIPPED, "guard") == [
        "Not run."
    ]
    assert along_axis(rows(off=0.6, on=0.7), "other-", "guard") == ["Not run."]


def test_places_have_one_row_each_and_a_table_for_each_scenario() -> None:
    runs = rows(off=1.5, on=0.8).with_columns(
        scenario=pl.concat_str(pl.lit("guarded-"), pl.col("point")), point=pl.lit("here")
    )
    lines = in_places(runs, PLACES)
    assert [line.split(" (")[0] for line in lines if line.startswith("**")] == [
        "**guarded-off**",
        "**guarded-on**",
    ]
    found = [line.split(" | ") for line in lines if line.startswith("| `uncoupled`")]
    assert [(row[1], row[4].split(" (")[0], row[-1]) for row in found] == [
        ("here", "+50.0 %", "P99 |"),
        ("here", "-20.0 %", "none |"),
    ]
    assert in_places(rows(off=1.5, on=0.8), PLACES) == ["Not run."]
    said = "- Of the other limits (longest wait, cross traffic, messages), where judged, "
    assert [line for line in lines if line.startswith(said)] == [f"{said}none is settled to be broken."] * 2


def test_a_limit_that_is_not_asked_of_the_guard_is_named_where_it_is_broken() -> None:
    half = pl.when(pl.col("control") == "model", pl.col("point") == "off").then(0.5).otherwise(1)
    noise = 1e7 + 1e5 * pl.col("seed") * half
    runs = rows(off=1.0, on=1.0).with_columns(scenario=pl.lit("guarded-all"), cross_goodput_bps=half * noise)
    said = " ".join(" ".join(in_places(runs, PLACES)).split())
    assert "settled to be broken: off under `uncoupled` (cross traffic's goodput)." in said


def test_the_guard_is_judged_as_the_agent_ships_it() -> None:
    """Without the guard a run is the one that was published before there was one."""
    ships = ControllerParams()
    shipped = {**GUARD, "max_moved_share": ships.max_moved_share}
    assert (GUARD["guard_growth"], GUARD["guard_advantage"]) == (MOST_GROWTH, MOST_ADVANTAGE)
    off = control_of(load(path_of("figure8")).environment, "model", model=Model(Path(), ""), share=0)
    assert not set(shipped) & set(off)
    for prefix in ("shipped-guard-*", "guarded-*"):
        for name in fnmatch.filter(names(), prefix):
            scenario = load(path_of(name))
            points = ["", *(scenario.axis.points if scenario.axis else ())]
            environment = environment_at(scenario, points[-1], name)
            on = control_of(environment, "model", model=Model(Path(), ""), share=0)
            assert {key: value for key, value in on.items() if key not in off} == shipped
            assert (on["max_moved_unacked"], on["margin_us"], on["margin_share"]) == (
                ships.max_moved_unacked,
                ships.margin_us,
                ships.margin_share,
            )
