"""Calibrate quantiles: fit a shift for each level on latencies that the head had not learned from.

The method is split conformal quantiles (Romano, Patterson and Candes, Conformalized Quantile Regression,
NeurIPS 2019, arXiv 1905.03222), one-sided for each level. A level is moved by the distance of rank
ceil((n + 1) level) among the distances of n latencies above it, so at least that share of the n lies at or
below it, and at most 1/n more if no two are equal. Later latencies follow as far as they resemble these. A
shift is added in scaled target space, to the bias of the head's last layer, so the network keeps its form.

Shapes: B decisions, H horizon (8 packets), N known latencies, L levels.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from swiftqueue.models.networks.prediction import HeadedNetwork, HeadInputs, answers

SLICES: Final = 6  # newest slices that count, a minute of ten-second rounds; chosen on web pages alone
Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
M = TypeVar("M", bound=HeadedNetwork)


def missed(model: HeadedNetwork, encoded: HeadInputs, came_BH: Floats) -> Doubles:
    """Return how far known latencies lay above each level (N, L), in scaled target space.

    Args:
        model: network with levels that has not learned from these latencies.
        encoded: decisions encoded by the network itself.
        came_BH: latencies in µs; NaN: unknown.
    """
    known_BH = np.isfinite(came_BH)
    said_NL = answers(model, encoded).cpu().numpy()[known_BH].astype(np.float64)
    return model.target.apply(came_BH)[known_BH].astype(np.float64)[:, None] - said_NL


def shifts(missed_NL: Doubles, levels: Sequence[float]) -> Doubles:
    """Return the shift of each level (L,); 0 if no latency is known."""
    count = len(missed_NL)
    if not count:
        return np.zeros(len(levels))
    ranks_L = np.ceil((count + 1) * np.array(levels)).astype(np.int64).clip(max=count)
    found: Doubles = np.sort(missed_NL, axis=0)[ranks_L - 1, np.arange(len(levels))]
    return found


def calibrated(model: M, past: Sequence[Doubles]) -> M:
    """Return a copy with calibrated levels; the model itself if no latency is known.

    Args:
        model: network with levels.
        past: result of `missed` for each slice, the oldest first.
    """
    if not (some := newest(past)):
        return model
    moved = copy.deepcopy(model)
    by_L = torch.from_numpy(shifts(np.concatenate(some), model.quantiles))
    with torch.no_grad():
        moved.head[2].bias.add_(by_L)  # type: ignore[index]
    return moved


def newest(past: Sequence[Doubles]) -> tuple[Doubles, ...]:
    """Return the last `SLICES` slices with a known latency."""
    return tuple([each for each in past if len(each)][-SLICES:])
