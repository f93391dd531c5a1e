"""Define the base of all served networks: rows of events and queries in, microseconds out, a tunable head.

A query (docs/EVENTS.md) describes one packet that may be sent, for one queue, by the sender's log. Each
network has two forms with one set of weights. It is trained event by event on the inputs that it sees. It is
served without state, from the rows of the last events and of 8 queries in one array.

Scaling is the first and last operation, so whoever holds the weights cannot scale differently. An `anchor` is
a latency of the query that is visible already. The network adds a correction to it, so it starts from that
forecast instead of learning to copy it.

Shapes: B batch, W rows (K events, H queries), F inputs of a row, Q decisions, H horizon (8 packets), P inputs
of a query that the network sees, D model width, L levels of quantiles.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.networks.parameters import ANCHOR_FALLBACK
from swiftqueue.models.networks.scaling import ScaledFeature, TargetScaling
from swiftqueue.models.networks.torch_scaling import Scaling, anchored, scaled_latency, to_us

ROW: Final = tuple(feature.name for feature in EVENTS.features)


class QueryHead(nn.Sequential):
    """The two last linear layers, applied to each query: (…, D) gives (…), or (…, L) for several levels."""

    def __init__(self, width: int, levels: int = 1) -> None:
        super().__init__(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, levels))
        self.levels = levels

    def forward(self, read_QHD: Tensor) -> Tensor:
        """Return latencies in scaled target space, less the anchor."""
        out: Tensor = super().forward(read_QHD)  # type: ignore[no-untyped-call]
        return out[..., 0] if self.levels == 1 else out


class QueryNetwork(nn.Module):
    """A network that answers queries.

    `forward(x_BWF)` gives microseconds. Training and tuning use its steps separately: `encode`, `head`,
    `anchor` and `to_us`. With `quantiles` the head has an output for each level, otherwise the target's mean.
    """

    sizes: Any
    horizon: Final = HORIZON
    events: int = HORIZON  # K, the last events that a decision sees; an array of rows has at least these

    def __init__(
        self,
        event_inputs: Sequence[ScaledFeature],
        query_inputs: Sequence[ScaledFeature],
        target: TargetScaling,
        width: int,
        anchor: str | None,
        quantiles: Sequence[float] = (),
    ) -> None:
        """Make the parts that all networks have.

        Raises:
            ValueError: an input is unknown or named twice, or the anchor is not among the inputs.
        """
        super().__init__()
        self.target, self.quantiles = target, tuple(quantiles)
        self.event_inputs, self.query_inputs = tuple(event_inputs), tuple(query_inputs)
        self.event_scaling, self.query_scaling = Scaling(event_inputs), Scaling(query_inputs)
        self.event_columns, self.query_columns = _columns(event_inputs), _columns(query_inputs)
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

    @property
    def features(self) -> tuple[ScaledFeature, ...]:
        """Return the scaling of each input of a row in order; inputs that are not seen have the identity."""
        seen = {each.name: each for each in (*self.query_inputs, *self.event_inputs)}
        return tuple(seen.get(each.name, ScaledFeature(each.name, each.unit)) for each in EVENTS.features)

    @property
    def rows(self) -> int:
        """Return W, the rows of a served question."""
        return self.events + self.horizon

    @abstractmethod
    def encode(self, x_BWF: Tensor) -> Tensor:
        """Return the head's inputs (B, H, D) for raw rows (B, W, F)."""

    def forward(self, x_BWF: Tensor) -> Tensor:
        """Return latencies in µs (B, H), or (B, H, L), of the queries in raw rows (B, W, F)."""
        return self.to_us(anchored(self.head(self.encode(x_BWF)), self.anchor(x_BWF)))

    def answer(self, read_QHD: Tensor, x_QHP: Tensor) -> Tensor:
        """Return the head's output plus the anchor, in scaled target space."""
        return anchored(self.head(read_QHD), self.anchor_of(x_QHP))

    def anchor(self, x_BWF: Tensor) -> Tensor:
        """Return the anchors (B, H) of raw rows whose last H are queries, as `anchor_of`."""
        return self.anchor_of(x_BWF[:, -self.horizon :, self.query_columns])

    def anchor_of(self, x_QHP: Tensor) -> Tensor:
        """Return the anchors (Q, H) in scaled target space; 0, the mean, where no latency is visible."""
        if not self.anchored:
            return torch.zeros_like(x_QHP[..., 0])
        own_QH = x_QHP[..., self.anchor_index]
        return scaled_latency(torch.where(own_QH > 0, own_QH, x_QHP[..., self.fallback_index]), self.target)

    def to_us(self, scaled_QH: Tensor) -> Tensor:
        """Return latencies in µs of values in scaled target space."""
        return to_us(scaled_QH, self.target)

    def scalings(self) -> tuple[ScaledFeature, ...]:
        """Return every input scaling; with the weights they determine all outputs."""
        return (*self.event_inputs, *self.query_inputs)

    def encoder_state(self) -> dict[str, Tensor]:
        """Return every stored tensor but the head's: tuning must leave these bit-identical."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith("head.")}


def _columns(inputs: Sequence[ScaledFeature]) -> list[int]:
    """Return the places of inputs in a row; readers of an artifact find them by name."""
    names = [each.name for each in inputs]
    if unknown := [name for name in names if name not in ROW]:
        raise ValueError(f"no row has the input {unknown[0]}")
    if len(set(names)) != len(names):
        raise ValueError(f"inputs {names} must be distinct")
    return [ROW.index(name) for name in names]
