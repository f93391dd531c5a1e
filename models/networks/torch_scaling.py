"""Scale raw inputs inside a network, and its output to microseconds.

Shapes: B batch, F inputs, H horizon (8 packets), L levels of quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from swiftqueue.models.networks.scaling import MIN_LATENCY_US, ScaledFeature, TargetScaling

PADDING_FEATURE: Final = "size_bytes"  # no packet has size 0, so such a row is padding
MAX_LATENCY_US: Final = 60e6  # nothing above a minute is predicted, which keeps exp() finite


class Scaling(nn.Module):
    """The scaling of raw inputs (…, F): transform, shift and scale of each."""

    log_F: Tensor
    shift_F: Tensor
    scale_F: Tensor

    def __init__(self, features: Sequence[ScaledFeature]) -> None:
        super().__init__()
        # The buffers are not persistent: only model.json stores these values.
        log = [feature.transform == "log1p" for feature in features]
        self.register_buffer("log_F", torch.tensor(log), persistent=False)
        for part in ("shift", "scale"):
            values = torch.tensor([getattr(feature, part) for feature in features], dtype=torch.float32)
            self.register_buffer(f"{part}_F", values, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return scaled inputs."""
        return (torch.where(self.log_F, torch.log1p(x.clamp(min=0)), x) - self.shift_F) / self.scale_F


def scaled_latency(latency_us: Tensor, target: TargetScaling) -> Tensor:
    """Return latencies in scaled target space; 0, the mean, where a latency is 0, thus not visible yet."""
    values = latency_us.clamp(min=MIN_LATENCY_US)
    scaled = ((values.log() if target.transform == "log" else values) - target.shift) / target.scale
    return torch.where(latency_us > 0, scaled, torch.zeros_like(scaled))


def to_us(scaled: Tensor, target: TargetScaling) -> Tensor:
    """Return the latencies in µs of values in scaled target space."""
    values = scaled * target.scale + target.shift
    if target.transform == "log":
        return values.clamp(math.log(MIN_LATENCY_US), math.log(MAX_LATENCY_US)).exp()
    return values.clamp(0.0, MAX_LATENCY_US)


def anchored(out: Tensor, anchor_BH: Tensor) -> Tensor:
    """Return a head's output (B, H) or (B, H, L) plus the anchor that it corrects."""
    return out + (anchor_BH[..., None] if out.dim() > anchor_BH.dim() else anchor_BH)
