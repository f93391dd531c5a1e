"""The table of a head that is tuned during a run, beside one that is not."""

from __future__ import annotations

from typing import Any

import polars as pl
from lab_rows import NO_NOISE, run_row

from laboratory.report.heads import NEVER, SCENARIO, TUNED, tuned
from laboratory.runs.results import SCHEMA


def rows(part: float, seeds: int = 5) -> pl.DataFrame:
    """Runs whose P99 with the tuned head is such a part of that with the other."""
    found = []
    for seed, noise in enumerate(NO_NOISE[:seeds], 101):
        for point, model in ((NEVER.point, 8_000.0), (TUNED.point, 8_000.0 * part * noise)):
            place: dict[str, Any] = {"scenario": SCENARIO, "point": point, "packets": 1e6}
            found.append(run_row("default", seed, 10_000.0, **place))
            found.append(run_row("model", seed, model, **place))
    return pl.DataFrame(found, schema=SCHEMA)


def test_each_measure_has_both_heads_and_what_is_settled_is_said() -> None:
    p99 = next(line for line in tuned(rows(0.75)) if line.startswith("| queueing P99, ms"))
    assert p99.startswith("| queueing P99, ms | 10.00 | 8.00 | 6.00 | -25.0 % (")
    assert p99.endswith("| yes |")
    goodput = next(line for line in tuned(rows(0.75)) if line.startswith("| S1 goodput"))
    assert goodput.endswith("| no |")


def test_four_seeds_settle_nothing() -> None:
    assert tuned(rows(0.75, seeds=4)) == ["Not run."]
    assert tuned(rows(0.75).filter(pl.col("control") == "default")) == ["Not run."]
