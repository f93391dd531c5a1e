"""The loss: squared error in target space, heavier on sharp changes (SwiftQueue, arXiv 2410.06112).

Shapes: B batch, N windows in send order, H horizon (8 packets).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def example_weights(
    y_us_NH: NDArray[np.float32], sharp_NH: NDArray[np.bool_], sharp_weight: float
) -> NDArray[np.float32]:
    """Weight of each label: 0 where unknown, `sharp_weight` (alpha) on sharp changes, else 1."""
    weights_NH = np.where(sharp_NH, np.float32(sharp_weight), np.float32(1))
    weights_NH[np.isnan(y_us_NH)] = 0
    return weights_NH


def weighted_squared_error(predicted_BH: Tensor, target_BH: Tensor, weight_BH: Tensor) -> Tensor:
    """Sum of weighted squared errors; a label of weight 0 may hold NaN and has no gradient."""
    error_BH = (predicted_BH - target_BH).masked_fill(weight_BH == 0, 0.0)
    return (weight_BH * error_BH.square()).sum()
