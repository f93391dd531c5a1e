"""Score latency predictions: late packets, absolute error, sharp changes.

Shapes: `B` decisions, `H` horizon (8 packets), `N` packets in send order, `R` bootstrap replicates.
Latencies are microseconds; scores report milliseconds. Undefined figures are `None`, never NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swiftqueue.models.scoring.intervals import over_time
from swiftqueue.models.sharp import PAPERS, Change, change_direction

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

REPLICATES: Final = 200  # bootstrap draws behind each interval
SECOND_NS: Final = 1_000_000_000
# Errors are alike within a congestion episode, and episodes last seconds: blocks of one second would
# settle differences that are not there (docs/results/intervals.md).
EPISODE_NS: Final = 5 * SECOND_NS
CHUNK_CELLS: Final = 1_000_000  # (block, step) counts held at once by the bootstrap


class PrecisionRecall(NamedTuple):
    """Counts at every distinct threshold, from the strictest to the most lenient."""

    order: Ints  # packets by falling score
    ends: Ints  # index of the last packet alarmed at each threshold, in that order
    true_positives: Ints  # count at each threshold
    positives: int
    negatives: int

    @property
    def false_positives(self) -> Ints:
        """Return the number of false alarms per threshold."""
        return self.ends + 1 - self.true_positives

    @property
    def precision(self) -> Floats:
        """Return the share of alarms that are right per threshold."""
        return self.true_positives / (self.ends + 1)

    @property
    def recall(self) -> Floats:
        """Return the share of positives with an alarm per threshold; there must be a positive."""
        return self.true_positives / self.positives

    def average_precision(self) -> float | None:
        """Return the sum of precision times the step in recall; None without a positive."""
        if not self.positives:
            return None
        return float(np.diff(self.true_positives, prepend=0) @ self.precision / self.positives)

    def recall_at(self, rate: float) -> float | None:
        """Return the highest recall with at most `rate` false alarms per negative, or None."""
        if not self.positives:
            return None
        return float(np.max(self.recall[self.false_positives <= rate * self.negatives], initial=0.0))


class Replicates(NamedTuple):
    """Figures under each draw of the block bootstrap, (R,); NaN where a draw leaves one undefined.

    Methods scored on the same packets with the same seed have the same draws: differences are paired.
    """

    average_precision: Floats
    mae_ms: Floats
    blocks: int  # number of blocks of time that were drawn from


DRAWN: Final = ("average_precision", "mae_ms")


class ChangeCounts(NamedTuple):
    """Counts of sharp changes: true ones, predicted ones, and those predicted in the right direction."""

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


def late_margin(latency_us: NDArray[Any], last_us: NDArray[Any], change: Change = PAPERS) -> Floats:
    """Return how far a latency lies above the last visible one of its flow; it is late from 1 on.

    With the paper's change `min((t - l) / 20 ms, (t / l - 1) / 20 %)`: both hold exactly from 1 on.
    `last_us` that is not above zero means that no latency of the flow is visible: the margin is NaN.
    """
    latency = np.asarray(latency_us, dtype=np.float64)
    last = np.asarray(last_us, dtype=np.float64)
    last = np.where(last > 0, last, np.nan)
    return np.minimum((latency - last) / change.least_us, (latency - last) / (change.least_share * last))


def late_from(last_us: NDArray[Any], change: Change = PAPERS) -> Floats:
    """Return the least latency in µs that is late; NaN where no latency of the flow is visible."""
    last = np.asarray(last_us, dtype=np.float64)
    return np.where(last > 0, last + np.maximum(change.least_us, change.least_share * last), np.nan)


def precision_recall(positive_N: Bools, score_N: Floats) -> PrecisionRecall:
    """Sweep the threshold over the distinct scores: packets with equal scores are alarmed together."""
    order = np.argsort(-score_N)
    changes = np.flatnonzero(np.diff(score_N[order]))
    ends = np.append(changes, score_N.size - 1) if score_N.size else changes
    true = np.cumsum(positive_N[order], dtype=np.int64)[ends]
    positives = int(positive_N.sum())
    return PrecisionRecall(order, ends, true, positives, score_N.size - positives)


def score_errors(pred_N: Floats, y_N: Floats) -> dict[str, Any]:
    """Return mean and percentiles of the absolute error (ms), and the mean error of the log-latency."""
    names = ("mae_ms", "p50_ms", "p90_ms", "p99_ms", "log_mae")
    if not y_N.size:
        return dict.fromkeys(names)
    error_ms = np.abs(pred_N - y_N) / 1e3
    log_error = np.abs(np.log(np.maximum(pred_N, 1.0)) - np.log(np.maximum(y_N, 1.0)))  # 1 µs: resolution
    figures = [error_ms.mean(), *np.percentile(error_ms, [50, 90, 99]), log_error.mean()]
    return {name: float(figure) for name, figure in zip(names, figures, strict=True)}


def score_changes(true_N: NDArray[np.int8], predicted_N: NDArray[np.int8]) -> dict[str, Any]:
    """Return precision, recall and F1 of sharp changes with direction: all, rises and drops apart.

    A change predicted in the wrong direction is a false alarm and a miss.
    """
    rises, drops = (
        ChangeCounts(
            int(np.count_nonzero(true_N == direction)),
            int(np.count_nonzero(predicted_N == direction)),
            int(np.count_nonzero((true_N == direction) & (predicted_N == direction))),
        )
        for direction in (1, -1)
    )
    both = ChangeCounts(*(rise + drop for rise, drop in zip(rises, drops, strict=True)))
    return {"all": both.summary(), "rises": rises.summary(), "drops": drops.summary()}


def pool_changes(scored: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Pool the counts of several traces from `score_changes`: no change is counted across traces."""
    names = ("n_true", "n_predicted", "n_right")
    return {
        part: ChangeCounts(*(sum(s[part][n] for s in scored) for n in names)).summary()
        for part in ("all", "rises", "drops")
    }


def block_draws(time_ns_B: Ints, seed: int, block_ns: int = SECOND_NS) -> tuple[Ints, Floats]:
    """Draw blocks of time with replacement (seeded): a block bootstrap.

    Return the block number of each decision, (B,), and how often each draw takes each block, (R, blocks).
    """
    blocks, block_B = np.unique(time_ns_B // block_ns, return_inverse=True)
    rng = np.random.default_rng(seed)
    draws = rng.multinomial(blocks.size, np.full(blocks.size, 1 / blocks.size), size=REPLICATES)
    return block_B.astype(np.int64), draws.astype(np.float64)


def mae_draws(pred_N: Floats, y_N: Floats, block_N: Ints, draws: Floats) -> Floats:
    """Return the mean absolute error (ms) of each draw of blocks, (R,); NaN for a draw without a packet."""
    blocks = draws.shape[1]
    error = draws @ np.bincount(block_N, np.abs(pred_N - y_N) / 1e3, minlength=blocks)
    packets = draws @ np.bincount(block_N, minlength=blocks).astype(np.float64)
    return np.divide(error, packets, out=np.full_like(error, np.nan), where=packets > 0)


def average_precision_draws(
    curve: PrecisionRecall, positive_N: Bools, block_N: Ints, draws: Floats
) -> Floats:
    """Return the average precision of each draw of blocks, (R,); NaN for a draw without a positive.

    Only thresholds at which recall steps matter, so packets are counted per (block, step): a draw is then
    one row of a small matrix product. Steps are taken in chunks, which bounds memory on long traces.
    """
    positive, block = positive_N[curve.order], block_N[curve.order]
    stops = curve.ends[np.diff(curve.true_positives, prepend=0) > 0] + 1  # one past each step's last packet
    replicates, blocks = draws.shape
    seen, found, total = (np.zeros((replicates, 1)) for _ in range(3))
    per_chunk = max(1, CHUNK_CELLS // blocks)
    for first in range(0, stops.size, per_chunk):
        chunk = stops[first : first + per_chunk]
        low, high = (stops[first - 1] if first else 0), chunk[-1]
        step = np.repeat(np.arange(chunk.size), np.diff(chunk, prepend=low))
        cell, cells = block[low:high] * chunk.size + step, blocks * chunk.size
        packets = np.bincount(cell, minlength=cells).astype(np.float64).reshape(blocks, -1)
        positives = np.bincount(cell[positive[low:high]], minlength=cells).reshape(blocks, -1)
        gained = draws @ positives.astype(np.float64)  # (R, steps)
        all_seen, all_found = seen + np.cumsum(draws @ packets, axis=1), found + np.cumsum(gained, axis=1)
        total += np.sum(gained * all_found / np.maximum(all_seen, 1), axis=1, keepdims=True)
        seen, found = all_seen[:, -1:], all_found[:, -1:]
    return np.divide(total, found, out=np.full_like(total, np.nan), where=found > 0)[:, 0]


def score_predictions(
    pred_BH: NDArray[Any],
    y_BH: NDArray[Any],
    last_flow_BH: NDArray[Any],
    *,
    false_alarm_rate: float = 0.01,
    change: Change = PAPERS,
    lateness_BH: NDArray[Any] | None = None,
) -> dict[str, Any]:
    """Score predicted latencies (µs) of decisions in time order against the true ones (NaN where unknown).

    `last_flow_BH` holds the last latency of each packet's flow visible at the decision (zero or NaN: none).
    Packets of unknown latency are not scored; those of a flow without a visible latency cannot be late:
    `late` leaves them out and counts them.

    The result is `{"n", "late": {...}, "error": {...}, "sharp": {"prediction_change": {...},
    "truth_change": {...}}}`; every figure is a finite number or None.

    A ValueError says that the shapes differ or that a prediction is not a finite number.
    """
    return score_with_replicates(
        *(pred_BH, y_BH, last_flow_BH),
        time_ns_B=None,
        false_alarm_rate=false_alarm_rate,
        seed=0,
        lateness_BH=lateness_BH,
        change=change,
    )[0]


def score_with_replicates(
    pred_BH: NDArray[Any],
    y_BH: NDArray[Any],
    last_flow_BH: NDArray[Any],
    *,
    time_ns_B: Ints | None,
    false_alarm_rate: float,
    seed: int,
    lateness_BH: NDArray[Any] | None = None,
    change: Change = PAPERS,
) -> tuple[dict[str, Any], Replicates | None]:
    """Score like `score_predictions`, and return the bootstrap's replicates too if there is `time_ns_B`.

    Average precision and mean absolute error then get seeded 95 % intervals, over time alone. `lateness_BH`
    ranks packets by their probability of being late if the method has it; else the prediction's margin does.
    """
    if not (np.shape(pred_BH) == np.shape(y_BH) == np.shape(last_flow_BH)):
        shapes = ", ".join(str(np.shape(a)) for a in (pred_BH, y_BH, last_flow_BH))
        raise ValueError(f"predictions, latencies and last latencies differ in shape: {shapes}")
    pred, y, last = (np.asarray(a, dtype=np.float64).ravel() for a in (pred_BH, y_BH, last_flow_BH))
    if not np.isfinite(pred).all():
        raise ValueError(f"{np.sum(~np.isfinite(pred))} of {pred.size} predictions are not finite numbers")
    known = np.isfinite(y)
    pred_N, y_N = pred[known], y[known]
    margin = late_margin(y_N, last[known], change)
    scored = np.isfinite(margin)
    late_N = margin[scored] >= 1
    said_N = late_margin(pred_N, last[known], change)
    rank_N = said_N if lateness_BH is None else np.ravel(lateness_BH)[known]
    curve = precision_recall(late_N, rank_N[scored])
    late: dict[str, Any] = {
        "average_precision": curve.average_precision(),
        "recall_at_false_alarms": curve.recall_at(false_alarm_rate),
        "false_alarm_rate": false_alarm_rate,
        "base_rate": float(late_N.mean()) if late_N.size else None,
        "n": int(late_N.size),
        "n_late": int(late_N.sum()),
        "n_without_reference": int(y_N.size - late_N.size),
    }
    error = score_errors(pred_N, y_N)
    replicates = None
    if time_ns_B is not None and y_N.size:
        block_B, draws = block_draws(time_ns_B, seed, EPISODE_NS)
        block_N = np.repeat(block_B, np.shape(pred_BH)[1])[known]
        replicates = Replicates(
            average_precision_draws(curve, late_N, block_N[scored], draws),
            mae_draws(pred_N, y_N, block_N, draws),
            draws.shape[1],
        )
        for name, part in (("average_precision", late), ("mae_ms", error)):
            ends = over_time(part[name], getattr(replicates, name), replicates.blocks)
            part[f"{name}_95"] = ends and [max(0.0, ends[0]), ends[1]]
        if ends := late["average_precision_95"]:
            late["average_precision_95"] = [ends[0], min(1.0, ends[1])]
    return {
        "n": int(y_N.size),
        "late": late,
        "error": error,
        "sharp": score_sharp(pred_N, y_N, change),
    }, replicates


def score_sharp(
    pred_N: Floats, y_N: Floats, change: Change = PAPERS, flow_N: NDArray[Any] | None = None
) -> dict[str, Any]:
    """Score both variants: the predicted change from the last prediction, and from the last true latency.

    The packet before is the sender's, or with `flow_N`, the flow of each packet, the flow's.
    """
    later_M, before_M = successive(y_N.size, flow_N)
    true_M = change_direction(y_N[later_M], y_N[before_M], change)
    return {
        "prediction_change": score_changes(
            true_M, change_direction(pred_N[later_M], pred_N[before_M], change)
        ),
        "truth_change": score_changes(true_M, change_direction(pred_N[later_M], y_N[before_M], change)),
    }


def successive(packets: int, flow_N: NDArray[Any] | None = None) -> tuple[Ints, Ints]:
    """Return pairs of successive packets of the sender or, with `flow_N`, each flow: later, then earlier."""
    order = np.arange(packets) if flow_N is None else np.argsort(flow_N, kind="stable")
    later_M, before_M = order[1:], order[:-1]
    if flow_N is None:
        return later_M, before_M
    same_M = flow_N[later_M] == flow_N[before_M]
    return later_M[same_M], before_M[same_M]
