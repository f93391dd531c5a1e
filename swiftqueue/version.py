"""The one version: that of pyproject.toml, with the commit and the schema of a model's inputs."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Final

COMMIT_FILE: Final = Path(__file__).with_name("commit.txt")  # in a wheel: the commit that it was built from


def version() -> str:
    """Return the line of `swiftqueue --version`: number, commit and the schema hash's first digits."""
    from swiftqueue.feature_store.events.definition import EVENTS

    number = importlib.metadata.version("swiftqueue")
    return f"swiftqueue {number}, commit {commit()}, schema {EVENTS.schema_hash[:12]}"


def commit() -> str:
    """Return the first digits of the commit, with `+dirty` if something was changed since; or `unknown`."""
    from swiftqueue.models.registry.lineage import git_commit

    if COMMIT_FILE.is_file():
        return COMMIT_FILE.read_text().strip()
    name, changed, rest = git_commit(Path(__file__).resolve().parents[1]).partition("+")
    return f"{name[:12]}{changed}{rest}"
