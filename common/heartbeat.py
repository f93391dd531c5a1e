"""Touch a file in a private folder each second while a part of the live loop lives.

The keeper watches this file for parts with an open port: a stranger could block their metrics page.
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
    """A writer of a file with the counts of its part, once a second."""

    def __init__(self, file: Path) -> None:
        """Take the file to write."""
        self.file = file
        self._last_s = -HEARTBEAT_S

    def beat(self, counts: Callable[[], Mapping[str, int]] = dict) -> None:
        """Write `counts()` as JSON if the last beat is at least a second old."""
        if time.monotonic() - self._last_s < HEARTBEAT_S:
            return
        partial = self.file.with_name(f".{self.file.name}")
        try:
            partial.write_text(json.dumps(counts()) + "\n")
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
