"""The rounds logs, `var/live/rounds*.jsonl`: what each round was, one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from common import json_lines

LOG_FILE: Final = "rounds.jsonl"
OUTCOMES: Final = ("pushed", "kept", "declined", "failed")
# Of a full re-train; its model is `pushed` or `kept` by the round that judged it.
RETRAINING: Final = ("started", "failed", "pushed", "kept")


class DeclinedError(ValueError):
    """The round is not run; the line says why."""


@dataclass
class RoundRecord:
    """What a round was."""

    number: int
    triggered: float  # seconds since the epoch
    outcome: str = "failed"
    reason: str = ""
    version: int | None = None
    parent: int | None = None
    sender: str = ""
    packets: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # claims of the sender, by kind
    newest_ns: int | None = None  # of the telemetry, by the sender's clock
    ended_boot_s: float | None = None  # seconds since the boot, by the clock that nobody sets
    seconds: dict[str, float] = field(default_factory=dict)  # by step, in the order of the steps
    figures: Mapping[str, Any] = field(default_factory=dict)
    loss: tuple[float, float] | None = None
    psi: dict[str, float] = field(default_factory=dict)
    remembered: int = 0  # windows of the reservoir that taught beside the minute
    shadow: Mapping[str, Any] = field(default_factory=dict)  # batches and figures beside the served head
    rolled_back: str = ""  # what was put back since the round before, and why
    retrain: bool = False  # the inputs have left what the encoder was trained on
    retraining: str = ""  # what became of a re-train in this round: one of RETRAINING, or nothing

    def came(self) -> str:
        """What it was given, in words."""
        return f"{self.packets} packets"


def read(log: Path) -> list[dict[str, Any]]:
    """Every round of a log, oldest first; a line that is none, as where a disk was full, is left out."""
    return list(newest_first(log))[::-1]


def newest_first(log: Path) -> Iterator[dict[str, Any]]:
    """Rounds from the log's end on, no further than is asked for."""
    for entry in json_lines.newest_first(log):
        ended_boot_s = entry.setdefault("ended_boot_s", None)
        known = ended_boot_s is None or (isinstance(ended_boot_s, int | float) and abs(ended_boot_s) < 2**63)
        if type(entry.get("number")) is int and entry.get("outcome") in OUTCOMES and known:
            yield {"version": None, **entry, "reason": str(entry.get("reason") or "")}
