"""The processes that were started for a state folder, whoever started them."""

from __future__ import annotations

from pathlib import Path

import psutil


def processes_of(state: Path) -> list[psutil.Process]:
    """Those that run with `SWIFTQUEUE_STATE` set to the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("SWIFTQUEUE_STATE") == str(state):
                found.append(process)
        except psutil.Error:  # it has just ended
            continue
    return found
