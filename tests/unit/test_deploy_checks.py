"""What a push compares answers by."""

from __future__ import annotations

import numpy as np
import pytest

from swiftqueue.serving.deploy.checks import TOLERANCES, DeployError, SmokeWindows


def test_answers_of_zero_are_compared_too() -> None:
    """A model of raw latencies (`target: raw`) has them."""
    y_BH = np.array([[0.0, 1e-3, 20_000.0]], np.float32)
    smoke = SmokeWindows(np.zeros((1, 1, 1), np.float32), y_BH)
    assert smoke.check(y_BH) == 0
    assert smoke.check(y_BH + np.float32(0.01)) < TOLERANCES["fp32"]
    for wrong_BH in (y_BH + 1, y_BH * np.float32(1.01), y_BH * np.nan):
        with pytest.raises(DeployError, match="differ from the local ones"):
            smoke.check(wrong_BH)
