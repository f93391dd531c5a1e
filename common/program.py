"""Run functions as programs: parameters become options, and an expected error is printed as one line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperGroup

from swiftqueue.common import usage_reporting
from swiftqueue.common.redaction import redacted

SWIFTQUEUE: Final = str(Path(sys.executable).with_name("swiftqueue"))  # our command in this environment
LONGEST: Final = 200  # characters of a command's first sentence
EXPECTED: Final = (ValueError, OSError, RuntimeError)


class Commands(TyperGroup):
    """Commands whose help says the whole first sentence of each; Click's own cuts it at the line's end."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, a sentence each."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(LONGEST)) for name, each in found if each and not each.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def new_app(about: str | None = None) -> typer.Typer:
    """Return a typer application with plain text and Python's own tracebacks."""
    return typer.Typer(
        cls=Commands,
        no_args_is_help=about is not None,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help=about,
    )


def run(name: str, main: Callable[..., None], expected: tuple[type[Exception], ...] = EXPECTED) -> None:
    """Run a function as a command-line program; `name` begins the line of an expected error."""
    app = new_app()
    app.command()(main)
    with one_line(name, expected):
        app()


@contextlib.contextmanager
def one_line(name: str, expected: tuple[type[Exception], ...] = EXPECTED) -> Iterator[None]:
    """End the program with one clear line on an expected error, and switch off usage reporting."""
    usage_reporting.switch_off()
    try:
        yield
    except expected as error:
        sys.exit(f"{name}: {redacted(_in_words(error))}")


def _in_words(error: Exception) -> str:
    """Return an error's message; for a system error, the file first and no number."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
