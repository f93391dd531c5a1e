"""A figure to reach beside what was measured.

A figure is one value for each seed, so its interval is Student's over seeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.laboratory.report.judging import FEWEST_SEEDS
from swiftqueue.laboratory.runs import experience
from swiftqueue.models.scoring.intervals import Estimate, estimate

HELD: Final = "held"
NOT_HELD: Final = "not held"
NOT_SETTLED: Final = "not settled"
Values = dict[int, float]  # by seed


@dataclass(frozen=True)
class Verdict:
    """A figure to reach; `measured` is None, with the reason, where nothing was measured."""

    figure: str
    at_most: float | None
    measured: float | None
    low: float | None
    high: float | None
    seeds: int
    verdict: str
    reason: str | None = None
    at_least: float | None = None  # where `at_most` is None


def judged(
    figure: str,
    values: Sequence[float],
    at_most: float | None = None,
    reason: str | None = None,
    *,
    at_least: float | None = None,
) -> Verdict:
    """Judge a figure: held where the whole interval is within the limit, not held where all is beyond."""
    if at_most is None:
        if at_least is None:
            raise ValueError(f"{figure}: there is no limit")
        turned = judged(figure, [-value for value in values], -at_least, reason)
        mean, low, high = (None if x is None else -x for x in (turned.measured, turned.high, turned.low))
        return replace(turned, at_most=None, at_least=at_least, measured=mean, low=low, high=high)
    found: Estimate | None = estimate([value for value in values if math.isfinite(value)])
    if found is None:
        return Verdict(figure, at_most, None, None, None, 0, NOT_SETTLED, reason or "not run")
    if found.n < FEWEST_SEEDS:
        verdict, reason = NOT_SETTLED, f"fewer than {FEWEST_SEEDS} seeds"
    elif found.high is not None and found.high <= at_most:
        verdict = HELD
    else:
        verdict = NOT_HELD if found.above(at_most) else NOT_SETTLED
    return Verdict(figure, at_most, found.mean, found.low, found.high, found.n, verdict, reason)


def ratio(figure: str, ours: Values, base: Values, at_most: float, note: str | None = None) -> Verdict:
    """Judge ours over the base, by the seeds that both have, against a limit; two zeros have no ratio."""
    seeds = sorted(set(ours) & set(base))
    values = [ours[seed] / base[seed] for seed in seeds if base[seed] > 0]
    if worse := [seed for seed in seeds if base[seed] <= 0 < ours[seed]]:
        return judged(figure, [], at_most, f"no ratio: ours is above a base of 0 (seed {worse[0]})")
    if seeds and not values:
        note = "nothing to be less than: it is 0 there"
    return judged(figure, values, at_most, note)


def at(table: pl.DataFrame, point: str, column: str) -> Values:
    """Return a column of a point's runs, by seed."""
    return dict(table.filter(pl.col("point") == point).select("seed", column).drop_nulls().iter_rows())


Judge = Callable[[pl.DataFrame], list[Verdict]]
Judges = Mapping[str, tuple[str, Judge]]
"""The table that each scenario is judged by, a file of `laboratory/runs/experience.py`, and the judge."""


def judge_scenario(name: str, judges: Judges, output: Path) -> list[Verdict]:
    """Return all verdicts on a scenario's runs in an output folder.

    Raises:
        ValueError: there is nothing to be judged in this scenario, or no result of it.
    """
    if name not in judges:
        raise ValueError(f"{name}: no figure is to be reached in it, but in {', '.join(judges)}")
    file, judge = judges[name]
    table = experience.load(output, file).filter(pl.col("scenario") == name)
    if table.is_empty():
        raise ValueError(f"{output} has no results of {name}: `swiftqueue lab run {name}` makes them")
    return judge(table)


def print_verdicts(found: Sequence[Verdict], *, as_json: bool) -> int:
    """Print them, a line or a JSON object each; 1 where one is not held, else 0."""
    if as_json:
        print(json.dumps([asdict(verdict) for verdict in found], indent=1))
    else:
        for v in found:
            wanted = f"at least {v.at_least:g}" if v.at_most is None else f"at most {v.at_most:g}"
            print(f"{v.figure}: {wanted}; {_measured(v)}: {v.verdict}")
    return int(any(v.verdict == NOT_HELD for v in found))


def _measured(v: Verdict) -> str:
    if v.measured is None:
        return v.reason or "not measured"
    interval = "" if v.low is None or v.high is None else f" ({v.low:.3g} to {v.high:.3g})"
    seeds = f", {v.seeds} seeds" if v.seeds else ""
    return f"measured {v.measured:.3g}{interval}{seeds}" + (f", {v.reason}" if v.reason else "")
