"""Predict latencies from windows: batch by batch, in eval mode, on the device of the model.

A row of the answer is a decision, and place h is its packet h, in the queue that the packet's own token
names. For both queues, give the windows of both. The encoder's output is computed once for any number of
heads.

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

from swiftqueue.models.networks.parameters import MEDIAN
from swiftqueue.models.networks.scaling import TargetScaling
from swiftqueue.models.networks.torch_scaling import anchored

BATCH: Final = 512  # windows per forward pass
Floats = NDArray[np.float32]


class RawWindows(Protocol):
    """Raw windows that are read as needed: an array (B, W, F) in memory or mapped, or a similar object."""

    def __len__(self) -> int:
        """Return B."""

    def __getitem__(self, part: slice, /) -> Floats:
        """Return some consecutive windows."""


class HeadedNetwork(Protocol):
    """A network whose head can be trained and applied by itself."""

    @property
    def target(self) -> TargetScaling:
        """Return the scaling of the latency."""

    @property
    def head(self) -> nn.Module:
        """Return the last layers."""

    @property
    def quantiles(self) -> tuple[float, ...]:
        """Return the levels of the head's outputs: (B, H, L) for several, else (B, H); empty: the mean."""

    def to_us(self, scaled: Tensor, /) -> Tensor:
        """Return the latencies in µs of values in scaled target space."""

    def eval(self) -> object:
        """Switch dropout off."""


class EncoderNetwork(HeadedNetwork, Protocol):
    """A network over rows whose part before the head can be applied by itself."""

    def encode(self, x_BWF: Tensor, /) -> Tensor:
        """Return the head's inputs (B, R, D) for raw rows."""

    def anchor(self, x_BWF: Tensor, /) -> Tensor:
        """Return the anchor (B, H) that the head corrects, for raw rows."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the network's weights."""


@dataclass(frozen=True)
class HeadInputs:
    """The head's inputs for some decisions."""

    read_BRD: Tensor
    anchor_BH: Tensor  # scaled target space; the head's output is added to it


def encode(model: EncoderNetwork, windows: RawWindows, batch: int = BATCH) -> Iterator[HeadInputs]:
    """Encode windows, `batch` at a time."""
    model.eval()  # dropout would spoil cached inputs
    device = next(model.parameters()).device
    for first in range(0, len(windows), batch):
        # The windows are copied: a memory map is read-only.
        x_BWF = torch.from_numpy(np.array(windows[first : first + batch])).to(device)
        with torch.no_grad():
            part = HeadInputs(model.encode(x_BWF), model.anchor(x_BWF))
        yield part


def latencies(model: HeadedNetwork, encoded: HeadInputs) -> Floats:
    """Return latencies in µs (B, H) by the head of `model` for decisions that its own encoder encoded."""
    if len(model.quantiles) > 1:
        return quantiles(model, encoded)[..., model.quantiles.index(MEDIAN)]
    return _latencies(model, encoded).cpu().numpy()


def quantiles(model: HeadedNetwork, encoded: HeadInputs) -> Floats:
    """Return quantiles in µs (B, H, L) in ascending order: outputs of levels that cross are sorted.

    Sorting never harms their loss (Chernozhukov, Fernandez-Val and Galichon, Econometrica 78(3), 2010).
    """
    return _latencies(model, encoded).sort(-1).values.cpu().numpy()


def answers(model: HeadedNetwork, encoded: HeadInputs) -> Tensor:
    """Return the head's outputs (B, H) or (B, H, L) in scaled target space, with unsorted levels."""
    with torch.no_grad():
        return anchored(model.head(encoded.read_BRD), encoded.anchor_BH)


def _latencies(model: HeadedNetwork, encoded: HeadInputs) -> Tensor:
    return model.to_us(answers(model, encoded))


def predict(model: EncoderNetwork, windows: RawWindows) -> Floats:
    """Return latencies in µs (B, H) of windows; there must be at least one."""
    return np.concatenate([latencies(model, part) for part in encode(model, windows)])
