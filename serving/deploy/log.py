"""The append-only deploy log, `var/deploy.log.jsonl`: one JSON object per push, rollback or failure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swiftqueue.common import json_lines
from swiftqueue.common.redaction import redacted
from swiftqueue.common.state import private_dir, state_dir
from swiftqueue.serving.triton.repository import LATENCY


def log_file() -> Path:
    """Return the path of the log."""
    return state_dir() / "deploy.log.jsonl"


def append(action: str, version: int, outcome: str, **details: Any) -> None:
    """Write one entry; it is on the disk when this returns.

    Args:
        action: `deploy`, `rollback` or `restore`.
        version: registry version of the action.
        outcome: `served` or `failed`.
        details: further JSON values; `kind` is the model, if it is not the latency model.

    Raises:
        OSError: the disk is full; the entry is cut short or missing.
    """
    entry = {"time": time.time(), "action": action, "version": version, "outcome": outcome, **details}
    if "reason" in entry:
        entry["reason"] = redacted(entry["reason"])
    path = log_file()
    if not path.parent.exists():
        private_dir(path.parent)
    json_lines.append(path, entry, sync=True)


def last_served(version: int | None = None, kind: str = LATENCY) -> dict[str, Any] | None:
    """Return the entry of the last time that a version (by default: any) was put in service from here."""
    return next((e for e in served(kind) if version in (None, e["version"])), None)


def last_switch() -> dict[str, Any] | None:
    """Return the entry of the last change of champion: a deployment or a rollback."""
    return next((e for e in served(LATENCY) if e.get("action") in ("deploy", "rollback")), None)


def served(kind: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of the times that a version of a model was put in service, newest first."""
    entries = (e for e in newest_first() if e["outcome"] == "served")
    return (e for e in entries if e.get("kind", LATENCY) == kind)


def age_s(version: int, kind: str = LATENCY) -> float | None:
    """Return the seconds since a version was registered, or None if it never was served from here."""
    entry = last_served(version, kind)
    return time.time() - float(entry.get("registered", entry["time"])) if entry else None


def newest_first() -> Iterator[dict[str, Any]]:
    """Yield the entries, newest first, without damaged lines, as a full disk leaves them."""
    for entry in json_lines.newest_first(log_file()):
        times_s = entry.get("time"), entry.get("registered", 0)
        if type(entry.get("version")) is int and all(
            isinstance(s, int | float) and abs(s) < 2**63 for s in times_s
        ):
            yield {"outcome": "", **entry, "reason": str(entry.get("reason") or "")}
