"""Encodes windows of a minute of packets on every core, while they are read one after the other.

Shapes: B windows, W window tokens, F features, R tokens that the head reads, D model width, H horizon.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue, SimpleQueue
from types import TracebackType
from typing import Final, Protocol, Self
from zipfile import BadZipFile

import numpy as np
import polars as pl
from numpy.typing import NDArray

from common.say import say
from feature_store.events.beginning import NOTHING, Beginning
from feature_store.events.definition import EVENTS
from feature_store.events.event_stream import replay_events
from feature_store.packets.schema import HORIZON
from models.networks.artifact import Artifact
from models.networks.prediction import encode
from serving.engine import Engine

CHUNK: Final = 256  # windows encoded at once
# NumPy's errors for a file of arrays that is gone or damaged; RuntimeError where it seems encrypted.
NOT_READ: Final = (OSError, ValueError, LookupError, EOFError, RuntimeError, BadZipFile)


@dataclass(frozen=True)
class EncodedWindows:
    """The head's inputs from consecutive windows."""

    features_BRD: NDArray[np.float32]
    candidates_BHF: NDArray[np.float32]

    def chosen(self, which: slice | NDArray[np.bool_] | NDArray[np.intp]) -> EncodedWindows:
        """Return some of the windows."""
        return EncodedWindows(self.features_BRD[which], self.candidates_BHF[which])

    def split(self, count: int) -> tuple[EncodedWindows, EncodedWindows]:
        """Return the first `count` windows, and the others."""
        return (
            EncodedWindows(self.features_BRD[:count], self.candidates_BHF[:count]),
            EncodedWindows(self.features_BRD[count:], self.candidates_BHF[count:]),
        )


def joined(parts: list[EncodedWindows]) -> EncodedWindows:
    """Return several runs of windows as one."""
    return EncodedWindows(
        np.concatenate([part.features_BRD for part in parts]),
        np.concatenate([part.candidates_BHF for part in parts]),
    )


class WindowEncoder(Protocol):
    """An encoder of windows: the engine, or PyTorch where the engine does not compute that network."""

    def share(self) -> WindowEncoder:
        """Return an encoder for another thread."""

    def features(self, x_BWF: NDArray[np.float32], /) -> NDArray[np.float32]:
        """Return the tokens that the head reads, (B, R, D)."""


class PyTorchEncoder:
    """A PyTorch network as an encoder, several times slower than the engine."""

    def __init__(self, found: Artifact) -> None:
        self._model = found.model

    def share(self) -> PyTorchEncoder:
        """Return this encoder: computing does not change it."""
        return self

    def features(self, x_BWF: NDArray[np.float32], /) -> NDArray[np.float32]:
        """Return the tokens that the head reads, (B, R, D)."""
        return np.concatenate([part.read_BRD.numpy() for part in encode(self._model, x_BWF)])


def encoder_for(folder: Path, found: Artifact) -> WindowEncoder:
    """Return the engine for a loaded artifact, or PyTorch, with a line, where the engine refuses it."""
    try:
        return Engine(folder)
    except ValueError as refused:
        say(f"windows are encoded by PyTorch: {str(refused).removeprefix(f'{folder}/')}")
        return PyTorchEncoder(found)


class Encoding:
    """Encodes windows in decision order, a few chunks ahead of the reader, while its `with` block lasts."""

    def __init__(
        self,
        packets: pl.DataFrame,
        encoder: WindowEncoder,
        tokens: int,
        first: int,
        every: int = 1,
        *,
        beginning: Beginning = NOTHING,
    ) -> None:
        """Encode all windows of W `tokens` from number `first` on, or one of `every` so many.

        The sender's knowledge before the packets is `beginning`.
        """
        self._every = every
        self._packets, self._tokens, self._first = packets, tokens, first
        self._beginning = beginning
        self._cores = len(os.sched_getaffinity(0))
        self._encoders: SimpleQueue[WindowEncoder] = SimpleQueue()
        for _ in range(self._cores):
            self._encoders.put(encoder.share())
        # Windows are large: no more than this many chunks of them lie in memory.
        self._room = threading.BoundedSemaphore(self._cores + 1)
        self._done: Queue[Future[EncodedWindows] | None] = Queue()
        self._rest: list[EncodedWindows] = []
        self._stop = False

    def __enter__(self) -> Self:
        """Begin."""
        self._pool = ThreadPoolExecutor(self._cores + 1, initializer=_give_way)
        self._making = self._pool.submit(self._make)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, also before everything is encoded."""
        self._stop = True
        self._pool.shutdown()

    def take(self, count: int) -> EncodedWindows:
        """Wait for the next `count` windows, at least one, and return them.

        Raises:
            ValueError, MemoryError: a packet is invalid, or there is no memory for the windows.
        """
        have, parts = 0, []
        while have < count:
            part = self._rest.pop() if self._rest else self._next()
            parts.append(part)
            have += len(part.features_BRD)
        wanted, more = joined(parts).split(count)
        self._rest.append(more)
        return wanted

    def _next(self) -> EncodedWindows:
        future = self._done.get()
        if future is None:
            self._done.put(None)  # for the next call
            self._making.result()  # raises the error that ended it
            raise ValueError("there are not so many windows")
        return future.result()

    def _make(self) -> None:
        """Make windows; the other threads encode them."""
        try:
            done = 0
            made = event_windows(self._packets, self._tokens, self._first, self._beginning)
            for all_BWF in made:
                x_BWF = all_BWF[-done % self._every :: self._every]
                done += len(all_BWF)
                if not len(x_BWF):
                    continue
                self._room.acquire()
                if self._stop:
                    return
                self._done.put(self._pool.submit(self._encode, x_BWF))
        finally:
            self._done.put(None)

    def _encode(self, x_BWF: NDArray[np.float32]) -> EncodedWindows:
        encoder = self._encoders.get()
        try:
            return EncodedWindows(encoder.features(x_BWF), x_BWF[:, -HORIZON:].copy())
        finally:
            self._encoders.put(encoder)
            self._room.release()


def event_windows(
    packets: pl.DataFrame, tokens: int, first: int = 0, beginning: Beginning = NOTHING
) -> Iterator[NDArray[np.float32]]:
    """Yield the windows x_BWF of a table's decisions from number `first` on, CHUNK at a time.

    Each window is the rows of the last events before a decision, padded with all-zero rows in front, then its
    queries (docs/EVENTS.md).
    """
    log, band = replay_events(packets, beginning=beginning), tokens - HORIZON
    for begin in range(first, len(log.cut_D), CHUNK):
        chunk = slice(begin, begin + CHUNK)
        event_BW = log.cut_D[chunk, None] + np.arange(-band, 0)
        there_BW = event_BW >= 0
        x_BWF = np.zeros((len(event_BW), tokens, len(EVENTS.features)), np.float32)
        x_BWF[:, :band, :-1][there_BW] = log.x_EF[event_BW[there_BW]]
        x_BWF[:, :band, -1][there_BW] = log.ack_E[event_BW[there_BW]]
        x_BWF[:, band:, :-1] = log.x_DHF[chunk]
        yield x_BWF


def _give_way() -> None:
    """Put the calling thread behind the other programs of its session, the ingest among them."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
