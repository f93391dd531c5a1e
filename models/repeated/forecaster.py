"""Baselines that repeat a latency that the sender knows: the last one, or its average, of a scope.

Shapes: B decisions, H horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
from pydantic import Field, field_validator

from swiftqueue.common.section import Section, near
from swiftqueue.feature_store.events.event_stream import AS_SENT, INPUTS, event_schema_hash
from swiftqueue.models.forecasters.forecaster import Forecaster, Say, check_made_for
from swiftqueue.models.forecasters.queries import QUERY_INPUTS, replayed
from swiftqueue.models.forecasters.traces import Floats, TracePart
from swiftqueue.models.scoring.baselines import SENDER, Candidates, repeated

LATENCIES: Final = tuple(
    each.name for each in QUERY_INPUTS if each.name.split("_")[0] in SENDER and "_latency_" in each.name
)
NAMES: Final = tuple(each.name for each in INPUTS)


class RepeatedParams(Section):
    """Parameters of a baseline that repeats a latency known to the sender."""

    section: ClassVar = "repeated"
    input: Annotated[str, Field(json_schema_extra={"enum": list(LATENCIES)})]
    """Latency to repeat, an input of a query; `mean8_…` is smoothed as in RFC 6298."""

    @field_validator("input")
    @classmethod
    def _a_latency(cls, name: str) -> str:
        if name not in LATENCIES:
            raise ValueError(f"it must be one of {', '.join(LATENCIES)}; {near(name, list(LATENCIES))}")
        return name


class RepeatedLatency(Forecaster):
    """A forecaster that repeats the named latency; else the sender's, or the training slices' median."""

    Params = RepeatedParams
    seeded = False

    def __init__(self, params: RepeatedParams, median_us: float) -> None:
        """Take the name, and the latency in µs to use where nothing is visible."""
        self.params, self.median_us = params, median_us

    @classmethod
    def fit(cls, parts: Sequence[TracePart], params: RepeatedParams, seed: int, say: Say) -> Self:
        """Compute the median of the training slices."""
        came_N = np.concatenate([part.latencies_us().ravel() for part in parts])
        if not np.isfinite(came_N).any():
            raise ValueError("no latency is known in the training slices")
        return cls(params, float(np.nanmedian(came_N)))

    def encode(self, part: TracePart, queue: int = AS_SENT) -> Candidates:
        """Return the queries of the packets decided."""
        return Candidates(replayed(part, queue).x_DHF, NAMES)

    def answer(self, encoded: Candidates) -> Floats:
        """Return latencies in µs (B, H)."""
        return repeated(encoded, self.params.input, self.median_us).astype(np.float32)

    def multiply_adds(self) -> int:
        """Return 0: there are no products."""
        return 0

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the median."""
        known = {"median_us": self.median_us, "params": self.params.model_dump()}
        return {**known, "schema_hash": event_schema_hash()}

    @classmethod
    def read(cls, folder: Path, described: Mapping[str, Any]) -> Self:
        """Read the median."""
        check_made_for(described, event_schema_hash())
        return cls(RepeatedParams(**described["params"]), float(described["median_us"]))


FORECASTERS: Final = {"repeated": RepeatedLatency}
