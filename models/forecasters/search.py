"""What a search may change of a forecaster, by the parameter's name (`swiftqueue tune`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LogRange:
    """A range that values are drawn from evenly in their logarithm; both ends above 0."""

    low: float
    high: float


Space = Mapping[str, LogRange | tuple[Any, ...]]  # a tuple: one of these, or the section's own
