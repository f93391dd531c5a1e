"""The append-only deploy log, `var/deploy.log.jsonl`: one JSON object per push, rollback or failure."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from models import json_lines
from models.state import state_dir


def log_file() -> Path:
    """Path of the log."""
    return state_dir() / "deploy.log.jsonl"


def append(action: str, version: int, outcome: str, **details: Any) -> None:
    """Write one entry; it is on the disk when this returns.

    Args:
        action: `deploy`, `rollback` or `restore`.
        version: registry version it was about.
        outcome: `served` or `failed`.
        details: further values, JSON-able.

    Raises:
        OSError: the disk is full; the entry is cut short, or not there.
    """
    entry = {"time": time.time(), "action": action, "version": version, "outcome": outcome, **details}
    path = log_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    json_lines.append(path, entry, sync=True)


def entries() -> list[dict[str, Any]]:
    """Every entry, oldest first; a line cut short by a full disk is left out."""
    return list(json_lines.newest_first(log_file()))[::-1]


def last_served(version: int | None = None) -> dict[str, Any] | None:
    """Entry of the last time that a version (by default: any) was put in service from here."""
    newest_first = json_lines.newest_first(log_file())
    served = (e for e in newest_first if e["outcome"] == "served" and version in (None, e["version"]))
    return next(served, None)


def age_s(version: int) -> float | None:
    """Seconds since a version was registered, however often it was deployed since; None: never from here."""
    entry = last_served(version)
    return time.time() - float(entry.get("registered", entry["time"])) if entry else None
