"""Checks the rules of prose that a program can check (CONTRIBUTING.md), and prints each fault with its line."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Rooms that are clean; add a room once its faults are mended.
ROOMS: Final = ("serving", "pipelines", "swiftqueue", "testbed/host", *(f"infra/{one}" for one in (
    "k8s", "local", "monitoring", "setup")))  # fmt: skip
LATER: Final = re.compile(r"rate|completion|_pb2")  # files in these rooms that are not clean yet
NO_NOUN: Final = re.compile(r"(of|that|which|what|whose)\b", re.I)  # these words stand for a missing noun
SAME_NAME: Final[dict[str, str]] = {}  # public class names that two rooms may share, each with the reason
UNIT: Final = re.compile(  # a unit, a counted or measured thing, or a common verb
    r"\b(seconds?|minutes?|[mµn]?s|[KM]?bytes?|[KMG]?bit|packets|windows|flows|hosts|rounds|steps|layers|epochs"
    r"|number|count|share|rate|probability|index|width|seeds?|factor|names?|files?|folders?|quantiles?|limit"
    r"|is|are|has|have|sets?|makes?|takes?|uses?|counts?|means?|may|must)\b", re.I)  # fmt: skip


def faults(name: str, text: str) -> Iterator[str]:
    """Yield the faults of a source file, each with `name` and its line."""
    for line, comment in comments(text, cpp=not name.endswith(".py")):
        if NO_NOUN.match(comment):
            yield f"{name}:{line}: a comment begins with `{comment.split()[0]}`; name the thing"
    if not name.endswith(".py"):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            said = (ast.get_docstring(node) or ".").splitlines()
            line = node.body[0].lineno if node.body else 1
            if NO_NOUN.match(said[0]) or said[0].startswith("Whether ") or not said[0].endswith((".", "?")):
                yield f"{name}:{line}: the docstring's first line must be a sentence: {said[0]}"
            for at, each in enumerate(said):
                if NO_NOUN.match(re.sub(r"^\s+\w+: ", "", each)) and re.match(r"\s+\w+: ", each):
                    yield f"{name}:{line + at}: a description has no noun: {each.strip()}"
        if isinstance(node, ast.ClassDef) and any("Params" in ast.unparse(one) for one in node.bases) | any(
            isinstance(one, ast.Name) and one.id == "Section" for one in node.bases
        ):
            for one in node.body[1:]:
                if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant):
                    said = str(one.value.value).split("\n")
                    if NO_NOUN.match(said[0]) or not UNIT.search(" ".join(said)):
                        yield f"{name}:{one.lineno}: a parameter's description has neither verb nor unit"
        if isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
            if NO_NOUN.match(str(node.value.value)):
                yield f"{name}:{node.value.lineno}: an option's help has no noun: {node.value.value}"


def comments(text: str, *, cpp: bool) -> Iterator[tuple[int, str]]:
    """Yield each comment's line and text; of a block of full-line comments only the first line."""
    if cpp:
        found = [(n, line.partition("//")) for n, line in enumerate(text.splitlines(), 1) if "//" in line]
        places = [
            (n, not before.strip(), said) for n, (before, _, said) in found if not before.count('"') % 2
        ]
    else:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        every = [one for one in tokens if one.type == tokenize.COMMENT]
        places = [(one.start[0], not one.line[: one.start[1]].strip(), one.string[1:]) for one in every]
    before = -1
    for line, alone, said in places:
        if not (alone and line == before + 1):
            yield line, said.strip()
        before = line if alone else -1


def repeated(classes: dict[str, set[str]]) -> Iterator[str]:
    """Yield a line for each public class name that several rooms have."""
    for name, places in sorted(classes.items()):
        rooms = {"/".join(place.split("/")[:2]).removesuffix(".py") for place in places}
        if len(rooms) > 1 and name not in SAME_NAME and not name.startswith("_"):
            yield f"{', '.join(sorted(places))}: class {name} has one name and several meanings"


def main() -> None:
    """Check the rooms, and exit with 1 if a fault was found."""
    listed = subprocess.run(["git", "ls-files", *ROOMS], capture_output=True, text=True, check=True).stdout
    found, classes = [], defaultdict(set)
    for name in listed.splitlines():
        if name.endswith((".py", ".h", ".cc")) and not LATER.search(name):
            text = Path(name).read_text()
            found += faults(name, text)
            if name.endswith(".py"):
                for node in ast.parse(text).body:
                    if isinstance(node, ast.ClassDef):
                        classes[node.name].add(name)
    found += repeated(classes)
    sys.exit("\n".join(found) or 0)


if __name__ == "__main__":
    main()
