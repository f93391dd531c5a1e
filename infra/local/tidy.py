"""What the keeper does so that a loop without end fills no disk and loses no file."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Final

from common.state import private_file, scratch, state_dir
from infra.local import processes

LOG_BYTES: Final = processes.LOG_BYTES
TOUCH_S: Final = 6 * 3600.0  # systemd-tmpfiles removes what lay in /tmp untouched for ten days


class Tidy:
    """Looks at the logs of running parts, and now and then at the scratch folder."""

    def __init__(self) -> None:
        self._touched_s = time.monotonic()

    def look(self) -> None:
        """Do what is due; a file that is gone meanwhile is nobody's business."""
        for log in state_dir().glob("*/server.log"):
            with contextlib.suppress(FileNotFoundError):
                if log.stat().st_size > LOG_BYTES:
                    turn_over(log)
        if time.monotonic() - self._touched_s > TOUCH_S:
            touch(scratch())
            self._touched_s = time.monotonic()


def turn_over(log: Path) -> None:
    """Put what a log holds aside as `server.log.1`, while its program goes on writing.

    Programs append (O_APPEND), so the next line is the first one. What is written between the copy and the
    cut, some milliseconds, is lost.
    """
    partial = log.with_name(".server.log.partial")
    private_file(partial)
    shutil.copyfile(log, partial)
    os.truncate(log, 0)
    partial.replace(log.with_name("server.log.1"))


def touch(folder: Path) -> None:
    """Make a folder and all in it look used, so that no cleaner of the system takes it away."""
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(OSError):  # gone, or another's
            os.utime(path, follow_symlinks=False)
