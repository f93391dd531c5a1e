"""The figures to reach, each with what was wanted, what was measured, and whether it holds.

A target holds where the whole 95 % interval over seeds is on its right side, does not where the whole
interval is on the other, and is not settled in between.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import polars as pl

from swiftqueue.laboratory.report.comparison import (
    NOT_SETTLED,
    Place,
    by_seed,
    change_of,
    other_shares,
    percent,
    places,
    same_share,
    share,
    times,
)
from swiftqueue.laboratory.report.judging import (
    FEWEST_SEEDS,
    JUDGED,
    LEAST_CLASSIC_SHARE,
    LEAST_GOODPUT,
    LEAST_P99_FALL,
    LONG_S,
    MANY_FLOWS,
    MOST_CPU,
    MOST_CPU_S,
    MOST_RTT_CHANGE,
    NO_HARM,
    ORACLE_PART,
)
from swiftqueue.laboratory.report.measures import (
    CLASSIC_SHARE,
    CPU,
    QUEUEING_P99,
    RTT_P99,
    S1_GOODPUT,
    Measure,
)
from swiftqueue.laboratory.runs.results import COMPLETE
from swiftqueue.models.scoring.intervals import Estimate, estimate

HELD: Final = "held"
NOT_HELD: Final = "not held"
NOT_RUN: Final = "not run"

Holds = Callable[[float, float], bool]


@dataclass(frozen=True)
class Target:
    """A figure to reach."""

    place: Place
    wanted: str
    measured: str
    oracle: str  # how far the oracle got
    seeds: int
    verdict: str
    counts: bool  # whether the runs are long and many enough

    @property
    def is_beside(self) -> bool:
        """Return whether it was run, but not as the target asks."""
        return self.verdict != NOT_RUN and not self.counts

    @property
    def said(self) -> str:
        """Return the verdict as it stands in a table."""
        return f"does not count ({self.verdict})" if self.is_beside else self.verdict

    @property
    def kind(self) -> str:
        """Return the colour of the verdict."""
        colours = {HELD: "helps", NOT_HELD: "harms"}
        return colours.get(self.verdict, "open") if self.counts else "open"


class _Wanted(NamedTuple):
    """A limit on the change that the model makes of a measure."""

    profile: str
    text: str
    measure: Measure
    holds: Holds
    limit: float
    base: str = "default"


_WANTED: Final = (
    _Wanted(
        "uncoupled",
        f"P99 queueing at least {share(LEAST_P99_FALL, 0)} lower (the paper: 36 to 45 %)",
        QUEUEING_P99,
        operator.le,
        -LEAST_P99_FALL,
    ),
    _Wanted(
        "uncoupled",
        "P99 queueing below random marking's of the same share",
        QUEUEING_P99,
        operator.lt,
        0.0,
        "random",
    ),
    _Wanted(
        "uncoupled",
        f"RTT P99 at most {share(MOST_RTT_CHANGE, 0)} higher",
        RTT_P99,
        operator.le,
        MOST_RTT_CHANGE,
    ),
    _Wanted(
        "uncoupled",
        f"S1's goodput at least {share(LEAST_GOODPUT, 0)} of default's",
        S1_GOODPUT,
        operator.ge,
        LEAST_GOODPUT - 1,
    ),
    _Wanted(
        "uncoupled",
        f"classic flows' share at least {share(LEAST_CLASSIC_SHARE, 0)} of default's",
        CLASSIC_SHARE,
        operator.ge,
        LEAST_CLASSIC_SHARE - 1,
    ),
    _Wanted(
        "rfc9332", f"P99 queueing at most {share(NO_HARM, 0)} higher", QUEUEING_P99, operator.le, NO_HARM
    ),
)


def targets(runs: pl.DataFrame) -> list[Target]:
    """Judge all targets whose scenario is among the results."""
    found = []
    if JUDGED in set(runs["scenario"]):
        found += [_change(runs, wanted) for wanted in _WANTED]
        found.append(_half_the_oracles(runs, Place(JUDGED, "", "rfc9332")))
        found += [_cpu_times(runs, Place(JUDGED, "", profile)) for profile in ("uncoupled", "rfc9332")]
    for place in places(runs):
        if place.scenario == MANY_FLOWS:
            found += [_cpu_of_many(runs, place, control) for control in ("default", "model")]
    return found


def remarks(runs: pl.DataFrame, found: Sequence[Target]) -> list[str]:
    """Say it where something does not count."""
    asked = f"{LONG_S:g} s and at least {FEWEST_SEEDS} seeds"
    said = []
    for profile in sorted({t.place.profile for t in found if t.place.scenario == JUDGED}):
        beside = [t for t in found if t.place == Place(JUDGED, "", profile) and t.is_beside]
        if beside:
            seeds, seconds = min(t.seeds for t in beside), _shortest_s(runs, JUDGED)
            said.append(
                f"{beside[0].place.words()}: runs of {seconds:g} s, {seeds} seed{'' if seeds == 1 else 's'}: "
                f"these figures do not count for the targets, which ask for {asked}."
            )
    judged = Place(JUDGED, "", "uncoupled")
    if by_seed(runs, judged, "model", QUEUEING_P99) and (whose := other_shares(runs, judged)):
        said.append(f"{judged.words()}: random marking that moved {whose} share is left out of the targets.")
    if any(t.is_beside for t in found if t.place.scenario == MANY_FLOWS):
        said.append(f"{MANY_FLOWS}: runs of {_shortest_s(runs, MANY_FLOWS):g} s do not count for its target.")
    return said


def _shortest_s(runs: pl.DataFrame, scenario: str) -> float:
    done = runs.filter(pl.col("scenario") == scenario, pl.col("status") == COMPLETE)
    return float(min(done["seconds"], default=0.0))


def _change(runs: pl.DataFrame, wanted: _Wanted) -> Target:
    place = Place(JUDGED, "", wanted.profile)
    paired = same_share(runs)
    model, oracle = (change_of(paired, place, c, wanted.measure, wanted.base) for c in ("model", "oracle"))
    verdict = _verdict(model, wanted.holds, wanted.limit)
    return _target(runs, place, wanted.text, model, verdict, oracle=oracle)


def _half_the_oracles(runs: pl.DataFrame, place: Place) -> Target:
    """Judge the half of the oracle's gain: seed by seed, how far the model stays behind it."""
    model, oracle = (change_of(runs, place, control, QUEUEING_P99) for control in ("model", "oracle"))
    base, ours, theirs = (by_seed(runs, place, c, QUEUEING_P99) for c in ("default", "model", "oracle"))
    seeds = [seed for seed in sorted(base.keys() & ours.keys() & theirs.keys()) if base[seed] > 0]
    behind = estimate([(ours[s] - base[s] - ORACLE_PART * (theirs[s] - base[s])) / base[s] for s in seeds])
    verdict = _verdict(behind, operator.le, 0.0)
    if behind is not None and oracle is not None and oracle.low is not None:
        if oracle.low >= 0:
            verdict = HELD  # there is no gain to take half of
        elif not oracle.below(0) and verdict == NOT_HELD:
            verdict = NOT_SETTLED  # nor is the gain
    wanted = f"at least {share(ORACLE_PART, 0)} of whatever the oracle takes off P99 queueing"
    judged = _target(runs, place, wanted, model, verdict, oracle=oracle)
    return replace(judged, seeds=len(seeds), counts=judged.counts and len(seeds) >= FEWEST_SEEDS)


def _cpu_times(runs: pl.DataFrame, place: Place) -> Target:
    change = change_of(runs, place, "model", CPU)
    wanted = f"CPU time at most {MOST_CPU:g} times default's"
    return _target(runs, place, wanted, change, _verdict(change, operator.le, MOST_CPU - 1), words=times)


def _cpu_of_many(runs: pl.DataFrame, place: Place, control: str) -> Target:
    """Judge whether every run stays below the limit: the longest decides, and one seed is enough."""
    values = list(by_seed(runs, place, control, CPU).values())
    found = estimate(values)
    longest_s = max(values, default=0.0)
    verdict = NOT_RUN if found is None else HELD if longest_s <= MOST_CPU_S else NOT_HELD
    wanted = f"500 flows, {control}: at most {MOST_CPU_S:g} s of CPU for {LONG_S:g} s"

    def words(cpu_s: Estimate) -> str:
        interval = "" if cpu_s.low is None else f" ({cpu_s.low:,.0f}…{cpu_s.high:,.0f})"
        return f"{cpu_s.mean:,.0f} s{interval}, longest {longest_s:,.0f} s"

    return _target(runs, place, wanted, found, verdict, words=words, fewest=1)


def _target(
    runs: pl.DataFrame,
    place: Place,
    wanted: str,
    value: Estimate | None,
    verdict: str,
    *,
    oracle: Estimate | None = None,
    words: Callable[[Estimate], str] = percent,
    fewest: int = FEWEST_SEEDS,
) -> Target:
    seeds = value.n if value else 0
    return Target(
        place=place,
        wanted=wanted,
        measured=words(value) if value else "–",
        oracle=words(oracle) if oracle else "–",
        seeds=seeds,
        verdict=verdict,
        counts=seeds >= fewest and _shortest_s(runs, place.scenario) >= LONG_S,
    )


def _verdict(value: Estimate | None, holds: Holds, limit: float) -> str:
    if value is None:
        return NOT_RUN
    if value.low is None or value.high is None:
        return NOT_SETTLED
    ends = {holds(value.low, limit), holds(value.high, limit)}
    return NOT_SETTLED if len(ends) == 2 else HELD if ends.pop() else NOT_HELD
