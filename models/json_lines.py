"""Logs of one JSON object a line that several processes append to, and that a full disk may cut short."""

from __future__ import annotations

import errno
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def append(log: Path, entry: Mapping[str, Any], *, sync: bool = False) -> None:
    """Write an entry in one write: those of two processes do not mix. With `sync` it is on the disk then.

    Raises:
        OSError: the disk is full; the entry is cut short, or not there.
    """
    line = (json.dumps(entry) + "\n").encode()
    handle = os.open(log, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)  # whatever the umask
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":  # the entry before was cut short
            line = b"\n" + line
        if os.write(handle, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(log))
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


def newest_first(log: Path) -> Iterator[dict[str, Any]]:
    """Read from the log's end, no further than is asked for; what is no object, or cut short, is left out."""
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
