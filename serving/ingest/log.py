"""The log of the ingest's replicas and compaction: their starts and their errors, in one bounded file.

Ray's own log lies in a folder that goes with its head; this one stays.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from swiftqueue.common.json_lines import turn_over

LOG_NAME: Final = "replicas.log"  # file in `var/ingest`, beside the log of the program that started them
LOG_BYTES: Final = 4 << 20  # size at which it becomes `replicas.log.1`
SERVE: Final = "ray.serve"  # Ray Serve's own logger, whose errors are logged as well


class SharedLog(logging.Handler):
    """Appends warnings and errors to a file that other processes append to at the same time."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.setFormatter(logging.Formatter("%(asctime)s pid %(process)d %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record in one write, so that lines of two processes do not mix."""
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(f"{self.format(record)}\n".encode(errors="replace"))
                if file.tell() >= LOG_BYTES:
                    turn_over(file.fileno(), self._path)
        except OSError:  # the disk is full
            self.handleError(record)


def keep_log(path: str, part: str) -> None:
    """Log this Ray Serve process's errors to a file, too, and a line about its start."""
    log = SharedLog(Path(path))
    logging.getLogger(SERVE).addHandler(log)
    begins = logging.LogRecord(SERVE, logging.INFO, __file__, 0, "ingest: %s begins", (part,), None)
    log.emit(begins)
