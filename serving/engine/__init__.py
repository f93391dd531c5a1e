"""The inference engine from Python: a thin binding of its C interface (docs/ENGINE.md).

Shapes: B windows, W window rows, F features of a row, D model width, H horizon (8 packets), L levels of
quantiles, N events, Q queries.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

Isa = Literal["auto", "bf16", "amx", "avx512", "avx2", "portable"]
FloatArray = npt.NDArray[np.float32]

LIBRARY: Final = Path(__file__).parent / "_build" / "libswiftqueue_engine.so"
_ERROR_BYTES: Final = 1024
_STATUS_ERRORS: Final[dict[int, type[Exception]]] = {1: ValueError, 2: OSError, 3: MemoryError}


def _load() -> ctypes.CDLL:
    if not LIBRARY.is_file():
        raise ImportError(f"{LIBRARY} is not built; run `make -C {LIBRARY.parent.parent}`")
    library = ctypes.CDLL(str(LIBRARY))
    pointer, text, i64, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_size_t
    u64 = ctypes.c_uint64
    error = [text, size]
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "create": (ctypes.c_int, [text, text, i64, ctypes.POINTER(pointer), *error]),
        "share": (ctypes.c_int, [pointer, ctypes.POINTER(pointer), *error]),
        "destroy": (None, [pointer]),
        "forward": (
            ctypes.c_int,
            [pointer, pointer, i64, i64, pointer, ctypes.POINTER(i64), *error],
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
        "reach": (ctypes.c_int, [pointer]),
        "open_session": (ctypes.c_int, [pointer, ctypes.POINTER(pointer), *error]),
        "close_session": (None, [pointer]),
        "session_next": (u64, [pointer]),
        "session_first": (u64, [pointer]),
        "session_bytes": (size, [pointer]),
        "session_begin": (None, [pointer, u64]),
        "take": (
            ctypes.c_int,
            [pointer, pointer, u64, pointer, i64, ctypes.POINTER(ctypes.c_int), *error],
        ),
        "answer": (
            ctypes.c_int,
            [pointer, pointer, pointer, i64, pointer, ctypes.POINTER(i64), *error],
        ),
        "features_of_log": (
            ctypes.c_int,
            [pointer, pointer, i64, pointer, i64, pointer, pointer, *error],
        ),
        "time_session": (
            ctypes.c_int,
            [pointer, pointer, pointer, i64, i64, pointer, i64, i64, pointer, *error],
        ),
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


class Session:
    """A sender's last events as engines of one encoder keep them; `Engine.open_session` makes it."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle

    def __del__(self) -> None:
        NATIVE.swiftqueue_engine_close_session(self._handle)

    @property
    def next(self) -> int:
        """Return the number of the event that it wants next."""
        return int(NATIVE.swiftqueue_engine_session_next(self._handle))

    @property
    def first(self) -> int:
        """Return the number of the first event since the last `begin`."""
        return int(NATIVE.swiftqueue_engine_session_first(self._handle))

    @property
    def bytes(self) -> int:
        """Return the memory that it takes."""
        return int(NATIVE.swiftqueue_engine_session_bytes(self._handle))

    def begin(self, first: int) -> None:
        """Forget all events; the log, as far as this session knows, begins at event `first`."""
        NATIVE.swiftqueue_engine_session_begin(self._handle, first)


class Engine:
    """A loaded artifact that predicts on the calling thread, in float32 unless bfloat16 is asked for.

    Calls of one engine wait for each other; `share` gives another thread its own. The answers agree
    with the network in PyTorch, in eval mode, to a relative 1e-5; with bfloat16 to 1e-2.
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
        """Return the instruction set in use: amx (bfloat16), avx512, avx2 or portable."""
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
        return self._latencies(self._run(x_BWF)[0])

    def quantiles(self, x_BWF: npt.NDArray[Any]) -> FloatArray:
        """Return the quantiles y_BHL in µs, ascending; without levels L is 1: the latency."""
        return self._run(x_BWF)[0]

    def features(
        self, x_EF: npt.NDArray[Any], cut_D: npt.NDArray[np.int64], x_DHF: npt.NDArray[Any]
    ) -> FloatArray:
        """Return the encoder's output f_DHD of decisions in a log, on which the head is fine-tuned.

        Args:
            x_EF: events from the log's first one on, or from `reach` before the first decision.
            cut_D: number of these events before each decision, ascending.
            x_DHF: queries of each decision.

        Raises:
            ValueError: the shapes do not fit, or a value is NaN or infinite.
        """
        x_EF, horizon = self._rows(x_EF), NATIVE.swiftqueue_engine_horizon(self._handle)
        x_QF = self._rows(x_DHF.reshape(-1, x_DHF.shape[-1]))
        cut_D = np.ascontiguousarray(cut_D, np.int64)
        if x_DHF.shape[:-1] != (len(cut_D), horizon):
            raise ValueError(f"{len(cut_D)} decisions, and queries of shape {x_DHF.shape}")
        feature_DHD = np.empty((*x_DHF.shape[:2], NATIVE.swiftqueue_engine_width(self._handle)), np.float32)
        arrays = (x_QF.ctypes.data, feature_DHD.ctypes.data)
        with self._lock:
            call(
                "features_of_log",
                self._handle,
                x_EF.ctypes.data,
                len(x_EF),
                cut_D.ctypes.data,
                len(cut_D),
                *arrays,
            )
        return feature_DHD

    def forward_versioned(self, x_BWF: npt.NDArray[Any]) -> tuple[FloatArray, int]:
        """Return the latencies y_BH, and the version of the head that computed them."""
        y_BHL, version = self._run(x_BWF)
        return self._latencies(y_BHL), version

    @property
    def reach(self) -> int:
        """Return the number of last events whose resending restores a session exactly."""
        return int(NATIVE.swiftqueue_engine_reach(self._handle))

    def open_session(self) -> Session:
        """Return a session without events, for this engine and all with the same encoder."""
        handle = ctypes.c_void_p()
        call("open_session", self._handle, ctypes.byref(handle))
        return Session(handle)

    def take(self, session: Session, first: int, x_NF: npt.NDArray[Any]) -> bool:
        """Add events numbered first, first + 1, … to a session; those that it has are skipped.

        Returns:
            False, and nothing has changed, if the session lacks events before `first` or belongs to another
            encoder.

        Raises:
            ValueError: the shape does not fit, a value is NaN or infinite, or values are too large.
        """
        x_NF = self._rows(x_NF)
        taken = ctypes.c_int()
        with self._lock:
            call(
                "take",
                self._handle,
                session._handle,
                first,
                x_NF.ctypes.data,
                len(x_NF),
                ctypes.byref(taken),
            )
        return bool(taken)

    def answer(self, session: Session, x_QF: npt.NDArray[Any]) -> tuple[FloatArray, int]:
        """Return y_QL in µs for 1 to 16 queries after a session's last event, and the head's version.

        The values of a query are its quantiles, ascending; without levels L is 1: the latency.

        Raises:
            ValueError: as `take`, or the session belongs to another encoder.
        """
        x_QF = self._rows(x_QF)
        y_QL = np.empty((len(x_QF), len(self.levels) or 1), np.float32)
        version = ctypes.c_int64()
        with self._lock:
            call(
                "answer",
                self._handle,
                session._handle,
                x_QF.ctypes.data,
                len(x_QF),
                y_QL.ctypes.data,
                ctypes.byref(version),
            )
        return y_QL, version.value

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

    def time_session_us(
        self, x_NF: npt.NDArray[Any], events: int, x_QF: npt.NDArray[Any], repeats: int
    ) -> npt.NDArray[np.float64]:
        """Return the times in µs of `repeats` calls, each of which takes events and answers the queries.

        A call takes the next `events` of x_NF, which has a multiple of them; at the end it begins anew.
        """
        x_NF, x_QF = self._rows(x_NF), self._rows(x_QF)
        if events < 1 or len(x_NF) % events or not len(x_NF):
            raise ValueError(f"{len(x_NF)} events are not a multiple of {events}")
        us = np.empty(repeats)
        session = self.open_session()
        given = x_NF.ctypes.data, len(x_NF), events, x_QF.ctypes.data, len(x_QF)
        with self._lock:
            call("time_session", self._handle, session._handle, *given, repeats, us.ctypes.data)
        return us

    def _rows(self, x_NF: npt.NDArray[Any]) -> FloatArray:
        x_NF = np.ascontiguousarray(x_NF, np.float32)
        if x_NF.ndim != 2 or x_NF.shape[1] != self.shape[1]:
            raise ValueError(f"rows of shape {x_NF.shape}: this model takes (…, {self.shape[1]})")
        return x_NF

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

    def _run(self, x_BWF: npt.NDArray[Any]) -> tuple[FloatArray, int]:
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
                ctypes.byref(version),
            )
        return y_BHL, version.value
