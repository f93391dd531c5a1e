"""What every stage's program needs: its options, and one clear line where it cannot go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from models import program

Given = Annotated[Path, typer.Option()]
"""A path that a stage must be given, as `--NAME`."""


class StageError(ValueError):
    """A stage cannot go on; the message names the thing and says what to do."""


def run_stage(name: str, main: Callable[..., None]) -> None:
    """Run a stage's main with the command line's options; what nobody foresaw keeps its traceback."""
    program.run(name, main, (ValueError, OSError))
