"""The virtual queue from Python: its rows of a packet table's decisions, and the forecasts of a rule.

`virtual_queue.h` is the one definition of the rows and of the rule.

Shapes: D decisions, H horizon (8 packets), C columns of a row, N rows.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from swiftqueue.feature_store.events.beginning import NOTHING, Beginning
from swiftqueue.feature_store.events.event_library import ABI
from swiftqueue.feature_store.events.event_stream import AS_SENT, TOLD, check_question, packet_columns
from swiftqueue.feature_store.packets.schema import HORIZON

_SCHEMA: Final[str] = ABI.sq_virtual_queue_schema().decode()
COLUMNS: Final = tuple(_SCHEMA.splitlines()[-int(ABI.sq_virtual_queue_columns()) :])


def virtual_queue_hash() -> str:
    """Return the SHA-256 of the rule's definition: version, constants and columns of a row."""
    return hashlib.sha256(_SCHEMA.encode()).hexdigest()


class Rule(NamedTuple):
    """The rule of one queue, as `VirtualQueueRule` has it; rates that are NaN are estimated online."""

    us_per_byte: float
    drained: float
    overdue: float

    @classmethod
    def online(cls) -> Rule:
        """Return the rule whose rates are estimated from the sender's own packets."""
        rule_R = np.empty(len(cls._fields))
        ABI.sq_virtual_queue_online(rule_R.ctypes.data)
        return cls(*rule_R.tolist())


class VirtualQueueRows(NamedTuple):
    """The rows of packets about to be sent, with the queue of each."""

    queue_DH: npt.NDArray[np.uint8]
    row_DHC: npt.NDArray[np.float64]

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """Return one column, (D, H)."""
        column_DH: npt.NDArray[np.float64] = self.row_DHC[..., COLUMNS.index(name)]
        return column_DH

    def forecast_us(self, rules: tuple[Rule, Rule]) -> npt.NDArray[np.float64]:
        """Return latencies in µs (D, H) by the rule of each packet's queue; NaN where none is known."""
        queue_DH, row_DHC = np.ascontiguousarray(self.queue_DH), np.ascontiguousarray(self.row_DHC)
        rule_QR = np.array(rules, np.float64)
        us_DH = np.empty(queue_DH.shape, np.float64)
        pointers = (array.ctypes.data for array in (queue_DH, row_DHC, rule_QR, us_DH))
        ABI.sq_virtual_queue_us(queue_DH.size, *pointers)
        return us_DH


def replay_virtual_queue(
    packets: pl.DataFrame,
    first_packet_D: npt.NDArray[np.int64],
    *,
    visibility: str = "acked",
    queue: int = AS_SENT,
    told: str = "all",
    beginning: Beginning = NOTHING,
) -> VirtualQueueRows:
    """Return the rows of decisions about 8 packets each; the arguments are those of `replay_events`.

    Of a beginning only the receivers' least latencies are used.

    Raises:
        ValueError: a visibility, `told`, decision, packet or beginning is invalid; the line names it.
    """
    first_D = np.ascontiguousarray(first_packet_D, np.int64)
    check_question(packets, first_D, visibility, queue, told)
    columns: list[npt.NDArray[Any]] = [np.ascontiguousarray(c) for c in packet_columns(packets).values()]
    known = beginning.least_us.get("receiver", {})
    known_id = np.array(list(known), np.int32)
    known_us = np.array(list(known.values()), np.float32)
    queue_DH = np.zeros((len(first_D), HORIZON), np.uint8)
    row_DHC = np.zeros((len(first_D), HORIZON, len(COLUMNS)))
    failed = ABI.sq_virtual_queue_replay(
        packets.height,
        *(c.ctypes.data for c in columns),
        int(visibility == "previous"),
        len(known_id),
        known_id.ctypes.data,
        known_us.ctypes.data,
        len(first_D),
        first_D.ctypes.data,
        queue,
        TOLD.index(told),
        queue_DH.ctypes.data,
        row_DHC.ctypes.data,
    )
    if failed == -(2**63):
        raise MemoryError(f"no memory for the virtual queue of {packets.height} packets")
    if failed == -(2**63) + 1:
        raise ValueError("invalid beginning of a log: a receiver's least latency is a number of at least 0")
    if failed:
        bad = packets.row(-1 - failed, named=True)
        raise ValueError(f"packet {bad['packet']}: size_bytes {bad['size_bytes']} must be at least 1")
    return VirtualQueueRows(queue_DH, row_DHC)
