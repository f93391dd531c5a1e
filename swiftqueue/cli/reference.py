"""Writes the reference pages of commands and library. The site's build runs it, so both are current."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def write(folder: Path) -> None:
    """Write both pages."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "commands.md").write_text(commands())
    (folder / "library.md").write_text(library())


def commands() -> str:
    """Return the page of the command line: usage, arguments and options of each command."""
    import typer
    from typer.cli import get_docs_for_click
    from typer.models import Context

    from swiftqueue.cli.app import app

    root = typer.main.get_command(app)
    context = Context(root, info_name="swiftqueue")
    text = get_docs_for_click(obj=root, ctx=context, name="swiftqueue", title="Commands")
    return re.sub(r"^Examples?: (.*)$", r"Example: `\1`", text, flags=re.M)


def library() -> str:
    """Return the page of `import swiftqueue`: each public function with what it takes, returns and raises."""
    import swiftqueue.api

    lines = ["# Library", "", str(inspect.getdoc(swiftqueue.api)), ""]
    for name in swiftqueue.__all__:
        lines += _described(f"swiftqueue.{name}", getattr(swiftqueue, name), "##")
    return "\n".join(lines)


def _described(name: str, item: Any, level: str) -> Iterator[str]:
    """Yield the lines of a function, or of a class and what is public in it."""
    yield from (f"{level} {name.rpartition('.')[2]}", "")
    if not isinstance(item, (type, property)) and callable(item):
        yield from ("```python", f"{name}{inspect.signature(item)}", "```", "")
    yield from (sections(inspect.getdoc(item) or ""), "")
    if isinstance(item, type):
        for inner, found in vars(item).items():
            if not inner.startswith("_"):
                yield from _described(f"{name}.{inner}", found, f"{level}#")


def sections(text: str) -> str:
    """Return a docstring with the lines of its sections `Args` and `Raises` as lists."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if heading := re.fullmatch(r"(Args|Returns|Raises):", line):
            inside = True
            lines += [f"**{heading[1]}**", ""]
        elif inside and (entry := re.fullmatch(r"    (\w+): (.*)", line)):
            lines.append(f"- `{entry[1]}`: {entry[2]}")
        else:
            lines.append(line.strip() if inside else line)
    return "\n".join(lines)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
