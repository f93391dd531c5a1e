"""The table of the controller's rules: each against today's, and what is settled."""

from __future__ import annotations

from typing import Any

import polars as pl
from lab_rows import NO_NOISE, run_row

from laboratory.report.comparison import Place
from laboratory.report.measures import QUEUEING_P99
from laboratory.report.rules import against_today, ruled
from laboratory.runs.results import SCHEMA


def rows(seeds: int = 5, packets: float = 20_000, **rules: float) -> pl.DataFrame:
    """A scenario where each rule's P99 is such a part of default's 10 ms; it moves twice that."""
    found: list[dict[str, Any]] = []
    for seed in range(seeds):
        noise = NO_NOISE[seed]
        for point, part in rules.items():
            place: dict[str, Any] = {"scenario": "rules-figure8", "point": point, "packets": packets}
            wiggle = 1 + 0.002 * ((seed * 7 + len(point)) % 5)
            found.append(run_row("default", seed, 10_000 * noise, **place))
            found.append(
                run_row(
                    "model",
                    seed,
                    10_000 * part * noise * wiggle,
                    queueing_p999_us=20_000.0,
                    choice_regret_mean_us=1_000 * part * wiggle,
                    **place,
                )
            )
    return pl.DataFrame(found, schema=SCHEMA)


def test_each_rule_stands_beside_todays_and_what_is_settled_is_bold() -> None:
    lines = ruled(rows(mean=0.8, median=0.8, low=0.5, high=1.2))
    table = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
    assert list(table) == ["rule", "`default`", "mean", "high", "low", "median"]
    assert "10.00" in table["`default`"]
    assert table["mean"].endswith("| – | – |")
    assert table["low"].count("**-37") == 2
    assert table["high"].count("**+5") + table["high"].count("**+49") == 2
    assert table["median"].count("not settled") == 2
    assert ruled(rows().clear()) == ["Not run."]


def test_few_seeds_settle_nothing_and_few_packets_are_not_judged() -> None:
    few = rows(4, mean=0.8, low=0.5)
    assert "".join(ruled(few)).count("too few to judge") == 2
    assert "**" not in "".join(ruled(few)[2:])
    [row] = [line for line in ruled(rows(packets=9_000, mean=0.8, low=0.5)) if line.startswith("| low")]
    assert row.count("too few to judge") == 1  # P99 rests on 90 packets; regret on all
    assert row.count("**") == 2
    place = Place("rules-figure8", "low", "uncoupled")
    change = against_today(few, place, QUEUEING_P99)
    assert change is not None
    assert (round(change.mean, 2), change.n) == (-0.37, 4)
    assert against_today(few, place._replace(point="mean"), QUEUEING_P99) is None
