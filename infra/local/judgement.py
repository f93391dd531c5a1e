"""What `swiftqueue status` says of a part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BOUND_S: Final = 3.0  # for an answer


@dataclass(frozen=True)
class Judgement:
    """What became of a part's request."""

    well: bool
    line: str
    part: str = ""


def duration(seconds: float) -> str:
    """Seconds in words."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
