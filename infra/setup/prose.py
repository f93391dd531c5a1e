"""Checks the rules of prose that a program can check, and prints each fault with its file and line."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Rooms that are clean; add a room once its faults are mended.
ROOMS: Final = (
    "benchmarks common feature_store infra laboratory models pipelines serving simulation studies swiftqueue"
    " testbed/host tests/data tests/model"
)
# Class names that rooms share, each with its reason; a study stands apart and names its classes as it likes.
SHARED: Final[dict[str, str]] = {
    "Model": "a registered model, and the model that a simulated run asks",
    "Rule": "when a flow of the test bed moves, and how a virtual queue's waiting changes",
    "Session": "a sender's at the engine, and its trace in telemetry",
    "Verdict": "the gate's, and the laboratory's",
    "VirtualQueue": "the forecaster, and the laboratory's control by the same rule",
}
NO_NOUN: Final = re.compile(r"(of|that|which|what|whose|Whether)\b|(Of|That|Which|What|Whose)\b")
SECTION: Final = re.compile("Section|Params")  # base classes of parameters
UNIT: Final = re.compile(  # a unit, a quantity, or a verb
    r"\b([Ss]econds|ms|[MG]bit|bytes|[Nn]umber|[Ss]hare|[Rr]ate|probability|index|[Ss]eeds?|[Dd]ecisions|[Nn]ames?"
    r"|is|are|has|have|sets?|makes|takes|uses|counts|may|must)\b"
)  # fmt: skip


def faults(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the description of each fault in a source file."""
    for line, said in comments(text, cpp=not name.endswith(".py")):
        if NO_NOUN.match(said):
            yield line, f"a comment begins without its noun: {said}"
    for node in ast.walk(ast.parse(text)) if name.endswith(".py") else ():
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                first, *rest = (ast.get_docstring(node, clean=False) or ".").splitlines()
                begin = node.body[0].lineno if node.body else 1
                if NO_NOUN.match(first) or not first.endswith("."):
                    yield begin, f"a docstring's first line is no sentence: {first}"
                for line, said in enumerate(rest, begin + 1):
                    if (field := re.match(r"\s+\w+: (.*)", said)) and NO_NOUN.match(field[1]):
                        yield line, f"a description begins without its noun: {said.strip()}"
            case ast.keyword(arg="help", value=value) if NO_NOUN.match(ast.unparse(value).lstrip("f'\"")):
                yield value.lineno, f"an option's help begins without its noun: {ast.unparse(value)}"
        if isinstance(node, ast.ClassDef) and any(map(SECTION.search, map(ast.unparse, node.bases))):
            for one in node.body[1:]:
                match one:
                    case ast.Expr(ast.Constant(str(said))) if NO_NOUN.match(said) or not UNIT.search(said):
                        yield one.lineno, f"a parameter's description has neither verb nor unit: {said}"


def has_shared_names(name: str) -> bool:
    """Return whether a file's class names must be unique across rooms."""
    return name.endswith(".py") and not name.startswith("studies/")


def comments(text: str, *, cpp: bool) -> Iterator[tuple[int, str]]:
    """Yield each comment's line and text; a block of full-line comments gives its first line alone."""
    found = [(n, *line.partition("//")[::2]) for n, line in enumerate(text.splitlines(), 1) if "//" in line]
    if not cpp:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comment = [one for one in tokens if one.type == tokenize.COMMENT]
        found = [(one.start[0], one.line[: one.start[1]], one.string[1:]) for one in comment]
    block = 0  # line after the block so far
    for line, code, said in found:
        if (code.strip() or line != block) and (not cpp or code.count('"') % 2 == 0):
            yield line, said.strip()
        block = 0 if code.strip() else line + 1


def main() -> None:
    """Print the faults of all rooms, and exit with 1 if there are any."""
    listed = subprocess.run(["git", "ls-files", *ROOMS.split()], capture_output=True, text=True, check=True)
    found, rooms = [], dict[str, str]()
    for name in listed.stdout.splitlines():
        if name.endswith((".py", ".h", ".cc")):
            text, room = Path(name).read_text(), name.rpartition("/")[0]
            found += [f"{name}:{line}: {fault}" for line, fault in faults(name, text)]
            for one in re.findall(r"^class ([A-Z]\w*)", text, re.M) if has_shared_names(name) else ():
                if rooms.setdefault(one, room) != room and one not in SHARED:
                    found.append(f"{name}: class {one} has another meaning in {rooms[one]}")
    sys.exit("\n".join(found) or 0)


if __name__ == "__main__":
    main()
