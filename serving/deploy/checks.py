"""Checks of each model's versions before Triton sees them, and the local answer to smoke windows.

Shapes: B windows, W rows, F features of a row, H horizon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.common.settings import settings
from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.models.networks import artifact
from swiftqueue.models.networks.prediction import predict
from swiftqueue.models.networks.scaling import ScaledFeature
from swiftqueue.models.networks.torch_scaling import PADDING_FEATURE
from swiftqueue.serving.triton.limits import limits_of

# Relative, by the engine's arithmetic. Two float32 implementations of one network differ by less than the
# first; a bfloat16 has 8 bits.
TOLERANCES: Final = {"fp32": 1e-4, "bf16": 1e-2}
SMOKE_WINDOWS: Final = 16


class DeployError(RuntimeError):
    """A version was not put in service; the message says why, and what is served instead."""


@dataclass(frozen=True)
class SmokeWindows:
    """Windows and the local answer of the artifact's weights to them."""

    x_BWF: NDArray[np.float32]
    y_BH: NDArray[np.float32]
    tolerance: float = TOLERANCES["fp32"]

    def check(self, y_BH: NDArray[np.float32]) -> float:
        """Return the largest difference to the local output, relative to it or to a tenth of its mean.

        Raises:
            DeployError: the difference is above the tolerance, or the shapes differ.
        """
        if y_BH.shape != self.y_BH.shape:
            raise DeployError(f"it answers with shape {y_BH.shape} instead of {self.y_BH.shape}")
        # A model of raw latencies may answer 0, and near it no relative difference is small.
        size_BH = np.abs(self.y_BH)
        size_BH = np.maximum(size_BH, size_BH.mean() / 10)
        difference = float(np.max(np.abs(y_BH - self.y_BH) / size_BH))
        if not difference <= self.tolerance:  # NaN fails as well
            raise DeployError(
                f"its answers differ from the local ones by {difference:.2g} (limit {self.tolerance})"
            )
        return difference


def smoke_windows(features: Sequence[ScaledFeature], tokens: int, seed: int = 1) -> NDArray[np.float32]:
    """Return windows of plausible values by the artifact's scaling; the first one is all padding."""
    rng = np.random.default_rng(seed)
    x_BWF = np.zeros((SMOKE_WINDOWS, tokens, len(features)), dtype=np.float32)
    limits = limits_of(features)
    for f, feature in enumerate(features):
        values = feature.shift + feature.scale * rng.standard_normal(x_BWF.shape[:2])
        values = np.expm1(values) if feature.transform == "log1p" else np.round(values)
        values = np.clip(values, limits[feature.name]["low"], limits[feature.name]["high"])
        x_BWF[..., f] = np.maximum(values, 1) if feature.name == PADDING_FEATURE else values
    x_BWF[0] = 0
    return x_BWF


def local_smoke(loaded: artifact.Artifact) -> SmokeWindows:
    """Compute a predictor's own answer to smoke windows of whole rows, whichever features it uses."""
    x_BWF = smoke_windows(loaded.model.features, loaded.description.tokens)
    return SmokeWindows(x_BWF, predict(loaded.model, x_BWF), TOLERANCES[settings().arithmetic])


@dataclass(frozen=True)
class ServableArtifact:
    """An artifact that this code can serve, with its smoke windows and limits."""

    smoke: SmokeWindows
    limits: dict[str, dict[str, float]]  # accepted range of each input


def check_latency(source: Path) -> ServableArtifact:
    """Load a predictor of latencies.

    Raises:
        OSError, ValueError: the artifact is not whole, or no sender of this project makes its windows.
    """
    loaded = artifact.load(source)
    return ServableArtifact(local_smoke(loaded), limits_of(EVENTS.features))
