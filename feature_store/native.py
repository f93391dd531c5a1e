"""The libraries that `make setup` builds from this folder's C++, and one clear line where one is missing."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent


class NotBuiltError(RuntimeError, SystemExit):
    """A library is missing or older than its sources.

    Where nobody catches it, it ends the program with its line and status 1: a stage that meets it while it
    imports, before its main could say anything, shows no traceback either.
    """

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.code = line


def load(library: Path, sources: Iterable[str]) -> ctypes.CDLL:
    """Load a library that was built from `sources`, files of this folder.

    Raises:
        NotBuiltError: it was not built yet, or one of its sources changed since.

    """
    try:
        built = library.stat().st_mtime
    except FileNotFoundError:
        raise NotBuiltError(f"{library} is not built: run `make setup`") from None
    if any((FOLDER / source).stat().st_mtime > built for source in sources):
        raise NotBuiltError(f"{library} is older than its sources: run `make setup`")
    return ctypes.CDLL(str(library))
