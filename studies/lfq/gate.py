"""Decide whether a challenger among LFQ's networks may take the champion's place.

The figure is a network's reward as a part of the best static limit's reward, in environments that no network
learned from. The rule and its bars are those of `models/registry/bars.py`, and no network may do worse than
the one limit that is best for all environments together. A paired bootstrap draws environments.

Shapes: N environments, R draws of the bootstrap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from swiftqueue.models.registry import bars
from swiftqueue.models.registry.bars import Floats, Gain
from swiftqueue.models.scoring.metrics import SECOND_NS, block_draws

FIGURE: Final = "part of the best limit's reward"
MARGIN: Final = 0.01
REFERENCE_MARGIN: Final = 0.005
SEED: Final = 1  # seed of the draws, the same for all that are judged together


@dataclass(frozen=True)
class LimitScores:
    """The parts of the best static limit's reward that a rule gets in each environment (N,)."""

    part_N: Floats

    @property
    def mean(self) -> float:
        """Return the mean over all environments."""
        return float(self.part_N.mean())

    @cached_property
    def drawn_R(self) -> Floats:
        """Return the mean in each draw of environments; an environment is a block of its own."""
        n = len(self.part_N)
        _, draws_RN = block_draws(np.arange(n) * SECOND_NS, SEED)
        means_R: Floats = draws_RN @ self.part_N / n
        return means_R


def gains(ours: LimitScores, other: LimitScores, *, strict: bool = False) -> list[Gain]:
    """Return the gain of `ours` over another; `strict` applies the reference's smaller margin."""
    margin = REFERENCE_MARGIN if strict else MARGIN
    ends = bars.ends(ours.drawn_R - other.drawn_R)
    return [Gain(FIGURE, ours.mean, other.mean, ours.mean - other.mean, margin, *ends, relative=False)]
