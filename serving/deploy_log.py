"""The append-only deploy log, `var/deploy.log.jsonl`: one JSON object per push, rollback or failure."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

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
    """
    entry = {"time": time.time(), "action": action, "version": version, "outcome": outcome, **details}
    path = log_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    # One write to a file opened for appending: entries of two processes do not mix.
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, (json.dumps(entry) + "\n").encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def entries() -> list[dict[str, Any]]:
    """Every entry, oldest first; a line cut short by a full disk is left out."""
    if not log_file().is_file():
        return []
    found = []
    for line in log_file().read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def last_served(version: int | None = None) -> dict[str, Any] | None:
    """Entry of the last time that a version (by default: any) was put in service from here."""
    served = [e for e in entries() if e["outcome"] == "served" and version in (None, e["version"])]
    return max(served, key=lambda entry: float(entry["time"]), default=None)


def last_deployed(version: int) -> float | None:
    """When a version was last put in service from here, in seconds since the epoch."""
    entry = last_served(version)
    return float(entry["time"]) if entry else None
