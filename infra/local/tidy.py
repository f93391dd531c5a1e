"""The keeper's housekeeping, so that an endless loop fills no disk and loses no file."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Final

from swiftqueue.common.state import private_file, scratch, state_dir
from swiftqueue.infra.local import processes

LOG_BYTES: Final = processes.LOG_BYTES
TOUCH_S: Final = 6 * 3600.0  # systemd-tmpfiles removes files in /tmp that are untouched for ten days


class Housekeeping:
    """The housekeeping of running parts' logs and of the scratch folder."""

    def __init__(self) -> None:
        self._touched_s = time.monotonic()

    def look(self) -> None:
        """Do the work that is due; a file that disappears meanwhile is skipped."""
        for log in state_dir().glob("*/server.log"):
            with contextlib.suppress(FileNotFoundError):
                if log.stat().st_size > LOG_BYTES:
                    turn_over(log)
        if time.monotonic() - self._touched_s > TOUCH_S:
            touch(scratch())
            self._touched_s = time.monotonic()


def turn_over(log: Path) -> None:
    """Copy a log to `server.log.1` and truncate it, while its program goes on writing.

    Programs append (O_APPEND), so the next line is the first one. Lines written between the copy and the cut,
    some milliseconds, are lost.
    """
    partial = log.with_name(".server.log.partial")
    private_file(partial)
    shutil.copyfile(log, partial)
    os.truncate(log, 0)
    partial.replace(log.with_name("server.log.1"))


def touch(folder: Path) -> None:
    """Update the times of a folder and its files, so that no cleaner of the system removes it."""
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):  # the file is gone, or another user's
            os.utime(path, follow_symlinks=False)
