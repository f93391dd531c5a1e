"""The papers' other baseline, a BiLSTM: bidirectional layers where the window's Transformer has its encoder.

Shapes: B batch, W window tokens, F features, R tokens read (1 or H), D model width, H horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from torch import Tensor, nn

from models.loop.window import Window
from models.networks.scaling import ScaledFeature, Target
from models.networks.transformer import Architecture, Predictor
from models.training.pretraining import PretrainParams


class BiLstmParams(PretrainParams):
    """Sizes of the BiLSTM, where `architecture.name` chooses it, and how it is trained."""

    section: ClassVar = "bilstm"


class BiLstm(Predictor):
    """Scaling, anchor, readout and head of the window's network; half the width in each direction."""

    def __init__(
        self, features: Sequence[ScaledFeature], target: Target, sizes: Architecture | None = None
    ) -> None:
        super().__init__(features, target, sizes)
        width = self.sizes.width
        if width % 2:
            raise ValueError(f"width is {width}; of a BiLSTM it must be even")
        self.layers = nn.ModuleList(
            nn.LSTM(width, width // 2, batch_first=True, bidirectional=True) for _ in range(self.sizes.layers)
        )

    def encode(self, x_BWF: Tensor) -> Tensor:
        """Compute what the head reads (B, R, D); padding is zeros."""
        h_BWD = self.embedding(self.scale(x_BWF)) * self.attended(x_BWF)[:, 0, 0, :, None]
        for layer in self.layers:
            h_BWD, _ = layer(h_BWD)
        return h_BWD[:, -(self.sizes.horizon if self.sizes.readout == "candidates" else 1) :]  # type: ignore[no-any-return]


class BiLstmLoop(Window):
    """Trained as the window's network is."""

    stored = "bilstm-encoder"

    def params(self) -> type[BiLstmParams]:
        """Section `bilstm`."""
        return BiLstmParams

    def network(self) -> type[BiLstm]:
        """Class of the network."""
        return BiLstm


NETWORK: Final = BiLstmLoop()
