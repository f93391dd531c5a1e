"""A minute's decisions as a forecaster encodes them, by the engine where it computes that network.

Shapes: B decisions, W window tokens, F features, R tokens that the head reads, D model width, H horizon.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Self
from zipfile import BadZipFile

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from swiftqueue.common.say import say
from swiftqueue.feature_store.events.beginning import NOTHING, Beginning
from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.feature_store.events.event_stream import EventReplay, replay_events
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.feature_store.quality.distribution_shift import as_rows
from swiftqueue.models.event_stream.forecaster import EventStreamForecaster
from swiftqueue.models.forecasters import forecaster
from swiftqueue.models.forecasters.network import NetworkForecaster
from swiftqueue.models.forecasters.queries import replayed
from swiftqueue.models.forecasters.traces import TracePart
from swiftqueue.models.networks.prediction import HeadInputs
from swiftqueue.serving.engine import Engine

STRETCH: Final = 2048  # decisions that one thread encodes at once; each stretch begins with its own events
CHUNK: Final = 256  # decisions whose windows are made at once
ASIDE: Final = ".unreadable"  # suffix of a file of arrays that cannot be read, and is put aside
# NumPy's errors for a file of arrays that is gone or damaged; RuntimeError where it seems encrypted.
NOT_READ: Final = (OSError, ValueError, LookupError, EOFError, RuntimeError, BadZipFile)


@dataclass(frozen=True)
class Decisions:
    """Decisions in time order: what a head needs of them, and the rows of their packets."""

    read_BRD: NDArray[np.float32]
    anchor_BH: NDArray[np.float32]
    candidates_BHF: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.read_BRD)

    @classmethod
    def of(cls, found: NetworkForecaster, part: TracePart) -> Self:
        """Encode a part's decisions.

        Raises:
            ValueError, MemoryError: a packet is impossible, or there is no memory for the rows.
        """
        log = replayed(part)
        if isinstance(found, EventStreamForecaster) and isinstance(found.encoder, EngineEncoder):
            encoded = found.encoder.of_log(log)
        else:
            encoded = found.encode(part)
        return cls(encoded.read_BRD.numpy(), encoded.anchor_BH.numpy(), as_rows(log.x_DHF))

    @classmethod
    def joined(cls, parts: Sequence[Decisions]) -> Self:
        """Return the decisions of several parts, one after the other."""
        return cls(
            np.concatenate([part.read_BRD for part in parts]),
            np.concatenate([part.anchor_BH for part in parts]),
            np.concatenate([part.candidates_BHF for part in parts]),
        )

    def chosen(self, which: slice | NDArray[np.bool_] | NDArray[np.intp]) -> Decisions:
        """Return the chosen decisions."""
        return Decisions(self.read_BRD[which], self.anchor_BH[which], self.candidates_BHF[which])

    @property
    def encoded(self) -> HeadInputs:
        """Return the decisions in the form that a forecaster's `answer` and `tuned_on` take."""
        return HeadInputs(torch.from_numpy(self.read_BRD), torch.from_numpy(self.anchor_BH))

    @property
    def arrays(self) -> dict[str, Any]:
        """Return the arrays by name, for a file."""
        return dict(vars(self))

    @classmethod
    def of_arrays(cls, found: Mapping[str, NDArray[np.float32]]) -> Self:
        """Return the decisions whose `arrays` a file holds.

        Raises:
            ValueError: an array is missing, or they differ in length.
        """
        if missing := cls.__dataclass_fields__.keys() - found.keys():
            raise ValueError(f"an earlier version wrote it: it has no {min(missing)}")
        it = cls(**{name: found[name] for name in cls.__dataclass_fields__})
        if not len(it.read_BRD) == len(it.anchor_BH) == len(it.candidates_BHF):
            raise ValueError("its arrays differ in length")
        return it


def load(files: Mapping[str, bytes]) -> NetworkForecaster:
    """Load a served version from its artifact files by name; the engine encodes for it if it can.

    Raises:
        ValueError: a file is damaged, or the version is no network.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        found = forecaster.load(folder)
        if not isinstance(found, NetworkForecaster):
            raise ValueError("the version is no network")
        if isinstance(found, EventStreamForecaster):
            try:
                found.encoder = EngineEncoder(Engine(folder), found)
            except ValueError as refused:
                say(f"PyTorch encodes the decisions: {str(refused).removeprefix(f'{folder}/')}")
        return found


class EngineEncoder:
    """Encodes the decisions of an event stream by the engine, on every core; it holds no lock on Python."""

    def __init__(self, engine: Engine, found: EventStreamForecaster) -> None:
        """Take the engine that has the network's weights."""
        self._model, self._cores = found.model, len(os.sched_getaffinity(0))
        self._engines: SimpleQueue[Engine] = SimpleQueue()
        for _ in range(self._cores):
            self._engines.put(engine.share())

    def __call__(self, part: TracePart, queue: int) -> HeadInputs:
        """Return what the head reads of a part's decisions, and the anchor."""
        return self.of_log(replayed(part, queue))

    def of_log(self, log: EventReplay) -> HeadInputs:
        """Return what the head reads (B, H, D) of a replayed log's decisions, and the anchor (B, H)."""
        chunks = [slice(begin, begin + STRETCH) for begin in range(0, len(log.cut_D), STRETCH)]

        def encode(chunk: slice) -> NDArray[np.float32]:
            cut_D = log.cut_D[chunk]
            engine = self._engines.get()
            try:
                seen = slice(max(0, cut_D[0] - engine.reach), cut_D[-1])
                x_EF = _with_kind(log.x_EF[seen], log.ack_E[seen])
                return engine.features(x_EF, cut_D - seen.start, _with_kind(log.x_DHF[chunk], False))
            finally:
                self._engines.put(engine)

        empty = np.zeros((0, HORIZON, self._model.sizes.width), np.float32)
        with ThreadPoolExecutor(self._cores, initializer=_give_way) as pool:
            read_BHD = np.concatenate([empty, *pool.map(encode, chunks)])
        anchor_BH = self._model.anchor(torch.from_numpy(as_rows(log.x_DHF)))
        return HeadInputs(torch.from_numpy(read_BHD), anchor_BH)


def _with_kind(x_NF: NDArray[np.float32], ack_N: NDArray[np.bool_] | bool) -> NDArray[np.float32]:
    """Return the rows as a question carries them: the last value of an ACK's is 1."""
    kind = np.broadcast_to(np.asarray(ack_N, np.float32), x_NF.shape[:-1])
    return np.concatenate([x_NF, kind[..., None]], -1)


def event_windows(
    packets: pl.DataFrame, tokens: int, first: int = 0, beginning: Beginning = NOTHING
) -> Iterator[NDArray[np.float32]]:
    """Yield the rows x_BWF that a question about each decision carries, CHUNK decisions at a time.

    Each window is the rows of the last events before a decision, padded with all-zero rows in front, then its
    queries (docs/EVENTS.md).
    """
    log = replay_events(packets, beginning=beginning)
    for begin in range(first, len(log.cut_D), CHUNK):
        yield _rows(log, tokens, slice(begin, begin + CHUNK))


def _rows(log: EventReplay, tokens: int, chunk: slice) -> NDArray[np.float32]:
    band = tokens - HORIZON
    event_BW = log.cut_D[chunk, None] + np.arange(-band, 0)
    there_BW = event_BW >= 0
    x_BWF = np.zeros((len(event_BW), tokens, len(EVENTS.features)), np.float32)
    seen_N = event_BW[there_BW]
    x_BWF[:, :band][there_BW] = _with_kind(log.x_EF[seen_N], log.ack_E[seen_N])
    x_BWF[:, band:] = _with_kind(log.x_DHF[chunk], False)
    return x_BWF


def _give_way() -> None:
    """Put the calling thread behind the other programs of its session, the ingest among them."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
