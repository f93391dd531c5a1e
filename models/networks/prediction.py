"""The one way from windows to predicted latencies: batch by batch, in eval mode, on the device of the model.

A row of the answer is a decision: place h is its packet h, in the queue that the packet's own token names. To
ask for both queues, give the windows of both. The encoder's output is computed once, for however many heads.

Shapes: B windows (decisions), W window tokens, F features, R tokens that the head reads, D model width,
H horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.networks.parameters import MEDIAN
from models.networks.scaling import TargetScaling
from models.networks.torch_scaling import anchored

BATCH: Final = 512  # windows per forward pass
Floats = NDArray[np.float32]


class RawWindows(Protocol):
    """Raw windows, read as they are needed: an array (B, W, F), in memory or mapped, or what acts so."""

    def __len__(self) -> int:
        """B."""

    def __getitem__(self, part: slice, /) -> Floats:
        """Some that follow each other."""


class HeadedNetwork(Protocol):
    """A network whose head can be trained and asked by itself; each of `models/networks` is one."""

    @property
    def target(self) -> TargetScaling:
        """Scaling of the latency."""

    @property
    def head(self) -> nn.Module:
        """Return the last layers."""

    @property
    def quantiles(self) -> tuple[float, ...]:
        """Levels of the head's outputs: several (B, H, L), 0.5 among them; one (B, H); none: the mean."""

    def to_us(self, scaled: Tensor, /) -> Tensor:
        """Return the latencies in µs of values in scaled target space."""

    def eval(self) -> object:
        """Switch dropout off."""


class Encoder(HeadedNetwork, Protocol):
    """A network over rows: what stands before its head is asked by itself, too."""

    def encode(self, x_BWF: Tensor, /) -> Tensor:
        """Return what the head reads (B, R, D) of raw rows."""

    def anchor(self, x_BWF: Tensor, /) -> Tensor:
        """Return what the head corrects (B, H) of raw rows."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return its weights."""


@dataclass(frozen=True)
class HeadInputs:
    """Decisions as a head sees them."""

    read_BRD: Tensor
    anchor_BH: Tensor  # in scaled target space: what the head's output is added to


def encode(model: Encoder, windows: RawWindows, batch: int = BATCH) -> Iterator[HeadInputs]:
    """Encode windows, `batch` at a time."""
    model.eval()  # dropout would spoil a cache of it
    device = next(model.parameters()).device
    for first in range(0, len(windows), batch):
        # Copied: a memory map is read-only.
        x_BWF = torch.from_numpy(np.array(windows[first : first + batch])).to(device)
        with torch.no_grad():
            part = HeadInputs(model.encode(x_BWF), model.anchor(x_BWF))
        yield part


def latencies(model: HeadedNetwork, encoded: HeadInputs) -> Floats:
    """Latencies in µs (B, H) by the head of `model`, of decisions that its own encoder has encoded."""
    if len(model.quantiles) > 1:
        return quantiles(model, encoded)[..., model.quantiles.index(MEDIAN)]
    return _latencies(model, encoded).cpu().numpy()


def quantiles(model: HeadedNetwork, encoded: HeadInputs) -> Floats:
    """Quantiles in µs (B, H, L), ascending: outputs of neighbouring levels that cross change places.

    Sorting never harms their loss (Chernozhukov, Fernandez-Val and Galichon, Econometrica 78(3), 2010).
    """
    return _latencies(model, encoded).sort(-1).values.cpu().numpy()


def answers(model: HeadedNetwork, encoded: HeadInputs) -> Tensor:
    """What the head gives (B, H) or (B, H, L) in scaled target space: levels as they are, unsorted."""
    with torch.no_grad():
        return anchored(model.head(encoded.read_BRD), encoded.anchor_BH)


def _latencies(model: HeadedNetwork, encoded: HeadInputs) -> Tensor:
    return model.to_us(answers(model, encoded))


def predict(model: Encoder, windows: RawWindows) -> Floats:
    """Return the latencies in µs (B, H) of windows; at least one."""
    return np.concatenate([latencies(model, part) for part in encode(model, windows)])
