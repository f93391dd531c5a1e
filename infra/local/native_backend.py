"""The backend directory of Triton with our native backend: links to the environment's backends and to ours.

Triton takes one backend directory. `.venv-triton` stays untouched: the directory made here links to its
backends and, as `swiftqueue/libtriton_swiftqueue.so`, to the library that `make` built.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from swiftqueue.infra.local.triton_environment import TritonEnvironment
from swiftqueue.serving.triton.config import Backend

SOURCES: Final = Path(__file__).resolve().parents[2] / "serving" / "triton" / "native"
LIBRARY: Final = SOURCES / "_build" / f"libtriton_{Backend.NATIVE}.so"


def with_native_backend(environment: TritonEnvironment, folder: Path) -> TritonEnvironment:
    """Make backend directory `folder` and return the environment with it; a directory that is there is kept.

    Raises:
        OSError: the backend is not built; the line says what to do.
    """
    if not LIBRARY.is_file():
        raise OSError(f"{LIBRARY}: the native backend is not built; run `make -C {SOURCES}`")
    (folder / Backend.NATIVE).mkdir(parents=True, exist_ok=True)
    for backend in environment.backends.iterdir():
        _link(folder / backend.name, backend)
    _link(folder / Backend.NATIVE / LIBRARY.name, LIBRARY)
    return replace(environment, backends=folder)


def _link(link: Path, target: Path) -> None:
    """Make or replace a symbolic link in one step."""
    partial = link.with_name(f".{link.name}.{os.getpid()}")
    partial.symlink_to(target.resolve())
    partial.replace(link)
