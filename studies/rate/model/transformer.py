"""Ours for rates: a small causal Transformer that corrects what the path itself tells.

BBR's estimate grows with the window until the path is full. So the answer begins at the smaller of two rates
(`path_guess`): the dispersion of the first ACKs, and a window of so many packets a round trip; how many is
learned for each horizon. The network adds a correction to its logarithm, and both are inputs of each token.

Shapes: B flows, S samples in order (35 or fewer), F fields of a sample, D width, H horizons (6).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.networks.scaling import ScaledFeature
from studies.rate.model.network import RateNetwork, path_guess
from studies.rate.samples.definition import HORIZONS, MOST_SAMPLES

CENTER = 14.0  # log bytes/s, 10 Mbit/s; only brings the two guesses near 0


class RateTransformer(RateNetwork):
    """Pre-norm layers under a causal mask; a learned code of the sample's number."""

    causal: Tensor

    def __init__(
        self,
        features: Sequence[ScaledFeature],
        width: int = 48,
        layers: int = 2,
        heads: int = 4,
        dropout: float = 0.1,
    ) -> None:
        super().__init__(features)
        if min(width, layers, heads) < 1 or width % heads or not 0 <= dropout < 1:
            raise ValueError(f"a Transformer of width {width} with {heads} heads is not possible")
        self._sizes = {"width": width, "layers": layers, "heads": heads, "dropout": dropout}
        self.embedding = nn.Linear(len(features) + 2, width)
        self.place = nn.Parameter(torch.randn(MOST_SAMPLES, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, self.horizons)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)
        self.of_dispersion = nn.Parameter(torch.zeros(self.horizons))
        # In slow start a rate at packet k is that of about k/2 packets a round trip.
        self.of_window = nn.Parameter(torch.tensor(HORIZONS, dtype=torch.float32).div(2).log())
        mask = torch.ones(MOST_SAMPLES, MOST_SAMPLES, dtype=torch.bool).triu(1)
        self.register_buffer("causal", mask, persistent=False)

    def sizes(self) -> dict[str, float]:
        """Arguments that make such a network again."""
        return dict(self._sizes)

    def forward(self, x_BSF: Tensor) -> Tensor:
        """Log of bytes/s at each horizon (B, S, H), after each sample of x in raw units.

        Raises:
            ValueError: there are more samples than the network knows places of.
        """
        steps = x_BSF.shape[1]
        if steps > MOST_SAMPLES:
            raise ValueError(f"{steps} samples; the network takes {MOST_SAMPLES}")
        dispersion_BS, trip_BS = path_guess(x_BSF)
        guesses = torch.stack([dispersion_BS, trip_BS + 4], -1) - CENTER
        h_BSD = self.embedding(torch.cat([self.scaled(x_BSF), guesses], -1)) + self.place[:steps]
        for layer in self.layers:
            h_BSD = layer(h_BSD, src_mask=self.causal[:steps, :steps])
        full, growing = dispersion_BS[..., None] + self.of_dispersion, trip_BS[..., None] + self.of_window
        # A smooth minimum: 0.17 of a natural-log unit (log 2 over 4) lower where both are the same.
        smaller = -torch.logaddexp(-4 * full, -4 * growing) / 4
        return smaller + self.out(self.norm(h_BSD))  # type: ignore[no-any-return]
