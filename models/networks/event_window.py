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
from typing import Final

import torch
from torch import Tensor, nn

from feature_store.events.definition import EVENTS
from feature_store.packets.schema import HORIZON
from models.architecture import ALL, MEDIAN, Level
from models.networks.event_transformer import EventArchitecture, EventLayer, EventPredictor, in_band
from models.networks.query_predictor import QueryHead, QueryMlp
from models.networks.scaling import ScaledFeature, Target
from models.networks.window_network import Scaling, WindowNetwork

ACK: Final = "ack"  # feature: whether an event is an ACK


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
        quantiles: Sequence[float] = (),
    ) -> None:
        """`features` scale the rows of events, `queries` those of the packets about to be sent."""
        super().__init__(features, target, HORIZON, sizes.anchor)
        names = [feature.name for feature in self.features]
        if names != [query.name for query in queries] or ACK not in names:
            raise ValueError(f"queries must name the features, in their order, and these hold {ACK!r}")
        self.sizes, self.queries, self.quantiles = sizes, tuple(queries), tuple(quantiles)
        self.ack_index = names.index(ACK)
        self.query_scale = Scaling(self.queries)
        d, f = sizes.width, len(names)
        self.send, self.ack, self.ask_about = nn.Linear(f, d), nn.Linear(f, d), nn.Linear(f, d)
        self.layers = nn.ModuleList(EventLayer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(d)
        self.head = QueryHead(d, len(self.quantiles) or 1)

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


def served(model: EventPredictor, level: Level = None) -> EventWindowPredictor:
    """Put a network over an event stream into the form that is served.

    Args:
        model: as it was trained.
        level: of its quantiles the one that is served, `all`, or None.

    Raises:
        ValueError: it has no such level.
    """
    events, queries = in_windows(model.event_inputs), in_windows(model.query_inputs)
    found = EventWindowPredictor(events, queries, model.target, replace(model.sizes), model.quantiles)
    by_row = {"send": model.event_inputs, "ack": model.event_inputs, "ask_about": model.query_inputs}
    found.load_state_dict(put(model, by_row))
    return found.eval() if level == ALL and model.quantiles else of_level(found, level)


def of_level(model: EventWindowPredictor, level: Level) -> EventWindowPredictor:
    """Of what is served with all its levels make what is served with one; errors as of `served`."""
    names = model.features, model.queries
    found = EventWindowPredictor(*names, model.target, model.sizes)
    found.quantiles, state = one_of(model.quantiles, model.state_dict(), level)
    found.load_state_dict(state)
    return found.eval()


def served_mlp(model: QueryMlp, level: Level = None) -> QueryMlp:
    """Put linear layers on a query's inputs into the form that is served, likewise, but for `all`."""
    found = QueryMlp(in_windows(model.features), model.target, model.sizes)
    state = put(model, {"body.0": model.features})
    found.quantiles, state = one_of(model.quantiles, state, level)
    found.load_state_dict(state)
    return found.eval()


def in_windows(inputs: Sequence[ScaledFeature]) -> list[ScaledFeature]:
    """Scalings of all features of an event window, of which a network sees these inputs.

    Raises:
        ValueError: no event window has one of them.
    """
    known = {each.name: each for each in inputs}
    if gone := set(known) - {feature.name for feature in EVENTS.features}:
        raise ValueError(f"no event window has the input {min(gone)}")
    return [known.get(each.name, ScaledFeature(each.name, each.unit)) for each in EVENTS.features]


def put(model: EventPredictor | QueryMlp, seen: Mapping[str, Sequence[ScaledFeature]]) -> dict[str, Tensor]:
    """Weights of a network in its form over event windows.

    Args:
        model: as it was trained.
        seen: the inputs of layers that take all features there: what they do not see has weight 0.
    """
    names = [feature.name for feature in EVENTS.features]
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for layer, inputs in seen.items():
        whole = torch.zeros(model.sizes.width, len(names))
        whole[:, [names.index(each.name) for each in inputs]] = state[f"{layer}.weight"]
        state[f"{layer}.weight"] = whole
    return state


def one_of(
    levels: Sequence[float], state: Mapping[str, Tensor], level: Level
) -> tuple[tuple[float, ...], dict[str, Tensor]]:
    """Leave one level's output of a head, or the median's: a row of the last layer.

    Where levels cross, the forecaster sorts them and this does not.

    Raises:
        ValueError: there is no such level.
    """
    if level is not None and level not in levels:
        known = ", ".join(map(str, levels)) or "none: it gives the mean"
        raise ValueError(f"level {level} cannot be served; the network's are {known}")
    if not levels:
        return (), dict(state)
    one = MEDIAN if level is None else float(level)
    row = list(levels).index(one)
    last = {name: state[name][row : row + 1] for name in ("head.2.weight", "head.2.bias")}
    return (one,), {**state, **last}
