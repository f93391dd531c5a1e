"""Find the project's files that a module needs to run: its imports, lazy ones too, and their sources.

A stage's dependencies in dvc.yaml and the name of resumable work both come from here, so neither misses one.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent


def files_of(*modules: str) -> list[Path]:
    """Return the files of these modules, relative to the project: Python, C++ sources, templates."""
    found: set[Path] = set()
    named: set[Path] = set()
    todo = list(modules)
    while todo:
        module = todo.pop()
        if module == "swiftqueue":
            continue  # the package loads nothing by itself
        if parent := module.rpartition(".")[0]:
            todo.append(parent)  # importing a module runs its packages
        path = _file(module)
        if path is None or path in found or _only_words(path):
            continue
        found.add(path)
        imported, beside = _reads(path)
        named |= {PROJECT / name for name in beside}
        todo += imported
    return sorted(path.relative_to(PROJECT) for path in found | named)


def code_hash(*modules: str) -> str:
    """Return the SHA-256 over the names and contents of these modules' files."""
    digest = hashlib.sha256()
    for path in files_of(*modules):
        digest.update(str(path).encode() + b"\0" + (PROJECT / path).read_bytes())
    return digest.hexdigest()


def _file(module: str) -> Path | None:
    path = PROJECT.joinpath(*module.split(".")).resolve()  # swiftqueue/ROOM is a link to ROOM
    if path.with_suffix(".py").is_file():
        return path.with_suffix(".py")
    return path / "__init__.py" if (path / "__init__.py").is_file() else None


def _only_words(path: Path) -> bool:
    """Return whether a file is a package's `__init__.py` with only a docstring."""
    body = ast.parse(path.read_text()).body if path.name == "__init__.py" else []
    return path.name == "__init__.py" and all(isinstance(node, ast.Expr) for node in body)


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree without those that only a type checker sees."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from _run(child)


@cache
def _reads(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the modules that a file imports anywhere, and the files that its constants name.

    Constants also name the files that are found at run time: a pattern (`models/*/network.py`) stands for an
    import of all matching files, a package (`models.loop`) for its modules, a folder with a slash (`loop/`)
    for the Python files in it.
    """
    modules: list[str] = []
    files: list[str] = []
    tree = ast.parse(path.read_text())
    for node in _run(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value:
                    if part.value.endswith(".py") and "*" in part.value:
                        matching = (each.relative_to(PROJECT) for each in sorted(PROJECT.glob(part.value)))
                        modules += [".".join(each.with_suffix("").parts) for each in matching]
                        continue
                    folder = path.parent  # for `room/name`, the folder of the rooms
                    if "/" in part.value:
                        folder = PROJECT / path.relative_to(PROJECT).parts[0]
                    found = folder / part.value
                    if found.is_file():
                        files.append(str(found.relative_to(PROJECT)))
                    elif part.value.endswith("/") and found.is_dir():
                        files += [str(each.relative_to(PROJECT)) for each in found.glob("*.py")]
                    elif "." in part.value:
                        package = PROJECT.joinpath(*part.value.split("."))
                        if (package / "__init__.py").is_file():
                            modules += [f"{part.value}.{each.stem}" for each in package.glob("*.py")]
    return tuple(modules), tuple(files)
