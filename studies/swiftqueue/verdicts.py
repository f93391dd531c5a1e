"""When an exhibit's claim is reproduced, refuted or not settled: one rule, fixed before any row was computed.

A claim is put as questions. A question is a contrast for each seed, above 0 where the claim holds in that
seed: of "A's F1 is 45 % above B's", F1 of A less 1.45 times F1 of B. So nothing is divided by a score that
may be 0. A seed is one draw of all: of the traffic, and of the training.

- A question is *reproduced* where the 95 % interval of its mean (Student's t over seeds) lies above 0,
  *refuted* where it lies below, else *not settled*.
- An exhibit is reproduced where each of its questions is: all must hold, so no correction is needed. It is
  refuted where one still is after correction for how many it asks (Holm 1979). Else it is not settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from swiftqueue.models.scoring.intervals import LEVEL, Estimate, corrected, estimate

REPRODUCED: Final = "reproduced"
REFUTED: Final = "refuted"
NOT_SETTLED: Final = "not settled"
NOT_RUN: Final = "not run"


@dataclass(frozen=True)
class Answer:
    """The seeds' answer to a question."""

    where: str  # trace and whom it is compared with
    ours: float  # mean of what is claimed to be better
    other: float  # mean of what it is compared with
    contrast: Estimate

    @property
    def verdict(self) -> str:
        """Return the verdict on the question alone."""
        if self.contrast.above(0):
            return REPRODUCED
        return REFUTED if self.contrast.below(0) else NOT_SETTLED


def answer(where: str, pairs: Sequence[tuple[float, float]], factor: float) -> Answer | None:
    """Ask whether the first is at least `factor` times the second, by seed; None without a pair."""
    contrast = estimate([ours - factor * other for ours, other in pairs])
    if contrast is None:
        return None
    ours, other = (sum(pair[side] for pair in pairs) / len(pairs) for side in (0, 1))
    return Answer(where, ours, other, contrast)


def verdict(answers: Sequence[Answer]) -> str:
    """Return the verdict on an exhibit with these answers; none means that it was not run."""
    if not answers:
        return NOT_RUN
    if all(each.verdict == REPRODUCED for each in answers):
        return REPRODUCED
    chances = corrected([each.contrast.chance(0, below=True) for each in answers])
    return REFUTED if min(chances) < (1 - LEVEL) / 2 else NOT_SETTLED
