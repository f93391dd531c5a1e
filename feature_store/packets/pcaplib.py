"""Bind `_build/libpcapdecode.so`, which turns captures into TCP segments and those into packet-table rows.

The record types below repeat `segment.h`, `match.h` and `extract_api.cc`.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from swiftqueue import feature_store
from swiftqueue.common import native

LIBRARY: Final = feature_store.FOLDER / "_build" / "libpcapdecode.so"
SOURCES: Final = (
    *(f"packets/{name}.cc" for name in ("decode", "pcap", "match", "sender_view", "extract_api")),
    *(f"packets/{name}.h" for name in ("segment", "flow_key", "trace_clock", "decode", "pcap", "match")),
    *(f"packets/{name}.h" for name in ("sender_view", "stamp_order", "latency_stats")),
)

SEGMENT: Final = np.dtype(
    [
        ("time_ns", "<i8"),
        ("source", "V16"),
        ("destination", "V16"),
        ("source_port", "<u2"),
        ("destination_port", "<u2"),
        ("sequence", "<u4"),
        ("acknowledgment", "<u4"),
        ("payload_bytes", "<u4"),
        ("ip_bytes", "<u4"),
        ("timestamp_value", "<u4"),
        ("timestamp_echo", "<u4"),
        ("link", "<u4"),
        ("record_offset", "<u4"),
        ("record_bytes", "<u4"),
        ("original_bytes", "<u4"),
        ("link_type", "<u2"),
        ("flags", "u1"),
        ("ecn", "u1"),
        ("kind", "u1"),
        ("has_timestamps", "u1"),
        ("sacks", "u1"),
        ("cut_options", "u1"),
        ("ip_id", "<u2"),
        ("vlan", "<u2"),
        ("sack", "<u4", (4, 2)),
    ]
)
TCP, RARE, NOTHING = 0, 1, 2  # Segment.kind

# Reasons why a record gave no segment: enum Skip of segment.h, in its order.
SKIP_REASONS: Final = (
    "not IP",
    "not TCP",
    "IP fragment",
    "header cut by the snapshot length",
    "malformed header",
    "no timestamp",
    "absurd timestamp",
    "unknown interface",
    "absurd length",
    "truncated",
    "IP length beyond the wire length",
    "damaged frame",
)
FLOW_KEY_BYTES: Final = 38  # struct FlowKey of flow_key.h
# Sources of latencies: enum Mode of match.h, in its order.
LATENCIES: Final = ("acks", "selective", "timestamps")
READING, NOT_A_CAPTURE, STOPPED = 0, 1, 2  # Capture::State

# The matcher's columns of a packet-table row: struct Columns of match.h, in its order.
ROW_COLUMNS: Final = {
    "sent_ns": np.int64,
    "acked_ns": np.int64,  # -1: not acknowledged
    "latency_us": np.float32,  # NaN: unknown
    "flow_id": np.int32,
    "receiver_id": np.int32,
    "size_bytes": np.int32,
    "ecn": np.uint8,
    "retransmitted": np.bool_,
    "lost": np.bool_,
}


def bucket_us(index: int) -> int:
    """Return the lowest latency in us that belongs to a bucket of `latency_stats.h`."""
    half = 1 << 16  # 2^kSubBits / 2
    if index < 2 * half:
        return index
    shift = index // half - 1
    return (index - shift * half) << shift


class _Columns(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ROW_COLUMNS]


class Stats(ctypes.Structure):
    """Counts of a matcher, `SqStats` of extract_api.cc; times in ns."""

    known: int
    sharp: int
    min_ns: int
    max_ns: int
    clock_steps: int
    acks: int
    copies: int
    left_out: int
    retransmitted: int
    flows: int
    receivers: int
    cut_sacks: int
    unacknowledged: int
    sent_again: int
    off_clock: int
    silent_packets: int
    midway_flows: int
    new_acks: int
    full_acks: int
    near_sender: int
    near_receiver: int
    span_ns: int
    _fields_ = [(name, ctypes.c_int64) for name in __annotations__]


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library, loaded once.

    Raises:
        NotBuiltError: it is not built, or is older than its sources.
    """
    handle, size, i64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64
    signatures: native.Signatures = {
        "sq_capture_new": (handle, []),
        "sq_capture_free": (None, [handle]),
        "sq_capture_feed": (size, [handle, handle, size, ctypes.c_int, handle, size, ctypes.POINTER(size)]),
        "sq_capture_state": (ctypes.c_int32, [handle]),
        "sq_capture_counts": (i64, [handle, handle]),
        "sq_order_new": (handle, []),
        "sq_order_free": (None, [handle]),
        "sq_order_take": (size, [handle, handle, size, ctypes.POINTER(size), handle, ctypes.c_int]),
        "sq_traffic_new": (handle, []),
        "sq_traffic_free": (None, [handle]),
        "sq_traffic_add": (None, [handle, handle, size]),
        "sq_traffic_heaviest": (i64, [handle, handle]),
        "sq_traffic_from": (i64, [handle, ctypes.c_char_p]),
        "sq_sender_view_new": (handle, [ctypes.c_char_p, i64]),
        "sq_sender_view_free": (None, [handle]),
        "sq_sender_view_without_timestamps": (i64, [handle]),
        "sq_matcher_new": (handle, [ctypes.c_char_p, ctypes.c_int, i64, ctypes.c_double]),
        "sq_matcher_free": (None, [handle]),
        "sq_matcher_push": (None, [handle, handle, handle, size]),
        "sq_matcher_finish": (None, [handle]),
        "sq_matcher_drain": (size, [handle, ctypes.POINTER(_Columns), size]),
        "sq_matcher_stats": (None, [handle, ctypes.POINTER(Stats)]),
        "sq_matcher_control_flows": (size, [handle, handle, size]),
        "sq_matcher_leave_out": (None, [handle, ctypes.c_char_p, size]),
        "sq_matcher_buckets": (size, [handle, ctypes.POINTER(handle)]),
    }
    return native.load(LIBRARY, SOURCES, signatures)


class _Handle:
    """A C++ object with the lifetime of its Python owner."""

    _kind = ""

    def __init__(self, *arguments: Any) -> None:
        self._lib = library()
        self._handle = getattr(self._lib, f"sq_{self._kind}_new")(*arguments)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            getattr(self._lib, f"sq_{self._kind}_free")(self._handle)


class Capture(_Handle):
    """A decoder of one capture file that is fed piece by piece."""

    _kind = "capture"

    def feed(self, data: npt.NDArray[np.uint8], *, last: bool, out: npt.NDArray[np.void]) -> tuple[int, int]:
        """Decode the complete records at the head of `data` into `out`.

        Returns:
            The number of bytes of `data` that were consumed, and the number of segments written.
        """
        consumed = ctypes.c_size_t()
        source, target = (data.ctypes.data, len(data), last), (out.ctypes.data, len(out))
        segments = self._lib.sq_capture_feed(self._handle, *source, *target, ctypes.byref(consumed))
        return consumed.value, segments

    @property
    def state(self) -> int:
        """Return `READING`, `NOT_A_CAPTURE` or `STOPPED`."""
        return int(self._lib.sq_capture_state(self._handle))

    def counts(self) -> tuple[int, dict[str, int]]:
        """Return the number of records read, and how many of them were skipped for each reason met."""
        counts = np.zeros(len(SKIP_REASONS), np.int64)
        records = self._lib.sq_capture_counts(self._handle, counts.ctypes.data)
        return records, {reason: int(n) for reason, n in zip(SKIP_REASONS, counts, strict=True) if n}


class StampOrder(_Handle):
    """A sorter of segments by their stamps, within the horizon of `stamp_order.h`."""

    _kind = "order"

    def take(
        self, segments: npt.NDArray[np.void], held: int, capture: Capture, *, last: bool
    ) -> tuple[int, int]:
        """Order the `held` segments at the front, left by the last call, and new ones of `capture` behind.

        Returns:
            The number of new segments that were read (pass the others again), and the number of segments at
            the front that are in their final order.
        """
        fresh = ctypes.c_size_t(len(segments) - held)
        place = self._handle, segments.ctypes.data
        ready = self._lib.sq_order_take(*place, held, ctypes.byref(fresh), capture._handle, last)
        return fresh.value, ready


class Traffic(_Handle):
    """Counts of TCP payload by source address."""

    _kind = "traffic"

    def add(self, segments: npt.NDArray[np.void]) -> None:
        """Count the segments' payload."""
        self._lib.sq_traffic_add(self._handle, segments.ctypes.data, len(segments))

    def heaviest(self) -> bytes | None:
        """Return the address (16 bytes) that sent the most payload, or None."""
        address = ctypes.create_string_buffer(16)
        return address.raw if self._lib.sq_traffic_heaviest(self._handle, address) else None

    def sent_by(self, address: bytes) -> int:
        """Return the payload bytes that an address sent."""
        return int(self._lib.sq_traffic_from(self._handle, address))


class Rows:
    """A buffer of packet-table rows, filled from the front."""

    def __init__(self, capacity: int) -> None:
        self.columns: dict[str, npt.NDArray[Any]] = {
            name: np.empty(capacity, kind) for name, kind in ROW_COLUMNS.items()
        }
        self.capacity = capacity
        self.used = 0


class SenderView(_Handle):
    """The sender's view, reconstructed from a capture made at the receiver (sender_view.h)."""

    _kind = "sender_view"

    def __init__(self, sender: bytes, *, tick_ns: int) -> None:
        super().__init__(sender, tick_ns)

    def without_timestamps(self) -> int:
        """Return the number of data packets left out because they carry no timestamp."""
        return int(self._lib.sq_sender_view_without_timestamps(self._handle))


class Matcher(_Handle):
    """A matcher of one sender's data packets with the ACKs that come back."""

    _kind = "matcher"

    def __init__(
        self,
        sender: bytes,
        latency: str,
        view: SenderView | None = None,
        *,
        sharp_ns: int,
        sharp_share: float,
    ) -> None:
        """Take a source of latencies, one of `LATENCIES`; `timestamps` needs the sender's `view`."""
        super().__init__(sender, LATENCIES.index(latency), sharp_ns, sharp_share)
        self._view = view

    def push(self, segments: npt.NDArray[np.void]) -> None:
        """Take the next segments of the capture in its order."""
        view = self._view._handle if self._view else None
        self._lib.sq_matcher_push(self._handle, view, segments.ctypes.data, len(segments))

    def finish(self) -> None:
        """End the input: packets without an ACK by now have none."""
        self._lib.sq_matcher_finish(self._handle)

    def drain(self, rows: Rows) -> bool:
        """Move finished rows, in send order, into `rows`; return False once there are no more."""
        pointers = _Columns(
            *(column.ctypes.data + rows.used * column.itemsize for column in rows.columns.values())
        )
        n = self._lib.sq_matcher_drain(self._handle, ctypes.byref(pointers), rows.capacity - rows.used)
        rows.used += n
        return rows.used == rows.capacity

    def stats(self) -> Stats:
        """Return the counts over all rows drained so far."""
        stats = Stats()
        self._lib.sq_matcher_stats(self._handle, ctypes.byref(stats))
        return stats

    def control_flows(self) -> bytes:
        """Return the keys of the sender's control connections, which are left out (docs/PACKETS.md)."""
        n = self._lib.sq_matcher_control_flows(self._handle, None, 0)
        keys = ctypes.create_string_buffer(n * FLOW_KEY_BYTES)
        self._lib.sq_matcher_control_flows(self._handle, keys, n)
        return keys.raw

    def leave_out(self, flows: bytes) -> None:
        """Leave flows, given by their keys, out of the table; call it before the first `push`."""
        self._lib.sq_matcher_leave_out(self._handle, flows, len(flows) // FLOW_KEY_BYTES)

    def latency_buckets(self) -> npt.NDArray[np.int64]:
        """Return the number of latencies in each bucket of `latency_stats.h`."""
        pointer = ctypes.c_void_p()
        n = self._lib.sq_matcher_buckets(self._handle, ctypes.byref(pointer))
        if not n:
            return np.zeros(0, np.int64)
        array = (ctypes.c_int64 * n).from_address(pointer.value or 0)
        return np.ctypeslib.as_array(array).copy()
