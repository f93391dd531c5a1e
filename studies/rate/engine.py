"""Forecasts of a TCP connection's rate in C++, from Python: a thin binding of `native/capi.cc`.

Shapes: S samples of one flow (35 or fewer), F fields (28), H horizons (6).
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from common import native
from serving.engine import FloatArray, Isa
from studies.rate.samples.definition import FIELDS, HORIZONS, LIBRARY, STUDY

_FIELDS: Final = len(FIELDS)
_ERROR_BYTES: Final = 1024
_STATUS_ERRORS: Final[dict[int, type[Exception]]] = {1: ValueError, 2: OSError, 3: MemoryError}
_SOURCES: Final = ("rate/native/rate_model.h", "rate/native/rate_model.cc", "rate/native/forward.h")


def _load() -> ctypes.CDLL:
    pointer, text, i64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64
    error: list[Any] = [text, ctypes.c_size_t]
    return native.load(
        LIBRARY,
        [str(STUDY.parent / source) for source in _SOURCES],
        {
            "sq_rate_create": (ctypes.c_int, [text, text, ctypes.POINTER(pointer), *error]),
            "sq_rate_destroy": (None, [pointer]),
            "sq_rate_isa": (text, [pointer]),
            "sq_rate_forward": (ctypes.c_int, [pointer, pointer, i64, pointer, *error]),
            "sq_rate_forecast": (ctypes.c_int, [pointer, pointer, i64, pointer, *error]),
            "sq_rate_time": (ctypes.c_int, [pointer, pointer, i64, i64, pointer, pointer, *error]),
        },
    )


_NATIVE: Final = _load()


def _call(name: str, *arguments: object) -> None:
    """Call a function that returns a status, and raise its error line."""
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    status = getattr(_NATIVE, f"sq_rate_{name}")(*arguments, error, _ERROR_BYTES)
    if status:
        raise _STATUS_ERRORS[status](error.value.decode(errors="replace"))


class RateEngine:
    """A loaded network that forecasts rates, in float32; it agrees with PyTorch to a relative 1e-5."""

    def __init__(self, folder: Path | str, isa: Isa = "auto") -> None:
        """Load the artifact in `folder`.

        Raises:
            OSError: a file of the artifact is missing.
            ValueError: it is not whole, made for other samples, no Transformer, or the CPU lacks `isa`.
        """
        self._handle = ctypes.c_void_p()
        _call("create", str(folder).encode(), isa.encode(), ctypes.byref(self._handle))

    def __del__(self) -> None:
        if self._handle:
            _NATIVE.sq_rate_destroy(self._handle)

    @property
    def isa(self) -> str:
        """Return the instruction set in use: avx512, avx2 or portable."""
        return str(_NATIVE.sq_rate_isa(self._handle).decode())

    def forward(self, raw_SF: NDArray[np.int64]) -> FloatArray:
        """Return the network's answer (S, H) in bytes/s after each of a flow's samples, whatever it is.

        Raises:
            ValueError: there are more than 35 samples, or one cannot be.
        """
        raw_SF = _samples(raw_SF)
        rate_SH = np.empty((len(raw_SF), len(HORIZONS)), np.float32)
        _call("forward", self._handle, raw_SF.ctypes.data, len(raw_SF), rate_SH.ctypes.data)
        return rate_SH

    def forecast(self, raw_SF: NDArray[np.int64]) -> FloatArray:
        """Return bytes/s at each horizon (H,) from the first samples of a flow.

        Raises:
            ValueError: as `forward`; or there are fewer than 5 samples, or the forecast is wild: the sender
                goes on without one.
        """
        raw_SF = _samples(raw_SF)
        rate_H = np.empty(len(HORIZONS), np.float32)
        _call("forecast", self._handle, raw_SF.ctypes.data, len(raw_SF), rate_H.ctypes.data)
        return rate_H

    def time_us(
        self, raw_SF: NDArray[np.int64], repeats: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the times in us of `repeats` forecasts by C++, of all samples and of the last one alone."""
        raw_SF = _samples(raw_SF)
        whole, last = np.empty(repeats), np.empty(repeats)
        given = self._handle, raw_SF.ctypes.data, len(raw_SF), repeats
        _call("time", *given, whole.ctypes.data, last.ctypes.data)
        return whole, last


def _samples(raw_SF: NDArray[np.int64]) -> NDArray[np.int64]:
    raw_SF = np.ascontiguousarray(raw_SF, np.int64)
    if raw_SF.ndim != 2 or raw_SF.shape[1] != _FIELDS or not len(raw_SF):
        raise ValueError(f"samples of shape {raw_SF.shape}: {_FIELDS} fields of at least one are needed")
    return raw_SF
