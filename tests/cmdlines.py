"""What processes were called with: every user may read it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def cmdlines() -> set[bytes]:
    """The arguments of every process of this machine, each with its zero byte."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            found.add(path.read_bytes())
    return found
