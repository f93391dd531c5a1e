"""The gate of LFQ's networks: may a challenger take the champion's place?

It is judged on environments that nothing was learned from: what part a network's reward has of the best
static limit's there. The rule and its bars are those of `models/registry/bars.py`. No network is to do worse
than the one limit that is best for all environments together. A paired bootstrap draws environments.

Shapes: N environments, R draws of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from models.registry import bars
from models.registry.bars import Floats, Gain, Verdict

FIGURE: Final = "part of the best limit's reward"
MARGIN: Final = 0.01
REFERENCE_MARGIN: Final = 0.005
DRAWS: Final = 1000
SEED: Final = 1  # of the draws: the same for all that are judged together


@dataclass(frozen=True)
class Scored:
    """What part of the best static limit's reward a rule gets in each environment (N,)."""

    part_N: Floats

    @property
    def mean(self) -> float:
        """Over all environments."""
        return float(self.part_N.mean())

    @property
    def drawn_R(self) -> Floats:
        """The mean in each draw of environments."""
        n = len(self.part_N)
        drawn_RN = np.random.default_rng(SEED).integers(n, size=(DRAWS, n))
        means_R: Floats = self.part_N[drawn_RN].mean(1)
        return means_R


def judge(
    challenger: Scored,
    champion: Scored | None,
    naive: Mapping[str, Scored],
    why_not: str,
    reference: Scored | None = None,
) -> Verdict:
    """Decide by `bars.decide`, whose arguments these are."""
    return bars.decide(challenger, champion, naive, _gains, why_not=why_not, reference=reference)


def _gains(ours: Scored, other: Scored, *, strict: bool = False) -> list[Gain]:
    margin = REFERENCE_MARGIN if strict else MARGIN
    ends = bars.ends(ours.drawn_R - other.drawn_R)
    return [Gain(FIGURE, ours.mean, other.mean, ours.mean - other.mean, margin, *ends)]
