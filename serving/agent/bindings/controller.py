"""The queue controller from Python: a thin binding of `decision/controller.h`, its only definition.

Shapes: H horizon (8 packets), L levels of quantiles.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

import feature_store
from common import native
from feature_store.packets.schema import HORIZON
from models.networks.parameters import MEDIAN, MOST_LEVELS

CLASSIC: Final = 0  # same numbers as in feature_store/events/event_stream.h
L4S: Final = 1
FOLDER: Final = Path(__file__).resolve().parents[1]
LIBRARY: Final = FOLDER / "_build" / "libswiftqueue_sender.so"
SOURCES: Final = (
    *(FOLDER / "decision" / f"{name}.h" for name in ("controller", "guard", "growth_watch")),
    FOLDER / "bindings" / "sender_capi.cc",
    *(feature_store.FOLDER / "events" / f"{name}.h" for name in ("sizes", "event_stream")),
)


def _load() -> ctypes.CDLL:
    pointer, f64, i32, i64 = ctypes.c_void_p, ctypes.c_double, ctypes.c_int32, ctypes.c_int64
    levels = [pointer, ctypes.c_size_t]
    signatures: native.Signatures = {
        "sq_controller_defaults": (None, [ctypes.POINTER(kind) for kind in (f64, f64, i32, f64)]),
        "sq_controller_new": (pointer, [f64, f64, i32, f64, ctypes.c_int]),
        "sq_controller_free": (None, [pointer]),
        "sq_controller_moved_unacked": (i64, [pointer]),
        "sq_controller_choose": (ctypes.c_int, [pointer, i64, i64, i32, *[pointer] * 3, *levels, pointer]),
        "sq_controller_keep_default": (None, [pointer, pointer, i64]),
        "sq_controller_acked": (None, [pointer, i64]),
    }
    return native.load(LIBRARY, map(str, SOURCES), signatures)


_ABI: Final = _load()


def _defaults() -> tuple[float, float, int, float]:
    f64 = ctypes.c_double
    values = f64(), f64(), ctypes.c_int32(), f64()
    _ABI.sq_controller_defaults(*[ctypes.byref(value) for value in values])
    margin_us, margin_share, most, most_share = values
    return margin_us.value, margin_share.value, most.value, most_share.value


_MARGIN_US, _MARGIN_SHARE, _MAX_MOVED_UNACKED, _MAX_MOVED_SHARE = _defaults()


@dataclass(frozen=True)
class ControllerParams:
    """The controller's margins and limits; controller.h says the meaning and the reason of each."""

    margin_us: float = _MARGIN_US
    margin_share: float = _MARGIN_SHARE  # share of the predicted latency in the flow's present queue
    max_moved_unacked: int = _MAX_MOVED_UNACKED  # packets of all flows, moved and unacknowledged
    max_moved_share: float = _MAX_MOVED_SHARE  # or so much of what is in flight, where that is more

    def __post_init__(self) -> None:
        limits = self.max_moved_unacked, self.max_moved_share
        if not all(0 <= value < math.inf for value in (self.margin_us, self.margin_share, *limits)):
            raise ValueError(f"{self}: margins and limits must not be negative")
        if self.max_moved_unacked >= 2**31:
            raise ValueError(f"{self}: max_moved_unacked must be below 2^31")


def _checked(levels: Sequence[float]) -> NDArray[np.float64]:
    of_L = np.ascontiguousarray(levels, np.float64)
    known = of_L.ndim == 1 and 2 <= of_L.size <= MOST_LEVELS and MEDIAN in of_L
    if of_L.size and not (known and (np.diff([0, *of_L, 1]) > 0).all()):
        raise ValueError(f"levels {levels}: 2 to {MOST_LEVELS} must ascend, {MEDIAN} among them")
    return of_L


class QueueController:
    """Chooses queues batch by batch, and remembers each flow's queue and the moved packets in flight.

    It has no guard unless it is told so: what is replayed does not follow its decisions.
    """

    def __init__(self, params: ControllerParams | None = None, *, guarded: bool = False) -> None:
        self.params = p = params or ControllerParams()
        self._handle = _ABI.sq_controller_new(
            *(p.margin_us, p.margin_share, p.max_moved_unacked, p.max_moved_share, guarded)
        )
        if not self._handle:
            raise MemoryError("no memory for a controller")

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            _ABI.sq_controller_free(handle)

    @property
    def moved_unacked(self) -> int:
        """Return the packets moved to the classic queue and not acknowledged yet."""
        return int(_ABI.sq_controller_moved_unacked(self._handle))

    def choose(
        self,
        first_packet: int,
        now_ns: int,
        flow_ids: Sequence[int],
        default_queues: Sequence[int],
        predicted_us: NDArray[np.floating],
        in_flight: int = 0,
        levels: Sequence[float] = (),
    ) -> list[int]:
        """Choose the queue of each packet of a batch.

        Args:
            first_packet: number of the batch's first packet in send order.
            now_ns: the decision time, ns.
            flow_ids: flow of each packet, (H,).
            default_queues: L4S for packets of L4S-capable flows, else CLASSIC, (H,).
            predicted_us: latency in the classic (row 0) and in the default queue (row 1), (2, H); for
                quantiles (2, H, L).
            in_flight: packets of the sender in flight at the decision, which the limit may follow.
            levels: levels of the quantiles, ascending, 0.5 among them.

        Raises:
            ValueError: the arrays are not those of a batch of 8.

        """
        flows = np.ascontiguousarray(flow_ids, np.int32)
        defaults = np.ascontiguousarray(default_queues, np.uint8)
        y_2HL = np.ascontiguousarray(predicted_us, np.float32)
        of_L = _checked(levels)
        shape = (2, HORIZON, *of_L.shape) if of_L.size else (2, HORIZON)
        if not flows.shape == defaults.shape == (HORIZON,) or y_2HL.shape != shape:
            raise ValueError(
                f"flows {flows.shape}, queues {defaults.shape}, predictions {y_2HL.shape}: "
                f"a batch is {HORIZON} packets, its predictions {shape}"
            )
        chosen = np.empty(HORIZON, np.uint8)
        pointers = (array.ctypes.data for array in (flows, defaults, y_2HL, of_L))
        said = first_packet, now_ns, in_flight
        if _ABI.sq_controller_choose(self._handle, *said, *pointers, of_L.size, chosen.ctypes.data):
            raise MemoryError("no memory for another moved packet")
        return [int(queue) for queue in chosen]

    def keep_default(self, flow_ids: Sequence[int]) -> None:
        """Note that a batch went out with its default marking, so its flows are in the L4S queue again."""
        flows = np.ascontiguousarray(flow_ids, np.int32)
        _ABI.sq_controller_keep_default(self._handle, flows.ctypes.data, flows.size)

    def acked(self, packet: int) -> None:
        """Note the first ACK that covers a packet."""
        _ABI.sq_controller_acked(self._handle, packet)
