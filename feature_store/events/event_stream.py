"""Call the event stream from Python, for a live sender and for a packet table.

`event_stream.h` alone defines the inputs and their order; docs/EVENTS.md states its rules.

Shapes: E events, D decisions, B whole batches, H horizon (8 packets), F inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from swiftqueue.feature_store.events.beginning import NOTHING, Beginning
from swiftqueue.feature_store.events.event_library import ABI, INPUTS, EventInput, event_schema_hash
from swiftqueue.feature_store.packets.schema import HORIZON, QUEUES

__all__ = [
    "INPUTS",
    "MAX_TIME_NS",
    "NEVER_NS",
    "VISIBILITIES",
    "EventInput",
    "EventReplay",
    "EventStream",
    "Targets",
    "batches_in",
    "check_time",
    "event_schema_hash",
    "packet_columns",
    "replay_events",
    "targets",
]

Row = npt.NDArray[np.float32]
AS_SENT: Final = -1
VISIBILITIES: Final = ("acked", "previous")
NEVER_NS: Final = 2**63 - 1  # y_acked_ns of a packet that was never acknowledged
MAX_TIME_NS: Final = 2**62
TOLD: Final = ("all", "flows", "first")


def check_time(name: str, ns: int) -> int:
    """Return a time, or raise a ValueError that names it if no event can have it."""
    if not 0 <= ns <= MAX_TIME_NS:
        raise ValueError(f"{name} = {ns}: must be nanoseconds in 0..2^62")
    return ns


class EventStream:
    """A live sender's log as rows of inputs; feed it events in time order, from one thread.

    At one instant ACKs come before sends. A time before the last event's counts as that event's time.
    """

    def __init__(self) -> None:
        """Start an empty log."""
        self._handle: int | None = ABI.sq_events_new()
        if not self._handle:
            raise MemoryError("no memory for an event stream")

    def __del__(self) -> None:
        if self._handle:
            ABI.sq_events_free(self._handle)

    def sent(
        self, packet: int, sent_ns: int, size_bytes: int, flow_id: int, receiver_id: int, queue: int
    ) -> Row | None:
        """Log a SEND and return its inputs (F,), the state just after it.

        Return None and change nothing for a number not above the last one, a size below 1, a size, flow or
        receiver of more than 32 bits, a queue other than 0 (classic) and 1 (l4s), or a time outside 0..2^62.
        """
        if not (0 <= sent_ns <= MAX_TIME_NS and _fit(size_bytes, flow_id, receiver_id, queue)):
            return None
        x_F = np.empty(len(INPUTS), np.float32)
        taken = ABI.sq_event_sent(
            self._handle, packet, sent_ns, size_bytes, flow_id, receiver_id, queue, x_F.ctypes.data
        )
        return self._row(taken, x_F)

    def acked(self, packet: int, acked_ns: int, latency_us: float | None) -> Row | None:
        """Log the first ACK of a packet, `latency_us` None where unknown (Karn); return its inputs (F,).

        Return None and change nothing for a packet never sent, acknowledged before, or sent over 60 s before.
        """
        x_F = np.empty(len(INPUTS), np.float32)
        latency = math.nan if latency_us is None else latency_us
        return self._row(ABI.sq_event_acked(self._handle, packet, acked_ns, latency, x_F.ctypes.data), x_F)

    def query(
        self, decision_ns: int, size_bytes: int, flow_id: int, receiver_id: int, queue: int, place: int
    ) -> Row | None:
        """Return the inputs (F,) of packet `place` (0..7) of a batch decided now; the log is unchanged.

        Return None for a size, flow, receiver or queue that `sent` would refuse.
        """
        if not _fit(size_bytes, flow_id, receiver_id, queue):
            return None
        x_F = np.empty(len(INPUTS), np.float32)
        taken = ABI.sq_event_query(
            self._handle, decision_ns, size_bytes, flow_id, receiver_id, queue, place, x_F.ctypes.data
        )
        return self._row(taken, x_F)

    @staticmethod
    def _row(taken: int, x_F: Row) -> Row | None:
        if taken < 0:
            raise MemoryError("no memory for an event")
        return x_F if taken else None


def _fit(size_bytes: int, flow_id: int, receiver_id: int, queue: int) -> bool:
    """Return whether the arguments fit the library's types; ctypes cuts larger numbers silently."""
    return queue in (0, 1) and all(-(2**31) <= one < 2**31 for one in (size_bytes, flow_id, receiver_id))


@dataclass(frozen=True)
class Targets:
    """Outcomes of the packets that were decided, and the times of the decisions."""

    y_BH: npt.NDArray[np.float32]  # latency, us; NaN where unknown
    y_acked_ns_BH: npt.NDArray[np.int64]  # NEVER_NS if it was never acknowledged
    decision_ns_B: npt.NDArray[np.int64]
    first_packet_B: npt.NDArray[np.int64]

    def known_at(self, now_ns: int) -> npt.NDArray[np.float32]:
        """Return the latencies (B, H) that the sender knew at a time (ACK seen); unknown ones are NaN."""
        return np.where(self.y_acked_ns_BH > now_ns, np.float32(np.nan), self.y_BH)


def packet_columns(packets: pl.DataFrame) -> dict[str, npt.NDArray[Any]]:
    """Return the packet table's columns as the arrays that the C ABI takes.

    Raises:
        ValueError: the table is not one trace in send order from packet 0, or has a value that no packet can
            have.
    """
    if packets.height and not (packets["packet"] == pl.int_range(packets.height, eager=True)).all():
        raise ValueError("an event log needs one whole trace in send order: packet must count 0, 1, 2, ...")
    numbers = packets.select("sent_ns", "size_bytes", "flow_id", "receiver_id", "queue")
    for column, missing in numbers.null_count().row(0, named=True).items():
        if missing:
            raise ValueError(f"packet table: {column} is missing for {missing} packets")
    sent_ns = packets["sent_ns"].cast(pl.Int64).to_numpy()
    for extreme_ns in (sent_ns.min(), sent_ns.max()) if packets.height else ():
        check_time("packet table: sent_ns", int(extreme_ns))
    return {
        "sent_ns": sent_ns,
        "size_bytes": packets["size_bytes"].cast(pl.Int32).to_numpy(),
        "flow_id": packets["flow_id"].cast(pl.Int32).to_numpy(),
        "receiver_id": packets["receiver_id"].cast(pl.Int32).to_numpy(),
        "queue": (packets["queue"].cast(pl.String) == QUEUES[1]).cast(pl.UInt8).to_numpy(),
        "acked_ns": packets["acked_ns"].cast(pl.Int64).fill_null(-1).to_numpy(),
        "latency_us": packets["latency_us"].cast(pl.Float32).fill_null(math.nan).to_numpy(),
    }


def batches_in(packets: pl.DataFrame) -> int:
    """Return the number of batches of 8 in the table; an incomplete last one is not decided offline."""
    return packets.height // HORIZON


def targets(packets: pl.DataFrame) -> Targets:
    """Return targets and decision times of one trace's packet table (its rows in send order)."""
    columns = packet_columns(packets)
    decided = batches_in(packets) * HORIZON
    acked_ns = columns["acked_ns"][:decided]
    return Targets(
        y_BH=columns["latency_us"][:decided].reshape(-1, HORIZON),
        y_acked_ns_BH=np.where(acked_ns < 0, NEVER_NS, acked_ns).reshape(-1, HORIZON),
        decision_ns_B=columns["sent_ns"][:decided:HORIZON].copy(),
        first_packet_B=np.arange(0, decided, HORIZON, dtype=np.int64),
    )


@dataclass(frozen=True)
class EventReplay:
    """A trace's events in time order, and the queries of some decisions."""

    ack_E: npt.NDArray[np.bool_]  # False: a SEND
    packet_E: npt.NDArray[np.int64]
    time_ns_E: npt.NDArray[np.int64]
    x_EF: Row
    cut_D: npt.NDArray[np.int64]  # number of events that a decision sees
    x_DHF: Row


def check_question(
    packets: pl.DataFrame, first_D: npt.NDArray[np.int64], visibility: str, queue: int, told: str
) -> None:
    """Raise a ValueError that names an invalid argument of a replay (`replay_events` has their meaning)."""
    if visibility not in VISIBILITIES:
        raise ValueError(f"visibility {visibility!r} is unknown; take one of {', '.join(VISIBILITIES)}")
    if queue not in (AS_SENT, 0, 1):
        raise ValueError(f"queue {queue!r} of the candidates must be 0 (classic), 1 (l4s) or -1 (as sent)")
    if told not in TOLD:
        raise ValueError(f"told {told!r} is unknown; take one of {', '.join(TOLD)}")
    if len(first_D) and (
        first_D[0] < 0 or first_D[-1] + HORIZON > packets.height or (np.diff(first_D) < 0).any()
    ):
        raise ValueError(
            f"decisions must be ascending, each with {HORIZON} of {packets.height} packets after it"
        )


def replay_events(
    packets: pl.DataFrame,
    first_packet_D: npt.NDArray[np.int64] | None = None,
    *,
    visibility: str = "acked",
    queue: int = AS_SENT,
    told: str = "all",
    beginning: Beginning = NOTHING,
) -> EventReplay:
    """Return the events of a trace's packet table, and the queries of decisions about 8 packets each.

    Args:
        packets: the packet table of one trace, whole and in send order, counted from 0.
        first_packet_D: first packet of each decision, ascending; by default, batches 8k..8k+7.
        visibility: `acked` (what a sender can do) or `previous` (the paper's offline protocol).
        queue: the candidates' queue: 0 classic, 1 l4s, or -1 for the one they were sent in.
        told: attributes of packets 2 to 8 of a batch that the sender gives: `all`, `flows` (flow, receiver
            and queue), or only those of the `first` packet; the others are taken from the first.
        beginning: knowledge of the sender from before the first packet, if the table is cut out of a longer
            log. After a lead-in the rows are those of the longer log (docs/EVENTS.md).

    Raises:
        ValueError: a visibility, `told`, decision, packet or beginning is invalid; the line names it.
    """
    if first_packet_D is None:
        first_packet_D = np.arange(0, packets.height - HORIZON + 1, HORIZON, dtype=np.int64)
    first_D = np.ascontiguousarray(first_packet_D, np.int64)
    check_question(packets, first_D, visibility, queue, told)
    columns: list[npt.NDArray[Any]] = [np.ascontiguousarray(c) for c in packet_columns(packets).values()]
    known = beginning.columns()
    most = packets.height + int((columns[5] >= 0).sum())
    ack_E, packet_E, time_ns_E = np.empty(most, np.bool_), np.empty(most, np.int64), np.empty(most, np.int64)
    x_EF = np.empty((most, len(INPUTS)), np.float32)
    cut_D = np.empty(len(first_D), np.int64)
    x_DHF = np.empty((len(first_D), HORIZON, len(INPUTS)), np.float32)
    written = ABI.sq_events_replay(
        packets.height,
        *(c.ctypes.data for c in columns),
        int(visibility == "previous"),
        len(known[0]),
        *(c.ctypes.data for c in known),
        *beginning.hole(),
        *(out.ctypes.data for out in (ack_E, packet_E, time_ns_E, x_EF)),
        len(first_D),
        first_D.ctypes.data,
        queue,
        TOLD.index(told),
        cut_D.ctypes.data,
        x_DHF.ctypes.data,
    )
    if written == -(2**63):
        raise MemoryError(f"no memory for the events of {packets.height} packets")
    if written < -(2**62):
        raise ValueError(f"invalid beginning of a log: {beginning.row(written + 2**63 - 1)}")
    if written < 0:
        bad = packets.row(-1 - written, named=True)
        if bad["size_bytes"] >= 1:  # then it is the first packet
            flow, start_ns = max(beginning.flow_starts_ns.items(), key=lambda one: one[1])
            raise ValueError(
                f"packet {bad['packet']} was sent at {bad['sent_ns']} ns, but the log's beginning tells of "
                f"flow {flow}, which began later, at {start_ns} ns: leave out flows that the log itself shows"
            )
        raise ValueError(f"packet {bad['packet']}: size_bytes {bad['size_bytes']} must be at least 1")
    return EventReplay(ack_E[:written], packet_E[:written], time_ns_E[:written], x_EF[:written], cut_D, x_DHF)
