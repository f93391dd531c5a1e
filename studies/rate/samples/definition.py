"""Reads the definition of a TCP sample from the library built from `tcp_sample.h`; makes inputs of samples.

Shapes: N samples of one flow, F fields (28).
"""

from __future__ import annotations

import ctypes
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from common import native

STUDY: Final = Path(__file__).resolve().parents[1]
LIBRARY: Final = STUDY / "_build" / "libswiftqueue_rate.so"
SOURCES: Final = ("rate/samples/tcp_sample.h", "rate/native/capi.cc")  # in the folder of studies


@dataclass(frozen=True)
class Field:
    """One field of a sample; of `kind` `count` or `flag` a model sees the change, of `value` itself."""

    name: str
    unit: str
    kind: str


def _load() -> ctypes.CDLL:
    pointer, i64 = ctypes.c_void_p, ctypes.c_int64
    return native.load(
        LIBRARY,
        [str(STUDY.parent / source) for source in SOURCES],
        {"sq_rate_schema": (ctypes.c_char_p, []), "sq_rate_inputs": (i64, [i64, pointer, pointer])},
    )


_ABI: Final = _load()
SCHEMA_TEXT: Final[str] = _ABI.sq_rate_schema().decode()
_LINES: Final = SCHEMA_TEXT.splitlines()
PREFIXES: Final = tuple(int(word) for word in _LINES[1].split()[1:])
"""Numbers of samples that a forecast is made from."""
HORIZONS: Final = tuple(int(word) for word in _LINES[2].split()[1:])
"""Packets delivered where BBR's estimate is forecast."""
FIELDS: Final = tuple(Field(*line.split()) for line in _LINES[3:])
NAMES: Final = tuple(field.name for field in FIELDS)
MOST_SAMPLES: Final = max(PREFIXES)
LARGEST_RATE: Final = 1.25e11  # bytes/s, 1 Tbit/s: from there on it is wild, as a forecast and as a truth


def schema_hash() -> str:
    """SHA-256 of the definition: prefixes, horizons, fields, units, kinds."""
    return hashlib.sha256(SCHEMA_TEXT.encode()).hexdigest()


def inputs(raw_NF: NDArray[np.int64]) -> NDArray[np.float32]:
    """Make a model's inputs (N, F) in raw units of the first samples of one flow, in their order.

    Raises:
        ValueError: the shape is another, a field is negative, or a count falls; the line names the sample.
    """
    raw_NF = np.ascontiguousarray(raw_NF, dtype=np.int64)
    if raw_NF.ndim != 2 or raw_NF.shape[1] != len(FIELDS):
        raise ValueError(f"samples of shape {raw_NF.shape}: {len(FIELDS)} fields are needed")
    x_NF = np.empty(raw_NF.shape, np.float32)
    made = int(_ABI.sq_rate_inputs(len(raw_NF), raw_NF.ctypes.data, x_NF.ctypes.data))
    if made < 0:
        raise ValueError(f"sample {-1 - made}: a field is negative, a count falls, or a flag is not 0 or 1")
    return x_NF
