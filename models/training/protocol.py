"""Divide a trace's decisions into slices of pre-training, tuning and test, by walk-forward protocols.

Splits are by time, never by random choice. As in the paper (SwiftQueue, section 5), a walk pre-trains on the
trace's beginning. Then, round by round, it fine-tunes the head on the slice just past and tests on the next.

Shapes: B batches (decisions).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Slice:
    """The decisions [lo, hi) of a trace, by decision time."""

    lo: int
    hi: int

    def __len__(self) -> int:
        return self.hi - self.lo


@dataclass(frozen=True)
class EvaluationProtocol:
    """The name of a protocol, and the lengths of its slices in seconds."""

    name: str
    pretrain_s: float
    finetune_s: float
    test_s: float

    def answers_after_s(self, round_s: float) -> float:
        """Return the seconds until a round's head answers, given the seconds of a round on a minute.

        Most of a round is encoding and training, so its time is proportional to the slice.
        """
        return round_s * self.finetune_s / PAPER.finetune_s

    @property
    def least_s(self) -> float:
        """Return the shortest trace in seconds that leaves one round, whose test may be half as long."""
        return self.pretrain_s + self.test_s / 2


SHORT: Final = EvaluationProtocol("short", 2.5, 0.5, 1)  # for speed tests of a few seconds
SMALL: Final = EvaluationProtocol("small", 30, 6, 10)
PAPER: Final = EvaluationProtocol("paper", 300, 60, 300)
LEAST_DECISIONS: Final = 2  # decisions of a pre-training slice: one to train on, one to validate
ROUND_S: Final = 28.9  # seconds from trigger to first answer of a `window` round on a minute (docs/LIVE.md)
PROTOCOLS: Final = {p.name: p for p in (SHORT, SMALL, PAPER)}
TEACH: Final = EvaluationProtocol("teach", 1e9, 0, 0)  # for a trace that only trains
OF_A_TRACE: Final = PROTOCOLS | {TEACH.name: TEACH}


@dataclass(frozen=True)
class Round:
    """One step of the walk: fine-tune on the slice before the boundary, test on the slice after it."""

    finetune: Slice
    test: Slice


@dataclass(frozen=True)
class TraceSlices:
    """A trace's decisions divided by decision time."""

    protocol: EvaluationProtocol
    duration_s: float  # seconds from the first decision to the last
    pretrain: Slice
    rounds: tuple[Round, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the form in data/split.json."""
        return {
            "protocol": asdict(self.protocol),
            "duration_s": self.duration_s,
            "pretrain": _bounds(self.pretrain),
            "rounds": [{"finetune": _bounds(r.finetune), "test": _bounds(r.test)} for r in self.rounds],
        }

    @classmethod
    def from_json(cls, described: Mapping[str, Any], decisions: int, trace: str) -> TraceSlices:
        """Read the form of data/split.json, for a trace of `decisions` decisions.

        Raises:
            ValueError: a slice lies outside the trace.
        """

        def cut(bounds: Any) -> Slice:
            lo, hi = (int(bound) for bound in bounds)
            if not 0 <= lo <= hi <= decisions:
                raise ValueError(
                    f"slice [{lo}, {hi}) of trace {trace} has {decisions} decisions; run stage `split` again"
                )
            return Slice(lo, hi)

        rounds = tuple(Round(cut(r["finetune"]), cut(r["test"])) for r in described["rounds"])
        protocol, duration_s = EvaluationProtocol(**described["protocol"]), float(described["duration_s"])
        return cls(protocol, duration_s, cut(described["pretrain"]), rounds)


def _bounds(part: Slice) -> list[int]:
    return [part.lo, part.hi]


def protocol_named(name: str, among: Mapping[str, EvaluationProtocol] = PROTOCOLS) -> EvaluationProtocol:
    """Return the protocol of that name.

    Raises:
        ValueError: there is no such protocol.
    """
    if name not in among:
        raise ValueError(f"protocol {name!r} is unknown; take one of {', '.join(among)}")
    return among[name]


def divide(decision_ns_B: npt.NDArray[np.int64], protocol: EvaluationProtocol, trace: str) -> TraceSlices:
    """Divide a trace's decisions, in decision order, by time from its first decision.

    Round r has its boundary at `pretrain_s + r * test_s`. The trace's end may cut the last test slice short,
    to half its length at the least. A round is left out if the sender was silent in its test slice. A
    fine-tuning slice may be empty; then there is nothing to tune on. `TEACH` has no round: the whole trace is
    pre-training.

    Args:
        decision_ns_B: decision times, never falling.
        protocol: lengths of the slices.
        trace: name of the trace for the message.

    Raises:
        ValueError: the trace is too short (the message names the shorter protocol that fits), or its sender
            was silent in the pre-training time, or after it.
    """
    if not len(decision_ns_B):
        raise ValueError(f"trace {trace}: fewer than 8 packets, so no decision; leave it out")
    elapsed_ns_B = decision_ns_B - decision_ns_B[0]
    duration_s = float(elapsed_ns_B[-1]) / 1e9
    if protocol == TEACH:
        return TraceSlices(protocol, duration_s, Slice(0, len(decision_ns_B)), ())
    if duration_s < protocol.least_s:
        raise ValueError(_too_short(trace, duration_s, protocol))

    def between(start_s: float, end_s: float) -> Slice:
        low, high = np.searchsorted(elapsed_ns_B, [round(start_s * 1e9), round(end_s * 1e9)])
        return Slice(int(low), int(high))

    rounds = []
    boundary_s = protocol.pretrain_s
    while duration_s - boundary_s >= protocol.test_s / 2:
        end_s = boundary_s + protocol.test_s
        # The last decision belongs to the slice that it ends.
        test = between(boundary_s, end_s if duration_s > end_s else duration_s + 1e-9)
        if len(test):
            rounds.append(Round(between(boundary_s - protocol.finetune_s, boundary_s), test))
        boundary_s = end_s
    pretrain = between(0, protocol.pretrain_s)
    if len(pretrain) < LEAST_DECISIONS or not rounds:
        silent = f"in the first {protocol.pretrain_s:g} s" if rounds else f"after {protocol.pretrain_s:g} s"
        raise ValueError(
            f"trace {trace}: its sender was silent {silent}, so protocol {protocol.name!r} has nothing to "
            f"{'train' if rounds else 'test'} on; leave it out"
        )
    return TraceSlices(protocol, duration_s, pretrain, tuple(rounds))


@dataclass(frozen=True)
class SlicePiece:
    """A piece of a test slice, and the round whose head answers there; -1 is the head of pre-training."""

    head: int
    part: Slice


def answered(
    rounds: Sequence[Round], decision_ns_B: npt.NDArray[np.int64], after_s: float
) -> list[list[SlicePiece]]:
    """Divide each round's test slice by the newest head whose round has ended.

    A round begins at the first decision of its test slice and takes `after_s` seconds. Until it ends, the
    head of an earlier round answers, over several slices if a round takes longer than a slice.
    """
    ready_ns = [int(decision_ns_B[each.test.lo]) + round(after_s * 1e9) for each in rounds]
    begins = [0, *(int(at) for at in np.searchsorted(decision_ns_B, ready_ns)), len(decision_ns_B)]
    found = []
    for each in rounds:
        pieces = [
            SlicePiece(head, Slice(max(lo, each.test.lo), min(hi, each.test.hi)))
            for head, (lo, hi) in enumerate(itertools.pairwise(begins), start=-1)
        ]
        found.append([piece for piece in pieces if piece.part.lo < piece.part.hi])
    return found


def together(protocols: Iterable[EvaluationProtocol]) -> dict[str, Any]:
    """Return the protocol that some traces share; for several, their names joined by `+`."""
    used = {protocol.name: protocol for protocol in protocols}
    shared = next(iter(used.values()))
    return asdict(shared) if len(used) == 1 else {"name": "+".join(sorted(used))}


def _too_short(trace: str, duration_s: float, protocol: EvaluationProtocol) -> str:
    line = (
        f"trace {trace} lasts {duration_s:.1f} s, and protocol {protocol.name!r} needs at least "
        f"{protocol.least_s:g} s"
    )
    fitting = [p for p in PROTOCOLS.values() if p.least_s <= duration_s]
    if not fitting:
        return f"{line}; no protocol is short enough for it ({SHORT.name!r} needs {SHORT.least_s:g} s)"
    longest = max(fitting, key=lambda p: p.least_s)
    return f"{line}; protocol {longest.name!r} fits"
