"""Calibration of quantiles: a shift for each level, fitted on latencies that the head had not learned from.

Split conformal quantiles (Romano, Patterson and Candes, Conformalized Quantile Regression, NeurIPS 2019,
arXiv 1905.03222), one-sided for each level: a level is moved by the rank ceil((n + 1) level) of what n
latencies lay above it. So at least that share of these n lies at or below it, and no more than a 1/n above
that where none are equal. Of later latencies it holds as far as they are like those. A shift is added in
scaled target space, to the bias of the head's last layer: the network has the form that it had.

Shapes: B decisions, H horizon (8 packets), N known latencies, L levels.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from models.networks.prediction import HeadedNetwork, HeadInputs, answers

SLICES: Final = 6  # newest that count: a minute of rounds of ten seconds, chosen on web pages alone
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
M = TypeVar("M", bound=HeadedNetwork)


def missed(model: HeadedNetwork, encoded: HeadInputs, came_BH: Floats) -> Doubles:
    """Return how far known latencies lay above each level (N, L), in scaled target space.

    Args:
        model: has levels; it must not have learned from these latencies.
        encoded: the decisions, by its own encoder.
        came_BH: latencies in µs; NaN: unknown.
    """
    known_BH = np.isfinite(came_BH)
    said_NL = answers(model, encoded).cpu().numpy()[known_BH].astype(np.float64)
    return model.target.apply(came_BH)[known_BH].astype(np.float64)[:, None] - said_NL


def shifts(missed_NL: Doubles, levels: Sequence[float]) -> Doubles:
    """By how much each level must move (L,); by 0 where nothing is known."""
    count = len(missed_NL)
    if not count:
        return np.zeros(len(levels))
    ranks_L = np.ceil((count + 1) * np.array(levels)).astype(np.int64).clip(max=count)
    found: Doubles = np.sort(missed_NL, axis=0)[ranks_L - 1, np.arange(len(levels))]
    return found


def calibrated(model: M, past: Sequence[Doubles]) -> M:
    """Return a copy whose levels are moved by what they missed; the model itself where nothing is known.

    Args:
        model: has levels.
        past: of each slice what `missed` gave, the oldest first.
    """
    if not (some := newest(past)):
        return model
    moved = copy.deepcopy(model)
    by_L = torch.from_numpy(shifts(np.concatenate(some), model.quantiles))
    with torch.no_grad():
        moved.head[2].bias.add_(by_L)  # type: ignore[index]
    return moved


def newest(past: Sequence[Doubles]) -> tuple[Doubles, ...]:
    """Return the slices that count: of those with a known latency the last `SLICES`."""
    return tuple([each for each in past if len(each)][-SLICES:])
