"""The lock for starting and stopping parts: one command at a time, and `down` ends an `up` that is under way.

A `down` leaves a token. A command that was given before it, and waited or set things up meanwhile, does not
start any more (`make` reads the token before its setup, and hands it on).
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

from swiftqueue.common.atomic import write_file
from swiftqueue.common.lock import held
from swiftqueue.common.settings import settings
from swiftqueue.common.state import private_dir, state_dir
from swiftqueue.infra.local import processes

NAME: Final = "up"  # name of the record `var/up/server.json`
UP_WAIT_S: Final = 3600.0  # making a first champion takes minutes
DOWN_WAIT_S: Final = 120.0  # longest wait for another `down`


@contextmanager
def starting(wait_s: float, waits: Callable[[str], None] = lambda holder: None) -> Iterator[None]:
    """Start or stop parts in this block, while nobody else does.

    Raises:
        LockHeldError: somebody else does, for all of `wait_s`.
    """
    with held(private_dir(state_dir() / "live") / "up.lock", "another `up` or `down`", wait_s, waits):
        yield


@contextmanager
def under_way() -> Iterator[None]:
    """Bring something up in this block, alone; `down` ends this process and what it started for itself.

    Raises:
        RuntimeError: a `down` came before its turn.
        HeldError: another one is under way for an hour.
    """
    before = settings().down or last_down()

    def wait(holder: str) -> None:
        print(f"another `up`, `run` or `down` is under way here (pid {holder}): waiting for it", flush=True)

    with starting(UP_WAIT_S, wait):
        server = processes.record(NAME, os.getpid(), {})
        try:
            if last_down() != before:
                raise RuntimeError("`swiftqueue down` came meanwhile: nothing is started")
            with leaving_at_sigterm():
                yield
        finally:
            processes.forget(server)


def end_what_is_under_way() -> None:
    """Prevent every `up` or `run` that was given until now from starting anything more."""
    write_file(_down_file(), f"{secrets.token_hex(8)}\n")
    if server := processes.running(NAME):
        print(f"an `up` or `run` is under way (pid {server.pid}): ending it", flush=True)
    processes.stop(NAME)


def last_down() -> str:
    """Return the token of the last `down`; `none` before the first."""
    try:
        return _down_file().read_text().strip()
    except FileNotFoundError:
        return "none"


def _down_file() -> Path:
    return state_dir() / "live" / "down"


@contextmanager
def leaving_at_sigterm() -> Iterator[None]:
    """Leave the block by an exception at SIGTERM; started processes are ended, or have a record."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit("ended by `swiftqueue down`, or another's SIGTERM")

    if threading.current_thread() is not threading.main_thread():  # Python takes signals only there
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
