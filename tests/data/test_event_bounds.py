"""A sender without ACKs cannot make the event stream exceed its bounds; the oldest is given up first."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from swiftqueue.feature_store.events.event_library import ABI, LIBRARY
from swiftqueue.feature_store.events.event_window import EventWindow

MAX_REMEMBERED = 1 << 17  # as kMaxRemembered in event_stream.h
FROZEN_PACKETS = 200_000
S = 10**9


class CostedWindow(EventWindow):
    """An event window whose memory can be counted."""

    def send(self, first: int, end: int, sent_ns: int, gap_ns: int = 0) -> None:
        for packet in range(first, end):
            self.sent(packet, sent_ns + (packet - first) * gap_ns, 1500, 0, 0, 1)

    def ack(self, packet: int, acked_ns: int) -> bool:
        return self.acked(packet, acked_ns, 1.0)

    def ask(self, decision_ns: int) -> tuple[npt.NDArray[np.float32], int]:
        return self.window(decision_ns, [1500] * 8, [0] * 8, [0] * 8, [1] * 8)

    def costs(self) -> tuple[int, int]:
        """Return the packets remembered, and the packets given up for lack of room."""
        out = [ctypes.c_int64() for _ in range(2)]
        ABI.sq_event_window_costs(self._handle, *(ctypes.byref(each) for each in out))
        remembered, overflowed = (each.value for each in out)
        return remembered, overflowed


def held_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_bound_is_that_of_the_library() -> None:
    text = (LIBRARY.parents[1] / "events" / "event_stream.h").read_text()
    assert f"kMaxRemembered = 1 << {MAX_REMEMBERED.bit_length() - 1};" in text


def test_one_packet_without_an_ack_keeps_its_place_and_no_memory() -> None:
    """The clock stands still and the others are acknowledged: the index does not grow with their number."""
    window, held = CostedWindow(64), 0
    for packet in range(FROZEN_PACKETS):
        window.sent(packet, S, 1500, 0, 0, 1)
        if packet > 0:
            window.ack(packet, S)
        if packet == 5_000:
            held = held_bytes()
    assert held_bytes() - held < 1 << 20  # 16 bytes each would be 3 MB
    assert window.costs() == (1, 0)
    assert window.ack(0, S)


def test_the_oldest_is_given_up_first_and_only_beyond_the_bound() -> None:
    window = CostedWindow(64)
    window.send(0, MAX_REMEMBERED, S)
    assert window.costs() == (MAX_REMEMBERED, 0)
    assert window.ack(1, S)
    assert not window.ack(1, S)
    window.send(MAX_REMEMBERED, MAX_REMEMBERED + 2, S)  # one has left already: only 0 is given up
    assert window.costs() == (MAX_REMEMBERED, 1)
    assert not window.ack(0, S)
    assert window.ack(2, S)
    assert window.ask(S)[1] == MAX_REMEMBERED - 1
    window.send(MAX_REMEMBERED + 2, MAX_REMEMBERED + 1_000, S)
    assert window.costs()[0] == window.ask(S)[1] == MAX_REMEMBERED


def test_what_was_given_up_in_time_goes_before_what_is_in_flight() -> None:
    window = CostedWindow(64)
    window.send(0, MAX_REMEMBERED - 10, S)
    window.send(MAX_REMEMBERED - 10, MAX_REMEMBERED, 4 * S)  # 2 s later the others are given up
    assert window.ask(4 * S)[1] == 10
    window.send(MAX_REMEMBERED, MAX_REMEMBERED + 100, 4 * S)
    assert window.costs() == (MAX_REMEMBERED, 100)
    assert window.ask(4 * S)[1] == 110
    assert not window.ack(99, 4 * S)
    assert window.ack(100, 4 * S)  # late, but remembered


def test_a_window_says_the_same_whatever_was_asked_before_it() -> None:
    """Decision times may fall, too: what was given up for a later one is in flight for an earlier one."""
    asked, other = CostedWindow(24), CostedWindow(24)
    random = np.random.default_rng(1)
    now_ns, packet = S, 0
    for _ in range(400):
        now_ns += int(random.choice([10**6, 10**8, S, 3 * S], p=[0.6, 0.3, 0.08, 0.02]))
        for window in (asked, other):
            window.send(packet, packet + 8, now_ns, 1000)
        packet += 8
        for number in random.integers(max(0, packet - 400), packet, 6):
            results = [window.ack(int(number), now_ns) for window in (asked, other)]
            assert results[0] == results[1]
        for ahead_ns in random.integers(0, 5 * S, 5):  # in any order
            asked.ask(now_ns + int(ahead_ns))
        ahead_ns = int(random.integers(0, 4 * S))
        one, two = asked.ask(now_ns + ahead_ns), other.ask(now_ns + ahead_ns)
        assert one[1] == two[1]
        assert one[0].tobytes() == two[0].tobytes()
