"""Changes against default L4S marking, paired by seed: what the report's sentences and tables rest on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from infra.lab.intervals import Estimate, paired_change
from infra.lab.limits import LEAST_CLASSIC_SHARE, LEAST_GOODPUT, MOST_RTT_CHANGE, NO_HARM
from infra.lab.measures import (
    CLASSIC_SHARE,
    MOVED,
    QUEUEING_P99,
    REORDERED,
    RETRANSMITTED,
    RTT_P99,
    S1_GOODPUT,
    UNFORESEEN,
    Measure,
)
from infra.lab.results import COMPLETE


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
    limit: str

    def words(self) -> str:
        """Name it in a sentence."""
        return f"{self.name} {percent(self.change)} ({self.limit})"


@dataclass(frozen=True)
class Comparison:
    """Changes of one control against default marking at one place."""

    place: Place
    control: str
    queueing: Estimate  # relative, of P99
    rtt: Estimate | None
    goodput: Estimate | None
    classic_share: Estimate | None
    moved: float  # mean share
    retransmitted: tuple[float, float]  # mean share by default, and under the control
    reordered: tuple[float, float]
    unforeseen: float  # mean share of L4S packets without a decision of their own in all of S1's

    @property
    def kind(self) -> str:
        """`helps`, `harms` or `nothing`, by P99 queueing: harm is settled, and more than `NO_HARM`."""
        if self.queueing.below(0):
            return "helps"
        return "harms" if self.queueing.above(0) and self.queueing.mean > NO_HARM else "nothing"

    @property
    def judged(self) -> str:
        """The same with the costs: whatever P99 does, costs beyond their limits harm.

        One seed settles nothing, so its costs do not either.
        """
        return "harms" if self.broken() and self.queueing.n > 1 else self.kind

    def broken(self) -> list[Cost]:
        """Costs beyond what a gain may cost, by their means."""
        found = []
        if self.rtt and self.rtt.mean > MOST_RTT_CHANGE:
            found.append(Cost("RTT P99", self.rtt, f"at most {share(MOST_RTT_CHANGE, 0)} more"))
        if self.goodput and 1 + self.goodput.mean < LEAST_GOODPUT:
            found.append(Cost("S1's goodput", self.goodput, f"at least {share(LEAST_GOODPUT, 0)} of default"))
        if self.classic_share and 1 + self.classic_share.mean < LEAST_CLASSIC_SHARE:
            limit = f"at least {share(LEAST_CLASSIC_SHARE, 0)} of default"
            found.append(Cost("the classic flows' share", self.classic_share, limit))
        return found

    def broken_words(self) -> str:
        """Name the costs beyond their limits in a sentence; empty where there is none."""
        return "; ".join(cost.words() for cost in self.broken())


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

    def means(measure: Measure) -> tuple[float, float]:
        base, ours = (_mean(by_seed(runs, place, c, measure)) for c in ("default", control))
        return base, ours

    queueing = change_of(runs, place, control, QUEUEING_P99)
    if queueing is None:
        return None
    return Comparison(
        place=place,
        control=control,
        queueing=queueing,
        rtt=change_of(runs, place, control, RTT_P99),
        goodput=change_of(runs, place, control, S1_GOODPUT),
        classic_share=change_of(runs, place, control, CLASSIC_SHARE),
        moved=means(MOVED)[1],
        retransmitted=means(RETRANSMITTED),
        reordered=means(REORDERED),
        unforeseen=means(UNFORESEEN)[1],
    )


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


def _mean(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values) if values else 0.0
