"""The rounds logs, `var/live/rounds*.jsonl`, with one JSON object a round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from swiftqueue.common import json_lines

LOG_FILE: Final = "rounds.jsonl"
OUTCOMES: Final = ("pushed", "kept", "declined", "failed")
# Outcomes of a full re-train; the round that judges its model says `pushed` or `kept`.
RETRAINING: Final = ("started", "failed", "pushed", "kept")


class DeclinedError(ValueError):
    """The round is not run; the line says why."""


@dataclass
class RoundRecord:
    """The record of a round."""

    number: int
    triggered: float  # seconds since the epoch
    outcome: str = "failed"
    reason: str = ""
    version: int | None = None
    parent: int | None = None
    sender: str = ""
    packets: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # the sender's invalid claims, by kind
    newest_ns: int | None = None  # newest event of the telemetry, by the sender's clock
    ended_boot_s: float | None = None  # seconds since the boot, by the clock that nobody sets
    seconds: dict[str, float] = field(default_factory=dict)  # seconds by step, in the order of the steps
    figures: Mapping[str, Any] = field(default_factory=dict)
    loss: tuple[float, float] | None = None
    psi: dict[str, float] = field(default_factory=dict)
    remembered: int = 0  # decisions of the reservoir that taught beside the minute
    shadow: Mapping[str, Any] = field(default_factory=dict)  # batches and figures beside the served head
    rolled_back: str = ""  # a line about a rollback since the round before
    retrain: bool = False  # whether the inputs have drifted from those of the encoder's training
    retraining: str = ""  # outcome of a re-train in this round: one of RETRAINING, or nothing

    def came(self) -> str:
        """Return the round's input, in words."""
        return f"{self.packets} packets"

    def points(self) -> dict[str, Any]:
        """Return the numbers of the round that are compared with those of other rounds."""
        before, after = self.loss or (None, None)
        return {
            "version": self.version,
            "pushed": int(self.outcome == "pushed"),
            "packets": self.packets,
            "loss": {"before": before, "after": after},
            "drift_psi": max(self.psi.values(), default=None),
            "gate": self.figures,
            "seconds": self.seconds,
        }


def read(log: Path) -> list[dict[str, Any]]:
    """Return every round of a log, oldest first, without damaged lines, as a full disk leaves them."""
    return list(newest_first(log))[::-1]


def newest_first(log: Path) -> Iterator[dict[str, Any]]:
    """Yield rounds from the log's end on, reading no further than is asked for."""
    for entry in json_lines.newest_first(log):
        ended_boot_s = entry.setdefault("ended_boot_s", None)
        known = ended_boot_s is None or (isinstance(ended_boot_s, int | float) and abs(ended_boot_s) < 2**63)
        if type(entry.get("number")) is int and entry.get("outcome") in OUTCOMES and known:
            yield {"version": None, **entry, "reason": str(entry.get("reason") or "")}
