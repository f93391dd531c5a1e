"""What stands on a command line, and is no default."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def given(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Those of some options that stand on the command line, as they stand there."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [
        f"--{name.replace('_', '-')}"
        for name, source in sources.items()
        if source and source.name == "COMMANDLINE"
    ]


def check_folder(path: Path, what: str) -> None:
    """Raise ValueError where a command that needs a folder is given a file."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; {what} needs a folder")
