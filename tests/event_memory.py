"""The event network as a live sender could run it: keys and values are kept, and each event is computed once.

The second reading of `models/event_stream/network.py`, whose segments and windows compute events anew.

Shapes: T new events, H horizon (8 packets), F inputs of an event, P inputs of a query.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swiftqueue.models.event_stream.network import EventPredictor, Memory, in_band


def extend(model: EventPredictor, memory: Memory, x_TF: Tensor, ack_T: Tensor) -> Memory:
    """Return the memory after further events, raw inputs in time order."""
    band, tile = model.sizes.band, len(ack_T)
    x_TD, after = model._embed(x_TF, ack_T), model.empty()
    for number, layer in enumerate(model.layers):
        k_TD, v_TD = layer.keys_and_values(x_TD)  # type: ignore[operator]
        keys = torch.cat([memory.keys[number], k_TD])
        values = torch.cat([memory.values[number], v_TD])
        if layer is not model.layers[-1] and tile:
            own_T1 = torch.arange(len(keys) - tile, len(keys))[:, None]
            place_S = torch.arange(len(keys))
            x_TD = layer(x_TD, keys, values, in_band(place_S, own_T1, band))
        after.keys[number], after.values[number] = keys[-band:], values[-band:]
    return after


def ask(model: EventPredictor, memory: Memory, x_HP: Tensor) -> Tensor:
    """Latencies in µs (H,) of a decision's queries, raw inputs."""
    return model.to_us(model.answer(model.read(memory, x_HP), x_HP))
