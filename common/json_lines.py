"""Append to logs of one JSON object a line, from several processes, and read them; a line may be cut short.

A full log is renamed to `.1`, replacing the previous one, and a new log begins. Readers read both, which hold
over a month of rounds five minutes apart.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

LOG_BYTES: Final = 16 << 20


def append(log: Path, entry: Mapping[str, Any], *, sync: bool = False) -> None:
    """Append an entry in one write, so that two processes do not mix theirs; `sync` forces it to the disk.

    Raises:
        OSError: the disk is full; the entry is cut short or missing.
    """
    line = (json.dumps(entry) + "\n").encode()
    handle = os.open(log, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)  # mode 600 whatever the umask
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":  # the entry before was cut short
            line = b"\n" + line
        if os.write(handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(log))
        if sync:
            os.fsync(handle)
        if size + len(line) >= LOG_BYTES:
            turn_over(handle, log)
    finally:
        os.close(handle)


def newest_first(log: Path) -> Iterator[dict[str, Any]]:
    """Yield a log's entries from the newest on, reading no further than needed; skip damaged lines."""
    yield from _newest_first(log)
    yield from _newest_first(log.with_name(f"{log.name}.1"))


def _newest_first(log: Path) -> Iterator[dict[str, Any]]:
    if not log.is_file() or not log.stat().st_size:
        return
    with log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = len(content)
        while end:
            begin = content.rfind(b"\n", 0, end - 1) + 1
            line, end = content[begin:end], begin
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict):
                yield entry


def turn_over(handle: int, log: Path) -> None:
    """Rename a full log to `.1`, replacing the one before.

    Another process may have renamed it since `handle` was opened; then do nothing.
    """
    fcntl.flock(handle, fcntl.LOCK_EX)
    with contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(handle), log.stat()):
            log.replace(log.with_name(f"{log.name}.1"))
