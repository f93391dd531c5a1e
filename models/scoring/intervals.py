"""Means and paired changes over seeds, traces and time, with 95 % intervals of Student's t.

A seed is one draw of all random choices of a scenario, and the only thing that differs between the runs of a
control, so the seeds are the independent observations; packets of one run are not.

A change is one of geometric means: twice as much in one seed and half as much in another is no change, and no
interval reaches below -100 %.

Shapes: S seeds, T traces, R draws of blocks of time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LEAST_TRACES: Final = 3  # two say next to nothing of how traces differ
LEVEL: Final = 0.95
MOST_SEEDS: Final = 999


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds; `low` and `high` are None where one seed says nothing about the spread."""

    mean: float
    low: float | None
    high: float | None
    n: int
    error: float = math.nan  # standard error of the mean; of a change: of the logarithm of its ratio
    is_change: bool = False  # relative, of geometric means

    def chance(self, limit: float, *, below: bool) -> float:
        """Chance of such a mean, or one farther away, if the truth were `limit` (Student's one-sided test).

        Args:
            limit: what is tested.
            below: whether the mean is to be below it, else above.
        """
        from scipy.special import stdtr  # type: ignore[import-untyped]

        if math.isinf(self.error):
            return 1.0
        away = self._above(limit) * (-1 if below else 1)
        if not self.error > 0:  # every seed says the same, or there is one
            return 0.0 if away > 0 and self.n > 1 else 1.0
        return float(stdtr(self.n - 1, -away / self.error))

    def bound(self, *, upper: bool) -> float | None:
        """One-sided 95 % bound of the mean; None where there is no interval."""
        if self.n < 2 or not math.isfinite(self.error):
            return None
        away = half_width(self.n - 1, one_sided=True) * self.error * (1 if upper else -1)
        return math.expm1(math.log1p(self.mean) + away) if self.is_change else self.mean + away

    def seeds_to_leave(self, limit: float) -> int:
        """How many seeds such an interval needs to leave `limit` out; `MOST_SEEDS` stands for more too."""
        if math.isinf(self.error):
            return MOST_SEEDS
        if not self.error > 0:
            return self.n
        spread, away = self.error * math.sqrt(self.n), abs(self._above(limit))
        needed = (n for n in range(2, MOST_SEEDS) if half_width(n - 1) * spread / math.sqrt(n) < away)
        return next(needed, MOST_SEEDS)

    def _above(self, limit: float) -> float:
        """Return how far the mean is above `limit`, on the scale of `error`."""
        return math.log1p(self.mean) - math.log1p(limit) if self.is_change else self.mean - limit

    def below(self, limit: float) -> bool:
        """Return whether the whole interval is below `limit`."""
        return self.high is not None and self.high < limit

    def above(self, limit: float) -> bool:
        """Return whether the whole interval is above `limit`."""
        return self.low is not None and self.low > limit


@functools.lru_cache(maxsize=1024)
def half_width(freedom: float, *, one_sided: bool = False) -> float:
    """Return the half an interval of Student's t with so many degrees of freedom, in standard errors."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, LEVEL if one_sided else (1 + LEVEL) / 2))


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and interval of one value per seed; None where there is none."""
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, None, None, n)
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    half = half_width(n - 1) * math.sqrt(variance / n)
    return Estimate(mean, mean - half, mean + half, n, math.sqrt(variance / n))


def paired_change(ours: Mapping[int, float], base: Mapping[int, float]) -> Estimate | None:
    """Relative change of geometric means from `base` to `ours` (0.1 is 10 % more), by the seeds both have.

    Pairing takes out what the seeds have in common: the traffic that was offered. A seed whose base is 0 has
    no change. Where a seed has nothing left, so has the geometric mean, and nothing is known of its spread.
    """
    seeds = [seed for seed in sorted(set(ours) & set(base)) if base[seed] > 0]
    if any(ours[seed] <= 0 for seed in seeds):
        return Estimate(-1.0, None, None, len(seeds), math.inf, is_change=True)
    found = estimate([math.log(ours[seed] / base[seed]) for seed in seeds])
    if found is None:
        return None
    low = None if found.low is None else math.expm1(found.low)
    high = None if found.high is None else math.expm1(found.high)
    return replace(found, mean=math.expm1(found.mean), low=low, high=high, is_change=True)


def corrected(chances: Sequence[float]) -> list[float]:
    """Chances corrected for how many were asked together (Holm 1979): each at most 1, in the order given."""
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    found = [0.0] * len(chances)
    most = 0.0
    for rank, i in enumerate(order):
        most = max(most, min(1.0, (len(chances) - rank) * chances[i]))
        found[i] = most
    return found


def over_time(figure: float | None, draws_R: NDArray[Any], blocks: int) -> list[float] | None:
    """95 % interval of a figure of one run, as its draws of blocks of time vary; None where nothing is known.

    About the figure itself, with as many degrees of freedom as there are blocks, less one: percentiles of the
    draws of a few blocks are too narrow.
    """
    if figure is None:
        return None
    return over_all([figure], draws_R[None], blocks, np.zeros((1, 0)))


def over_all(
    by_seed_S: Sequence[float], draws_SR: NDArray[Any], blocks: int, by_trace_ST: NDArray[Any]
) -> list[float] | None:
    """95 % interval of a mean over training seeds, of which seeds, time and traces vary.

    The variance of the mean is that of the seeds, and the larger of those of time and of traces: how traces
    differ holds what time does within them, and their number is small. Traces count from three on; with fewer
    the interval is about these traces. One seed says nothing of seeds: then the interval is about that one.
    Degrees of freedom by Welch and Satterthwaite.

    Args:
        by_seed_S: the figure, or a paired difference, by seed.
        draws_SR: the same under each draw of blocks of time, the same blocks for every seed; NaN: none.
        blocks: of time, that were drawn from.
        by_trace_ST: the same of each trace alone; T may be 0.

    Returns:
        Its ends; None where there are no two blocks.
    """
    mean_R = np.mean(draws_SR, axis=0)
    finite_R = mean_R[np.isfinite(mean_R)]
    if blocks < 2 or finite_R.size < 2:
        return None
    seeds, (_, traces) = len(by_seed_S), by_trace_ST.shape
    parts = [(float(np.var(finite_R, ddof=1)) * blocks / (blocks - 1), blocks - 1)]  # drawn blocks vary less
    if traces >= LEAST_TRACES:
        parts.append((float(np.var(by_trace_ST.mean(0), ddof=1)) / traces, traces - 1))
    parts = [max(parts)]
    if seeds > 1:
        parts.append((float(np.var(by_seed_S, ddof=1)) / seeds, seeds - 1))
    variance, mean = sum(part for part, _ in parts), float(np.mean(by_seed_S))
    if variance == 0:
        return [mean, mean]
    freedom = variance**2 / sum(part**2 / own for part, own in parts)
    half = half_width(freedom) * math.sqrt(variance)
    return [mean - half, mean + half]
