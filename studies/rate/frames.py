"""The frames of `swiftqueue-rate-agent` beside HELLO and REFUSED, as NumPy records (native/frames.h).

A test lets the compiler compare the place, size and type of each field.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serving.agent.io import frames
from studies.rate.samples.definition import FIELDS, HORIZONS

RATE_OUTCOMES: Final = ("forecast", "late", "error", "no_model", "none")
SAMPLE: Final = np.dtype(
    [
        *frames.HEADER.descr,
        ("connection", "<i8"),
        ("sample", "<i4"),
        ("asked", "u1"),
        ("last", "u1"),
        ("zero", "u1", 2),
        ("fields", "<i8", len(FIELDS)),
    ]
)
FORECAST: Final = np.dtype(
    [
        *frames.HEADER.descr,
        ("connection", "<i8"),
        ("sample", "<i4"),
        ("outcome", "u1"),
        ("zero", "u1", 3),
        ("version", "<i8"),
        ("rates", "<f4", len(HORIZONS)),
    ]
)
TYPES: Final = {1: frames.HELLO, 6: frames.REFUSED, 8: SAMPLE, 9: FORECAST}


def blank(kind: np.dtype[Any]) -> NDArray[Any]:
    """Return one frame of a kind of this module with its header, and everything else zero."""
    number = next(number for number, known in TYPES.items() if known == kind)
    frame = np.zeros(1, kind)
    frame["bytes"], frame["type"], frame["format"] = kind.itemsize, number, frames.FORMAT
    return frame
