"""Encode the decisions of a whole log piece by piece, each piece with the earlier events that it needs.

A decision sees a band of events for each layer, so a piece begins that much earlier. The answers equal those
of a live sender.

Shapes: E events, N events of a piece, B decisions, Q of a piece, H horizon (8 packets), F inputs of an event,
P inputs of a query, D model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from swiftqueue.models.event_stream.network import EventPredictor
from swiftqueue.models.networks.prediction import HeadInputs

PIECE: Final = 2048  # new events in a forward pass
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class EventLog:
    """A trace's events and the queries of some decisions, as the network's raw inputs."""

    x_EF: Floats
    ack_E: NDArray[np.bool_]
    cut_B: NDArray[np.int64]  # numbers of events that each decision sees, ascending
    x_BHP: Floats


def segment(log: EventLog, start: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return events (length, F) from `start` on, with zeros beyond the last, and whether each is an ACK."""
    x_NF = torch.zeros(length, log.x_EF.shape[1])
    ack_N = torch.zeros(length, dtype=torch.bool)
    there = log.x_EF[start : start + length]
    x_NF[: len(there)] = torch.from_numpy(there)
    ack_N[: len(there)] = torch.from_numpy(log.ack_E[start : start + length])
    return x_NF, ack_N


def encode_log(model: EventPredictor, log: EventLog) -> HeadInputs:
    """Return the head's inputs for all decisions of a log (B, H, D), and the anchor (B, H)."""
    model.eval()  # dropout would spoil cached inputs
    sizes, reach = model.sizes, model.sizes.reach
    x_BHP = torch.from_numpy(np.ascontiguousarray(log.x_BHP))
    read_BHD = torch.zeros(*x_BHP.shape[:2], sizes.width)
    with torch.no_grad():
        done = int(np.searchsorted(log.cut_B, 0, side="right"))
        if done:  # padding before the first event
            read_BHD[:done] = model.read(model.empty(), x_BHP[:done])
        while done < len(x_BHP):
            start = max(0, int(log.cut_B[done]) - reach)
            length = reach + PIECE
            upto = int(np.searchsorted(log.cut_B, start + length, side="right"))
            x_NF, ack_N = segment(log, start, length)
            cut_Q = torch.from_numpy(log.cut_B[done:upto] - start)
            read_BHD[done:upto] = model.encode_log(x_NF[None], ack_N[None], cut_Q, x_BHP[done:upto])
            done = upto
        return HeadInputs(read_BHD, model.anchor_of(x_BHP))
