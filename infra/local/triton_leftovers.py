"""Leftovers of a killed Triton's Python backend: shared memory, and a folder in /tmp."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

# A server makes such a folder when it loads the backend, whatever TMPDIR says, for environments that a model
# may bring; ours bring none. Neither its content nor its name says who owns it.
TEMPORARY: Final = Path("/tmp")  # noqa: S108 - fixed in the backend's library
FOLDERS: Final = "python_env_*"
LIBRARY: Final = "libtriton_python.so"


def shared_memory(family: Sequence[psutil.Process]) -> list[Path]:
    """Return the backend's shared memory files, which its stubs name in their arguments."""
    regions = []
    for process in family:
        with contextlib.suppress(psutil.Error):
            names = [a for a in process.cmdline() if a.startswith("triton_python_backend_shm_region_")]
            regions += [Path("/dev/shm") / name for name in names]  # noqa: S108 - POSIX shared memory
    return regions


def remove_folders(since: float) -> None:
    """Remove the empty folders made since a time (seconds since the epoch) that no process can own.

    A process loads the backend before it makes its folder: a running process with the backend may own any
    folder that is younger than itself.
    """
    ours = [path for path in TEMPORARY.glob(FOLDERS) if since <= _made(path)]
    starts = list(_starts()) if ours else []
    for path in ours:
        if not any(start <= _made(path) for start in starts):
            with contextlib.suppress(OSError):  # the folder is not empty, or is gone
                path.rmdir()


def owners() -> Iterator[psutil.Process]:
    """Yield the processes that have loaded the backend."""
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):
            if LIBRARY in Path(f"/proc/{process.pid}/maps").read_text():
                yield process


def _starts() -> Iterator[float]:
    """Yield when the owners were started."""
    for process in owners():
        with contextlib.suppress(psutil.Error):  # the process has ended
            yield process.create_time()


def _made(path: Path) -> float:
    """Return when an empty folder of this user was made; 0 for another user's, or one that is gone."""
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        return found.st_mtime if found.st_uid == os.geteuid() else 0.0
    return 0.0
