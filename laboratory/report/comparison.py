"""Changes against default L4S marking, paired by seed, and the verdict on each: what the tables rest on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import polars as pl

from laboratory.report.intervals import Estimate, paired_change
from laboratory.report.judging import LEAST_CLASSIC_SHARE, LEAST_GOODPUT, MOST_RTT_CHANGE, NO_HARM
from laboratory.report.measures import CLASSIC_SHARE, QUEUEING_P99, RTT_P99, S1_GOODPUT, Measure
from laboratory.runs.results import COMPLETE

NOT_SETTLED: Final = "not settled"


class Place(NamedTuple):
    """Where runs can be compared: same traffic, same queues."""

    scenario: str
    point: str
    profile: str

    def words(self) -> str:
        """Name it in a sentence."""
        return ", ".join(part for part in self if part)


class Cost(NamedTuple):
    """A cost beyond its limit."""

    name: str
    change: Estimate


@dataclass(frozen=True)
class Comparison:
    """Changes of one control against default marking at one place."""

    queueing: Estimate  # relative, of P99
    rtt: Estimate | None
    goodput: Estimate | None
    classic_share: Estimate | None

    @property
    def judged(self) -> str:
        """`helps`, `harms` or `nothing`: harm is settled and above `NO_HARM`, or a cost beyond its limit.

        One seed settles nothing, so its costs do not either.
        """
        if self.broken() and self.queueing.n > 1:
            return "harms"
        if self.queueing.below(0):
            return "helps"
        return "harms" if self.queueing.above(0) and self.queueing.mean > NO_HARM else "nothing"

    @property
    def verdict(self) -> str:
        """The same as it stands in a table, with the costs beyond their limits."""
        costs = ", ".join(f"{cost.name} {percent(cost.change)}" for cost in self.broken())
        if self.queueing.n == 1:
            said = "1 seed"
        elif self.judged != "nothing":
            said = self.judged
        else:
            said = (
                "no harm" if self.queueing.high is not None and self.queueing.high <= NO_HARM else NOT_SETTLED
            )
        return f"{said}: {costs}" if costs else said

    def broken(self) -> list[Cost]:
        """Costs beyond what a gain may cost, by their means."""
        found = []
        if self.rtt and self.rtt.mean > MOST_RTT_CHANGE:
            found.append(Cost("RTT P99", self.rtt))
        if self.goodput and 1 + self.goodput.mean < LEAST_GOODPUT:
            found.append(Cost("S1's goodput", self.goodput))
        if self.classic_share and 1 + self.classic_share.mean < LEAST_CLASSIC_SHARE:
            found.append(Cost("the classic flows' share", self.classic_share))
        return found


def by_seed(runs: pl.DataFrame, place: Place, control: str, measure: Measure) -> dict[int, float]:
    """Value of a measure for each seed that was run there."""
    chosen = _complete(runs, place, control).drop_nulls(measure.column)
    return dict(zip(chosen["seed"], chosen[measure.column], strict=True))


def same_share(runs: pl.DataFrame) -> pl.DataFrame:
    """Leave out random marking of another share than the model moved with the same seed."""
    return runs.filter((pl.col("control") != "random") | pl.col("share_of").eq_missing(pl.lit("model")))


def other_shares(runs: pl.DataFrame, place: Place) -> str:
    """Whose share random marking moved there, where not the model's; empty where there is none such."""
    whose = set(_complete(runs, place, "random")["share_of"].drop_nulls()) - {"model"}
    return " and ".join(f"the {name}'s" for name in sorted(whose))


def places(runs: pl.DataFrame) -> list[Place]:
    """All places of the results, in the order of their axis."""
    rows = (
        runs.select("scenario", "point", "profile", "at").unique().sort("scenario", "profile", "at", "point")
    )
    return [Place(row["scenario"], row["point"], row["profile"]) for row in rows.iter_rows(named=True)]


def change_of(
    runs: pl.DataFrame, place: Place, control: str, measure: Measure, base: str = "default"
) -> Estimate | None:
    """Relative change of a measure from one control to another; None where either was not run."""
    return paired_change(by_seed(runs, place, control, measure), by_seed(runs, place, base, measure))


def compare(runs: pl.DataFrame, place: Place, control: str) -> Comparison | None:
    """Compare a control with default marking; None where either was not run."""
    queueing = change_of(runs, place, control, QUEUEING_P99)
    if queueing is None:
        return None
    costs = (change_of(runs, place, control, measure) for measure in (RTT_P99, S1_GOODPUT, CLASSIC_SHARE))
    return Comparison(queueing, *costs)


def against_chance(runs: pl.DataFrame, place: Place) -> Estimate | None:
    """Change of P99 from random marking of the model's share to the model; None where either was not run."""
    return change_of(same_share(runs), place, "model", QUEUEING_P99, base="random")


def percent(change: Estimate) -> str:
    """`-38 % (-45…-31)`; the interval is left out where there is none."""
    text = f"{change.mean * 100:+.1f} %"
    if change.low is None or change.high is None:
        return text
    return f"{text} ({change.low * 100:+.1f}…{change.high * 100:+.1f})"


def times(change: Estimate) -> str:
    """The same as a ratio: `1.38 times (1.31…1.45)`."""
    text = f"{1 + change.mean:.2f} times"
    if change.low is None or change.high is None:
        return text
    return f"{text} ({1 + change.low:.2f}…{1 + change.high:.2f})"


def share(value: float, digits: int = 1) -> str:
    """`12.3 %`."""
    return f"{value * 100:.{digits}f} %"


def _complete(runs: pl.DataFrame, place: Place, control: str) -> pl.DataFrame:
    return runs.filter(
        pl.col("status") == COMPLETE,
        pl.col("scenario") == place.scenario,
        pl.col("point") == place.point,
        pl.col("profile") == place.profile,
        pl.col("control") == control,
    )
