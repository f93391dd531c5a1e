"""The paper's network for rates: an LSTM over the samples (Lübben, section III-C).

One causal network answers after each sample for all horizons, where the paper has one for each pair.
Shapes: B flows, S samples in order, F fields of a sample, H horizons (6).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from swiftqueue.models.networks.scaling import ScaledFeature
from swiftqueue.studies.rate.model.network import RateNetwork


class RateLstm(RateNetwork):
    """One layer of `units` cells; the log of the rates is a linear function of their state."""

    def __init__(
        self, features: Sequence[ScaledFeature], units: int = 70, dropout: float = 0.1, center: float = 14.0
    ) -> None:
        super().__init__(features)
        if units < 1 or not 0 <= dropout < 1:
            raise ValueError(f"an LSTM of {units} cells and dropout {dropout} is not possible")
        self._sizes = {"units": units, "dropout": dropout, "center": center}
        self.center = center  # log bytes/s about which the answers begin
        self.lstm = nn.LSTM(len(features), units, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(units, self.horizons)

    def sizes(self) -> dict[str, float]:
        """Arguments that make such a network again."""
        return dict(self._sizes)

    def forward(self, x_BSF: Tensor) -> Tensor:
        """Log of bytes/s at each horizon (B, S, H), after each sample of x in raw units."""
        state_BSD, _ = self.lstm(self.scaled(x_BSF))
        return self.out(self.drop(state_BSD)) + self.center  # type: ignore[no-any-return]
