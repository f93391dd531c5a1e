"""The judgement of a part, as `swiftqueue status` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BOUND_S: Final = 3.0  # longest wait for an answer


@dataclass(frozen=True)
class Judgement:
    """The result of asking a part whether it is well."""

    well: bool
    line: str
    part: str = ""
    remedy: str = ""  # next step, where it is another than to wait for the keeper


@dataclass(frozen=True)
class Alert(Judgement):
    """An alert that fires; it changes no part's judgement."""

    name: str = ""
    severity: str = ""


def duration(seconds: float) -> str:
    """Return seconds in words, with the largest fitting unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
