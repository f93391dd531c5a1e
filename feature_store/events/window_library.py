"""Loads the library built from `window.h` and reads the window's definition from it.

Features and their order stand in `window.h` only.
"""

from __future__ import annotations

import ctypes
import hashlib
from dataclasses import dataclass
from typing import Final

from feature_store import native

LIBRARY: Final = native.FOLDER / "_build" / "libswiftqueue_window.so"
SOURCES: Final = (
    "events/window.h",
    "events/sizes.h",
    "events/packet_table.h",
    "events/trace_windows.h",
    "events/window_capi.cc",
)


@dataclass(frozen=True)
class Feature:
    """One input of a token, in raw units."""

    name: str
    unit: str


def _load() -> ctypes.CDLL:
    pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    signatures: native.Signatures = {
        "sq_horizon": (ctypes.c_int, []),
        "sq_features": (ctypes.c_int, []),
        "sq_schema": (ctypes.c_char_p, []),
        "sq_window_new": (pointer, [ctypes.c_int]),
        "sq_window_free": (None, [pointer]),
        "sq_sent": (ctypes.c_int, [pointer, i64, i64, i32, i32, i32, ctypes.c_uint8]),
        "sq_acked": (ctypes.c_int, [pointer, i64, i64, ctypes.c_float]),
        "sq_window": (ctypes.c_int, [pointer, i64, *[pointer] * 5]),
        "sq_window_costs": (None, [pointer] * 4),
        "sq_trace_new": (pointer, [i64, *[pointer] * 7, ctypes.c_int, ctypes.c_int]),
        "sq_trace_free": (None, [pointer]),
        "sq_trace_next": (i64, [pointer, i64, pointer]),
    }
    return native.load(LIBRARY, SOURCES, signatures)


ABI: Final = _load()
HORIZON: Final[int] = ABI.sq_horizon()
SCHEMA_TEXT: Final[str] = ABI.sq_schema().decode()
FEATURES: Final = tuple(
    Feature(*line.split()) for line in SCHEMA_TEXT.splitlines()[-int(ABI.sq_features()) :]
)


def schema_hash() -> str:
    """SHA-256 of the window's definition: layout version, horizon, constants, feature names and units."""
    return hashlib.sha256(SCHEMA_TEXT.encode()).hexdigest()
