"""Make the rows of decisions (docs/EVENTS.md) for forecasters over events and queries, and choose inputs.

Shapes: B decisions, H horizon (8 packets), P inputs of a query, F inputs of an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.feature_store.events.event_stream import (
    AS_SENT,
    INPUTS,
    EventInput,
    EventReplay,
    replay_events,
)
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.forecasters.traces import Floats, TracePart

QUERY_INPUTS: Final = tuple(each for each in INPUTS if each.rows != "events")
EVENT_INPUTS: Final = tuple(each for each in INPUTS if each.rows != "queries")


@dataclass(frozen=True)
class Inputs:
    """A choice of a row's inputs."""

    chosen: tuple[EventInput, ...]

    @classmethod
    def without(cls, rows: Sequence[EventInput], left_out: Sequence[str]) -> Inputs:
        """Return all inputs of `rows` but those named."""
        return cls(tuple(each for each in rows if each.name not in left_out))

    @classmethod
    def named(cls, names: Sequence[str]) -> Inputs:
        """Return the inputs of those names in that order."""
        by_name = {each.name: each for each in INPUTS}
        return cls(tuple(by_name[name] for name in names))

    @property
    def names(self) -> tuple[str, ...]:
        """Return their names."""
        return tuple(each.name for each in self.chosen)

    @property
    def units(self) -> tuple[str, ...]:
        """Return their units."""
        return tuple(each.unit for each in self.chosen)

    def of(self, x: Floats) -> Floats:
        """Return these columns (…, P) of whole rows (…, all inputs)."""
        return np.take(x, [INPUTS.index(each) for each in self.chosen], axis=-1)


def column(x_BHF: Floats, name: str) -> NDArray[np.float64]:
    """Return one input of whole rows, (B, H)."""
    return x_BHF[..., [each.name for each in INPUTS].index(name)].astype(np.float64)


def replayed(part: TracePart, queue: int = AS_SENT, *, phase: int = 0) -> EventReplay:
    """Return the events up to a part's end, and its queries; `phase` delays the decisions by packets.

    The events come from the part's packets, so a part to learn from has none after its end.
    """
    first_B = part.first_packets + phase
    first_D = first_B[first_B + HORIZON <= part.packets.height]
    return replay_events(
        part.packets,
        first_D,
        visibility=part.visibility,
        queue=queue,
        told=part.told,
        beginning=part.beginning,
    )
