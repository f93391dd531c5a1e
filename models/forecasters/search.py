"""Describe the parameters of a forecaster that a search may change (`swiftqueue tune`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LogRange:
    """A range of log-uniform draws; both ends lie above 0."""

    low: float
    high: float


Space = Mapping[str, LogRange | tuple[Any, ...]]  # a tuple lists choices beside the section's own value
