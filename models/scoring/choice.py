"""Score the choice between two queues, where both waits are known.

Shapes: N packets, R draws of blocks of time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from swiftqueue.models.scoring.metrics import EPISODE_NS, Floats, Ints, block_draws, mae_draws

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
