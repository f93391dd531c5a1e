"""The forwarder's heartbeat: it has no port at which to be asked."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

HEARTBEAT_S: Final = 1.0


class Heartbeat:
    """A file beside the socket, written every second."""

    def __init__(self, path: Path) -> None:
        """Choose the file of the forwarder that listens at `path`."""
        self.file = path.with_name(f"{path.name}.alive")
        self._last_s = -HEARTBEAT_S

    def beat(self, said: Callable[[], Mapping[str, int]] = dict) -> None:
        """Write what is said as JSON, if it is time to."""
        if time.monotonic() - self._last_s < HEARTBEAT_S:
            return
        partial = self.file.with_name(f".{self.file.name}")
        with contextlib.suppress(OSError):  # the disk is full
            partial.write_text(json.dumps(said()) + "\n")
            partial.replace(self.file)
        self._last_s = time.monotonic()
