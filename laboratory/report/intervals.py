"""Means and paired changes over seeds, with 95 % intervals of Student's t.

A seed is one draw of all random choices of a scenario, and the only thing that differs between the runs of a
control, so the seeds are the independent observations; packets of one run are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LEVEL: Final = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds; `low` and `high` are None where one seed says nothing about the spread."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def below(self, limit: float) -> bool:
        """Whether the whole interval is below `limit`."""
        return self.high is not None and self.high < limit

    def above(self, limit: float) -> bool:
        """Whether the whole interval is above `limit`."""
        return self.low is not None and self.low > limit


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and interval of one value per seed; None where there is none."""
    from scipy.stats import t as student  # type: ignore[import-untyped]

    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, None, None, n)
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    half = float(student.ppf((1 + LEVEL) / 2, n - 1)) * math.sqrt(variance / n)
    return Estimate(mean, mean - half, mean + half, n)


def paired_change(ours: Mapping[int, float], base: Mapping[int, float]) -> Estimate | None:
    """Relative change from `base` to `ours` (0.1 is 10 % more), by the seeds that both have.

    Pairing takes out what the seeds have in common: the traffic that was offered.
    """
    seeds = sorted(set(ours) & set(base))
    return estimate([ours[s] / base[s] - 1 for s in seeds if base[s] > 0])
