"""Load libraries that `make setup` builds from a folder's C++, or fail with one clear line."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

Signatures = Mapping[str, tuple[Any, list[Any]]]  # function: its result and its arguments
MAKEFILE: Final = "Makefile"


class NotBuiltError(RuntimeError, SystemExit):
    """The error for a library that is missing or older than its sources.

    Uncaught, it ends the program with its line and status 1, so a stage shows no traceback even while it
    imports.
    """

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.code = line


def load(library: Path, sources: Iterable[str], signatures: Signatures) -> ctypes.CDLL:
    """Load a library from a folder's `_build/`, made from the folder's `sources`; build it first if needed.

    Raises:
        NotBuiltError: it is missing or older than a source, and cannot be built here.
    """
    if problem := _problem(library, sources):
        _build(library)
        if _problem(library, sources):
            raise NotBuiltError(f"{library} {problem}: run `make setup`")
    loaded = ctypes.CDLL(str(library))
    for name, (result, arguments) in signatures.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, list(arguments)
    return loaded


def _problem(library: Path, sources: Iterable[str]) -> str | None:
    try:
        built = library.stat().st_mtime
    except FileNotFoundError:
        return "is not built"
    if not (library.parent.parent / MAKEFILE).is_file():
        return None  # installed from a wheel, which has no sources
    stale = any((library.parent.parent / source).stat().st_mtime > built for source in sources)
    return "is older than its sources" if stale else None


def _build(library: Path) -> None:
    """Build the library if there is a make."""
    if build_room(library.parent.parent, f"_build/{library.name}") and library.is_file():
        library.touch()  # a checkout sets its files' times in any order


def build_room(folder: Path, target: str = "all") -> bool:
    """Run `make` on a folder's C++, print a line, and return whether it succeeded."""
    if not (folder / MAKEFILE).is_file() or shutil.which("make") is None:
        return False
    print(f"building {folder.name if target == 'all' else Path(target).name}", file=sys.stderr, flush=True)
    with (folder / MAKEFILE).open() as lock:  # several stages may start at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        cores = len(os.sched_getaffinity(0))
        make = ["make", "--silent", "--no-print-directory", f"-j{cores}", "-C", str(folder), "-f", MAKEFILE]
        return subprocess.run([*make, target], stdout=sys.stderr, check=False).returncode == 0
