"""`swiftqueue results`: rewrites what stands between a page's markers, and the pictures, from the data.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from common.atomic import write_file
from infra.results.paper_pictures import pictures
from infra.results.pictures import PICTURES
from infra.results.tables import TABLES, Data

FOLDER: Final = Path("docs/results")
BEGIN: Final = re.compile(r"<!-- table: (\S+) -->")
END: Final = "<!-- end -->"


def drawn(root: Path) -> dict[Path, bytes]:
    """Return what each page and picture should be, by its path below `root`.

    Raises:
        OSError: published data, or a page, is not there.
        ValueError: data is damaged, or a page names no table that there is.
    """
    data = Data.load(root)
    found = {FOLDER / name: picture(root, data) for name, picture in PICTURES.items()}
    found |= {FOLDER / name: drawn for name, drawn in pictures(data.paper).items()}
    for page in [root / "README.md", *sorted((root / FOLDER).glob("*.md"))]:
        path = page.relative_to(root)
        found[path] = filled(page.read_text(), path, data).encode()
    return found


def rewrite(root: Path) -> list[Path]:
    """Write what differs; return its paths."""
    new = [(path, content) for path, content in drawn(root).items() if _now(root / path) != content]
    for path, content in new:
        write_file(root / path, content)
    return [path for path, _ in new]


def filled(text: str, page: Path, data: Data) -> str:
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
        if name not in TABLES:
            raise ValueError(f"{page}: there is no table {name}; these are: {', '.join(sorted(TABLES))}")
        if END not in rest:  # which takes the lines up to it
            raise ValueError(f"{page}: table {name} has no line {END}")
        lines += [*TABLES[name](data), END]
    return "\n".join(lines) + "\n"


def _now(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
