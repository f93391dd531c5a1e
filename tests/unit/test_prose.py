"""Comments, docstrings and descriptions of parameters are sentences, or noun phrases with their noun."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent.parent
ROOMS = ("benchmarks", "common", "feature_store", "laboratory/scenarios", "models")
OTHERS = (
    "feature_store/rate",
    "models/limit",
    "models/networks/rate_",
    "models/rate",
)  # folders that are not held to it yet
FRAGMENT = re.compile(r"(of|that|which|what|whose|who|those)\b", re.IGNORECASE)
ARGUMENT = re.compile(r"^ +\w+: ((?:of|that|which|what|whose|who|those)\b.*)$", re.MULTILINE)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each trailing comment, first comment line, docstring and argument."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = str(node.value.value)
            yield node.lineno, text
            for argument in ARGUMENT.findall(text):
                yield node.lineno, argument
    full = 0  # the last line with nothing but a comment
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, alone = token.start[0], token.line.strip().startswith("#")
            if not (alone and full == line - 1):
                yield line, token.string.lstrip("# ")
            full = line if alone else 0


def files() -> list[Path]:
    every = [path for room in ROOMS for path in sorted((PROJECT / room).rglob("*.py"))]
    return [path for path in every if not str(path.relative_to(PROJECT)).startswith(OTHERS)]


def test_fragments_are_found(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(
        '"""What is here."""\nA = 1  # of it\n# Which of\n# of two.\n'
        'def f(n):\n    """Do.\n\n    n: of it.\n    """\n'
    )
    found = [line for line, text in prose(file) if FRAGMENT.match(text)]
    assert sorted(found) == [1, 2, 3, 6]


@pytest.mark.parametrize("room", ROOMS)
def test_no_text_begins_where_its_noun_is_missing(room: str) -> None:
    found = [
        f"{path.relative_to(PROJECT)}:{line}: {text.splitlines()[0]}"
        for path in files()
        if path.relative_to(PROJECT).is_relative_to(room)
        for line, text in prose(path)
        if FRAGMENT.match(text)
    ]
    assert not found, "\n".join(found)
