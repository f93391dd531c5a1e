"""The event stream as it is served: without state, from the last events and the queries of a decision.

A decision sees a band of events for each layer and nothing else. So a window of those events and the queries
(feature_store/events/event_window.h) has all that the network of `event_transformer.py` would keep, and the
answers are the same. It is trained there, over whole traces.

Shapes: B batch, W window tokens (K + H), K events that a decision sees, F features, D model width, H horizon
(8 packets).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import torch
from torch import Tensor, nn

from feature_store.events.definition import EVENTS
from feature_store.packets.schema import HORIZON
from models.architecture import MEDIAN
from models.networks.event_transformer import EventArchitecture, EventLayer, EventPredictor, in_band
from models.networks.query_predictor import QueryHead, QueryMlp
from models.networks.scaling import ScaledFeature, Target
from models.networks.window_network import Scaling, WindowNetwork

ACK: Final = "ack"  # feature: whether an event is an ACK
N = TypeVar("N", bound=WindowNetwork)


class EventWindowPredictor(WindowNetwork):
    """Latencies of the next H packets from one event window of raw features.

    Weights and their names are those of `EventPredictor`, but that the three embeddings take all F features
    of a row: what the network does not see has weight 0.
    """

    sizes: EventArchitecture

    def __init__(
        self,
        features: Sequence[ScaledFeature],
        queries: Sequence[ScaledFeature],
        target: Target,
        sizes: EventArchitecture,
    ) -> None:
        """`features` scale the rows of events, `queries` those of the packets about to be sent."""
        super().__init__(features, target, HORIZON, sizes.anchor)
        names = [feature.name for feature in self.features]
        if names != [query.name for query in queries] or ACK not in names:
            raise ValueError(f"queries must name the features, in their order, and these hold {ACK!r}")
        self.sizes, self.queries = sizes, tuple(queries)
        self.ack_index = names.index(ACK)
        self.query_scale = Scaling(self.queries)
        d, f = sizes.width, len(names)
        self.send, self.ack, self.ask_about = nn.Linear(f, d), nn.Linear(f, d), nn.Linear(f, d)
        self.layers = nn.ModuleList(EventLayer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(d)
        self.head = QueryHead(d)

    def encode(self, x_BWF: Tensor) -> Tensor:
        """Compute what the head reads (B, H, D)."""
        events_BKF, queries_BHF = x_BWF[:, : -self.horizon], x_BWF[:, -self.horizon :]
        scaled_BKF = self.scale(events_BKF)
        is_ack_BK1 = events_BKF[..., self.ack_index, None] > 0
        x_BKD = torch.where(is_ack_BK1, self.ack(scaled_BKF), self.send(scaled_BKF))
        there_BK = events_BKF[..., self.size_index] > 0
        asked_BHD = self.ask_about(self.query_scale(queries_BHF))
        band = self.sizes.band
        for after, layer in zip(reversed(range(self.sizes.layers)), self.layers, strict=True):
            keys_BKD, values_BKD = layer.keys_and_values(x_BKD)  # type: ignore[operator]
            asked_BHD = layer(
                asked_BHD, keys_BKD[:, -band:], values_BKD[:, -band:], there_BK[:, None, -band:]
            )
            if after:  # the layers after this one need a band of its events each
                place_K = torch.arange(x_BKD.shape[1], device=x_BKD.device)
                seen_BRK = in_band(place_K, place_K[-after * band :, None], band) & there_BK[:, None]
                x_BKD = layer(x_BKD[:, -after * band :], keys_BKD, values_BKD, seen_BRK)
                there_BK = there_BK[:, -after * band :]
        return self.norm(asked_BHD)  # type: ignore[no-any-return]

    def scalings(self) -> tuple[ScaledFeature, ...]:
        """Scalings of the events' inputs, then of the queries'."""
        return (*self.features, *self.queries)


def served(model: EventPredictor, level: float | None = None) -> EventWindowPredictor:
    """Put a network over an event stream into the form that is served; arguments and errors as of `put`."""
    events, queries = in_windows(model.event_inputs), in_windows(model.query_inputs)
    found = EventWindowPredictor(events, queries, model.target, replace(model.sizes))
    by_row = {"send": model.event_inputs, "ack": model.event_inputs, "ask_about": model.query_inputs}
    return put(model, found, by_row, level)


def served_mlp(model: QueryMlp, level: float | None = None) -> QueryMlp:
    """Put linear layers on a query's inputs into the form that is served, likewise."""
    found = QueryMlp(in_windows(model.features), model.target, model.sizes)
    return put(model, found, {"body.0": model.features}, level)


def in_windows(inputs: Sequence[ScaledFeature]) -> list[ScaledFeature]:
    """Scalings of all features of an event window, of which a network sees these inputs.

    Raises:
        ValueError: no event window has one of them.
    """
    known = {each.name: each for each in inputs}
    if gone := set(known) - {feature.name for feature in EVENTS.features}:
        raise ValueError(f"no event window has the input {min(gone)}")
    return [known.get(each.name, ScaledFeature(each.name, each.unit)) for each in EVENTS.features]


def put(
    model: EventPredictor | QueryMlp,
    found: N,
    seen: Mapping[str, Sequence[ScaledFeature]],
    level: float | None,
) -> N:
    """Put a network's weights into its form over event windows, which gives one latency a packet.

    Of one that gives quantiles it is the level's output alone, or the median's: a row of the last layer.
    Where levels cross, the forecaster sorts them and this does not.

    Args:
        model: as it was trained.
        found: that form.
        seen: the inputs of layers that take all features there: what they do not see has weight 0.
        level: of the quantile, or None.

    Raises:
        ValueError: it has no such level.
    """
    if level is not None and level not in model.quantiles:
        known = ", ".join(map(str, model.quantiles)) or "none: it gives the mean"
        raise ValueError(f"level {level} cannot be served; the network's are {known}")
    names = [feature.name for feature in EVENTS.features]
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for layer, inputs in seen.items():
        whole = torch.zeros(model.sizes.width, len(names))
        whole[:, [names.index(each.name) for each in inputs]] = state[f"{layer}.weight"]
        state[f"{layer}.weight"] = whole
    if model.quantiles:
        found.quantiles = (MEDIAN if level is None else level,)
        row = model.quantiles.index(*found.quantiles)
        for name in ("head.2.weight", "head.2.bias"):
            state[name] = state[name][row : row + 1]
    found.load_state_dict(state)
    return found.eval()
