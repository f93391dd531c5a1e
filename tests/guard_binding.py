"""The guard of `serving/agent/decision/guard.h` from Python: a thin binding, for what tries it alone."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.common import native
from swiftqueue.serving.agent.bindings.controller import LIBRARY, SOURCES

NEVER: Final = -(2**62)  # ns


@dataclass(frozen=True)
class Counts:
    """Receivers by state, now; and what has happened since the guard was made."""

    trial: int
    moving: int
    stopped: int
    trials: int
    admitted: int
    stops: int
    pairs: int
    grown: int  # of the stops: because the rate had grown
    advantage: int  # because moved flows had gained on classic ones


def _load() -> ctypes.CDLL:
    pointer, f64, i32, i64 = ctypes.c_void_p, ctypes.c_double, ctypes.c_int32, ctypes.c_int64
    signatures: native.Signatures = {
        "sq_guard_test": (i64, [f64, pointer, i64, pointer]),
        "sq_guard_defaults": (None, [ctypes.POINTER(kind) for kind in (f64, f64, f64)]),
        "sq_guard_new": (pointer, [f64, ctypes.c_uint64, f64, f64]),
        "sq_guard_free": (None, [pointer]),
        "sq_guard_rule": (ctypes.c_int, [pointer, i32, i64, pointer]),
        "sq_guard_moves": (ctypes.c_int, [pointer, i32, ctypes.c_int, i64]),
        "sq_guard_carried": (ctypes.c_int, [pointer, i32, i64, i64, ctypes.c_int, f64]),
        "sq_guard_sent": (ctypes.c_int, [pointer, i64, i64, i32, ctypes.c_uint8, i64]),
        "sq_guard_acked": (None, [pointer, i64, i64, ctypes.c_int]),
        "sq_guard_counts": (None, [pointer, pointer]),
    }
    return native.load(LIBRARY, map(str, SOURCES), signatures)


_ABI: Final = _load()


def _defaults() -> tuple[float, float, float]:
    found = ctypes.c_double(), ctypes.c_double(), ctypes.c_double()
    _ABI.sq_guard_defaults(*map(ctypes.byref, found))
    alpha, growth, advantage = (each.value for each in found)
    return alpha, growth, advantage


ALPHA, MOST_GROWTH, MOST_ADVANTAGE = _defaults()


def settle(values: NDArray[np.floating], alpha: float = ALPHA) -> tuple[int, int]:
    """Test whether the mean of `values`, each in [-1, 1], is above 0, looking after each of them.

    Returns:
        1 where it is, -1 where the test gave up, 0 where the values did not suffice; and how many it took.
    """
    x_N = np.ascontiguousarray(values, np.float64)
    verdict = ctypes.c_int()
    looked = _ABI.sq_guard_test(alpha, x_N.ctypes.data, len(x_N), ctypes.byref(verdict))
    return verdict.value, int(looked)


class Guard:
    """Says of each batch to a receiver whether it is moved; hears what was sent and acknowledged."""

    def __init__(
        self,
        seed: int = 1,
        *,
        most_growth: float = MOST_GROWTH,
        most_advantage: float = MOST_ADVANTAGE,
    ) -> None:
        """Begin with no receiver.

        Raises:
            ValueError: the growth or the advantage cannot be.
        """
        self._handle = _ABI.sq_guard_new(ALPHA, seed, most_growth, most_advantage)
        if not self._handle:
            raise ValueError(f"growth {most_growth}, advantage {most_advantage}: give 0 or more")

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            _ABI.sq_guard_free(handle)

    def rule(self, receiver: int, now_ns: int) -> tuple[bool, int]:
        """Whether a batch that the controller would move is, and its arm (0: it is compared with none)."""
        arm = ctypes.c_int64()
        if (moved := _ABI.sq_guard_rule(self._handle, receiver, now_ns, ctypes.byref(arm))) < 0:
            raise MemoryError("no memory for another receiver")
        return bool(moved), arm.value

    def moves(self, receiver: int, arm: int, *, decided: bool) -> bool:
        """Whether a flow's next packet is moved by an earlier decision, once a pair has its packets."""
        return bool(_ABI.sq_guard_moves(self._handle, receiver, decided, arm))

    def carried(
        self, receiver: int, sent_ns: int, size_bytes: float, *, before_ns: int = NEVER, movable: bool = True
    ) -> None:
        """Note a packet of a flow that may be moved, or not, and when that flow sent its last one."""
        if _ABI.sq_guard_carried(self._handle, receiver, sent_ns, before_ns, movable, size_bytes):
            raise MemoryError("no memory for another receiver")

    def sent(self, packet: int, sent_ns: int, receiver: int, queue: int, arm: int) -> None:
        """Note a packet that followed a decision with this arm."""
        if _ABI.sq_guard_sent(self._handle, packet, sent_ns, receiver, queue, arm):
            raise MemoryError("no memory for a packet")

    def acked(self, packet: int, acked_ns: int, *, known: bool = True) -> None:
        """Note the first ACK that covers a packet; its latency is not known if it was sent again (Karn)."""
        _ABI.sq_guard_acked(self._handle, packet, acked_ns, known)

    def counts(self) -> Counts:
        """Return what it counts."""
        counts_9 = np.empty(9, np.int64)
        _ABI.sq_guard_counts(self._handle, counts_9.ctypes.data)
        return Counts(*map(int, counts_9))
