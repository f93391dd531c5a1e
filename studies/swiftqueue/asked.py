"""The request for one row, and the names that rows and exhibits share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OURS: Final = "paper"  # sections of forecasters.yaml: the paper's Transformer, and whom it is compared with
LSTM: Final = "paper-bilstm"
LAST: Final = "last-flow"  # trains nothing: its rows are asked what a trace is like
SHOWN: Final = "video-wifi"  # the trace of figures 3, 14, 16 and 17: figure 14's
PREVIOUS: Final = "previous"  # visibility of the paper's offline protocol (docs/EVALUATION.md)
ACKED: Final = "acked"  # visibility of a sender
BATCHES: Final = (1, 2, 4, 8)
DRAWN_SEED: Final = 1  # seed whose packets and points are drawn


@dataclass(frozen=True)
class RowRequest:
    """A row: a method on a trace, both of a seed."""

    trace: str  # a point of environments.yaml
    method: str  # a section of forecasters.yaml
    seed: int
    every: float = 1  # fine-tuning interval, in test slices of the protocol
    visibility: str = PREVIOUS

    def words(self) -> str:
        """Name it on one line."""
        interval = f", every {self.every:g} test slices" if self.every != 1 else ""
        known = "" if self.visibility == PREVIOUS else f", {self.visibility}"
        return f"{self.method} on {self.trace}, seed {self.seed}{interval}{known}"
