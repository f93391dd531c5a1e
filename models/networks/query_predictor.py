"""What networks over a decision's queries share: scaling, anchor, head; and the one that reads nothing else.

A query (docs/EVENTS.md) holds what the sender's log says of one packet that may be sent, for one queue.

Shapes: Q decisions, H horizon (8 packets), P inputs of a query, D model width.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feature_store.packets.schema import HORIZON
from models.architecture import ANCHOR_FALLBACK
from models.networks.scaling import ScaledFeature, Target
from models.networks.window_network import (
    Scaling,
    WindowNetwork,
    anchored,
    scaled_latency,
    to_us,
)


class QueryHead(nn.Sequential):
    """The two last linear layers, of each query by itself: (…, D) gives (…), or (…, L) of several levels."""

    def __init__(self, width: int, levels: int = 1) -> None:
        super().__init__(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, levels))
        self.levels = levels

    def forward(self, read_QHD: Tensor) -> Tensor:
        """Latencies in scaled target space, less the anchor."""
        out: Tensor = super().forward(read_QHD)  # type: ignore[no-untyped-call]
        return out[..., 0] if self.levels == 1 else out


class QueryPredictor(nn.Module):
    """Scaling of queries, anchor and head; a network adds what the head reads (Q, H, D).

    With `quantiles` the head has an output (…, L) for each level, else one: the mean of the target.
    """

    def __init__(
        self,
        query_inputs: Sequence[ScaledFeature],
        target: Target,
        width: int,
        anchor: str | None,
        quantiles: Sequence[float] = (),
    ) -> None:
        super().__init__()
        self.target = target
        self.quantiles = tuple(quantiles)
        self.query_inputs = tuple(query_inputs)
        self.query_scaling = Scaling(query_inputs)
        self.head = QueryHead(width, len(self.quantiles) or 1)
        self.anchored = anchor is not None
        names = [each.name for each in query_inputs]
        for needed in (anchor, ANCHOR_FALLBACK) if anchor else ():
            if needed not in names:
                raise ValueError(f"the anchor needs the input {needed}, which is not among {names}")
        if anchor:
            self.anchor_index, self.fallback_index = map(names.index, (anchor, ANCHOR_FALLBACK))
            for parameter in self.head[2].parameters():  # the untrained network forecasts its anchor
                nn.init.zeros_(parameter)

    def answer(self, read_QHD: Tensor, x_QHP: Tensor) -> Tensor:
        """What the head makes, in scaled target space, of what it reads, and the anchor."""
        return anchored(self.head(read_QHD), self.anchor(x_QHP))

    def anchor(self, x_QHP: Tensor) -> Tensor:
        """What the head corrects (Q, H) in scaled target space; the mean, 0, where nothing is visible yet."""
        if not self.anchored:
            return torch.zeros_like(x_QHP[..., 0])
        own_QH = x_QHP[..., self.anchor_index]
        return scaled_latency(torch.where(own_QH > 0, own_QH, x_QHP[..., self.fallback_index]), self.target)

    def to_us(self, scaled_QH: Tensor) -> Tensor:
        """Latencies in µs of values in scaled target space."""
        return to_us(scaled_QH, self.target)


@dataclass(frozen=True)
class MlpArchitecture:
    """Sizes of the network of linear layers."""

    layers: int = 2
    width: int = 128
    dropout: float = 0.1
    anchor: str | None = "expected_latency_us"  # a query's input that the network corrects, or none
    horizon: int = HORIZON

    def __post_init__(self) -> None:
        if min(self.layers, self.width) < 1 or not 0 <= self.dropout < 1:
            raise ValueError(f"architecture {self} is not possible")


class QueryMlp(WindowNetwork):
    """Linear layers on a query's inputs: what the sender's state alone says, without the events.

    Of a window of events and queries, as of queries alone, it reads the last H rows.
    """

    sizes: MlpArchitecture

    def __init__(
        self,
        features: Sequence[ScaledFeature],
        target: Target,
        sizes: MlpArchitecture,
        quantiles: Sequence[float] = (),
    ) -> None:
        super().__init__(features, target, sizes.horizon, sizes.anchor)
        self.sizes, self.quantiles = sizes, tuple(quantiles)
        self.head = QueryHead(sizes.width, len(self.quantiles) or 1)
        if sizes.anchor:
            for parameter in self.head[2].parameters():  # the untrained network forecasts its anchor
                nn.init.zeros_(parameter)
        self.body = nn.Sequential()
        for inner, outer in itertools.pairwise([len(features), *[sizes.width] * sizes.layers]):
            self.body.extend([nn.Linear(inner, outer), nn.ReLU(), nn.Dropout(sizes.dropout)])

    def encode(self, x_BWF: Tensor) -> Tensor:
        """Compute what the head reads (B, H, D)."""
        return self.body(self.scale(x_BWF[:, -self.horizon :]))  # type: ignore[no-any-return]
