"""The reservoir: stretches of the past that teach beside the last minute, chosen to be least alike.

A stretch is a second of one sender that taught. As in Memento (Dietmüller et al., "On Sample Selection for
Continual Learning: a Video Streaming Case Study", CCR 2024) stretches are chosen by coverage, not by age:
where there are too many, the older of the two that are most alike goes. Rare and late stretches are like no
other, so they stay. Memento compares distributions of predictions and outcomes. Here a stretch is described
by its latencies and their distance from the last visible latency, to which the head adds.

Shapes: B decisions, R tokens that the head reads, D model width, H horizon (8 packets), F features,
S stretches, K numbers that describe a stretch.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from swiftqueue.common.atomic import write_file
from swiftqueue.common.say import say
from swiftqueue.common.section import Section, read, read_all
from swiftqueue.pipelines.live.encoding import ASIDE, NOT_READ, Decisions

STRETCH_NS: Final = 1_000_000_000
MOST_DECISIONS: Final = 128  # most of a stretch; of more, every second or third is taken: they are alike
QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
RATE_SHARE: Final = 0.5  # weight of the rate beside one quantile, both in natural logarithms
FILE: Final = "reservoir.npz"  # file in var/live


class LiveParams(Section):
    """Parameters of the live loop's rounds (docs/LIVE.md); the scheduler reads them, no stage does."""

    section: ClassVar = "live"
    memory_decisions: Annotated[int, Field(ge=0, le=65_536)]
    """Decisions of earlier stretches, 4 KB each, that teach beside the last minute, chosen by coverage."""


def memory_decisions(params: Path) -> int:
    """Return the parameter of a file; 0 if the file is older than the parameter.

    Raises:
        ValueError: the value is invalid; the line names it.
    """
    known = LiveParams.section in read_all(params)
    return read(params, LiveParams).memory_decisions if known else 0


@dataclass(frozen=True)
class ReservoirStretch:
    """A second of one sender, with its decisions that taught."""

    sender: str
    from_ns: int  # a multiple of STRETCH_NS
    decisions: Decisions
    y_BH: NDArray[np.float32]  # µs as known when it taught; NaN where unknown
    like_K: NDArray[np.float64]  # numbers that describe it (`_like`)

    def __len__(self) -> int:
        return len(self.y_BH)


def stretches(
    sender: str,
    decision_ns_B: NDArray[np.int64],
    decisions: Decisions,
    y_BH: NDArray[np.float32],
    last_us_BH: NDArray[np.float64],
) -> list[ReservoirStretch]:
    """Cut decisions that taught into stretches; a second without a known latency gives none.

    `last_us_BH` is the last visible latency of the packet's flow, to which the head adds.
    """
    found = []
    second_B = decision_ns_B // STRETCH_NS
    for second in np.unique(second_B):
        here_B = np.flatnonzero(second_B == second)
        like_K = _like(y_BH[here_B], last_us_BH[here_B])
        if like_K is not None:
            some_B = here_B[:: -(-len(here_B) // MOST_DECISIONS)]
            some = decisions.chosen(some_B), y_BH[some_B], like_K
            found.append(ReservoirStretch(sender, int(second) * STRETCH_NS, *some))
    return found


def _like(y_BH: NDArray[np.float32], last_us_BH: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return quantiles of the log-latency and of its distance from the last visible one, and the log rate."""
    known_BH = np.isfinite(y_BH) & (y_BH > 0)
    if not known_BH.any():
        return None
    log_N = np.log(y_BH[known_BH].astype(np.float64))
    beyond_N = log_N - np.log(last_us_BH[known_BH])
    rate = RATE_SHARE * np.log(len(y_BH))
    return np.concatenate([np.quantile(log_N, QUANTILES), np.quantile(beyond_N, QUANTILES), [rate]])


@dataclass(frozen=True)
class PastDecisions:
    """The decisions of the past that teach, and their latencies."""

    decisions: Decisions
    labels: list[NDArray[np.float32]]  # by stretch, µs


@dataclass(frozen=True)
class Reservoir:
    """The kept stretches, all encoded by one encoder, oldest first."""

    encoder: str = ""
    kept: tuple[ReservoirStretch, ...] = ()

    def beside(self, encoder: str, sender: str, from_ns: int, to_ns: int) -> PastDecisions | None:
        """Return the stretches that teach beside a minute of a sender; None where there are none.

        Stretches within the minute, and those of another encoder, are left out.
        """
        if encoder != self.encoder:
            return None
        chosen = [one for one in self.kept if not _within(one, sender, from_ns, to_ns)]
        if not chosen:
            return None
        return PastDecisions(
            Decisions.joined([one.decisions for one in chosen]), [one.y_BH for one in chosen]
        )

    def with_minute(self, encoder: str, new: Sequence[ReservoirStretch], most_decisions: int) -> Self:
        """Return a reservoir with a minute's stretches added, reduced to the least alike.

        They replace stretches of the same seconds. Another encoder's are dropped: their traffic is past.
        """
        own = self.kept if encoder == self.encoder else ()
        again = {(one.sender, one.from_ns) for one in new}
        old = [one for one in own if (one.sender, one.from_ns) not in again]
        return replace(self, encoder=encoder, kept=tuple(least_alike([*old, *new], most_decisions)))


def _within(one: ReservoirStretch, sender: str, from_ns: int, to_ns: int) -> bool:
    return one.sender == sender and one.from_ns + STRETCH_NS > from_ns and one.from_ns < to_ns


EMPTY: Final = Reservoir()


def least_alike(found: list[ReservoirStretch], most_decisions: int) -> list[ReservoirStretch]:
    """Drop the older of the two most alike stretches until at most `most_decisions` decisions are left."""
    if (decisions := sum(map(len, found))) <= most_decisions:
        return found
    like_SK = np.stack([one.like_K for one in found])
    left_S = np.ones(len(found), bool)
    apart_S = np.full(len(found), np.inf)  # distance from the most alike later stretch; no S x S array
    most_like_S = np.full(len(found), -1)

    def compare(one: int) -> None:
        later = one + 1 + np.flatnonzero(left_S[one + 1 :])
        apart = np.abs(like_SK[later] - like_SK[one]).mean(axis=-1)
        apart_S[one], most_like_S[one] = (apart.min(), later[apart.argmin()]) if len(later) else (np.inf, -1)

    for one in range(len(found)):
        compare(one)
    while decisions > most_decisions:
        older = int(apart_S.argmin()) if left_S.sum() > 1 else int(left_S.argmax())
        left_S[older], apart_S[older] = False, np.inf
        decisions -= len(found[older])
        for one in np.flatnonzero(left_S & (most_like_S == older)).tolist():
            compare(one)
    return [one for one, stays in zip(found, left_S, strict=True) if stays]


class ReservoirFile:
    """The reservoir's file between rounds and over restarts, written atomically."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def load(self) -> Reservoir:
        """Read the reservoir; an unreadable file is put aside, with a line, and the reservoir is empty."""
        if not self._file.is_file():
            return EMPTY
        try:
            return _read(self._file)
        except NOT_READ as error:
            aside = self._file.with_suffix(ASIDE)
            with contextlib.suppress(OSError):
                self._file.replace(aside)
            said = str(error).splitlines() or [type(error).__name__]
            say(f"the reservoir cannot be read, is put aside as {aside} and begins anew: {said[0][:200]}")
            return EMPTY

    def save(self, what: Reservoir) -> None:
        """Write the reservoir; an empty one has no file.

        Raises:
            OSError: the disk is full; the previous file stays.
        """
        if what.kept:
            write_file(self._file, _written(what))
        else:
            self._file.unlink(missing_ok=True)


def _written(what: Reservoir) -> bytes:
    content = io.BytesIO()
    decisions = Decisions.joined([one.decisions for one in what.kept])
    np.savez(
        content,
        encoder=what.encoder,
        senders=np.array([one.sender for one in what.kept]),
        from_ns_S=np.array([one.from_ns for one in what.kept], np.int64),
        decisions_S=np.array([len(one) for one in what.kept], np.int64),
        like_SK=np.stack([one.like_K for one in what.kept]),
        **decisions.arrays,
        y_BH=np.concatenate([one.y_BH for one in what.kept]),
    )
    return content.getvalue()


def _read(file: Path) -> Reservoir:
    with np.load(file, allow_pickle=False) as found:
        decisions_S, y_BH, like_SK = found["decisions_S"], found["y_BH"], found["like_SK"]
        senders, from_ns_S = found["senders"], found["from_ns_S"]
        every = Decisions.of_arrays(found)
        lengths = {len(y_BH), len(every), int(decisions_S.sum())}
        if len(lengths) != 1 or len({len(decisions_S), len(like_SK), len(senders), len(from_ns_S)}) != 1:
            raise ValueError("its arrays differ in length")
        ends_S = np.cumsum(decisions_S)
        kept = []
        for place, end in enumerate(ends_S):
            part = slice(int(end - decisions_S[place]), int(end))
            said = str(senders[place]), int(from_ns_S[place])
            kept.append(ReservoirStretch(*said, every.chosen(part), y_BH[part], like_SK[place]))
        return Reservoir(str(found["encoder"]), tuple(kept))
