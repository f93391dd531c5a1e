"""Print lines of the live loop's programs, each with its time."""

from __future__ import annotations

import contextlib
import time


def say(line: str) -> None:
    """Print a line with its time; on a full disk the line is lost and the program goes on."""
    with contextlib.suppress(OSError):
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}", flush=True)
