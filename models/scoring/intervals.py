"""Estimate means and paired changes over seeds, traces and time, with 95 % intervals of Student's t.

A seed is one draw of all random choices of a scenario. Runs of a control differ in nothing else, so the seeds
are the independent observations; packets of one run are not.

Changes compare geometric means: a doubling in one seed and a halving in another is no change, and no interval
reaches below -100 %.

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

LEAST_TRACES: Final = 3  # two traces say almost nothing about how traces differ
LEVEL: Final = 0.95
MOST_SEEDS: Final = 999


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds; `low` and `high` are None if one seed says nothing about the spread."""

    mean: float
    low: float | None
    high: float | None
    n: int
    error: float = math.nan  # standard error of the mean; for a change: of the logarithm of its ratio
    is_change: bool = False  # whether it is a relative change of geometric means

    def chance(self, limit: float, *, below: bool) -> float:
        """Return the probability of such a mean, or one farther away, if the truth were `limit`.

        The test is Student's, one-sided.

        Args:
            limit: the tested value.
            below: whether the mean should be below the limit, else above.
        """
        from scipy.special import stdtr  # type: ignore[import-untyped]

        if math.isinf(self.error):
            return 1.0
        away = self._above(limit) * (-1 if below else 1)
        if not self.error > 0:  # every seed has the same value, or there is one seed
            return 0.0 if away > 0 and self.n > 1 else 1.0
        return float(stdtr(self.n - 1, -away / self.error))

    def bound(self, *, upper: bool) -> float | None:
        """Return the one-sided 95 % bound of the mean; None without an interval."""
        if self.n < 2 or not math.isfinite(self.error):
            return None
        away = half_width(self.n - 1, one_sided=True) * self.error * (1 if upper else -1)
        return math.expm1(math.log1p(self.mean) + away) if self.is_change else self.mean + away

    def seeds_to_leave(self, limit: float) -> int:
        """Return the number of seeds for such an interval to leave `limit` out, at most `MOST_SEEDS`."""
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
    """Return half an interval of Student's t with so many degrees of freedom, in standard errors."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, LEVEL if one_sided else (1 + LEVEL) / 2))


def estimate(values: Sequence[float]) -> Estimate | None:
    """Return the mean and interval of one value per seed; None if there is none."""
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
    """Return the relative change of geometric means from `base` to `ours` (0.1 is 10 % more).

    Pairing by the seeds of both removes what they share, the offered traffic. A seed whose base is 0 has no
    change. If a seed's value is 0, the geometric mean is 0 as well, and its spread is unknown.
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
    """Return chances corrected for their number (Holm 1979), each at most 1, in the given order."""
    order = sorted(range(len(chances)), key=lambda i: chances[i])
    found = [0.0] * len(chances)
    most = 0.0
    for rank, i in enumerate(order):
        most = max(most, min(1.0, (len(chances) - rank) * chances[i]))
        found[i] = most
    return found


def over_time(figure: float | None, draws_R: NDArray[Any], blocks: int) -> list[float] | None:
    """Return the 95 % interval of one run's figure from its draws of blocks of time, or None.

    It lies around the figure itself and has one degree of freedom fewer than there are blocks, because
    percentiles of the draws of a few blocks are too narrow.
    """
    if figure is None:
        return None
    return over_all([figure], draws_R[None], blocks, np.zeros((1, 0)))


def over_all(
    by_seed_S: Sequence[float], draws_SR: NDArray[Any], blocks: int, by_trace_ST: NDArray[Any]
) -> list[float] | None:
    """Return the 95 % interval of a mean over training seeds, with the variance of seeds, time and traces.

    The variance of the mean is that of the seeds plus the larger of those of time and of traces: differences
    of traces include those of time within them, and traces are few. Traces count from three on; with fewer
    the interval is about these traces. With one seed the interval is about that seed. Degrees of freedom
    follow Welch and Satterthwaite.

    Args:
        by_seed_S: the figure, or a paired difference, by seed.
        draws_SR: the figure under each draw of blocks of time, the same blocks for every seed; NaN: none.
        blocks: number of blocks of time that were drawn from.
        by_trace_ST: the figure of each trace alone; T may be 0.

    Returns:
        The interval's ends; None with fewer than two blocks.
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
