"""What a sharp change of latency is: the one definition, of the loss and of the scores.

Shapes: N windows in send order, H horizon (8 packets).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

CHANGE_US: Final = 20_000.0  # SwiftQueue: a change counts from 20 ms on ...
CHANGE_SHARE: Final = 0.20  # ... if it is 20 % or more of the latency before it as well


def change_direction(latency_us: NDArray[Any], before_us: NDArray[Any]) -> NDArray[np.int8]:
    """Direction of a sharp change: +1 a rise, -1 a drop, 0 neither (at least 20 ms and 20 % of `before`)."""
    before = np.asarray(before_us, dtype=np.float64)
    change = np.asarray(latency_us, dtype=np.float64) - before
    sharp = (np.abs(change) >= CHANGE_US) & (np.abs(change) >= CHANGE_SHARE * np.abs(before))
    return np.where(sharp, np.sign(change), 0).astype(np.int8)


def sharp_changes(y_us_NH: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Mark latencies that change sharply (>= 20 ms and >= 20 %) from the packet sent just before.

    The windows follow each other in send order, so the predecessor of a window's first packet is the last
    one of the window before. Where one of the two latencies is unknown (NaN) no change is known either.
    """
    y_us_N = y_us_NH.reshape(-1)
    before_us_N = np.concatenate([[np.nan], y_us_N[:-1]])
    return np.not_equal(change_direction(y_us_N, before_us_N), 0).reshape(y_us_NH.shape)
