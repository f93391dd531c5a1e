"""Checks of options and folders given on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def given(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Return those of some options that stand on the command line, as written there."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [
        f"--{name.replace('_', '-')}"
        for name, source in sources.items()
        if source and source.name == "COMMANDLINE"
    ]


def check_folder(path: Path, what: str) -> None:
    """Check that the folder given to a command is no file.

    Raises:
        ValueError: it is a file.
    """
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; {what} needs a folder")
