"""What all networks over windows share: raw windows in, microseconds out, a head that is tuned by itself.

Scaling is the first and last operation, so whoever holds the weights cannot scale differently. An `anchor` is
an input of the packets about to be sent, a latency already visible, to which the network adds a correction:
it then starts from that forecast instead of having to learn to copy it.

Shapes: B batch, W window tokens, F features, D model width, H horizon (8 packets), R tokens read (1 or H).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from models.networks.parameters import ANCHOR_FALLBACK
from models.networks.scaling import MIN_LATENCY_US, ScaledFeature, Target

PADDING_FEATURE: Final = "size_bytes"  # no packet has size 0: such a token is padding
MAX_LATENCY_US: Final = 60e6  # nothing above a minute is predicted; keeps exp() finite


class Scaling(nn.Module):
    """Raw inputs (…, F) as a network sees them: transform, shift and scale of each."""

    log_F: Tensor
    shift_F: Tensor
    scale_F: Tensor

    def __init__(self, features: Sequence[ScaledFeature]) -> None:
        super().__init__()
        # Not persistent: model.json is the one place they are stored in.
        log = [feature.transform == "log1p" for feature in features]
        self.register_buffer("log_F", torch.tensor(log), persistent=False)
        for part in ("shift", "scale"):
            values = torch.tensor([getattr(feature, part) for feature in features], dtype=torch.float32)
            self.register_buffer(f"{part}_F", values, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Scaled inputs."""
        return (torch.where(self.log_F, torch.log1p(x.clamp(min=0)), x) - self.shift_F) / self.scale_F


def scaled_latency(latency_us: Tensor, target: Target) -> Tensor:
    """Latencies in scaled target space; the mean, 0, where one is 0: not visible yet."""
    values = latency_us.clamp(min=MIN_LATENCY_US)
    scaled = ((values.log() if target.transform == "log" else values) - target.shift) / target.scale
    return torch.where(latency_us > 0, scaled, torch.zeros_like(scaled))


def to_us(scaled: Tensor, target: Target) -> Tensor:
    """Latencies in µs of values in scaled target space."""
    values = scaled * target.scale + target.shift
    if target.transform == "log":
        return values.clamp(math.log(MIN_LATENCY_US), math.log(MAX_LATENCY_US)).exp()
    return values.clamp(0.0, MAX_LATENCY_US)


def anchored(out: Tensor, anchor_BH: Tensor) -> Tensor:
    """A head's output (B, H) or (B, H, L) with the anchor that it corrects."""
    return out + (anchor_BH[..., None] if out.dim() > anchor_BH.dim() else anchor_BH)


class WindowNetwork(nn.Module):
    """Latencies of the next H packets from one window of raw features.

    `forward(x_BWF)` gives microseconds. Training and fine-tuning use its steps apart: `encode`, `head` (the
    two last linear layers), `anchor` (what the head's output is added to; these in scaled target space) and
    `to_us`.
    """

    sizes: Any
    head: nn.Sequential
    # Of its outputs, for which the head is tuned; none: the mean. With several, `forward` and `scaled` give
    # (B, H, L), as the head has them.
    quantiles: tuple[float, ...] = ()

    def __init__(
        self, features: Sequence[ScaledFeature], target: Target, horizon: int, anchor: str | None
    ) -> None:
        super().__init__()
        self.features = tuple(features)
        self.target = target
        self.horizon = horizon
        names = [feature.name for feature in self.features]
        if PADDING_FEATURE not in names or len(set(names)) != len(names):
            raise ValueError(f"features {names} must be distinct and hold {PADDING_FEATURE}")
        self.size_index = names.index(PADDING_FEATURE)
        self.anchor_index = None if anchor is None else _latency_index(names, anchor)
        self.fallback_index = -1 if anchor is None else _latency_index(names, ANCHOR_FALLBACK)
        self.scale = Scaling(self.features)

    @abstractmethod
    def encode(self, x_BWF: Tensor) -> Tensor:
        """Compute the encoder's output for the tokens that are read (B, R, D), all that the head sees."""

    def forward(self, x_BWF: Tensor) -> Tensor:
        """Latencies in µs (B, H) of the last H tokens of raw windows (B, W, F)."""
        return self.to_us(self.scaled(x_BWF))

    def scaled(self, x_BWF: Tensor) -> Tensor:
        """Latencies (B, H) in scaled target space, what the loss sees."""
        return anchored(self.head(self.encode(x_BWF)), self.anchor(x_BWF))

    def anchor(self, x_BWF: Tensor) -> Tensor:
        """What the head corrects (B, H) in scaled target space; the mean, 0, where nothing is visible yet."""
        candidates_BHF = x_BWF[:, -self.horizon :]
        if self.anchor_index is None:
            return torch.zeros_like(candidates_BHF[..., 0])
        own_BH = candidates_BHF[..., self.anchor_index]
        latency_BH = torch.where(own_BH > 0, own_BH, candidates_BHF[..., self.fallback_index])
        return scaled_latency(latency_BH, self.target)

    def to_us(self, scaled_BH: Tensor) -> Tensor:
        """Latencies in µs of the head's output in scaled target space."""
        return to_us(scaled_BH, self.target)

    def scalings(self) -> tuple[ScaledFeature, ...]:
        """Every scaling of an input: with the weights, all that decides what a window becomes."""
        return self.features

    def encoder_state(self) -> dict[str, Tensor]:
        """Every stored tensor but the head's: what fine-tuning must leave bit-identical."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith("head.")}


def _latency_index(names: list[str], name: str) -> int:
    if name not in names:
        raise ValueError(f"the anchor needs the input {name}, which is not among {names}")
    return names.index(name)
