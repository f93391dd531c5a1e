"""Baselines that repeat a latency that the sender knows: the last one, or its average, of a scope.

Shapes: B decisions, H horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
from pydantic import field_validator

from feature_store.events.event_stream import AS_SENT, event_schema_hash
from models.forecasters.forecaster import Floats, Forecaster, Part, Say, check_made_for
from models.forecasters.queries import QUERY_INPUTS, column, replayed
from models.section import Section, near

SENDER: Final = {  # what stands in, by the first word of a latency's name
    "last": "last_latency_us",
    "mean8": "mean8_latency_us",
    "mean2": "mean2_latency_us",
    "expected": "last_latency_us",
}
LATENCIES: Final = tuple(
    each.name for each in QUERY_INPUTS if each.name.split("_")[0] in SENDER and "_latency_" in each.name
)


class RepeatedParams(Section):
    """Which latency is repeated."""

    section: ClassVar = "repeated"
    input: str
    """Of the query, by name: `last_latency_flow_us`, `mean8_latency_us` (RFC 6298's smoothed latency), …"""

    @field_validator("input")
    @classmethod
    def _a_latency(cls, name: str) -> str:
        if name not in LATENCIES:
            raise ValueError(f"it must be a visible latency; {near(name, list(LATENCIES))}")
        return name


class Repeated(Forecaster):
    """The latency named; where there is none yet the sender's, or the training slices' median."""

    Params = RepeatedParams
    seeded = False

    def __init__(self, params: RepeatedParams, median_us: float) -> None:
        """Take the name, and what stands in."""
        self.params, self.median_us = params, median_us

    @classmethod
    def fit(cls, parts: Sequence[Part], params: RepeatedParams, seed: int, say: Say) -> Self:
        """Find the median."""
        came_N = np.concatenate([part.latencies_us().ravel() for part in parts])
        if not np.isfinite(came_N).any():
            raise ValueError("no latency is known in the training slices")
        return cls(params, float(np.nanmedian(came_N)))

    def predict(self, part: Part, queue: int = AS_SENT) -> Floats:
        """Latencies in µs (B, H)."""
        x_BHF = replayed(part, queue).x_DHF
        sender_BH = column(x_BHF, SENDER[self.params.input.split("_")[0]])
        own_BH = column(x_BHF, self.params.input)
        known_BH = np.where(sender_BH > 0, sender_BH, self.median_us)
        return np.where(own_BH > 0, own_BH, known_BH).astype(np.float32)

    def multiply_adds(self) -> int:
        """None."""
        return 0

    def write(self, folder: Path) -> dict[str, Any]:
        """Nothing but the median."""
        return {"median_us": self.median_us, "schema_hash": event_schema_hash()}

    @classmethod
    def read(cls, folder: Path, params: RepeatedParams, described: Mapping[str, Any]) -> Self:
        """Read the median."""
        check_made_for(described, event_schema_hash())
        return cls(params, float(described["median_us"]))


FORECASTERS: Final = {"repeated": Repeated}
