"""The published figures: `docs/results/bench.json`, an entry for each benchmark."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from swiftqueue.benchmarks.rows import Row
from swiftqueue.common.atomic import write_file
from swiftqueue.common.json_file import read_object

FILE: Final = Path("docs/results/bench.json")


@dataclass(frozen=True)
class Published:
    """A benchmark's rows with the date, commit and machine of their measurement."""

    date: str
    commit: str
    machine: str
    remark: str  # note for the reader of that run; may be empty
    rows: list[Row]


def load(path: Path) -> dict[str, Published]:
    """Return the published results by the benchmark's name.

    Raises:
        ValueError: the file is not here (the command runs in another folder), is damaged, or has other keys.
    """
    if not path.is_file():
        raise ValueError(f"{path} is not here: run this in the project's folder")
    try:
        found = json.loads(path.read_text())
        return {
            name: Published(**{**entry, "rows": [Row(**row) for row in entry["rows"]]})
            for name, entry in found.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}): restore it with git") from None


def publish(name: str, rows: Sequence[Row], path: Path = FILE) -> None:
    """Put a benchmark's rows into the file, replacing those that it had.

    Raises:
        ValueError: as `load`.
    """
    new = Published(**origin(), remark="", rows=list(rows))
    entries = {**load(path), name: new}
    text = json.dumps({key: asdict(entries[key]) for key in sorted(entries)}, indent=1)
    write_file(path, (text + "\n").encode())


def entries_of(path: Path) -> dict[str, Any]:
    """Read the published entries in a file of one JSON object; empty if there is no file."""
    return read_object(path) if path.is_file() else {}


def check(path: Path, found: Mapping[str, Any], needed: Set[str], what: str) -> None:
    """Check that an entry has all keys that it needs.

    Raises:
        ValueError: a key is missing; the line names the file.
    """
    if missing := sorted(needed - set(found)):
        raise ValueError(f"{path} is no {what}: {missing[0]} is missing")


def origin() -> dict[str, str]:
    """Return the date, commit and machine that stand beside every published figure."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": today, "commit": _commit(), "machine": _machine()}


def _commit() -> str:
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=+dirty", "--abbrev=7"],
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip() or "unknown"


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return f"{os.cpu_count()} cores of {named or platform.machine()}"
