"""Measure how often intervals of differences settle a difference, on simulated forecasters.

The errors of two forecasters come from one process: seconds that are hard for both, the training seed, the
trace, and seconds that are hard for each. Where both are alike, an interval of 95 % should leave 0 out once
in twenty trials. One that is worse by a share should be told from the other.

Reference: the old intervals, percentiles of draws of single seconds, each with a draw of seeds.

Shapes: 2 forecasters, S seeds, T traces, K seconds, P packets of a second, R draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.models.scoring.intervals import over_all
from swiftqueue.models.scoring.metrics import EPISODE_NS, SECOND_NS, block_draws, mae_draws

Floats = NDArray[np.float64]
PACKETS: Final = 10
MEAN_US: Final = 1_000.0
TRAFFIC: Final = 0.6  # standard deviation of the log-error from second to second, for both alike
SEEDED: Final = 0.5  # one forecaster's spread over seconds; each seed has this share again of its own
APART_NS: Final = 10**16  # nanoseconds between traces
PERCENTILES: Final = (2.5, 97.5)


@dataclass(frozen=True)
class World:
    """Components of the two forecasters' errors; standard deviations are of their logarithm."""

    name: str
    seeds: int
    traces: int = 1
    seconds: int = 40
    seed: float = 0.1
    trace: float = 0.0
    second: float = 0.3
    lasting: float = 0.4  # correlation of a second with the next: 0.1 to 0.4 on simulated traces
    worse: float = 0.0  # share by which the second forecaster's errors are larger

    def errors(self, rng: np.random.Generator) -> Floats:
        """Return the absolute errors (2, S, T, K, P) in µs."""
        s, t = self.seeds, self.traces
        logs = TRAFFIC * self._over_seconds(rng, (1, 1, t))
        logs = logs + self.seed * rng.normal(size=(2, s, 1, 1)) + self.trace * rng.normal(size=(2, 1, t, 1))
        logs = logs + self.second * self._over_seconds(rng, (2, 1, t))
        logs = logs + SEEDED * self.second * self._over_seconds(rng, (2, s, t))
        logs[1] += np.log1p(self.worse)
        noise = rng.exponential(size=(*logs.shape, PACKETS))
        return MEAN_US * np.exp(logs)[..., None] * noise

    def _over_seconds(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        values = rng.normal(size=(*shape, self.seconds))
        for k in range(1, self.seconds):
            values[..., k] *= np.sqrt(1 - self.lasting**2)
            values[..., k] += self.lasting * values[..., k - 1]
        return values


THREE_SEEDS: Final = World("3 seeds", 3)
THREE_TRACES: Final = World("5 seeds, 3 traces that differ", 5, 3, trace=0.2)
HOLDS: Final = (
    World("1 seed, as the stage evaluate", 1, seed=0.0),
    World("1 seed, seconds unlike each other", 1, seed=0.0, lasting=0.0),
    THREE_SEEDS,
    World("3 seeds that differ much", 3, seed=0.3),
    THREE_TRACES,
)


def settled(world: World, rng: np.random.Generator) -> tuple[bool, bool]:
    """Return whether the interval of a difference leaves 0 out, by ours and by the old intervals."""
    errors = world.errors(rng)
    ours_us, other_us = errors
    s, t, k, p = ours_us.shape
    by_seed_S = (ours_us - other_us).mean((1, 2, 3)) / 1e3
    by_trace_ST = (ours_us - other_us).mean((2, 3)) / 1e3
    time_ns = (np.arange(t)[:, None] * APART_NS + np.arange(k) * SECOND_NS).ravel()
    seed = int(rng.integers(2**31))

    def drawn(block_ns: int) -> Floats:
        block_B, draws = block_draws(time_ns, seed, block_ns)
        block_N = np.repeat(block_B, p)
        means: list[Any] = [
            [mae_draws(one.ravel(), np.zeros(one.size), block_N, draws) for one in each] for each in errors
        ]
        difference: Floats = np.array(means[0]) - np.array(means[1])
        return difference

    blocks = t * -(-k * SECOND_NS // EPISODE_NS)
    ends = over_all(list(by_seed_S), drawn(EPISODE_NS), blocks, by_trace_ST)
    before_SR = drawn(SECOND_NS)
    chosen = rng.integers(s, size=before_SR.shape)
    low, high = np.percentile(before_SR[chosen, np.arange(before_SR.shape[1])].mean(0), PERCENTILES)
    return ends is not None and not ends[0] <= 0 <= ends[1], not low <= 0 <= high


def shares(world: World, trials: int, seed: int = 1) -> tuple[int, int]:
    """Return the share of trials in which each interval leaves 0 out."""
    rng = np.random.default_rng(seed)
    found = np.array([settled(world, rng) for _ in range(trials)])
    return int(found[:, 0].sum()), int(found[:, 1].sum())
