"""Define the network of linear layers on a query's inputs.

Shapes: B batch, W rows, F inputs of a row, H horizon (8 packets), P inputs of a query, D model width.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from torch import Tensor, nn

from swiftqueue.models.networks.query_network import QueryNetwork
from swiftqueue.models.networks.scaling import ScaledFeature, TargetScaling


@dataclass(frozen=True)
class MlpArchitecture:
    """Sizes of the network of linear layers."""

    layers: int = 2
    width: int = 128
    dropout: float = 0.1
    anchor: str | None = "expected_latency_us"  # input of a query that the network corrects; None: no anchor

    def __post_init__(self) -> None:
        if min(self.layers, self.width) < 1 or not 0 <= self.dropout < 1:
            raise ValueError(f"architecture {self} is not possible")


class QueryMlp(QueryNetwork):
    """A network of the next H latencies from their queries alone, the last H of raw rows."""

    sizes: MlpArchitecture

    def __init__(
        self,
        event_inputs: Sequence[ScaledFeature],
        query_inputs: Sequence[ScaledFeature],
        target: TargetScaling,
        sizes: MlpArchitecture | None = None,
        quantiles: Sequence[float] = (),
    ) -> None:
        """Make the layers; there are no inputs of events.

        Raises:
            ValueError: there are inputs of events, or the anchor is not among the inputs.
        """
        sizes = sizes or MlpArchitecture()
        if event_inputs:
            raise ValueError(f"this network sees no events, but it is given the input {event_inputs[0].name}")
        super().__init__((), query_inputs, target, sizes.width, sizes.anchor, quantiles)
        self.sizes = sizes
        self.body = nn.Sequential()
        for inner, outer in itertools.pairwise([len(query_inputs), *[sizes.width] * sizes.layers]):
            self.body.extend([nn.Linear(inner, outer), nn.ReLU(), nn.Dropout(sizes.dropout)])

    def encode(self, x_BWF: Tensor) -> Tensor:
        """Return the head's inputs (B, H, D) for raw rows (B, W, F)."""
        return self.encode_queries(x_BWF[:, -self.horizon :, self.query_columns])

    def encode_queries(self, x_BHP: Tensor) -> Tensor:
        """Return the head's inputs (B, H, D) for raw queries (B, H, P)."""
        return self.body(self.query_scaling(x_BHP))  # type: ignore[no-any-return]

    def scaled(self, x_BHP: Tensor) -> Tensor:
        """Return latencies (B, H) in scaled target space, as the loss sees them."""
        return self.answer(self.encode_queries(x_BHP), x_BHP)


NETWORK: Final = (MlpArchitecture, QueryMlp)
