"""A part's heartbeat: a file in a folder of our own, touched each second while the part lives.

The keeper judges by it the parts whose port a stranger reaches, who could make a page answer nobody.
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

from common.settings import settings

HEARTBEAT_S: Final = 1.0


class Heartbeat:
    """A file that is written each second, with what its part says of itself."""

    def __init__(self, file: Path) -> None:
        """Choose the file."""
        self.file = file
        self._last_s = -HEARTBEAT_S

    def beat(self, said: Callable[[], Mapping[str, int]] = dict) -> None:
        """Write what is said as JSON, if it is time to."""
        if time.monotonic() - self._last_s < HEARTBEAT_S:
            return
        partial = self.file.with_name(f".{self.file.name}")
        try:
            partial.write_text(json.dumps(said()) + "\n")
            partial.replace(self.file)
        except OSError:  # the disk is full: a file that is there can be touched all the same
            with contextlib.suppress(OSError):
                os.utime(self.file)
        self._last_s = time.monotonic()


def start() -> None:
    """Touch the file that SWIFTQUEUE_HEARTBEAT names each second, by a thread, until the process ends."""
    if (file := settings().heartbeat) is None:
        return
    heart = Heartbeat(file)

    def beat() -> None:
        while True:
            heart.beat()
            time.sleep(HEARTBEAT_S)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()
