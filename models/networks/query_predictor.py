"""What networks over a decision's queries share: scaling, anchor, head; and the one that reads nothing else.

A query (docs/EVENTS.md) holds what the sender's log says of one packet that may be sent, for one queue.

Shapes: Q decisions, H horizon (8 packets), P inputs of a query, D model width.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.networks.scaling import ScaledFeature, Target
from models.networks.window_network import ANCHOR_FALLBACK, Scaling, scaled_latency, to_us


class QueryHead(nn.Sequential):
    """The two last linear layers, of each query by itself: (…, D) gives (…), or (…, L) of several levels."""

    def __init__(self, width: int, levels: int = 1) -> None:
        super().__init__(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, levels))
        self.levels = levels

    def forward(self, read_QHD: Tensor) -> Tensor:
        """Latencies in scaled target space, less the anchor."""
        out: Tensor = super().forward(read_QHD)  # type: ignore[no-untyped-call]
        return out[..., 0] if self.levels == 1 else out


def anchored(out: Tensor, anchor_QH: Tensor) -> Tensor:
    """A head's output (Q, H) or (Q, H, L) with the anchor that it corrects."""
    return out + (anchor_QH[..., None] if out.dim() > anchor_QH.dim() else anchor_QH)


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


class QueryMlp(QueryPredictor):
    """Linear layers on a query's inputs: what the sender's state alone says, without the events."""

    def __init__(
        self,
        query_inputs: Sequence[ScaledFeature],
        target: Target,
        *,
        width: int,
        layers: int,
        dropout: float,
        anchor: str | None,
        quantiles: Sequence[float] = (),
    ) -> None:
        super().__init__(query_inputs, target, width, anchor, quantiles)
        sizes = [len(query_inputs), *[width] * layers]
        self.body = nn.Sequential()
        for inner, outer in itertools.pairwise(sizes):
            self.body.extend([nn.Linear(inner, outer), nn.ReLU(), nn.Dropout(dropout)])

    def scaled(self, x_QHP: Tensor) -> Tensor:
        """Latencies (Q, H) in scaled target space, of raw queries."""
        return self.answer(self.encode(x_QHP), x_QHP)

    def encode(self, x_QHP: Tensor) -> Tensor:
        """Compute what the head reads (Q, H, D)."""
        return self.body(self.query_scaling(x_QHP))  # type: ignore[no-any-return]
