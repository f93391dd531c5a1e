"""Scores of latency predictions: late packets, absolute error, sharp changes.

Shapes: `B` windows, `H` horizon (8 packets), `N` packets in send order, `R` bootstrap replicates.
Latencies are microseconds; scores report milliseconds. What cannot be computed is `None`, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

CHANGE_US: Final = 20_000.0  # SwiftQueue: a change counts from 20 ms on ...
CHANGE_SHARE: Final = 0.20  # ... if it is 20 % or more of the latency before it as well
REPLICATES: Final = 200  # bootstrap draws behind each interval
BLOCK_NS: Final = 1_000_000_000  # errors are correlated within a congestion epoch: resample whole seconds
INTERVAL: Final = (2.5, 97.5)  # percentiles of a 95 % interval


class PrecisionRecall(NamedTuple):
    """Counts at every distinct threshold, from the strictest to the most lenient."""

    true_positives: Ints
    false_positives: Ints
    positives: int
    negatives: int

    @property
    def precision(self) -> Floats:
        """Share of alarms that are right, per threshold."""
        return self.true_positives / (self.true_positives + self.false_positives)

    @property
    def recall(self) -> Floats:
        """Share of positives that raise an alarm, per threshold; there must be a positive."""
        return self.true_positives / self.positives


class ChangeCounts(NamedTuple):
    """How often a sharp change was there, was predicted, and was predicted in the right direction."""

    true: int
    predicted: int
    right: int

    def summary(self) -> dict[str, float | int | None]:
        """Return precision, recall, F1 and the counts behind them."""
        return {
            "precision": self.right / self.predicted if self.predicted else None,
            "recall": self.right / self.true if self.true else None,
            "f1": 2 * self.right / (self.true + self.predicted) if self.true + self.predicted else None,
            "n_true": self.true,
            "n_predicted": self.predicted,
            "n_right": self.right,
        }


def late_margin(latency_us: NDArray[Any], last_us: NDArray[Any]) -> Floats:
    """How far a latency lies above the last visible one of its flow; late from 1 on (DESIGN, definitions).

    `min((t - l) / 20 ms, (t / l - 1) / 20 %)`, so both conditions hold exactly when it is at least 1.
    `last_us` that is not above zero means that no latency of the flow is visible: the margin is NaN.
    """
    latency = np.asarray(latency_us, dtype=np.float64)
    last = np.asarray(last_us, dtype=np.float64)
    last = np.where(last > 0, last, np.nan)
    return np.minimum((latency - last) / CHANGE_US, (latency - last) / (CHANGE_SHARE * last))


def change_direction(latency_us: NDArray[Any], before_us: NDArray[Any]) -> NDArray[np.int8]:
    """Direction of a sharp change: +1 a rise, -1 a drop, 0 neither (at least 20 ms and 20 % of `before`)."""
    before = np.asarray(before_us, dtype=np.float64)
    change = np.asarray(latency_us, dtype=np.float64) - before
    sharp = (np.abs(change) >= CHANGE_US) & (np.abs(change) >= CHANGE_SHARE * np.abs(before))
    return np.where(sharp, np.sign(change), 0).astype(np.int8)


def precision_recall(positive_N: Bools, score_N: Floats) -> PrecisionRecall:
    """Sweep the threshold over the distinct scores: packets with equal scores are alarmed together."""
    order = np.argsort(-score_N, kind="stable")
    ends = _group_ends(score_N[order])
    true = np.cumsum(positive_N[order], dtype=np.int64)[ends]
    return PrecisionRecall(true, ends + 1 - true, int(positive_N.sum()), int((~positive_N).sum()))


def average_precision(positive_N: Bools, score_N: Floats) -> float | None:
    """Average precision, the sum of precision times the step in recall; None without a positive."""
    curve = precision_recall(positive_N, score_N)
    if not curve.positives:
        return None
    steps = np.diff(curve.true_positives, prepend=0)
    return float(steps @ curve.precision / curve.positives)


def recall_at_false_alarms(positive_N: Bools, score_N: Floats, rate: float) -> float | None:
    """Highest recall with at most `rate` false alarms per negative; None without a positive."""
    curve = precision_recall(positive_N, score_N)
    if not curve.positives:
        return None
    allowed = curve.false_positives <= rate * curve.negatives
    return float(np.max(curve.recall[allowed], initial=0.0))


def score_errors(pred_N: Floats, y_N: Floats) -> dict[str, Any]:
    """Mean and percentiles of the absolute error (ms), and the mean error of the log-latency."""
    names = ("mae_ms", "p50_ms", "p90_ms", "p99_ms", "log_mae")
    if not y_N.size:
        return dict.fromkeys(names)
    error_ms = np.abs(pred_N - y_N) / 1e3
    log_error = np.abs(np.log(np.maximum(pred_N, 1.0)) - np.log(np.maximum(y_N, 1.0)))  # 1 µs: resolution
    figures = [error_ms.mean(), *np.percentile(error_ms, [50, 90, 99]), log_error.mean()]
    return {name: float(figure) for name, figure in zip(names, figures, strict=True)}


def score_changes(true_N: NDArray[np.int8], predicted_N: NDArray[np.int8]) -> dict[str, Any]:
    """Precision, recall and F1 of sharp changes with direction: all, rises and drops apart.

    A change predicted in the wrong direction is a false alarm and a miss.
    """

    def count(directions: tuple[int, ...]) -> dict[str, Any]:
        true, predicted = np.isin(true_N, directions), np.isin(predicted_N, directions)
        right = true & (true_N == predicted_N)
        return ChangeCounts(int(true.sum()), int(predicted.sum()), int(right.sum())).summary()

    return {"all": count((-1, 1)), "rises": count((1,)), "drops": count((-1,))}


def pool_changes(scored: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Pool what `score_changes` gave for several traces: no change is counted across two traces."""
    names = ("n_true", "n_predicted", "n_right")
    return {
        part: ChangeCounts(*(sum(s[part][n] for s in scored) for n in names)).summary()
        for part in ("all", "rises", "drops")
    }


def block_draws(time_ns_N: Ints, seed: int, replicates: int = REPLICATES) -> tuple[Ints, Floats]:
    """Draw whole seconds with replacement (seeded): a block bootstrap over time.

    Gives the block number of each packet, (N,), and how often each draw takes each block, (R, blocks).
    """
    blocks, block_N = np.unique(time_ns_N // BLOCK_NS, return_inverse=True)
    rng = np.random.default_rng(seed)
    draws = rng.multinomial(blocks.size, np.full(blocks.size, 1 / blocks.size), size=replicates)
    return block_N.astype(np.int64), draws.astype(np.float64)


def mae_interval(pred_N: Floats, y_N: Floats, block_N: Ints, draws: Floats) -> list[float] | None:
    """95 % interval of the mean absolute error (ms) under draws of blocks, (R, blocks)."""
    if not y_N.size:
        return None
    blocks = draws.shape[1]
    error = draws @ np.bincount(block_N, np.abs(pred_N - y_N) / 1e3, minlength=blocks)
    packets = draws @ np.bincount(block_N, minlength=blocks).astype(np.float64)
    return _interval(error[packets > 0] / packets[packets > 0])


def average_precision_draws(positive_N: Bools, score_N: Floats, block_N: Ints, draws: Floats) -> Floats:
    """Average precision of each draw of blocks, (R,); NaN for a draw without a positive.

    Only thresholds at which recall steps matter, so packets are counted per (block, step): a draw is then
    one row of a small matrix product. Steps are taken in chunks, which bounds memory on long traces.
    """
    order = np.argsort(-score_N, kind="stable")
    positive, block = positive_N[order], block_N[order]
    ends = _group_ends(score_N[order])
    true = np.cumsum(positive, dtype=np.int64)[ends]
    stops = ends[np.diff(true, prepend=0) > 0] + 1  # one past the last packet of each step
    replicates, blocks = draws.shape
    seen, found, total = (np.zeros((replicates, 1)) for _ in range(3))
    per_chunk = max(1, 2_000_000 // blocks)
    for first in range(0, stops.size, per_chunk):
        chunk = stops[first : first + per_chunk]
        low, high = (stops[first - 1] if first else 0), chunk[-1]
        step = np.searchsorted(chunk, np.arange(low, high), side="right")
        cell, cells = block[low:high] * chunk.size + step, blocks * chunk.size
        packets = np.bincount(cell, minlength=cells).astype(np.float64).reshape(blocks, -1)
        positives = np.bincount(cell, positive[low:high], minlength=cells).reshape(blocks, -1)
        gained = draws @ positives  # (R, steps)
        all_seen, all_found = seen + np.cumsum(draws @ packets, axis=1), found + np.cumsum(gained, axis=1)
        total += np.sum(gained * all_found / np.maximum(all_seen, 1), axis=1, keepdims=True)
        seen, found = all_seen[:, -1:], all_found[:, -1:]
    with np.errstate(invalid="ignore"):
        result: Floats = (total / found)[:, 0]
    return result


def score_late(
    pred_N: Floats, y_N: Floats, last_N: Floats, *, false_alarm_rate: float
) -> tuple[dict[str, Any], Bools, Floats]:
    """Score late packets; returns the figures, which packets are late, and their predicted margins.

    Packets of unknown latency, or of a flow without a visible latency, are left out and counted.
    """
    margin, predicted = late_margin(y_N, last_N), late_margin(pred_N, last_N)
    scored = np.isfinite(margin) & np.isfinite(predicted)
    late, predicted = margin[scored] >= 1, predicted[scored]
    figures = {
        "average_precision": average_precision(late, predicted),
        "recall_at_false_alarms": recall_at_false_alarms(late, predicted, false_alarm_rate),
        "false_alarm_rate": false_alarm_rate,
        "base_rate": float(late.mean()) if late.size else None,
        "n": int(late.size),
        "n_late": int(late.sum()),
        "n_without_reference": int(np.isfinite(y_N).sum() - late.size),
    }
    return figures, late, predicted


def score_predictions(
    pred_BH: NDArray[Any],
    y_BH: NDArray[Any],
    last_flow_BH: NDArray[Any],
    *,
    time_ns_B: Ints | None = None,
    false_alarm_rate: float = 0.01,
    seed: int = 1,
) -> dict[str, Any]:
    """Score predicted latencies (µs) of windows in time order against the true ones (NaN where unknown).

    `last_flow_BH` is the last latency of each packet's flow visible at the decision (zero or NaN: none).
    With `time_ns_B`, average precision and mean absolute error get seeded 95 % intervals.

    The result is `{"n", "late": {...}, "error": {...}, "sharp": {"prediction_change": {...},
    "truth_change": {...}}}`; every figure is a finite number or None.

    A ValueError says that the shapes differ or that a prediction is not a finite number.
    """
    if not (np.shape(pred_BH) == np.shape(y_BH) == np.shape(last_flow_BH)):
        shapes = ", ".join(str(np.shape(a)) for a in (pred_BH, y_BH, last_flow_BH))
        raise ValueError(f"predictions, latencies and last latencies differ in shape: {shapes}")
    pred, y, last = (np.asarray(a, dtype=np.float64).ravel() for a in (pred_BH, y_BH, last_flow_BH))
    if not np.isfinite(pred).all():
        raise ValueError(f"{np.sum(~np.isfinite(pred))} of {pred.size} predictions are not finite numbers")
    known = np.isfinite(y)
    late, positive, margin = score_late(pred, y, last, false_alarm_rate=false_alarm_rate)
    error = score_errors(pred[known], y[known])
    if time_ns_B is not None and pred.size:
        block_N, draws = block_draws(np.repeat(time_ns_B, np.shape(pred_BH)[1]), seed)
        scored = known & (last > 0)
        replicates = average_precision_draws(positive, margin, block_N[scored], draws)
        late["average_precision_95"] = _interval(replicates)
        error["mae_ms_95"] = mae_interval(pred[known], y[known], block_N[known], draws)
    return {"n": int(known.sum()), "late": late, "error": error, "sharp": _score_sharp(pred[known], y[known])}


def _score_sharp(pred_N: Floats, y_N: Floats) -> dict[str, Any]:
    """Both variants: the predicted change from the last prediction, and from the last true latency."""
    true = change_direction(y_N[1:], y_N[:-1])
    return {
        "prediction_change": score_changes(true, change_direction(pred_N[1:], pred_N[:-1])),
        "truth_change": score_changes(true, change_direction(pred_N[1:], y_N[:-1])),
    }


def _group_ends(sorted_N: Floats) -> Ints:
    """Index of the last packet of each run of equal scores."""
    if not sorted_N.size:
        return np.zeros(0, dtype=np.int64)
    return np.append(np.flatnonzero(np.diff(sorted_N)), sorted_N.size - 1).astype(np.int64)


def _interval(replicates: Floats) -> list[float] | None:
    """Percentile interval over the replicates that have a value."""
    finite = replicates[np.isfinite(replicates)]
    if not finite.size:
        return None
    low, high = np.percentile(finite, INTERVAL)
    return None if math.isnan(low) else [float(low), float(high)]
