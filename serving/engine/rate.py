"""Forecasts of a TCP connection's rate by the engine, from Python (docs/ENGINE.md).

Shapes: S samples of one flow (35 or fewer), F fields (28), H horizons (6).
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.feature_store.rate.definition import FIELDS, HORIZONS
from swiftqueue.serving.engine import NATIVE, FloatArray, Isa, call

_FIELDS: Final = len(FIELDS)


class RateEngine:
    """A loaded network that forecasts rates, in float32; it agrees with PyTorch to a relative 1e-5."""

    def __init__(self, folder: Path | str, isa: Isa = "auto") -> None:
        """Load the artifact in `folder`.

        Raises:
            OSError: a file of the artifact is missing.
            ValueError: it is not whole, made for other samples, no Transformer, or the CPU lacks `isa`.
        """
        self._handle = ctypes.c_void_p()
        call("rate_create", str(folder).encode(), isa.encode(), ctypes.byref(self._handle))

    def __del__(self) -> None:
        if self._handle:
            NATIVE.swiftqueue_engine_rate_destroy(self._handle)

    @property
    def isa(self) -> str:
        """Instruction set in use: avx512, avx2 or portable."""
        return str(NATIVE.swiftqueue_engine_rate_isa(self._handle).decode())

    def forward(self, raw_SF: NDArray[np.int64]) -> FloatArray:
        """What the network says (S, H), in bytes/s, after each of a flow's samples; whatever it is.

        Raises:
            ValueError: there are more than 35 samples, or one cannot be.
        """
        raw_SF = _samples(raw_SF)
        rate_SH = np.empty((len(raw_SF), len(HORIZONS)), np.float32)
        call("rate_forward", self._handle, raw_SF.ctypes.data, len(raw_SF), rate_SH.ctypes.data)
        return rate_SH

    def forecast(self, raw_SF: NDArray[np.int64]) -> FloatArray:
        """Bytes/s at each horizon (H,) from the first samples of a flow.

        Raises:
            ValueError: as `forward`; or there are fewer than 5 samples, or the forecast is wild: the sender
                goes on without one.
        """
        raw_SF = _samples(raw_SF)
        rate_H = np.empty(len(HORIZONS), np.float32)
        call("rate_forecast", self._handle, raw_SF.ctypes.data, len(raw_SF), rate_H.ctypes.data)
        return rate_H

    def time_us(
        self, raw_SF: NDArray[np.int64], repeats: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times in us of `repeats` forecasts, measured in C++: of all samples, and of the last one alone."""
        raw_SF = _samples(raw_SF)
        whole, last = np.empty(repeats), np.empty(repeats)
        given = self._handle, raw_SF.ctypes.data, len(raw_SF), repeats
        call("rate_time", *given, whole.ctypes.data, last.ctypes.data)
        return whole, last


def _samples(raw_SF: NDArray[np.int64]) -> NDArray[np.int64]:
    raw_SF = np.ascontiguousarray(raw_SF, np.int64)
    if raw_SF.ndim != 2 or raw_SF.shape[1] != _FIELDS or not len(raw_SF):
        raise ValueError(f"samples of shape {raw_SF.shape}: {_FIELDS} fields of at least one are needed")
    return raw_SF
