"""A part's heartbeat: a file in a private folder, touched each second while the part lives.

The keeper judges by it the parts with an open port, where a stranger could keep the page from answering.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from swiftqueue.common.settings import settings

HEARTBEAT_S: Final = 1.0


class Heartbeat:
    """A file that is written each second with counts of its part."""

    def __init__(self, file: Path) -> None:
        """Take the file to write."""
        self.file = file
        self._last_s = -HEARTBEAT_S

    def beat(self, said: Callable[[], Mapping[str, int]] = dict) -> None:
        """Write `said()` as JSON once the last beat is a second old."""
        if time.monotonic() - self._last_s < HEARTBEAT_S:
            return
        partial = self.file.with_name(f".{self.file.name}")
        try:
            partial.write_text(json.dumps(said()) + "\n")
            partial.replace(self.file)
        except OSError:  # the disk is full: touch the existing file instead
            with contextlib.suppress(OSError):
                os.utime(self.file)
        self._last_s = time.monotonic()


def start() -> None:
    """Start a thread that touches the file of SWIFTQUEUE_HEARTBEAT each second until the process ends."""
    if (file := settings().heartbeat) is None:
        return
    heart = Heartbeat(file)

    def beat() -> None:
        while True:
            heart.beat()
            time.sleep(HEARTBEAT_S)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
