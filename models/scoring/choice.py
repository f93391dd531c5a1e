"""Scores of the choice between two queues, where the waiting in both is known.

Shapes: N packets, R draws of seconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.scoring.metrics import Floats, Ints, block_draws, mae_draws

RULES = (0.25, 0.4, 0.5, 0.6, 0.75)  # probabilities from which a packet is moved
PACKET_US = 480.0  # of 1,500 bytes at 25 Mbit/s: queues that differ by less are as good as each other


def score_choice(
    classic_N: NDArray[np.bool_], classic_us_N: Floats, l4s_us_N: Floats, time_ns_N: Ints, seed: int
) -> tuple[dict[str, Any], Floats | None]:
    """Score who chose the classic queue: regret is the wait in the chosen queue less that in the shorter.

    Beside it stand the regrets of never moving and of always moving, and how often the shorter queue was
    chosen where the two differ by a packet's time or more. Packets whose waits are NaN are left out.

    Returns:
        The scores, and the mean regret in ms of each draw of seconds (R,); None where no packet is known.
    """
    known = np.isfinite(classic_us_N) & np.isfinite(l4s_us_N)
    if not known.any():
        names = ("regret_ms", "never_ms", "always_ms", "right", "moved", "shorter_is_classic")
        return {"n": 0, **dict.fromkeys(names)}, None
    more = (classic_us_N - l4s_us_N)[known]  # the classic queue's wait less the other's
    classic = classic_N[known]
    regret = np.maximum(0.0, np.where(classic, more, -more))
    apart = np.abs(more) >= PACKET_US
    block_N, draws = block_draws(time_ns_N[known], seed)
    scores = {
        "n": int(known.sum()),
        "regret_ms": float(regret.mean()) / 1e3,
        "never_ms": float(np.maximum(0, -more).mean()) / 1e3,
        "always_ms": float(np.maximum(0, more).mean()) / 1e3,
        "right": float((classic == (more < 0))[apart].mean()) if apart.any() else None,
        "moved": float(classic.mean()),
        "shorter_is_classic": float((more < -PACKET_US).mean()),
    }
    return scores, mae_draws(regret, np.zeros_like(regret), block_N, draws)


def score_sooner(
    sooner_N: Floats, classic_us_N: Floats, l4s_us_N: Floats, time_ns_N: Ints, seed: int
) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Score the probability that the classic queue is the shorter one.

    Its Brier score, and for each of `RULES` the regret of whoever moves what is that probable; beside it the
    Brier score of always saying how often it is. Packets whose waits are NaN are left out.

    Returns:
        The scores, and of each rule's regret, by its name, the draws of seconds (R,).
    """
    known = np.isfinite(classic_us_N) & np.isfinite(l4s_us_N)
    names = [rule_name(rule) for rule in RULES]
    if not known.any():
        return dict.fromkeys(("brier", "brier_of_share", *names)), {}
    more, sooner = (classic_us_N - l4s_us_N)[known], sooner_N[known]
    shorter = more < 0
    block_N, draws = block_draws(time_ns_N[known], seed)
    scores = {
        "brier": float(np.square(sooner - shorter).mean()),
        "brier_of_share": float(shorter.mean() * (1 - shorter.mean())),
    }
    drawn = {}
    for rule, name in zip(RULES, names, strict=True):
        regret = np.maximum(0.0, np.where(sooner >= rule, more, -more))
        scores[name] = float(regret.mean()) / 1e3
        drawn[name] = mae_draws(regret, np.zeros_like(regret), block_N, draws)
    return scores, drawn


def rule_name(rule: float) -> str:
    """Name of the regret of a rule."""
    return f"regret_at_{100 * rule:.0f}_ms"
