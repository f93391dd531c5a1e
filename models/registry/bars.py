"""Decide, by the rule of every gate, whether a challenger may take the champion's place.

There are three bars, each for all figures that the gate of a model computes:

    champion   not worse by more than a margin, with 95 % confidence
    reference  not worse by more than a smaller margin; it stays the same, so small losses cannot add up
    naive      never below a baseline without a model, except for a tie

If the champion itself is below one of the last two bars, a challenger that is surely better than the champion
passes that bar, so the way up is never barred.

Shapes: R draws of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

TIE: Final = 0.005  # difference that counts as none: in calm traffic a good model equals the last value
SURE: Final = 95.0  # percent, one-sided
NO_CHAMPION: Final = "no champion yet"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """The decision and its reason."""

    passed: bool
    reason: str
    loses_to: tuple[str, ...]  # naive baselines that do better in a figure


@dataclass(frozen=True)
class Gain:
    """The gain of one predictor over another in one figure, negative for a loss."""

    figure: str
    ours: float
    other: float
    gain: float  # absolute for figures that are best at 1, relative for an error
    margin: float
    low: float | None  # lower bound of the gain at SURE percent; None: too few data for an interval
    high: float | None  # upper bound of the gain at SURE percent, or None
    relative: bool = True  # whether the gain is a share of the other's figure

    @property
    def inferior(self) -> bool:
        """Return whether the loss may exceed the margin."""
        return (self.gain if self.low is None else self.low) < -self.margin

    @property
    def below(self) -> bool:
        """Return whether the loss exceeds a tie."""
        return self.gain < -TIE

    @property
    def better(self) -> bool:
        """Return whether the gain is settled."""
        return self.gain > self.margin if self.low is None else self.low > 0

    def __str__(self) -> str:
        against = f"{self.figure} {self.ours:.3f} against {self.other:.3f}"
        if self.low is None:
            return against
        size = f"{abs(self.low) * 100:.1f} %" if self.relative else f"{abs(self.low):.3f}"
        return f"{against} ({f'better by {size} or more' if self.low >= 0 else f'worse by {size} at most'})"


T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class GainRule(Protocol[T_contra]):
    """A gate's comparison of two predictors: the gains of the first in each figure that counts."""

    def __call__(self, ours: T_contra, other: T_contra, /, *, strict: bool = False) -> Sequence[Gain]:
        """Return the gains; `strict` applies the reference's smaller margin."""


def ends(gain_R: Floats) -> tuple[float | None, float | None]:
    """Return the interval of a gain from its draws; None without a finite draw."""
    finite_R = gain_R[np.isfinite(gain_R)]
    if not finite_R.size:
        return None, None
    low, high = np.percentile(finite_R, [100 - SURE, SURE])
    return float(low), float(high)


def losers(challenger: T, naive: Mapping[str, T], gains: GainRule[T]) -> tuple[str, ...]:
    """Return the naive baselines that do better in a figure, even by less than a tie."""
    return tuple(name for name, one in naive.items() if any(g.gain < 0 for g in gains(challenger, one)))


def decide(
    challenger: T,
    champion: T | None,
    naive: Mapping[str, T],
    gains: GainRule[T],
    *,
    why_not: str,
    reference: T | None = None,
    few: str = "",
) -> Verdict:
    """Decide, by the bars above.

    Args:
        challenger: the new version.
        champion: the served version on the same data, or None if there are no figures of it.
        naive: the naive baselines.
        gains: function that compares two score tables.
        why_not: reason for missing figures of a champion (`no champion yet`, or why it cannot run here), or
            of a reference.
        reference: the version whose bar does not move; None where it is the champion itself, or gone.
        few: words about too few judging data, appended to the reason.
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
