"""Load the library built from `event_stream.h`, `event_window.h` and `virtual_queue.h`.

Those files alone define the inputs and their order.
"""

from __future__ import annotations

import ctypes
import hashlib
from dataclasses import dataclass
from typing import Final

from swiftqueue import feature_store
from swiftqueue.common import native

LIBRARY: Final = feature_store.FOLDER / "_build" / "libswiftqueue_events.so"
SOURCES: Final = (
    "events/event_stream.h",
    "events/event_window.h",
    "events/virtual_queue.h",
    "events/sizes.h",
    "events/packet_table.h",
    "events/event_capi.cc",
    "events/virtual_queue_capi.cc",
)


@dataclass(frozen=True)
class EventInput:
    """One input in raw units; `rows` says who has it: `both`, `events` or `queries`."""

    name: str
    unit: str
    rows: str


def _load() -> ctypes.CDLL:
    pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    packet = [i32, i32, i32, ctypes.c_uint8]  # size, flow, receiver, queue
    signatures: native.Signatures = {
        "sq_event_inputs": (ctypes.c_int, []),
        "sq_event_schema": (ctypes.c_char_p, []),
        "sq_events_new": (pointer, []),
        "sq_events_free": (None, [pointer]),
        "sq_event_sent": (ctypes.c_int, [pointer, i64, i64, *packet, pointer]),
        "sq_event_acked": (ctypes.c_int, [pointer, i64, i64, ctypes.c_float, pointer]),
        "sq_event_query": (ctypes.c_int, [pointer, i64, *packet, ctypes.c_int, pointer]),
        "sq_events_replay": (
            i64,
            [
                *[i64, *[pointer] * 7, ctypes.c_int],  # the packets, and whether visibility is `previous`
                *[i64, *[pointer] * 4, i64, i64, i64],  # the knowledge from before them, and the last hole
                *[pointer] * 4,
                *[i64, pointer, ctypes.c_int, ctypes.c_int, pointer, pointer],  # the decisions
            ],
        ),
        "sq_event_window_features": (ctypes.c_int, []),
        "sq_event_window_schema": (ctypes.c_char_p, []),
        "sq_event_window_new": (pointer, [ctypes.c_int]),
        "sq_event_window_free": (None, [pointer]),
        "sq_event_window_sent": (ctypes.c_int, [pointer, i64, i64, *packet]),
        "sq_event_window_acked": (ctypes.c_int, [pointer, i64, i64, ctypes.c_float]),
        "sq_event_window": (ctypes.c_int, [pointer, i64, *[pointer] * 5]),
        "sq_event_window_costs": (None, [pointer] * 3),
        "sq_virtual_queue_schema": (ctypes.c_char_p, []),
        "sq_virtual_queue_columns": (ctypes.c_int, []),
        "sq_virtual_queue_replay": (
            i64,
            [
                *[i64, *[pointer] * 7, ctypes.c_int],  # the packets, and whether visibility is `previous`
                *[i64, pointer, pointer],  # the receivers known before them
                *[i64, pointer, ctypes.c_int, ctypes.c_int, pointer, pointer],  # the decisions
            ],
        ),
        "sq_virtual_queue_online": (None, [pointer]),
        "sq_virtual_queue_us": (None, [i64, *[pointer] * 4]),
    }
    return native.load(LIBRARY, SOURCES, signatures)


ABI: Final = _load()
SCHEMA_TEXT: Final[str] = ABI.sq_event_schema().decode()
WINDOW_SCHEMA_TEXT: Final[str] = ABI.sq_event_window_schema().decode()
INPUTS: Final = tuple(
    EventInput(*line.split()) for line in SCHEMA_TEXT.splitlines()[-int(ABI.sq_event_inputs()) :]
)


def event_schema_hash() -> str:
    """Return the SHA-256 of the stream's definition: layout, constants, input names, units and rows."""
    return hashlib.sha256(SCHEMA_TEXT.encode()).hexdigest()
