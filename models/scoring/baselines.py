"""Baselines that a predictor must beat, each with exactly the information the predictor has.

A latency counts only if `acked_ns <= decision_ns`. The last visible latencies and the trees read the tokens
of the packets about to be sent, which carry nothing else; the EWMA reads the log of latencies up to the
decision.

Shapes: `B` windows, `H` horizon (8 packets), `F` features, `N` packets in send order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from models.scoring.metrics import Bools, Floats

if TYPE_CHECKING:
    import xgboost

LAST_VISIBLE: Final = {
    "last_sender": "last_latency_us",
    "last_flow": "last_latency_flow_us",
    "last_queue": "last_latency_queue_us",
}
EWMA_ALPHA: Final = 1 / 8  # RFC 6298 section 2.3: SRTT <- 7/8 SRTT + 1/8 R
GAP_US: Final = 20_000.0  # a queue drains while nothing is sent: predict a drop from this send gap on
CONTINUED_SHARE: Final = 0.1  # extra trees per fine-tuning round, of the trees of pre-training
TREE_PARAMS: Final = {
    "objective": "reg:squarederror",  # of the log-latency
    "tree_method": "hist",
    "subsample": 0.5,
    "nthread": 2,
}
# Of a packet about to be sent, its own latency is what is asked for; the age of its flow and the codes of
# flow and receiver let trees learn the time and the flow of an episode by heart (the network has them).
NOT_INPUTS: Final = frozenset(
    {"latency_us", "latency_visible", "candidate", "flow_age_us"}
    | {"previous_latency_flow_us", "ack", "place"}  # of the event stream; the place is added to each row
    | {f"flow_code_{i}" for i in range(4)}
    | {f"receiver_code_{i}" for i in range(2)}
)


@dataclass(frozen=True)
class Growth:
    """How trees grow.

    Chosen on the last fifth of the pre-training slices of simulated traces, never on a test slice: the usual
    depth 6 with small leaves learns episodes by heart (docs/EVALUATION.md has the figures).
    """

    depth: int = 3
    learning_rate: float = 0.1
    leaf_share: float = 1 / 60  # of the rows, in a leaf at least: packets of one episode are near copies


@dataclass(frozen=True)
class Candidates:
    """The tokens of the packets about to be sent."""

    x_BHF: NDArray[np.float32]  # raw units
    names: tuple[str, ...]  # of the F features

    def column(self, name: str) -> Floats:
        """One feature, (B, H); a ValueError names a feature the windows do not have."""
        if name not in self.names:
            raise ValueError(f"windows have no feature {name!r} (they have {', '.join(self.names)})")
        return self.x_BHF[..., self.names.index(name)].astype(np.float64)


def last_visible(candidates: Candidates, method: str, otherwise_us: float) -> Floats:
    """Repeat the last visible latency of the sender, the packet's flow or its queue; (B, H) in µs.

    Where there is none of that flow or queue, the sender's; where there is none at all, `otherwise_us`.
    """
    sender = candidates.column(LAST_VISIBLE["last_sender"])
    sender = np.where(sender > 0, sender, otherwise_us)
    own = candidates.column(LAST_VISIBLE[method])
    return np.where(own > 0, own, sender)


def ewma(log: pl.DataFrame, asked: pl.DataFrame, otherwise_N: Floats) -> Floats:
    """Smoothed latency of each packet's flow at its decision, (N,) in µs.

    `log` has a row per latency that becomes known: `flow_id`, `at` (when it does), `latency_us`.
    `asked` has a row per packet: `flow_id`, `at` (its decision); a latency known at that very time counts.
    `otherwise_N` is the prediction where no latency of the flow is known yet.
    """
    smoothed = (
        log.sort("at", maintain_order=True)
        .with_columns(
            pl.col("latency_us").cast(pl.Float64).ewm_mean(alpha=EWMA_ALPHA, adjust=False).over("flow_id")
        )
        .unique(["flow_id", "at"], keep="last", maintain_order=True)
    )
    joined = (
        asked.select("flow_id", "at")
        .with_row_index("row")
        .sort("at", maintain_order=True)
        .join_asof(smoothed, on="at", by="flow_id", strategy="backward", check_sortedness=False)
        .sort("row")
    )
    known = joined["latency_us"].to_numpy()
    return np.where(np.isfinite(known), known, otherwise_N)


def send_gap_direction(candidates: Candidates) -> NDArray[np.int8]:
    """Apply the rule 'a send gap of at least 20 ms means a drop': -1, else 0; (B, H).

    At the decision the gap is known for the first packet of the batch only, for the rule as for the model.
    """
    return -(candidates.column("gap_us") >= GAP_US).astype(np.int8)


def tree_inputs(candidates: Candidates) -> NDArray[np.float32]:
    """Give each packet about to be sent a row: its token and its place in the batch; (B * H, features).

    Of no window too: a fine-tuning slice in which the sender was silent.
    """
    batches, horizon, _ = candidates.x_BHF.shape
    kept = [i for i, name in enumerate(candidates.names) if name not in NOT_INPUTS]
    place = np.broadcast_to(np.arange(horizon, dtype=np.float32)[None, :, None], (batches, horizon, 1))
    return np.concatenate([candidates.x_BHF[..., kept], place], axis=2).reshape(
        batches * horizon, len(kept) + 1
    )


class BoostedTrees:
    """XGBoost on the derived inputs of the packet about to be sent, squared error of the log-latency."""

    def __init__(self, booster: xgboost.Booster, rounds: int, seed: int, growth: Growth = Growth()) -> None:
        self._booster, self._rounds, self.seed, self._growth = booster, rounds, seed, growth

    @classmethod
    def fit(
        cls, x_NF: NDArray[np.float32], y_N: Floats, *, rounds: int, seed: int, growth: Growth = Growth()
    ) -> BoostedTrees:
        """Train `rounds` trees; rows of unknown latency (NaN) are left out, and one must be known."""
        return cls(_boost(x_NF, y_N, rounds, seed, growth), rounds, seed, growth)

    def continued(self, x_NF: NDArray[np.float32], y_N: Floats) -> BoostedTrees:
        """Add trees fitted to a fine-tuning slice; without a known latency there, the same trees."""
        if not np.isfinite(y_N).any():
            return self
        extra = max(1, round(self._rounds * CONTINUED_SHARE))
        more = _boost(x_NF, y_N, extra, self.seed, self._growth, self._booster)
        return BoostedTrees(more, self._rounds, self.seed, self._growth)

    def save(self, path: Path) -> None:
        """Write them in XGBoost's own form, which holds no code; the suffix says which: `.ubj` or `.json`."""
        self._booster.save_model(path)

    @classmethod
    def load(cls, path: Path, rounds: int, seed: int, growth: Growth = Growth()) -> BoostedTrees:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: it is not there.
            ValueError: it is damaged.
        """
        import xgboost

        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")
        booster = xgboost.Booster()
        try:
            booster.load_model(path)
        except xgboost.core.XGBoostError as error:
            raise ValueError(f"{path}: no trees ({str(error).splitlines()[0]})") from None
        return cls(booster, rounds, seed, growth)

    def predict(self, x_NF: NDArray[np.float32]) -> Floats:
        """Latencies in µs, (N,)."""
        import xgboost

        if not len(x_NF):
            return np.zeros(0)
        log_latency: Floats = self._booster.predict(xgboost.DMatrix(x_NF, nthread=2)).astype(np.float64)
        return np.exp(log_latency)


def _boost(
    x_NF: NDArray[np.float32], y_N: Floats, rounds: int, seed: int, growth: Growth, onto: Any = None
) -> xgboost.Booster:
    import xgboost

    known: Bools = np.isfinite(y_N)
    if not known.any():
        raise ValueError("no packet of the training slice has a latency acknowledged before the slice ends")
    target = np.log(np.maximum(y_N[known], 1.0))  # the resolution of a capture is 1 µs
    data = xgboost.DMatrix(x_NF[known], label=target, nthread=2)
    settings = {
        **TREE_PARAMS,
        "seed": seed,
        "max_depth": growth.depth,
        "eta": growth.learning_rate,
        "min_child_weight": max(1.0, growth.leaf_share * known.sum()),
    }
    return xgboost.train(settings, data, num_boost_round=rounds, xgb_model=onto)
