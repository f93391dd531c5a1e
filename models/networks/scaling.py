"""Fit the scaling of inputs and target on the pre-training slice; it is stored with the weights.

Shapes: B batch, W window tokens, F features, H horizon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

FeatureTransform = Literal["identity", "log1p"]
TargetTransform = Literal["log", "raw"]

HEAVY_TAILED_UNITS: Final = ("us", "bytes", "packets")  # times, sizes and counts span decades
# If an input hardly varies in the pre-training slice (a constant packet size, say), a small later change must
# not become a huge one, so no scale is below a tenth of a natural-log unit.
SCALE_FLOOR: Final = 0.1
# Divisor of an input that a network must not see, so that no value changes a digit of a sum.
UNSEEN_SCALE: Final = 1e30
MIN_LATENCY_US: Final = 1.0  # floor of the logarithm; captures resolve 1 µs at best


@dataclass(frozen=True)
class ScaledFeature:
    """One input of a window token: the model sees `(transform(x) - shift) / scale`."""

    name: str
    unit: str
    transform: FeatureTransform = "identity"
    shift: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.transform not in get_args(FeatureTransform):
            raise ValueError(f"feature {self.name}: unknown transform {self.transform!r}")
        _check_scale(f"feature {self.name}", self.shift, self.scale)


@dataclass(frozen=True)
class TargetScaling:
    """The latency as the loss sees it: `(transform(latency_us) - shift) / scale`."""

    transform: TargetTransform = "log"
    shift: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.transform not in get_args(TargetTransform):
            raise ValueError(f"target: unknown transform {self.transform!r} (known: log, raw)")
        _check_scale("target", self.shift, self.scale)

    def apply(self, latency_us: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the target values of latencies in µs; NaN (unknown) stays NaN."""
        if self.transform == "log":
            transformed = np.log(np.maximum(latency_us, MIN_LATENCY_US))
        else:
            transformed = latency_us
        return np.asarray((transformed - self.shift) / self.scale, dtype=np.float32)


def _check_scale(what: str, shift: float, scale: float) -> None:
    if not np.isfinite(shift) or not np.isfinite(scale) or scale <= 0:
        raise ValueError(f"{what}: shift {shift} and scale {scale} must be finite and the scale above zero")


def transform_of(unit: str) -> FeatureTransform:
    """Choose a feature's transform by its unit: flags and signs stay as they are."""
    return "log1p" if unit in HEAVY_TAILED_UNITS else "identity"


def unseen(feature: ScaledFeature) -> ScaledFeature:
    """Return a scaling by which the network sees 0 whatever the input; every reader supports it."""
    return ScaledFeature(feature.name, feature.unit, scale=UNSEEN_SCALE)


def fit_features(
    x_BWF: NDArray[np.float32], names: Sequence[str], units: Sequence[str]
) -> tuple[ScaledFeature, ...]:
    """Fit every feature's scaling on the real (not padding) tokens of the pre-training windows.

    Flags and codes keep their values. A latency of 0 means 'not visible' and has a flag of its own, so
    zeros of heavy-tailed features count like any other value.

    Raises:
        ValueError: the names do not match the array, or a value is not finite.
    """
    if x_BWF.ndim != 3 or x_BWF.shape[2] != len(names) or len(names) != len(units):
        raise ValueError(f"windows of shape {x_BWF.shape} do not hold the {len(names)} features named")
    tokens_NF = x_BWF.reshape(-1, len(names))
    tokens_NF = tokens_NF[tokens_NF[:, list(names).index("size_bytes")] > 0]
    if len(tokens_NF) == 0:
        raise ValueError("cannot fit the scaling: the pre-training windows hold no packet")
    fitted = []
    for f, (name, unit) in enumerate(zip(names, units, strict=True)):
        column = tokens_NF[:, f]
        if not np.isfinite(column).all():
            raise ValueError(f"feature {name} of the pre-training windows holds NaN or infinity")
        if transform_of(unit) == "identity":
            fitted.append(ScaledFeature(name, unit))
            continue
        logs = np.log1p(np.maximum(column, 0), dtype=np.float64)
        scale = max(float(logs.std()), SCALE_FLOOR)
        fitted.append(ScaledFeature(name, unit, "log1p", round(float(logs.mean()), 6), round(scale, 6)))
    return tuple(fitted)


def fit_target(latency_us: NDArray[np.float32], transform: TargetTransform) -> TargetScaling:
    """Fit the target's scaling on the known latencies of the pre-training slice.

    Raises:
        ValueError: no latency is known, or the transform is not `log` or `raw`.
    """
    known = latency_us[np.isfinite(latency_us)]
    if known.size == 0:
        raise ValueError("cannot fit the target: the pre-training slice holds no known latency")
    values = TargetScaling(transform).apply(known).astype(np.float64)
    floor = SCALE_FLOOR if transform == "log" else 1.0
    return TargetScaling(transform, round(float(values.mean()), 6), round(max(float(values.std()), floor), 6))
