"""Turn quantiles of each packet's latency into probabilities.

Shapes: B decisions, H horizon (8 packets), L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swiftqueue.models.networks.parameters import MEDIAN
from swiftqueue.models.networks.prediction import HeadedNetwork, HeadInputs, quantiles
from swiftqueue.models.networks.scaling import MIN_LATENCY_US

LEAST_SLOPE = 1e-3  # least slope of a tail in log-latency: quantiles may coincide


@dataclass(frozen=True)
class Spread:
    """Quantiles of latencies."""

    levels: tuple[float, ...]  # ascending, 0.5 among them
    us_BHL: NDArray[np.float32]  # ascending along L

    @classmethod
    def joined(cls, parts: Sequence[Spread]) -> Spread:
        """Return the quantiles of several parts, one after the other."""
        return cls(parts[0].levels, np.concatenate([part.us_BHL for part in parts]))

    @property
    def median_us(self) -> NDArray[np.float32]:
        """Return the median (B, H)."""
        return self.us_BHL[..., self.levels.index(MEDIAN)]

    def above(self, us_BH: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability (B, H) that a latency is at least `us_BH`; NaN where that is NaN.

        Between two levels it falls linearly in the log-latency. Beyond the last level it falls exponentially,
        at the rate between the last two; the same holds before the first level.
        """
        at = np.log(np.maximum(us_BH, MIN_LATENCY_US))
        logs = np.log(np.maximum(self.us_BHL.astype(np.float64), MIN_LATENCY_US))
        exceed = 1 - np.array(self.levels)
        found = np.full(at.shape, np.nan)
        for n in range(len(self.levels) - 1):
            low, high = logs[..., n], logs[..., n + 1]
            share = np.clip((at - low) / np.maximum(high - low, 1e-12), 0, 1)
            within = (at >= low) & (at <= high)
            found = np.where(within, exceed[n] + share * (exceed[n + 1] - exceed[n]), found)
        upper = np.maximum(logs[..., -1] - logs[..., -2], LEAST_SLOPE) / np.log(exceed[-2] / exceed[-1])
        beyond = exceed[-1] * np.exp(-np.maximum(at - logs[..., -1], 0) / upper)
        lower = np.maximum(logs[..., 1] - logs[..., 0], LEAST_SLOPE) / np.log(self.levels[1] / self.levels[0])
        before = 1 - self.levels[0] * np.exp(-np.maximum(logs[..., 0] - at, 0) / lower)
        found = np.where(at > logs[..., -1], beyond, found)
        return np.where(at < logs[..., 0], before, found)

    def scores(self, came_BH: NDArray[np.float64]) -> dict[str, Any]:
        """Score against the latencies (NaN: unknown): coverage of each level, pinball error in ms."""
        known = np.isfinite(came_BH)
        if not known.any():
            return {"levels": list(self.levels), "coverage": None, "pinball_ms": None}
        above_NL = came_BH[known][:, None] - self.us_BHL[known]
        level_L = np.array(self.levels)
        pinball = np.maximum(level_L * above_NL, (level_L - 1) * above_NL)
        return {
            "levels": list(self.levels),
            "coverage": [round(float(share), 5) for share in (above_NL <= 0).mean(0)],
            "pinball_ms": round(float(pinball.mean()) / 1e3, 5),
        }


def spread_of(model: HeadedNetwork, encoded: HeadInputs) -> Spread | None:
    """Return the quantiles of encoded decisions; None for a network with one latency."""
    return Spread(model.quantiles, quantiles(model, encoded)) if model.quantiles else None
