"""Hold a lock that one process of this machine can have; its file names the holder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LOOK_S: Final = 0.1


class LockHeldError(OSError):
    """The error when another process holds the lock."""


@contextmanager
def held(
    path: Path, what: str, wait_s: float, waits: Callable[[str], None] = lambda holder: None
) -> Iterator[None]:
    """Hold a lock for the block; wait for it up to `wait_s` seconds, while its holder may still end.

    Args:
        path: the lock's file; its folder must exist.
        what: noun for a holder, for the message.
        wait_s: seconds to wait.
        waits: called once with the holder's process id, if the lock is held.

    Raises:
        LockHeldError: another process holds it for all of `wait_s`.
    """
    deadline_s, told = time.monotonic() + wait_s, False
    with open(path, "ab+", buffering=0, opener=lambda name, flags: os.open(name, flags, 0o600)) as lock:
        while not _try_lock(lock.fileno()):
            holder = os.pread(lock.fileno(), 100, 0).decode(errors="replace") or "unknown"
            if time.monotonic() >= deadline_s:
                raise LockHeldError(
                    f"{path}: {what} (pid {holder}) has held this lock for {wait_s:g} s; "
                    "if it is stopped, continue it (kill -CONT) or end it, then try again"
                )
            if not told:
                waits(holder)
                told = True
            time.sleep(LOOK_S)
        with suppress(OSError):  # on a full disk the file does not name the holder
            lock.truncate(0)
            lock.write(str(os.getpid()).encode())
        yield


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
