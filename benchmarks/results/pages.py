"""`swiftqueue results`: rewrites what stands between a page's markers, and the pictures, from the data.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from swiftqueue.benchmarks.results.pictures import PICTURES
from swiftqueue.benchmarks.results.tables import TABLES, Data
from swiftqueue.common import studies
from swiftqueue.common.atomic import write_file

FOLDER: Final = Path("docs/results")
STUDIES: Final = studies.FOLDER.name
BEGIN: Final = re.compile(r"<!-- table: (\S+) -->")
END: Final = "<!-- end -->"
Tables: TypeAlias = Mapping[str, Callable[[], list[str]]]


def drawn(root: Path) -> dict[Path, bytes]:
    """Return what each page and picture should be, by its path below `root`.

    Raises:
        OSError: published data, or a page, is not there.
        ValueError: data is damaged, or a page names no table that there is.
    """
    data = Data.load(root)
    tables: Tables = {name: partial(table, data) for name, table in TABLES.items()}
    found = {FOLDER / name: picture(root, data) for name, picture in PICTURES.items()}
    for page in [root / "README.md", *sorted((root / FOLDER).glob("*.md"))]:
        path = page.relative_to(root)
        found[path] = filled(page.read_text(), path, tables).encode()
    return found | _of_studies(root)


def _of_studies(root: Path) -> dict[Path, bytes]:
    """Return the pages and pictures of each study in the checkout that has `results.py`."""
    found: dict[Path, bytes] = {}
    for module in sorted((root / STUDIES).glob("*/results.py")):
        folder = module.parent.relative_to(root)
        study = importlib.import_module(".".join(("swiftqueue", *folder.parts, "results")))
        found |= {folder / name: picture for name, picture in study.drawn(root).items()}
        tables = {name: partial(table, root) for name, table in study.TABLES.items()}
        for page in sorted((root / folder).glob("*.md")):
            path = page.relative_to(root)
            found[path] = filled(page.read_text(), path, tables).encode()
    return found


def rewrite(root: Path, found: Mapping[Path, bytes] | None = None) -> list[Path]:
    """Write what differs, of what was drawn (default: of all pages); return its paths."""
    found = drawn(root) if found is None else found
    new = [(path, content) for path, content in found.items() if _now(root / path) != content]
    for path, content in new:
        write_file(root / path, content)
    return [path for path, _ in new]


def filled(text: str, page: Path, tables: Tables) -> str:
    """Return a page with its tables drawn anew.

    Raises:
        ValueError: a marker names no table, or has no end.
    """
    lines: list[str] = []
    rest = iter(text.splitlines())
    for line in rest:
        lines.append(line)
        if not (marker := BEGIN.fullmatch(line)):
            continue
        name = marker[1]
        if name not in tables:
            raise ValueError(f"{page}: there is no table {name}; these are: {', '.join(sorted(tables))}")
        if END not in rest:  # this takes the lines up to END
            raise ValueError(f"{page}: table {name} has no line {END}")
        lines += [*tables[name](), END]
    return "\n".join(lines) + "\n"


def _now(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
