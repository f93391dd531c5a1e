"""Windows from Python: the sender's live window and the offline builder, of either definition.

`window.h` and `event_window.h` are the definitions of features, their order and the window; this module only
moves arrays across their C ABI. docs/WINDOWS.md and docs/EVENTS.md state the rules in words.

Shapes: B batches (decisions), W window tokens, F features, H horizon (8 packets).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from feature_store.events.definition import WINDOW, Definition
from feature_store.events.window_library import FEATURES, HORIZON, Feature, schema_hash
from feature_store.packets.schema import QUEUES

__all__ = [
    "FEATURES",
    "HORIZON",
    "MAX_TIME_NS",
    "NEVER_NS",
    "VISIBILITIES",
    "Feature",
    "SenderWindow",
    "Targets",
    "Windows",
    "batches_in",
    "bdp_packets",
    "build_windows",
    "check_tokens",
    "iter_windows",
    "packet_columns",
    "schema_hash",
    "targets",
    "tokens_for",
]

VISIBILITIES: Final = ("acked", "previous")
NEVER_NS: Final = 2**63 - 1  # y_acked_ns of a packet that was never acknowledged
DELIVERY_BIN_NS: Final = 100_000_000  # bdp_packets measures the delivery rate in bins this long
TOKENS_STEP: Final = 8
MAX_TIME_NS: Final = 2**62


def check_tokens(tokens: int) -> int:
    """Return `tokens`, or raise ValueError if a window cannot have that many."""
    if tokens % TOKENS_STEP or not HORIZON < tokens <= 4096:
        raise ValueError(f"windows of {tokens} tokens: must be a multiple of 8 in 16..4096")
    return tokens


def _time(name: str, ns: int) -> int:
    if not 0 <= ns <= MAX_TIME_NS:
        raise ValueError(f"{name} = {ns}: must be nanoseconds in 0..2^62")
    return ns


class SenderWindow:
    """A live sender's event log, seen as windows. Feed events in time order; not thread-safe.

    At one instant ACKs come before sends. A time before the last event's counts as that event's time.
    """

    def __init__(self, tokens: int, visibility: str = "acked", definition: Definition = WINDOW) -> None:
        """Start an empty log for windows of `tokens` (W) tokens.

        Raises:
            ValueError: `tokens` is no multiple of 8 in 16..4096, or the visibility is not `acked`.
        """
        self._handle: int | None = None
        if visibility != "acked":
            raise ValueError(
                f"a live sender cannot have visibility {visibility!r}: it would have to know latencies "
                "before their ACKs; use a model made for `acked`"
            )
        self.tokens, self.definition = check_tokens(tokens), definition
        self._handle = definition.call("new", tokens)
        if not self._handle:
            raise MemoryError(f"no memory for a window of {tokens} tokens")

    def __del__(self) -> None:
        if self._handle:
            self.definition.call("free", self._handle)

    def sent(
        self, packet: int, sent_ns: int, size_bytes: int, flow_id: int, receiver_id: int, queue: int
    ) -> None:
        """Log a SEND. Packets 8k..8k+7 are batch k; its decision time is the send time of packet 8k.

        Args:
            packet: number in send order, from 0, above every earlier one.
            sent_ns: time of sending.
            size_bytes: IP length, at least 1.
            flow_id: flow number (int32).
            receiver_id: receiver number (int32).
            queue: 0 classic, 1 l4s.

        Raises:
            ValueError: an argument is out of its range; the log is unchanged.
        """
        if queue not in (0, 1):
            raise ValueError(f"packet {packet}: queue {queue!r} must be 0 (classic) or 1 (l4s)")
        if not all(-(2**31) <= value < 2**31 for value in (size_bytes, flow_id, receiver_id)):
            raise ValueError(f"packet {packet}: size_bytes, flow_id and receiver_id must be 32-bit numbers")
        taken = self.definition.call(
            "sent", self._handle, packet, _time("sent_ns", sent_ns), size_bytes, flow_id, receiver_id, queue
        )
        if taken < 0:
            raise MemoryError(f"no memory to log packet {packet}")
        if not taken:
            raise ValueError(
                f"packet {packet} of {size_bytes} bytes refused: numbers must grow, sizes be at least 1"
            )

    def acked(self, packet: int, acked_ns: int, latency_us: float | None) -> bool:
        """Log the first ACK that covers `packet`; `latency_us` is None where unknown (Karn).

        Returns:
            Whether it was news: False, and no change, for a packet never sent, acknowledged before, or
            sent more than 60 s before.
        """
        latency = math.nan if latency_us is None else latency_us
        news: int = self.definition.call("acked", self._handle, packet, _time("acked_ns", acked_ns), latency)
        if news < 0:
            raise MemoryError(f"no memory to log the ACK of packet {packet}")
        return news == 1

    def window(
        self,
        decision_ns: int,
        size_bytes: Sequence[int] | npt.NDArray[Any],
        flow_id: Sequence[int] | npt.NDArray[Any],
        receiver_id: Sequence[int] | npt.NDArray[Any],
        queue: Sequence[int] | npt.NDArray[Any],
    ) -> tuple[npt.NDArray[np.float32], int]:
        """Return the window x_WF of a decision about 8 packets, and the packets in flight then.

        It changes nothing, so one decision can be asked for several candidate queues.

        Raises:
            ValueError: not 8 packets, a size below 1 or a queue other than 0 and 1.
        """
        columns: list[npt.NDArray[Any]] = [
            np.ascontiguousarray(size_bytes, np.int32),
            np.ascontiguousarray(flow_id, np.int32),
            np.ascontiguousarray(receiver_id, np.int32),
            np.ascontiguousarray(queue, np.uint8),
        ]
        if any(c.shape != (HORIZON,) for c in columns):
            raise ValueError(f"a decision is about {HORIZON} packets: give {HORIZON} of each value")
        x_WF = np.empty((self.tokens, len(self.definition.features)), np.float32)
        in_flight = self.definition.call(
            "window",
            self._handle,
            _time("decision_ns", decision_ns),
            *(c.ctypes.data for c in columns),
            x_WF.ctypes.data,
        )
        if in_flight < 0:
            raise ValueError("a candidate packet has a size below 1 byte or a queue other than 0 and 1")
        return x_WF, int(in_flight)


@dataclass(frozen=True)
class Targets:
    """What became of the packets decided, and when they were decided."""

    y_BH: npt.NDArray[np.float32]  # latency, us; NaN where unknown
    y_acked_ns_BH: npt.NDArray[np.int64]  # NEVER_NS where it was never acknowledged
    decision_ns_B: npt.NDArray[np.int64]
    first_packet_B: npt.NDArray[np.int64]

    def known_at(self, now_ns: int) -> npt.NDArray[np.float32]:
        """Latencies (B, H) that the sender knew at a time (ACK seen); the others are NaN."""
        return np.where(self.y_acked_ns_BH > now_ns, np.float32(np.nan), self.y_BH)


@dataclass(frozen=True)
class Windows(Targets):
    """Windows and targets of one trace."""

    x_BWF: npt.NDArray[np.float32]


def packet_columns(packets: pl.DataFrame) -> dict[str, npt.NDArray[Any]]:
    """Return the packet table's columns as the arrays that the C ABI takes.

    Raises:
        ValueError: not one trace in send order from packet 0, or a value no packet can have.
    """
    if packets.height and not (packets["packet"] == pl.int_range(packets.height, eager=True)).all():
        raise ValueError("windows need one whole trace in send order: packet must count 0, 1, 2, ...")
    numbers = packets.select("sent_ns", "size_bytes", "flow_id", "receiver_id", "queue")
    for column, missing in numbers.null_count().row(0, named=True).items():
        if missing:
            raise ValueError(f"packet table: {column} is missing for {missing} packets")
    sent_ns = packets["sent_ns"].cast(pl.Int64).to_numpy()
    for extreme_ns in (sent_ns.min(), sent_ns.max()) if packets.height else ():
        _time("packet table: sent_ns", int(extreme_ns))
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
    """Batches of 8 that the table decides; an incomplete last one is not decided offline."""
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


def iter_windows(
    packets: pl.DataFrame,
    tokens: int,
    visibility: str = "acked",
    *,
    chunk: int = 512,
    first: int = 0,
    definition: Definition = WINDOW,
) -> Iterator[npt.NDArray[np.float32]]:
    """Yield a trace's windows x_BWF in decision order, from the first wanted on, at most `chunk` at a time.

    Args:
        packets: the packet table of one trace, whole and in send order.
        tokens: W, a multiple of 8 in 16..4096.
        visibility: `acked` (what a sender can do) or `previous` (the paper's offline protocol).
        chunk: windows per array.
        first: windows that are left out at the beginning.
        definition: of the rows.

    Raises:
        ValueError: a visibility, window size or packet that cannot be; the message names it.
    """
    if visibility not in VISIBILITIES:
        raise ValueError(f"visibility {visibility!r} is unknown; take one of {', '.join(VISIBILITIES)}")
    check_tokens(tokens)
    columns = [np.ascontiguousarray(c) for c in packet_columns(packets).values()]  # alive until the end
    no_memory = f"no memory for the windows of {packets.height} packets"
    pointers = (c.ctypes.data for c in columns)
    handle = definition.call("trace_new", packets.height, *pointers, tokens, int(visibility == "previous"))
    if not handle:
        raise MemoryError(no_memory)
    try:
        done, count = 0, batches_in(packets)
        while done < count:
            x_BWF = np.empty((min(chunk, count - done), tokens, len(definition.features)), np.float32)
            written = definition.call("trace_next", handle, len(x_BWF), x_BWF.ctypes.data)
            if written == -(2**63):
                raise MemoryError(no_memory)
            if written < 0:
                bad = packets.row(-1 - written, named=True)
                raise ValueError(f"packet {bad['packet']}: size_bytes {bad['size_bytes']} must be at least 1")
            wanted_BWF = x_BWF[max(first - done, 0) :]
            done += len(x_BWF)
            if len(wanted_BWF):
                yield wanted_BWF
    finally:
        definition.call("trace_free", handle)


def build_windows(
    packets: pl.DataFrame, tokens: int, visibility: str = "acked", span_ns: tuple[int, int] | None = None
) -> Windows:
    """Return the windows of one trace's packet table, in memory; for many, see `iter_windows`.

    All of them, or those decided in [span_ns): the history before it is in them.

    Raises:
        ValueError: see `iter_windows`.
    """
    found = targets(packets)
    lo, hi = 0, batches_in(packets)
    if span_ns is not None:
        lo, hi = np.searchsorted(found.decision_ns_B, span_ns).tolist()
    x_BWF = np.empty((hi - lo, check_tokens(tokens), len(FEATURES)), np.float32)
    done = 0
    for part_BWF in iter_windows(packets, tokens, visibility, first=lo):
        part_BWF = part_BWF[: len(x_BWF) - done]
        x_BWF[done : done + len(part_BWF)] = part_BWF
        done += len(part_BWF)
        if done == len(x_BWF):
            break
    return Windows(**{name: column[lo:hi] for name, column in vars(found).items()}, x_BWF=x_BWF)


def bdp_packets(packets: pl.DataFrame) -> float:
    """Bandwidth-delay product of a trace in packets: delivery rate when busy times median latency.

    The rate is the 90th percentile, over 100 ms bins in which anything was acknowledged, of packets
    acknowledged per second; the latency includes the queue, since what is in flight waits there too.

    Raises:
        ValueError: no packet of the trace has a known latency.
    """
    known = packets.filter(pl.col("latency_us").is_not_null() & pl.col("acked_ns").is_not_null())
    if known.is_empty():
        raise ValueError("no packet has a known latency: the capture holds no ACKs of its data")
    per_bin = (
        packets.filter(pl.col("acked_ns").is_not_null())
        .group_by(pl.col("acked_ns") // DELIVERY_BIN_NS)
        .len()["len"]
        .quantile(0.9)
    )
    median_us = known["latency_us"].cast(pl.Float64).median()
    # packets = packets/bin · bin/ns · ns
    return float(per_bin or 0) / DELIVERY_BIN_NS * (float(median_us or 0) * 1000)  # type: ignore[arg-type]


def tokens_for(bdp: float, tokens_min: int, tokens_max: int) -> int:
    """Window size for a bandwidth-delay product: 1.5 of it and the 8 candidates, a multiple of 8.

    1.5 BDP holds everything in flight and, beside it, acknowledged packets (the design asks 1 to 2).
    """
    tokens = math.ceil((1.5 * bdp + HORIZON) / TOKENS_STEP) * TOKENS_STEP
    return check_tokens(min(max(tokens, tokens_min), tokens_max))
