"""Which files of the project a module needs to run: what it imports, lazily too, and what those build on.

A stage's dependencies in dvc.yaml and the name of resumable work are both derived from it, so that neither
forgets a file.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent


def files_of(*modules: str) -> list[Path]:
    """Files, relative to the project, that these modules are made of: Python, C++ sources, templates."""
    found: set[Path] = set()
    todo = list(modules)
    while todo:
        module = todo.pop()
        if parent := module.rpartition(".")[0]:
            todo.append(parent)  # importing a module runs the packages that it lies in
        path = _file(module)
        if path is None or path in found or _only_words(path):
            continue
        found.add(path)
        imported, named = _reads(path)
        found |= {PROJECT / name for name in named}
        todo += imported
    return sorted(path.relative_to(PROJECT) for path in found)


def code_hash(*modules: str) -> str:
    """SHA-256 over those files' names and contents."""
    digest = hashlib.sha256()
    for path in files_of(*modules):
        digest.update(str(path).encode() + b"\0" + (PROJECT / path).read_bytes())
    return digest.hexdigest()


def _file(module: str) -> Path | None:
    path = PROJECT.joinpath(*module.split("."))
    if path.with_suffix(".py").is_file():
        return path.with_suffix(".py")
    return path / "__init__.py" if (path / "__init__.py").is_file() else None


def _only_words(path: Path) -> bool:
    """Whether a package's `__init__.py` says what lives there and does nothing."""
    body = ast.parse(path.read_text()).body if path.name == "__init__.py" else []
    return path.name == "__init__.py" and all(isinstance(node, ast.Expr) for node in body)


@cache
def _reads(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Modules that a file imports, wherever, and files beside it or in other rooms that constants name."""
    modules: list[str] = []
    files: list[str] = []
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value:
                    folder = path.parent  # or, of `room/name`, the folder that the rooms lie in
                    if "/" in part.value:
                        folder = PROJECT / path.relative_to(PROJECT).parts[0]
                    if (folder / part.value).is_file():
                        files.append(str((folder / part.value).relative_to(PROJECT)))
    return tuple(modules), tuple(files)
