"""The append-only deploy log, `var/deploy.log.jsonl`: one JSON object per push, rollback or failure."""

from __future__ import annotations

import errno
import json
import mmap
import os
import time
from collections.abc import Iterator
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

    Raises:
        OSError: the disk is full; the entry is cut short, or not there.
    """
    entry = {"time": time.time(), "action": action, "version": version, "outcome": outcome, **details}
    path = log_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    # One write to a file opened for appending: entries of two processes do not mix.
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        line = (json.dumps(entry) + "\n").encode()
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":  # the entry before was cut short
            line = b"\n" + line
        if os.write(handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(handle)
    finally:
        os.close(handle)


def entries() -> list[dict[str, Any]]:
    """Every entry, oldest first; a line cut short by a full disk is left out."""
    return list(_newest_first())[::-1]


def last_served(version: int | None = None) -> dict[str, Any] | None:
    """Entry of the last time that a version (by default: any) was put in service from here."""
    served = (e for e in _newest_first() if e["outcome"] == "served" and version in (None, e["version"]))
    return next(served, None)


def last_deployed(version: int) -> float | None:
    """When a version was last put in service from here, in seconds since the epoch."""
    entry = last_served(version)
    return float(entry["time"]) if entry else None


def _newest_first() -> Iterator[dict[str, Any]]:
    """Read from the log's end, no further than is asked for: it grows for ever, and each scrape asks."""
    path = log_file()
    if not path.is_file() or not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
        end = len(log)
        while end:
            begin = log.rfind(b"\n", 0, end - 1) + 1
            line, end = log[begin:end], begin
            try:
                yield json.loads(line)
            except ValueError:  # cut short by a full disk
                continue
