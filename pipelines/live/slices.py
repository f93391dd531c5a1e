"""The slices of telemetry that judged earlier rounds and judge again: nothing learns from them.

A slice is a file of `var/live/slices`: the packets with the lead-in that fills the first decisions' history,
and their decisions as the served encoder encoded them, so judging a new head costs its two layers alone.

Shapes: B decisions, F features, R tokens that the head reads, D model width, H horizon (8 packets).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import TypeAdapter

from swiftqueue.common.atomic import write_file
from swiftqueue.common.say import say
from swiftqueue.common.state import private_dir
from swiftqueue.feature_store.events import event_stream
from swiftqueue.feature_store.events.beginning import Beginning
from swiftqueue.models.forecasters.network import NetworkForecaster
from swiftqueue.models.forecasters.traces import TracePart
from swiftqueue.models.training.protocol import Slice
from swiftqueue.pipelines.live.encoding import ASIDE, NOT_READ, Decisions

KEPT: Final = 11  # slices that are kept: with the newest ten seconds, two minutes judge
MOST_DECISIONS: Final = (
    2048  # most decisions of a slice; of more, every second or third is taken: they are alike
)
# Pause from one slice's end to the next one's beginning, in slice lengths: three quarters of the time teach.
PAUSE: Final = 3
_BEGINNING: Final = TypeAdapter(Beginning)


@dataclass(frozen=True)
class JudgingSlice:
    """Some seconds of one sender that judge."""

    packets: pl.DataFrame  # counted from 0, with the lead-in first
    beginning: Beginning  # the sender's state before them
    from_ns: int
    to_ns: int  # its last packet
    encoder: str  # hash of its encoder (`encoder_of`)
    decisions: Decisions
    y_BH: NDArray[np.float32]  # µs; NaN where unknown
    decision_ns_B: NDArray[np.int64]

    @classmethod
    def of(
        cls, packets: pl.DataFrame, beginning: Beginning, from_ns: int, encoder: str, decisions: Decisions
    ) -> Self:
        """Return the slice of all decisions since `from_ns`."""
        targets = event_stream.targets(packets)
        chosen_B = np.flatnonzero(targets.decision_ns_B >= from_ns)
        every = slice(None, None, -(-len(chosen_B) // MOST_DECISIONS) or 1)
        return cls(
            packets,
            beginning,
            from_ns,
            int(packets["sent_ns"][-1]),
            encoder,
            decisions.chosen(every),
            targets.y_BH[chosen_B][every],
            targets.decision_ns_B[chosen_B][every],
        )

    def holds(self, trace: str, decision_ns_B: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which decisions of a sender fall into the slice."""
        inside_B = (decision_ns_B >= self.from_ns) & (decision_ns_B <= self.to_ns)
        return inside_B & bool(trace == self.packets["trace"][0])

    def by(self, encoder: str, found: NetworkForecaster) -> JudgingSlice:
        """Return the same slice as a forecaster encodes it; `encoder` names its encoder."""
        if encoder == self.encoder:
            return self
        first = int(np.searchsorted(event_stream.targets(self.packets).decision_ns_B, self.from_ns))
        every = Slice(first, event_stream.batches_in(self.packets))
        part = TracePart(str(self.packets["trace"][0]), self.packets, every, beginning=self.beginning)
        anew = Decisions.of(found, part)
        other = JudgingSlice.of(self.packets, self.beginning, self.from_ns, encoder, anew)
        return replace(self, encoder=encoder, decisions=other.decisions)

    def save(self, file: Path) -> None:
        """Write the slice atomically."""
        packets, content = io.BytesIO(), io.BytesIO()
        self.packets.write_parquet(packets)
        np.savez(
            content,
            packets=np.frombuffer(packets.getvalue(), np.uint8),
            beginning=np.frombuffer(_BEGINNING.dump_json(self.beginning), np.uint8),
            from_ns=self.from_ns,
            to_ns=self.to_ns,
            encoder=self.encoder,
            **self.decisions.arrays,
            y_BH=self.y_BH,
            decision_ns_B=self.decision_ns_B,
        )
        write_file(file, content.getvalue())

    @classmethod
    def load(cls, file: Path) -> Self:
        """Load a slice.

        Raises:
            NOT_READ, PolarsError: the file is missing or damaged.
        """
        with np.load(file, allow_pickle=False) as found:
            decisions = Decisions.of_arrays(found)
            y_BH, decision_ns_B = found["y_BH"], found["decision_ns_B"]
            if not len(decisions) == len(y_BH) == len(decision_ns_B):
                raise ValueError("its arrays differ in length")
            return cls(
                pl.read_parquet(io.BytesIO(found["packets"].tobytes())),
                _BEGINNING.validate_json(found["beginning"].tobytes()),
                int(found["from_ns"]),
                int(found["to_ns"]),
                str(found["encoder"]),
                decisions,
                y_BH,
                decision_ns_B,
            )


class SliceFolder:
    """The last slices, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recent(self) -> tuple[JudgingSlice, ...]:
        """Return all slices, oldest first; an unreadable one is put aside, with a line."""
        found = []
        for file in self._files():
            try:
                found.append(JudgingSlice.load(file))
            except (*NOT_READ, pl.exceptions.PolarsError) as error:
                aside = file.with_suffix(ASIDE)
                with contextlib.suppress(OSError):
                    file.replace(aside)
                said = str(error).splitlines() or [type(error).__name__]
                say(f"a slice that judged cannot be read and is put aside as {aside.name}: {said[0][:200]}")
        return tuple(found)

    def keep(self, slices: tuple[JudgingSlice, ...]) -> None:
        """Write slices, in place of files that they have already, and remove the oldest beyond KEPT.

        Raises:
            OSError: the disk is full; the previous ones stay.
        """
        private_dir(self._folder)
        for one in slices:
            sender = hashlib.sha256(str(one.packets["trace"][0]).encode()).hexdigest()[:8]
            file = self._folder / f"{one.from_ns:019d}-{sender}.npz"
            newest_ns = max((other.stat().st_mtime_ns for other in self._files()), default=0)
            one.save(file)
            at_ns = max(time.time_ns(), newest_ns + 1)  # also after a clock was set back
            os.utime(file, ns=(at_ns, at_ns))
        for file in self._files()[:-KEPT]:
            file.unlink()

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.npz"), key=lambda file: file.stat().st_mtime_ns)


def encoder_of(found: NetworkForecaster) -> str:
    """Return a hash of all that decides what a forecaster's encoder makes of packets."""
    digest = hashlib.sha256(repr((found.model.rows, found.model.scalings())).encode())
    for name, value in sorted(found.model.encoder_state().items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def usable(
    slices: tuple[JudgingSlice, ...], trace: str, from_ns: int, to_ns: int
) -> tuple[JudgingSlice, ...]:
    """Return the slices that do not overlap the newest; after a clock was set back they may be ahead."""
    return tuple(
        one
        for one in slices
        if one.packets["trace"][0] != trace or not (one.to_ns >= from_ns and one.from_ns <= to_ns)
    )


def due(slices: tuple[JudgingSlice, ...], newest: JudgingSlice) -> bool:
    """Return whether to keep the newest slice: kept slices do not teach, so pauses lie between them."""
    trace = newest.packets["trace"][0]
    own = [one for one in slices if one.packets["trace"][0] == trace]
    pause_ns = PAUSE * (newest.to_ns - newest.from_ns)
    return all(newest.from_ns >= one.to_ns + pause_ns or newest.to_ns < one.from_ns for one in own)
