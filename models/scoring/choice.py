"""Score the choice between two queues, where both waits are known or packets were explored.

Shapes: N packets, R draws of blocks of time.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feature_store.packets.schema import QUEUES
from models.scoring.intervals import over_time
from models.scoring.metrics import EPISODE_NS, Bools, Floats, Ints, block_draws, mae_draws

RULES = (0.25, 0.4, 0.5, 0.6, 0.75)  # least probabilities at which the rules move a packet
PACKET_US = 480.0  # time of 1,500 bytes at 25 Mbit/s; a smaller difference between the queues does not count


def score_choice(
    classic_N: NDArray[np.bool_], classic_us_N: Floats, l4s_us_N: Floats, time_ns_N: Ints, seed: int
) -> tuple[dict[str, Any], Floats | None]:
    """Score a choice of the classic queue; regret is the chosen queue's wait less the shorter one's.

    The scores include the regrets of never moving and of always moving, and how often the shorter queue was
    chosen where the two differ by a packet's time or more. Packets whose waits are NaN are left out.

    Returns:
        The scores, and the mean regret in ms of each draw of blocks of time (R,); None if no packet is known.
    """
    known = np.isfinite(classic_us_N) & np.isfinite(l4s_us_N)
    if not known.any():
        names = ("regret_ms", "never_ms", "always_ms", "right", "moved", "shorter_is_classic")
        return {"n": 0, **dict.fromkeys(names)}, None
    more = (classic_us_N - l4s_us_N)[known]  # the classic queue's wait less the other's
    classic = classic_N[known]
    regret = np.maximum(0.0, np.where(classic, more, -more))
    apart = np.abs(more) >= PACKET_US
    block_N, draws = block_draws(time_ns_N[known], seed, EPISODE_NS)
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


def movable_and_moved(packets: pl.DataFrame) -> tuple[Bools, Bools]:
    """Return which packets (N,) of a table a sender may move, and which were moved.

    A flow is L4S if most of its packets went there; those of its packets sent as classic were moved. The
    table does not say why: a controller's moves are no exploration, and `score_explored` would be wrong.
    """
    l4s = packets.select(
        (pl.col("queue") == QUEUES[1]).alias("l4s"),
        ((pl.col("queue") == QUEUES[1]).mean().over("flow_id") > 0.5).alias("movable"),
    )
    movable = l4s["movable"].to_numpy()
    return movable, movable & ~l4s["l4s"].to_numpy()


def score_explored(
    classic_N: Bools, moved_N: Bools, us_N: Floats, share: float, time_ns_N: Ints, seed: int
) -> dict[str, Any]:
    """Estimate what a choice gains over never moving, from packets that were moved at random.

    A packet counts if the choice would have sent it where it went, with the inverse of the probability of
    going there (Horvitz, Thompson 1952; normalised by the weights, as Hajek). The result estimates `never_ms`
    less `regret_ms`. One packet does not tell the shorter of two waits, so regret itself is unknown. Delays
    of other packets by a moved one are ignored, as there.

    Args:
        classic_N: packets that the choice would have sent to the classic queue.
        moved_N: packets that were sent there at random.
        us_N: latencies in µs; NaN: unknown, left out.
        share: probability with which packets were moved.
        time_ns_N: times of the decisions in ns.
        seed: seed of the draws of blocks of time.

    Returns:
        `n`, `n_told` (moved packets that tell of the choice's moves), `gain_ms` and its interval; None if no
        packet counts.

    Raises:
        ValueError: the share is not between 0 and 1.
    """
    if not 0 < share < 1:
        raise ValueError(f"the share of explored packets is {share:g}; it must be above 0, below 1")
    known = np.isfinite(us_N)
    classic, moved, ms = classic_N[known], moved_N[known], us_N[known] / 1e3
    chance = np.where(moved, share, 1 - share)
    chosen, never = (classic == moved) / chance, ~moved / chance
    told = int((classic & moved).sum())
    found: dict[str, Any] = {"n": int(known.sum()), "n_told": told, "gain_ms": None, "gain_ms_95": None}
    if not never.any() or (classic.any() and not told):
        return found
    block_N, draws = block_draws(time_ns_N[known], seed, EPISODE_NS)

    def mean(weight: Floats, drawn: Floats) -> Floats:
        sums, weights = (
            drawn @ np.bincount(block_N, each, minlength=drawn.shape[1]) for each in (weight * ms, weight)
        )
        return np.divide(sums, weights, out=np.full_like(sums, np.nan), where=weights > 0)

    whole = np.ones((1, draws.shape[1]))
    gain = float((mean(never, whole) - mean(chosen, whole))[0])
    found["gain_ms"] = gain
    found["gain_ms_95"] = over_time(gain, mean(never, draws) - mean(chosen, draws), draws.shape[1])
    return found


def score_sooner(
    sooner_N: Floats, classic_us_N: Floats, l4s_us_N: Floats, time_ns_N: Ints, seed: int
) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Score the probability that the classic queue is the shorter one.

    The scores are its Brier score, the Brier score of the base rate, and for each of `RULES` the regret of
    moving the packets above that probability. Packets whose waits are NaN are left out.

    Returns:
        The scores, and the draws of blocks of time (R,) of each rule's regret by its name.
    """
    known = np.isfinite(classic_us_N) & np.isfinite(l4s_us_N)
    if not known.any():
        return dict.fromkeys(("brier", "brier_of_share", *RULED)), {}
    more, sooner = (classic_us_N - l4s_us_N)[known], sooner_N[known]
    shorter = more < 0
    block_N, draws = block_draws(time_ns_N[known], seed, EPISODE_NS)
    scores = {
        "brier": float(np.square(sooner - shorter).mean()),
        "brier_of_share": float(shorter.mean() * (1 - shorter.mean())),
    }
    drawn = {}
    for rule, name in zip(RULES, RULED, strict=True):
        regret = np.maximum(0.0, np.where(sooner >= rule, more, -more))
        scores[name] = float(regret.mean()) / 1e3
        drawn[name] = mae_draws(regret, np.zeros_like(regret), block_N, draws)
    return scores, drawn


def rule_name(rule: float) -> str:
    """Return the name of a rule's regret."""
    return f"regret_at_{100 * rule:.0f}_ms"


RULED: Final = tuple(map(rule_name, RULES))
EVEN: Final = rule_name(0.5)  # name of the rule that the others are compared with
