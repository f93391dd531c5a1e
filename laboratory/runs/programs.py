"""The program that simulates, by what it is: its hash, or that of the first program that is its equal.

Results are named by the program that made them. A program of other bytes whose canary runs gave the same
results (`canary.py`) goes by the name of the first such program, so that those are read and gone on with.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from swiftqueue.common.atomic import write_file
from swiftqueue.pipelines.simulators import PROJECT, build_simulator
from swiftqueue.pipelines.stage import StageError

LISTED: Final = PROJECT / "docs" / "laboratory" / "programs.json"


@dataclass(frozen=True)
class Equals:
    """Programs that are one: their hashes, of which the first is the name, and the digest of each canary."""

    programs: list[str]
    canaries: dict[str, str]

    @classmethod
    def load(cls, path: Path = LISTED) -> Equals:
        """Read the list.

        Raises:
            ValueError: it is damaged.
        """
        try:
            return cls(**json.loads(path.read_text()))
        except (ValueError, TypeError):
            raise ValueError(f"{path} is damaged: restore it with git") from None

    def save(self, path: Path = LISTED) -> None:
        """Write the list whole or not at all."""
        write_file(path, json.dumps(asdict(self), indent=1) + "\n")


def build() -> tuple[Path, str]:
    """Build the program where it is missing or outdated; return it and the name that its results have.

    Raises:
        ValueError: it cannot be built, the line says what is missing; or the list of equals is damaged.
    """
    try:
        program = build_simulator(program="lab")
    except StageError as error:
        raise ValueError(str(error)) from None
    own, listed = hash_of(program), Equals.load(LISTED).programs
    return program, listed[0] if own in listed else own


def hash_of(program: Path) -> str:
    """Return the hash of a program's bytes."""
    return hashlib.sha256(program.read_bytes()).hexdigest()[:16]
