"""The decision rule of every gate: may a challenger take the champion's place?

Three bars, each on all figures that the gate of a model computes:

    champion   not worse by more than a margin; 95 % sure of it
    reference  likewise, by a smaller margin: a version that nothing moves, so small losses cannot add up
    naive      never below what needs no model, but for a tie

Where the champion is below one of the last two itself, a challenger that is settled better than it passes
that bar: the way up is never barred.

Shapes: R draws of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

TIE: Final = 0.005  # of a figure: calm traffic is what the last value says, and so is a good model
SURE: Final = 95.0  # percent, one-sided
NO_CHAMPION: Final = "no champion yet"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """The decision and why."""

    passed: bool
    reason: str
    loses_to: tuple[str, ...]  # naive baselines that do better in a figure


@dataclass(frozen=True)
class Gain:
    """What a predictor gains over another in one figure; below zero it loses."""

    figure: str
    ours: float
    other: float
    gain: float  # absolute of what is best at 1, relative of an error
    margin: float
    low: float | None  # it gains more than that, at SURE percent; None: too little for an interval
    high: float | None  # and less than that, likewise

    @property
    def inferior(self) -> bool:
        """Return whether it may lose more than the margin."""
        return (self.gain if self.low is None else self.low) < -self.margin

    @property
    def below(self) -> bool:
        """Return whether it loses, and is no tie."""
        return self.gain < -TIE

    @property
    def better(self) -> bool:
        """Return whether that it gains is settled."""
        return self.gain > self.margin if self.low is None else self.low > 0

    def __str__(self) -> str:
        least = "" if self.low is None else f" ({self.low:+.3f} or more)"
        return f"{self.figure} {self.ours:.3f} against {self.other:.3f}{least}"


ScoreTable = TypeVar("ScoreTable")
_Scored = TypeVar("_Scored", contravariant=True)


class GainRule(Protocol[_Scored]):
    """What a gate makes of two predictors: the gains of the first in each figure that counts."""

    def __call__(self, ours: _Scored, other: _Scored, /, *, strict: bool = False) -> Sequence[Gain]:
        """Compare; `strict`: by the reference's smaller margin."""


def ends(gain_R: Floats) -> tuple[float | None, float | None]:
    """Return the interval of a gain from its draws; none where no draw is finite."""
    finite_R = gain_R[np.isfinite(gain_R)]
    if not finite_R.size:
        return None, None
    low, high = np.percentile(finite_R, [100 - SURE, SURE])
    return float(low), float(high)


def losers(
    challenger: ScoreTable, naive: Mapping[str, ScoreTable], gains: GainRule[ScoreTable]
) -> tuple[str, ...]:
    """Return the naive baselines that do better in a figure, if only by a tie."""
    return tuple(name for name, one in naive.items() if any(g.gain < 0 for g in gains(challenger, one)))


def decide(
    challenger: ScoreTable,
    champion: ScoreTable | None,
    naive: Mapping[str, ScoreTable],
    gains: GainRule[ScoreTable],
    *,
    why_not: str,
    reference: ScoreTable | None = None,
    few: str = "",
) -> Verdict:
    """Decide, by the bars above.

    Args:
        challenger: the new version.
        champion: the served version on the same data, or None if there are no figures of it.
        naive: the naive baselines.
        gains: compares two of them.
        why_not: why there are no figures of a champion (`no champion yet`, or why it cannot run here), or of
            a reference.
        reference: the version whose bar does not move; None where it is the champion itself, or gone.
        few: what is too little to judge by, in words that are put behind the reason.
    """
    below = {name: [g for g in gains(challenger, other) if g.below] for name, other in naive.items()}
    loses_to = losers(challenger, naive, gains)
    if champion is None and why_not == NO_CHAMPION:
        return Verdict(True, why_not, loses_to)
    failed = []
    ours = {} if champion is None else {gain.figure: gain for gain in gains(challenger, champion)}
    failed += [f"worse than the champion: {gain}" for gain in ours.values() if gain.inferior]
    if reference is not None:
        theirs = gains(champion, reference, strict=True) if champion is not None else []
        up = {g.figure for g in theirs if g.inferior and ours[g.figure].better}
        strictly = gains(challenger, reference, strict=True)
        failed += [f"worse than the reference: {g}" for g in strictly if g.inferior and g.figure not in up]
    for name, lost in below.items():
        theirs = gains(champion, naive[name]) if champion is not None else []
        up = {g.figure for g in theirs if g.below and ours[g.figure].better}
        failed += [f"below {name}: {gain}" for gain in lost if gain.figure not in up]
    if failed:
        return Verdict(False, ", and ".join(filter(None, [why_not, failed[0]])) + few, loses_to)
    if champion is None:
        return Verdict(True, why_not + few, loses_to)
    beside = ", ".join(map(str, ours.values()))
    missing = f"; {why_not}" if why_not else ""
    return Verdict(True, f"not worse than the champion: {beside}{few}{missing}", loses_to)
