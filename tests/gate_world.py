"""A made-up sender on which the gate is tried, beside the gate before it.

The sender is made up: 16 inputs explain its latencies in part. A head has two rows of weights: one for the
latency of ordinary packets, one for the late ones, which come in episodes of seconds. Its true quality is the
average precision on 120 seconds that judge nothing. The gate is the real one, over the newest ten seconds and
the eleven slices before them, with the first head as the reference. The gate before it: the newest ten
seconds, no figure worse than the champion's by more than 0.02.

Two heads that follow each other differ by 0.01 average precision on ten seconds (standard deviation of the
paired bootstrap), as those of the default network did on a simulated trace of 11 minutes (0.009).

Shapes: B decisions, F features, H horizon (8 packets), N packets, D inputs of a head, K its rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.registry import gate
from swiftqueue.models.registry.gate import Figures, HeldOutDecisions

Floats = NDArray[np.float64]

INPUTS: Final = 16
DECISIONS_PER_S: Final = 30
SLICE_S: Final = 10
EARLIER: Final = 11  # earlier judging slices, as many as pipelines/live keeps
TRUTH_S: Final = 120  # seconds of traffic for measuring quality
LAST_US: Final = 40_000.0  # the last visible latency of every flow
SPREAD: Final = 0.08  # standard deviation of the log-latency of packets that are not late
KNOWN: Final = 0.9  # share of what makes a packet slow or late that the inputs explain
BUMP: Final = 0.3  # added to the log-latency of packets that a head takes for late
EPISODES: Final = 1 / 3  # share of the seconds with late packets
LATE_FROM: Final = 1.2  # standard deviations above which a packet is late in an episode
FEATURES: Final = ("last_latency_us", "last_latency_flow_us", "last_latency_queue_us")
TAKEN_FROM: Final = 0.9  # where a head begins to take a packet for late
START: Final = 0.45  # how far from the best head the first one is, as a share of its length
NOISE: Final = 0.25  # a random step, likewise
POISON: Final = 0.012  # average precision that each poisoned head loses to its parent
NextHead = Callable[["SliceMaker", Floats], Floats]
Gate = Callable[["Challenge"], bool]


@dataclass(frozen=True)
class SenderSlice:
    """Some seconds of the sender's packets."""

    x_ND: Floats
    held_out: HeldOutDecisions

    def predictions(self, head_KD: Floats) -> Floats:
        """Return the latencies (B, H) in µs that a head predicts."""
        slow_N, late_N = self.x_ND @ head_KD[0], self.x_ND @ head_KD[1]
        us_N: Floats = LAST_US * np.exp(SPREAD * slow_N + BUMP * np.maximum(late_N - TAKEN_FROM, 0))
        return us_N.reshape(self.held_out.y_BH.shape)

    def figures(self, head_KD: Floats) -> Figures:
        """Return the figures of a head."""
        return gate.score(self.predictions(head_KD), self.held_out, drawn=False).figures


class SliceMaker:
    """A maker of slices of one sender's time that do not overlap."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._now_s = 0
        self._slow_D, self._late_D = np.linalg.qr(self.rng.normal(size=(INPUTS, 2)))[0].T
        self.best_KD = np.stack([KNOWN * self._slow_D, self._late_D])
        self._truth = self.slice(TRUTH_S)

    def slice(self, seconds: int = SLICE_S) -> SenderSlice:
        """Return a slice of the next `seconds` seconds."""
        per_s = DECISIONS_PER_S * HORIZON
        n = seconds * per_s
        x_ND = self.rng.normal(size=(n, INPUTS))
        slow_N, late_N = (
            KNOWN * (x_ND @ one_D) + np.sqrt(1 - KNOWN**2) * self.rng.normal(size=n)
            for one_D in (self._slow_D, self._late_D)
        )
        episode_N = np.repeat(self.rng.random(seconds) < EPISODES, per_s)
        late_log_N = np.log(1.6) + self.rng.exponential(0.2, n)
        log_N = np.where(episode_N & (late_N > LATE_FROM), late_log_N, SPREAD * slow_N)
        y_BH = (LAST_US * np.exp(log_N)).reshape(-1, HORIZON)
        candidates_BHF = np.full((*y_BH.shape, len(FEATURES)), LAST_US, np.float32)
        for column in (0, 2):  # the sender's and the queue's columns hold another flow's latency
            candidates_BHF[..., column] *= np.exp(SPREAD * self.rng.normal(size=y_BH.shape))
        decision_ns_B = self._now_s * 10**9 + np.arange(len(y_BH), dtype=np.int64) * 10**9 // DECISIONS_PER_S
        self._now_s += 10 * seconds
        return SenderSlice(
            x_ND, HeldOutDecisions(candidates_BHF, y_BH.astype(np.float32), decision_ns_B, FEATURES)
        )

    def quality(self, head_KD: Floats) -> float:
        """Return the true average precision of a head."""
        return self._truth.figures(head_KD).average_precision or 0.0

    def moved(self, head_KD: Floats, share: float) -> Floats:
        """Return a head moved at random by a share of its length."""
        step_KD = self.rng.normal(size=head_KD.shape)
        lengths_K1 = (np.linalg.norm(one_KD, axis=1, keepdims=True) for one_KD in (head_KD, step_KD))
        moved_KD: Floats = head_KD + share * next(lengths_K1) * step_KD / next(lengths_K1)
        return moved_KD

    def turned(self, head_KD: Floats, goal: float) -> Floats:
        """Return the head, its row for late packets turned until its quality is `goal`.

        The log-error hardly changes: this is how one poisons a model.
        """
        length = np.linalg.norm(head_KD[1])
        side_D = head_KD[1] - (head_KD[1] @ self._late_D) * self._late_D
        side_D /= np.linalg.norm(side_D)

        def at(angle: float) -> Floats:
            late_D = length * (np.cos(angle) * self._late_D + np.sin(angle) * side_D)
            return np.stack([head_KD[0], late_D])

        low, high = 0.0, np.pi
        for _ in range(8):
            middle = (low + high) / 2
            low, high = (middle, high) if self.quality(at(middle)) > goal else (low, middle)
        return at(low)


def joined(slices: list[SenderSlice]) -> SenderSlice:
    """Return several slices joined to one."""
    parts = [one.held_out for one in slices]
    return SenderSlice(
        np.concatenate([one.x_ND for one in slices]),
        HeldOutDecisions(
            np.concatenate([part.candidates_BHF for part in parts]),
            np.concatenate([part.y_BH for part in parts]),
            np.concatenate([part.decision_ns_B for part in parts]),
            FEATURES,
        ),
    )


@dataclass(frozen=True)
class Challenge:
    """A challenger before a gate: the slices that judge, oldest first, and the heads it is compared with."""

    slices: list[SenderSlice]
    challenger_KD: Floats
    champion_KD: Floats
    reference_KD: Floats


def passes(asked: Challenge) -> bool:
    """Return whether the gate lets a challenger through."""
    all_ = joined(asked.slices)
    ours, theirs, reference = (
        gate.score(all_.predictions(head_KD), all_.held_out)
        for head_KD in (asked.challenger_KD, asked.champion_KD, asked.reference_KD)
    )
    naive = gate.score_naive(all_.held_out, LAST_US)
    return gate.judge(ours, theirs, naive, "", reference).passed


def passed_before(asked: Challenge) -> bool:
    """Return whether the old gate would pass it: by the newest slice, against the champion alone."""
    ours, theirs = (asked.slices[-1].figures(head_KD) for head_KD in (asked.challenger_KD, asked.champion_KD))
    one, other = ours.average_precision, theirs.average_precision
    late_well = one is None or other is None or one >= other - 0.02
    return late_well and (ours.log_mae or 0.0) <= (theirs.log_mae or 0.0) * 1.02


def run(asks: Gate, rounds: int, seed: int, challenge: NextHead) -> list[float]:
    """Return the true quality of the champion, at the start and after each round."""
    sender = SliceMaker(seed)
    champion_KD = reference_KD = sender.moved(sender.best_KD, START)
    found = [sender.quality(champion_KD)]
    slices = _first_slices(sender)
    for _ in range(rounds):
        slices.append(sender.slice())
        challenger_KD = challenge(sender, champion_KD)
        if asks(Challenge(list(slices), challenger_KD, champion_KD, reference_KD)):
            champion_KD = challenger_KD
        found.append(sender.quality(champion_KD))
    return found


def noise(sender: SliceMaker, champion_KD: Floats) -> Floats:
    """Return a challenger that learned nothing: its parent, moved at random."""
    return sender.moved(champion_KD, NOISE)


def poison(sender: SliceMaker, champion_KD: Floats) -> Floats:
    """Return a challenger that somebody made a little worse than its parent."""
    return sender.turned(champion_KD, sender.quality(champion_KD) - POISON)


def _first_slices(sender: SliceMaker) -> deque[SenderSlice]:
    """The slices before the first round's own, of as many as the gate looks at."""
    return deque((sender.slice() for _ in range(EARLIER)), EARLIER + 1)
