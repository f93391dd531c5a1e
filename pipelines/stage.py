"""The main function of every stage's program: its options, and one clear line where it cannot go on."""

from __future__ import annotations

import os
import select
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from swiftqueue.common import program

Given = Annotated[Path, typer.Option()]
"""A required path option of a stage, as `--NAME`."""


class StageError(ValueError):
    """A stage cannot go on; the message names the thing and says what to do."""


def run_stage(name: str, main: Callable[..., None]) -> None:
    """Run a stage's main with the command line's options; only unforeseen errors keep their traceback."""
    _end_with_dvc()
    _silence_libraries()
    program.run(name, main, (ValueError, OSError))


def _silence_libraries() -> None:
    """Keep libraries' warnings off the user's screen, in the programs that a stage starts too.

    They say nothing that a user could act on. `PYTHONWARNINGS=default` shows them.
    """
    if not sys.warnoptions:
        os.environ["PYTHONWARNINGS"] = "ignore"
        warnings.simplefilter("ignore")


def _end_with_dvc() -> None:
    """Make this stage and the programs it started end when the DVC that runs it is gone.

    Otherwise they would outlive a killed DVC, and write files that the next `dvc repro` makes.
    """
    if "DVC_STAGE" not in os.environ:  # DVC sets it
        return
    import psutil

    programs = ((one.pid, Path((one.cmdline() or [""])[0]).name) for one in psutil.Process().parents())
    pid = next((pid for pid, program in programs if program.startswith("python")), None)
    if pid is None:
        return
    ended = os.pidfd_open(pid)

    def wait() -> None:
        select.select([ended], [], [])
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
