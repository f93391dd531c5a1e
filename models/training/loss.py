"""Compute the loss: an error in target space, heavier on sharp changes (SwiftQueue, arXiv 2410.06112).

Shapes: B batch, N decisions in send order, H horizon (8 packets), L levels of quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def example_weights(
    y_us_NH: NDArray[np.float32], sharp_NH: NDArray[np.bool_], sharp_weight: float
) -> NDArray[np.float32]:
    """Return the weight of each label: 0 where unknown, `sharp_weight` (alpha) on sharp changes, else 1."""
    weights_NH = np.where(sharp_NH, np.float32(sharp_weight), np.float32(1))
    weights_NH[np.isnan(y_us_NH)] = 0
    return weights_NH


def weighted_error(
    predicted: Tensor, target_BH: Tensor, weight_BH: Tensor, levels: Sequence[float]
) -> Tensor:
    """Sum the weighted errors of a head's output: pinball errors of its levels, or squared errors without."""
    if levels:
        by_level = predicted if predicted.dim() > target_BH.dim() else predicted[..., None]
        return weighted_pinball(by_level, target_BH, weight_BH, levels)
    return weighted_squared_error(predicted, target_BH, weight_BH)


def weighted_pinball(
    predicted_BHL: Tensor, target_BH: Tensor, weight_BH: Tensor, levels: Sequence[float]
) -> Tensor:
    """Sum weighted pinball errors, averaged over levels (Koenker, Bassett, Econometrica 46(1), 1978)."""
    above_BHL = (target_BH[..., None] - predicted_BHL).masked_fill(weight_BH[..., None] == 0, 0.0)
    level_L = torch.tensor(levels, dtype=predicted_BHL.dtype)
    error_BHL = torch.maximum(level_L * above_BHL, (level_L - 1) * above_BHL)
    return (weight_BH * error_BHL.mean(-1)).sum()


def weighted_squared_error(predicted_BH: Tensor, target_BH: Tensor, weight_BH: Tensor) -> Tensor:
    """Sum weighted squared errors; a label of weight 0 may hold NaN and has no gradient."""
    error_BH = (predicted_BH - target_BH).masked_fill(weight_BH == 0, 0.0)
    return (weight_BH * error_BH.square()).sum()
