"""Keep what is known of a sender when a log of its events begins in the midst of its life.

A log that is cut out of a longer one lacks what no later event shows again: the starts of flows, the least
latencies, and the last hole in the ACKs. Everything else (last and mean latencies, rates, packets in flight)
follows from its first events, the lead-in (docs/EVENTS.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

SCOPES: Final = ("flow", "queue", "receiver")  # order of `KnownBefore::Of` in event_stream.h
LEAD_IN_NS: Final = 2_000_000_000  # as kGiveUpNs: afterwards no earlier packet counts as in flight
FORGET_NS: Final = 60_000_000_000  # as kForgetNs: the stream takes no ACK of a packet sent longer ago
HOLE_NS: Final = 5_000_000  # as kHoleNs: the shortest silence between two ACKs that is a hole
NEVER: Final = -1


class Hole(NamedTuple):
    """A silence between two ACKs."""

    end_ns: int
    length_ns: int


@dataclass(frozen=True)
class Beginning:
    """Knowledge from before a log begins; latencies and hole are as of the end of its lead-in of 2 s.

    They therefore include the packets in flight at the beginning, whose ACKs the log lacks.
    """

    flow_starts_ns: Mapping[int, int] = field(default_factory=dict)  # time of each flow's first packet
    least_us: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # least latency by scope and id
    last_hole: Hole | None = None
    known_until_ns: int = NEVER  # end of the lead-in; NEVER: no hole is known

    def moved(self, packets: pl.DataFrame, first: int) -> Beginning:
        """Return the knowledge from before packet `first`, for a log that begins there.

        Args:
            packets: the packet table of this beginning.
            first: number of packets that are cut off, below the table's height.
        """
        if not first:
            return self
        before, until_ns = packets[:first], int(packets["sent_ns"][first]) + LEAD_IN_NS
        starts = dict(before.group_by("flow_id").agg(pl.col("sent_ns").min()).iter_rows())
        acked = known_latencies(before).filter(pl.col("acked_ns") <= until_ns)
        least = {
            scope: _lower(self.least_us.get(scope, {}), acked.group_by(scope).agg(pl.col("latency_us").min()))
            for scope in SCOPES
        }
        acked_ns = packets["acked_ns"].drop_nulls().sort().to_numpy()
        own = last_hole(acked_ns[acked_ns <= until_ns])
        is_later = own is not None and own.end_ns > self.known_until_ns
        return Beginning(
            {**starts, **self.flow_starts_ns}, least, own if is_later else self.last_hole, until_ns
        )

    def hole(self) -> tuple[int, int, int]:
        """Return the C ABI's numbers: length and end of the last hole, and until when holes are known."""
        end_ns, length_ns = self.last_hole or (NEVER, 0)
        return length_ns, end_ns, self.known_until_ns

    def columns(self) -> list[npt.NDArray[Any]]:
        """Return the C ABI's arrays: scope, id, first SEND (-1: unknown), least latency (NaN: unknown)."""
        rows = [
            (SCOPES.index(scope), one, start_ns, us)
            for scope in SCOPES
            for one, start_ns, us in self._of(scope)
        ]
        scope, one, start_ns, us = zip(*rows, strict=True) if rows else ((), (), (), ())
        return [
            np.array(scope, np.uint8),
            np.array(one, np.int32),
            np.array(start_ns, np.int64),
            np.array(us, np.float32),
        ]

    def row(self, number: int) -> str:
        """Describe one row of `columns`, or the hole after them, for a message."""
        if number == len(self.columns()[0]):
            return f"last hole {self.last_hole} as of {self.known_until_ns} ns"
        scope, one, start_ns, us = (column[number].item() for column in self.columns())
        began = f", began at {start_ns} ns" if start_ns != NEVER else ""
        return f"{SCOPES[scope]} {one}{began}, least latency {us:g} us"

    def _of(self, scope: str) -> list[tuple[int, int, float]]:
        starts, least = self.flow_starts_ns if scope == "flow" else {}, self.least_us.get(scope, {})
        return [(one, starts.get(one, NEVER), least.get(one, np.nan)) for one in {**starts, **least}]


NOTHING: Final = Beginning()


def known_latencies(packets: pl.DataFrame) -> pl.DataFrame:
    """Return time and value of each latency that the stream sees, with the ids of its packet's scopes."""
    seen = pl.col("latency_us").is_not_null() & (pl.col("acked_ns") - pl.col("sent_ns") <= FORGET_NS)
    ids = (
        pl.col("flow_id").alias("flow"),
        pl.col("queue").to_physical().cast(pl.Int32).alias("queue"),  # the order of QUEUES: 0 classic, 1 l4s
        pl.col("receiver_id").alias("receiver"),
    )
    return packets.lazy().filter(seen).select("acked_ns", "latency_us", *ids).collect()


def last_hole(acked_ns: npt.NDArray[np.int64]) -> Hole | None:
    """Return the last hole between ACKs from their times in order, or None."""
    gaps_ns = np.diff(acked_ns)
    holes = np.flatnonzero(gaps_ns >= HOLE_NS)
    return Hole(int(acked_ns[holes[-1] + 1]), int(gaps_ns[holes[-1]])) if len(holes) else None


def _lower(least_us: Mapping[int, float], other: pl.DataFrame) -> dict[int, float]:
    lower = dict(least_us)
    for one, us in other.iter_rows():
        lower[one] = min(us, lower.get(one, us))
    return lower
