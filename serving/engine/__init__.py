"""The inference engine from Python: a thin binding of its C interface (docs/ENGINE.md).

Shapes: B windows, W window rows, F features of a row, D model width, H horizon (8 packets), L levels of
quantiles.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Isa = Literal["auto", "avx512", "avx2", "portable"]
FloatArray = npt.NDArray[np.float32]

LIBRARY: Final = Path(__file__).parent / "_build" / "libswiftqueue_engine.so"
_ERROR_BYTES: Final = 1024
_STATUS_ERRORS: Final[dict[int, type[Exception]]] = {1: ValueError, 2: OSError, 3: MemoryError}


def _load() -> ctypes.CDLL:
    if not LIBRARY.is_file():
        raise ImportError(f"{LIBRARY} is not built; run `make -C {LIBRARY.parent.parent}`")
    library = ctypes.CDLL(str(LIBRARY))
    pointer, text, i64, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_size_t
    error = [text, size]
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "create": (ctypes.c_int, [text, text, i64, ctypes.POINTER(pointer), *error]),
        "share": (ctypes.c_int, [pointer, ctypes.POINTER(pointer), *error]),
        "destroy": (None, [pointer]),
        "forward": (
            ctypes.c_int,
            [pointer, pointer, i64, i64, pointer, pointer, ctypes.POINTER(i64), *error],
        ),
        "swap_head": (ctypes.c_int, [pointer, text, i64, *error]),
        "version": (i64, [pointer]),
        "schema_hash": (text, [pointer]),
        "isa": (text, [pointer]),
        "tokens": (ctypes.c_int, [pointer]),
        "features": (ctypes.c_int, [pointer]),
        "horizon": (ctypes.c_int, [pointer]),
        "width": (ctypes.c_int, [pointer]),
        "levels": (ctypes.c_int, [pointer, ctypes.POINTER(ctypes.POINTER(ctypes.c_double))]),
        "time": (ctypes.c_int, [pointer, pointer, i64, i64, i64, pointer, *error]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"swiftqueue_engine_{name}")
        function.restype, function.argtypes = result, arguments
    return library


NATIVE: Final = _load()


def call(name: str, *arguments: object) -> None:
    """Call a function that returns a status, and raise its error line."""
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    status = getattr(NATIVE, f"swiftqueue_engine_{name}")(*arguments, error, _ERROR_BYTES)
    if status:
        raise _STATUS_ERRORS[status](error.value.decode(errors="replace"))


class Engine:
    """A loaded artifact that predicts on the calling thread, in float32.

    Calls of one engine wait for each other; `share` gives another thread its own. The answers agree
    with the network in PyTorch, in eval mode, to a relative 1e-5.
    """

    def __init__(self, folder: Path | str, isa: Isa = "auto", version: int = 0) -> None:
        """Load the artifact in `folder`; `version` is the caller's number for it.

        Raises:
            OSError: a file of the artifact is missing.
            ValueError: the artifact is not whole, its architecture is unknown, or the CPU lacks `isa`.
        """
        self._handle = ctypes.c_void_p()
        self._lock = threading.Lock()
        call("create", str(folder).encode(), isa.encode(), version, ctypes.byref(self._handle))

    def __del__(self) -> None:
        if self._handle:
            NATIVE.swiftqueue_engine_destroy(self._handle)

    def share(self) -> Engine:
        """Return an engine over the same weights and the same head, for another thread."""
        other = object.__new__(Engine)
        other._handle, other._lock = ctypes.c_void_p(), threading.Lock()
        call("share", self._handle, ctypes.byref(other._handle))
        return other

    @property
    def isa(self) -> str:
        """Return the instruction set in use: avx512, avx2 or portable."""
        return str(NATIVE.swiftqueue_engine_isa(self._handle).decode())

    @property
    def version(self) -> int:
        """Return the caller's number of the head in place."""
        return int(NATIVE.swiftqueue_engine_version(self._handle))

    @property
    def schema_hash(self) -> str:
        """Return the hash of the feature definition that the artifact was made for."""
        return str(NATIVE.swiftqueue_engine_schema_hash(self._handle).decode())

    @property
    def shape(self) -> tuple[int, int]:
        """Return (W, F): the longest window and the number of features of its rows."""
        return (
            NATIVE.swiftqueue_engine_tokens(self._handle),
            NATIVE.swiftqueue_engine_features(self._handle),
        )

    @cached_property  # asked for with each answer, and no head changes it
    def levels(self) -> tuple[float, ...]:
        """Return the levels of each latency's quantiles, ascending; empty if it gives one latency."""
        found = ctypes.POINTER(ctypes.c_double)()
        count = NATIVE.swiftqueue_engine_levels(self._handle, ctypes.byref(found))
        return tuple(found[:count])

    def forward(self, x_BWF: npt.NDArray[Any]) -> FloatArray:
        """Return the latencies y_BH in µs for event windows (one may come as x_WF); for quantiles the median.

        Raises:
            ValueError: the shape does not fit the artifact, or a value is NaN or infinite.
        """
        return self._latencies(self._run(x_BWF, None)[0])

    def quantiles(self, x_BWF: npt.NDArray[Any]) -> FloatArray:
        """Return the quantiles y_BHL in µs, ascending; without levels L is 1: the latency."""
        return self._run(x_BWF, None)[0]

    def features(self, x_BWF: npt.NDArray[Any]) -> FloatArray:
        """Return the encoder's output f_BHD, on which the head is fine-tuned."""
        x_BWF = self._windows(x_BWF)
        sizes = (NATIVE.swiftqueue_engine_horizon(self._handle), NATIVE.swiftqueue_engine_width(self._handle))
        feature_BHD = np.empty((len(x_BWF), *sizes), np.float32)
        self._run(x_BWF, feature_BHD)
        return feature_BHD

    def forward_versioned(self, x_BWF: npt.NDArray[Any]) -> tuple[FloatArray, int]:
        """Return the latencies y_BH, and the version of the head that computed them."""
        y_BHL, version = self._run(x_BWF, None)
        return self._latencies(y_BHL), version

    def swap_head(self, folder: Path | str, version: int = 0) -> None:
        """Put the head of another artifact in place; calls under way end with the head they began with.

        Raises:
            OSError, ValueError: as at loading, or more than the head differs; the old head stays.
        """
        call("swap_head", self._handle, str(folder).encode(), version)

    def time_us(self, x_BWF: npt.NDArray[Any], repeats: int) -> npt.NDArray[np.float64]:
        """Return the times in µs of `repeats` one-window calls, with the windows in turn, measured in C++."""
        x_BWF = self._windows(x_BWF)
        us = np.empty(repeats)
        with self._lock:
            call("time", self._handle, x_BWF.ctypes.data, *x_BWF.shape[:2], repeats, us.ctypes.data)
        return us

    def _windows(self, x_BWF: npt.NDArray[Any]) -> FloatArray:
        x_BWF = np.ascontiguousarray(x_BWF, np.float32)
        if x_BWF.ndim == 2:
            x_BWF = x_BWF[None]
        tokens, features = self.shape
        if x_BWF.ndim != 3 or x_BWF.shape[2] != features or len(x_BWF) == 0:
            raise ValueError(
                f"windows of shape {x_BWF.shape}: this model takes (B, up to {tokens}, {features}), B >= 1"
            )
        return x_BWF

    def _latencies(self, y_BHL: FloatArray) -> FloatArray:
        return y_BHL[..., self.levels.index(0.5) if self.levels else 0]

    def _run(self, x_BWF: npt.NDArray[Any], feature_BHD: FloatArray | None) -> tuple[FloatArray, int]:
        x_BWF = self._windows(x_BWF)
        horizon, outputs = NATIVE.swiftqueue_engine_horizon(self._handle), len(self.levels) or 1
        y_BHL = np.empty((len(x_BWF), horizon, outputs), np.float32)
        version = ctypes.c_int64()
        with self._lock:
            call(
                "forward",
                self._handle,
                x_BWF.ctypes.data,
                *x_BWF.shape[:2],
                y_BHL.ctypes.data,
                None if feature_BHD is None else feature_BHD.ctypes.data,
                ctypes.byref(version),
            )
        return y_BHL, version.value
