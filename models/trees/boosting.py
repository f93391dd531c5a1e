"""Boost trees of log-latency with XGBoost.

Shapes: N packets, F inputs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.models.scoring.metrics import Bools, Floats

if TYPE_CHECKING:
    import xgboost

CONTINUED_SHARE: Final = 0.1  # extra trees per fine-tuning round, as a share of the trees of pre-training
TREE_PARAMS: Final = {
    "objective": "reg:squarederror",  # squared error of the log-latency
    "tree_method": "hist",
    "subsample": 0.5,
    "nthread": 2,
}


@dataclass(frozen=True)
class Growth:
    """Parameters of the growth of trees.

    They were chosen on the last fifth of the pre-training slices of simulated traces, never on a test slice:
    the usual depth 6 with small leaves memorises episodes (docs/EVALUATION.md has the figures).
    """

    depth: int = 3
    learning_rate: float = 0.1
    leaf_share: float = 1 / 60  # least share of the rows in a leaf: packets of one episode are near copies


class BoostedTrees:
    """XGBoost trees on derived inputs of a packet about to be sent, by squared error of log-latency."""

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
        """Write the trees in XGBoost's own form, which holds no code; the suffix is `.ubj` or `.json`."""
        self._booster.save_model(path)

    @classmethod
    def load(cls, path: Path, rounds: int, seed: int, growth: Growth = Growth()) -> BoostedTrees:
        """Read trees that `save` wrote.

        Raises:
            FileNotFoundError: the file is missing.
            ValueError: the file is damaged.
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

    def described(self) -> dict[str, Any]:
        """Return the trees as XGBoost's JSON."""
        return dict(json.loads(bytes(self._booster.save_raw("json"))))

    def predict(self, x_NF: NDArray[np.float32]) -> Floats:
        """Return latencies in µs, (N,)."""
        import xgboost

        if not len(x_NF):
            return np.zeros(0)
        log_latency: Floats = self._booster.predict(xgboost.DMatrix(x_NF, nthread=2)).astype(np.float64)
        return np.exp(log_latency)

    def loss(self, x_NF: NDArray[np.float32], y_N: Floats) -> float:
        """Return the mean squared error of log-latency where the latency is known."""
        known = np.isfinite(y_N)
        error_N = np.log(self.predict(x_NF[known])) - np.log(np.maximum(y_N[known], 1.0))
        return float(np.mean(error_N**2))


def _boost(
    x_NF: NDArray[np.float32], y_N: Floats, rounds: int, seed: int, growth: Growth, onto: Any = None
) -> xgboost.Booster:
    import xgboost

    known: Bools = np.isfinite(y_N)
    if not known.any():
        raise ValueError("no packet of the training slice has a latency acknowledged before the slice ends")
    target = np.log(np.maximum(y_N[known], 1.0))  # 1 µs is the resolution of a capture
    data = xgboost.DMatrix(x_NF[known], label=target, nthread=2)
    settings = {
        **TREE_PARAMS,
        "seed": seed,
        "max_depth": growth.depth,
        "eta": growth.learning_rate,
        "min_child_weight": max(1.0, growth.leaf_share * known.sum()),
    }
    return xgboost.train(settings, data, num_boost_round=rounds, xgb_model=onto)
