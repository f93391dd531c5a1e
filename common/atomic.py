"""Write files and folders so that they appear whole or not at all; each has one writer at a time.

The kernel exchanges an existing folder for the new one in one step, so the folder is never missing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

AT_FDCWD: Final = -100
RENAME_EXCHANGE: Final = 2  # linux/fs.h
UNSUPPORTED: Final = (errno.EINVAL, errno.ENOSYS)  # errors of a file system that cannot exchange


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside `target` that replaces it if the block succeeds.

    After an error, or if the writer is killed, `target` is unchanged.
    """
    partial = _beside(target)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if target.is_dir():
        _exchange(partial, target)
        shutil.rmtree(partial)  # the old folder
    else:
        partial.rename(target)


@contextmanager
def new_file(target: Path, *, on_disk: bool = False) -> Iterator[Path]:
    """Yield the path for a new file that replaces `target` if the block succeeds.

    A missing parent folder is made. With `on_disk` the content reaches the disk before the file replaces
    `target`, so after a power cut it is whole or missing. Call `sync_dir` to make the name durable.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _beside(target)
    partial.unlink(missing_ok=True)
    try:
        yield partial
        if on_disk:
            _sync(partial, os.O_RDONLY)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_file(target: Path, content: str | bytes) -> None:
    """Write a file atomically, and make its folder if it is missing."""
    with new_file(target) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def write_durably(target: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file like `write_file`; once this returns, the new content survives a crash of the machine."""
    flags = os.O_WRONLY | os.O_CREAT
    with new_file(target, on_disk=True) as partial, os.fdopen(os.open(partial, flags, mode), "wb") as file:
        file.write(content)
    sync_dir(target.parent)


def sync_dir(folder: Path) -> None:
    """Make the names in a folder durable."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    file = os.open(path, flags)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def _exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        return
    code = ctypes.get_errno()
    if code not in UNSUPPORTED:
        raise OSError(code, os.strerror(code), str(other))
    # These are two steps: a writer killed between them leaves the old folder under the other name.
    aside = other.with_name(f".{other.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    other.rename(aside)
    one.rename(other)
    aside.rename(one)
