"""Call the window of a live sender's last events, which `event_window.h` defines (docs/EVENTS.md).

Shapes: W rows of a window, F features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.feature_store.events.event_library import ABI
from swiftqueue.feature_store.events.event_stream import check_time
from swiftqueue.feature_store.packets.schema import HORIZON

TOKENS_STEP: Final = 8
MOST_TOKENS: Final = 4096


def check_tokens(tokens: int) -> int:
    """Return `tokens`, or raise a ValueError if a window cannot have that many."""
    if tokens % TOKENS_STEP or not HORIZON < tokens <= MOST_TOKENS:
        raise ValueError(f"windows of {tokens} tokens: must be a multiple of 8 in 16..4096")
    return tokens


class EventWindow:
    """A live sender's event log as windows of rows; feed it events in time order, from one thread.

    At one instant ACKs come before sends. A time before the last event's counts as that event's time.
    """

    def __init__(self, tokens: int) -> None:
        """Start an empty log for windows of `tokens` (W) rows.

        Raises:
            ValueError: `tokens` is not a multiple of 8 in 16..4096.
        """
        self._handle: int | None = None
        self.tokens = check_tokens(tokens)
        self._handle = ABI.sq_event_window_new(tokens)
        if not self._handle:
            raise MemoryError(f"no memory for a window of {tokens} tokens")

    def __del__(self) -> None:
        if self._handle:
            ABI.sq_event_window_free(self._handle)

    def sent(
        self, packet: int, sent_ns: int, size_bytes: int, flow_id: int, receiver_id: int, queue: int
    ) -> None:
        """Log a SEND. Packets 8k..8k+7 are batch k; its decision time is the send time of packet 8k.

        Args:
            packet: number in send order, from 0, above every earlier one.
            sent_ns: time of sending in ns.
            size_bytes: IP length in bytes, at least 1.
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
        taken = ABI.sq_event_window_sent(
            self._handle, packet, check_time("sent_ns", sent_ns), size_bytes, flow_id, receiver_id, queue
        )
        if taken < 0:
            raise MemoryError(f"no memory to log packet {packet}")
        if not taken:
            raise ValueError(
                f"packet {packet} of {size_bytes} bytes refused: numbers must grow, sizes be at least 1"
            )

    def acked(self, packet: int, acked_ns: int, latency_us: float | None) -> bool:
        """Log the first ACK that covers `packet`; `latency_us` is None where unknown (Karn).

        Return whether it was new. Return False and change nothing for a packet never sent, acknowledged
        before, or sent more than 60 s before.
        """
        latency = math.nan if latency_us is None else latency_us
        news: int = ABI.sq_event_window_acked(self._handle, packet, check_time("acked_ns", acked_ns), latency)
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

        The log is unchanged, so one decision can be asked about for several candidate queues.

        Raises:
            ValueError: there are not 8 packets, or one has a size below 1 or a queue other than 0 and 1.
        """
        columns: list[npt.NDArray[Any]] = [
            np.ascontiguousarray(size_bytes, np.int32),
            np.ascontiguousarray(flow_id, np.int32),
            np.ascontiguousarray(receiver_id, np.int32),
            np.ascontiguousarray(queue, np.uint8),
        ]
        if any(c.shape != (HORIZON,) for c in columns):
            raise ValueError(f"a decision is about {HORIZON} packets: give {HORIZON} of each value")
        x_WF = np.empty((self.tokens, len(EVENTS.features)), np.float32)
        in_flight = ABI.sq_event_window(
            self._handle,
            check_time("decision_ns", decision_ns),
            *(c.ctypes.data for c in columns),
            x_WF.ctypes.data,
        )
        if in_flight < 0:
            raise ValueError("a candidate packet has a size below 1 byte or a queue other than 0 and 1")
        return x_WF, int(in_flight)
