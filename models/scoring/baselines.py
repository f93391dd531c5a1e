"""Baselines that a predictor must beat, made from the queries of packets about to be sent.

Shapes: `B` decisions, `H` horizon (8 packets), `F` inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.models.scoring.metrics import Floats

LAST_VISIBLE: Final = {
    "last_sender": "last_latency_us",
    "last_flow": "last_latency_flow_us",
    "last_queue": "last_latency_queue_us",
}
SENDER: Final = {  # the sender's own latency, a fallback, by the first word of a latency's name
    "last": "last_latency_us",
    "mean8": "mean8_latency_us",
    "mean2": "mean2_latency_us",
    "expected": "last_latency_us",
}
GAP_US: Final = 20_000.0  # a queue drains while nothing is sent, so a longer send gap predicts a drop


@dataclass(frozen=True)
class Candidates:
    """The queries of the packets about to be sent."""

    x_BHF: NDArray[np.float32]  # raw units
    names: tuple[str, ...]  # names of the F inputs

    def column(self, name: str) -> Floats:
        """Return one input, (B, H); a missing input raises a ValueError that names it."""
        if name not in self.names:
            raise ValueError(f"queries have no input {name!r} (they have {', '.join(self.names)})")
        return self.x_BHF[..., self.names.index(name)].astype(np.float64)


def repeated(candidates: Candidates, name: str, otherwise_us: float) -> Floats:
    """Repeat a latency of the query, (B, H) in µs.

    A missing latency of the flow or queue is replaced by the sender's, and that by `otherwise_us`.
    """
    sender = candidates.column(SENDER[name.split("_")[0]])
    sender = np.where(sender > 0, sender, otherwise_us)
    own = candidates.column(name)
    return np.where(own > 0, own, sender)


def last_visible(candidates: Candidates, method: str, otherwise_us: float) -> Floats:
    """Repeat the last visible latency of the sender, the packet's flow or its queue; (B, H) in µs."""
    return repeated(candidates, LAST_VISIBLE[method], otherwise_us)


def send_gap_direction(candidates: Candidates) -> NDArray[np.int8]:
    """Apply the rule 'a send gap of at least 20 ms means a drop': -1, else 0; (B, H)."""
    return -(candidates.column("gap_us") >= GAP_US).astype(np.int8)
