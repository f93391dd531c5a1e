"""The rounds log, `var/live/rounds.jsonl`: what each round was, one JSON object a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from models import json_lines

LOG_FILE: Final = "rounds.jsonl"
OUTCOMES: Final = ("pushed", "kept", "declined", "failed")
# Of a full re-train; its model is `pushed` or `kept` by the round that judged it.
RETRAINING: Final = ("started", "failed", "pushed", "kept")


@dataclass
class RoundRecord:
    """What a round was."""

    number: int
    triggered: float  # seconds since the epoch
    outcome: str = "failed"
    reason: str = ""
    version: int | None = None
    parent: int | None = None
    packets: int = 0
    newest_ns: int | None = None  # of the telemetry, by the sender's clock
    ended_boot_s: float | None = None  # seconds since the boot, by the clock that nobody sets
    seconds: dict[str, float] = field(default_factory=dict)  # by step, in the order of the steps
    figures: Mapping[str, Any] = field(default_factory=dict)
    loss: tuple[float, float] | None = None
    psi: dict[str, float] = field(default_factory=dict)
    retrain: bool = False  # the inputs have left what the encoder was trained on
    retraining: str = ""  # what became of a re-train in this round: one of RETRAINING, or nothing


def append(record: RoundRecord, log: Path) -> None:
    """Write a round's line, in one write: lines of two processes do not mix.

    Raises:
        OSError: the disk is full; the line is cut short, or not there.
    """
    json_lines.append(log, asdict(record))


def read(log: Path) -> list[dict[str, Any]]:
    """Every round of a log, oldest first; a line cut short by a full disk is left out."""
    return list(json_lines.newest_first(log))[::-1]
