"""A lock that one process of this machine holds; its file names the holder."""

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
    """Hold a lock, waiting for it while its holder may still end by itself.

    Args:
        path: the lock's file; its folder must exist.
        what: noun for a holder, for the message.
        wait_s: seconds to wait.
        waits: called once with the holder's process id, if the lock is held.

    Raises:
        LockHeldError: another process holds it for all of `wait_s`.
    """
    deadline_s, told = time.monotonic() + wait_s, False
    with open(path, "ab+", buffering=0, opener=_for_us) as lock:
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
        with suppress(OSError):  # the disk is full: then nobody reads who holds it
            lock.truncate(0)
            lock.write(str(os.getpid()).encode())
        yield


def _for_us(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
