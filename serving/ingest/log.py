"""What the ingest's replicas and its compaction say: when they begin, and errors. One file of bounded size.

Ray writes it into a folder of its own, which goes with its head; this stays.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from common.json_lines import turn_over

LOG_NAME: Final = "replicas.log"  # in `var/ingest`, beside the log of the program that started them
LOG_BYTES: Final = 4 << 20  # then it becomes `replicas.log.1`
SERVE: Final = "ray.serve"  # Ray Serve's own logger: its errors are told as well


class SharedLog(logging.Handler):
    """Appends warnings and errors to a file that other processes append to at the same time."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.setFormatter(logging.Formatter("%(asctime)s pid %(process)d %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, in one write: lines of two processes do not mix."""
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(f"{self.format(record)}\n".encode(errors="replace"))
                if file.tell() >= LOG_BYTES:
                    turn_over(file.fileno(), self._path)
        except OSError:  # the disk is full
            self.handleError(record)


def keep_log(path: str, part: str) -> None:
    """Keep what this process of Ray Serve says of errors in a file too, and that the part begins here."""
    log = SharedLog(Path(path))
    logging.getLogger(SERVE).addHandler(log)
    begins = logging.LogRecord(SERVE, logging.INFO, __file__, 0, "ingest: %s begins", (part,), None)
    log.emit(begins)
