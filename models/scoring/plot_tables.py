"""Make the tables behind the plots, one CSV each for `dvc plots`, with a column for each line of a plot.

Shapes: `B` decisions, `H` horizon (8 packets), `N` packets in send order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import polars as pl

from swiftqueue.models.scoring.metrics import Floats, Ints, late_margin, precision_recall
from swiftqueue.models.scoring.predictions import FINETUNED, METHODS, TREES, VIRTUAL_QUEUE, TracePredictions
from swiftqueue.models.sharp import change_direction

RECALL_POINTS: Final = np.linspace(0.01, 1, 100)
AROUND: Final = 40  # packets shown before and after a sharp change
SHOWN: Final = (FINETUNED, TREES, VIRTUAL_QUEUE, "last_flow")  # methods drawn around sharp changes
MOST_CHANGES: Final = 5_000  # changes averaged per direction: enough for a smooth line
EXAMPLES: Final = 3  # single changes drawn per direction
NS_PER_S: Final = 1_000_000_000


class SharpChange(NamedTuple):
    """A sharp change, with the true and predicted latencies (ms) of the packets around it."""

    trace: str
    packet: int  # number among the test slices' packets, in send order
    rise: bool
    lines: dict[str, Floats]


def precision_recall_table(predictions: Sequence[TracePredictions]) -> pl.DataFrame:
    """Return the precision at each recall, per method, with the base rate; empty without a late packet."""
    last = np.concatenate([p.last_flow_BH.ravel() for p in predictions])
    change = predictions[0].change
    margin = late_margin(np.concatenate([p.y_BH.ravel() for p in predictions]), last, change)
    scored = np.isfinite(margin)
    late = margin[scored] >= 1
    if not late.any():
        return pl.DataFrame(schema=dict.fromkeys(("recall", *METHODS, "base_rate"), pl.Float64))
    columns = {"recall": RECALL_POINTS}
    for method in METHODS:
        us = np.concatenate([p.us_BH[method].ravel() for p in predictions])
        curve = precision_recall(late, late_margin(us[scored], last[scored], change))
        columns[method] = curve.precision[np.searchsorted(curve.recall, RECALL_POINTS - 1e-12)]
    return pl.DataFrame(columns).with_columns(base_rate=pl.lit(float(late.mean())))


def error_by_horizon_table(predictions: Sequence[TracePredictions]) -> pl.DataFrame:
    """Return the mean absolute error (ms) by the packet's place in its batch of 8, per method."""
    y_BH = np.concatenate([p.y_BH for p in predictions])
    columns: dict[str, object] = {"place": np.arange(1, y_BH.shape[1] + 1)}
    for method in METHODS:
        us_BH = np.concatenate([p.us_BH[method] for p in predictions])
        columns[method] = _mean(np.abs(us_BH - y_BH).sum(axis=0, where=np.isfinite(y_BH)), y_BH) / 1e3
    return pl.DataFrame(columns).fill_nan(None)


def score_over_time_table(p: TracePredictions) -> pl.DataFrame:
    """Return each method's mean error (ms) per second of one trace's tests; `fine_tuned` marks a new head."""
    second_B = (p.decision_ns_B - p.decision_ns_B[0]) // NS_PER_S
    known = np.isfinite(p.y_BH)
    sums = {m: np.where(known, np.abs(p.us_BH[m] - p.y_BH), 0).sum(axis=1) / 1e3 for m in METHODS}
    new_head = np.diff(p.head_B, prepend=-1) > 0
    return (
        pl.DataFrame({"time_s": second_B, "n": known.sum(axis=1), "fine_tuned": new_head, **sums})
        .group_by("time_s")
        .agg(pl.col("n", *METHODS).sum(), pl.col("fine_tuned").any())
        .sort("time_s")
    )


def mean_over_time(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Pool `score_over_time_table` of some traces into mean errors per second.

    `fine_tuned` becomes a mark: the fine-tuned model's error in the seconds when a head was renewed.
    """
    return (
        pl.concat(tables)
        .group_by("time_s")
        .agg(pl.col("n", *METHODS).sum(), pl.col("fine_tuned").any())
        .filter(pl.col("n") > 0)
        .sort("time_s")
        .with_columns(pl.col(*METHODS) / pl.col("n"))
        .with_columns(fine_tuned=pl.when("fine_tuned").then(pl.col(FINETUNED)))
    )


def sharp_changes_table(predictions: Sequence[TracePredictions]) -> pl.DataFrame:
    """Return the mean latency (ms) around sharp rises and drops, true and predicted, by packets from them."""
    offsets = np.arange(-AROUND, AROUND + 1)
    columns: dict[str, object] = {"offset": offsets}
    for rise, word in ((True, "rise"), (False, "drop")):
        sums = {name: np.zeros(offsets.size) for name in ("true", *SHOWN)}
        count = 0
        for p in predictions:
            lines, at = _lines(p), _changes(p, rise)
            at = at[:: max(1, -(-at.size // MOST_CHANGES))]
            count += at.size
            for name, line in lines.items():
                sums[name] += line[at[:, None] + offsets].sum(axis=0)
        for name, total in sums.items():
            columns[f"{word}_{name}"] = total / count if count else [None] * offsets.size
    return pl.DataFrame(columns)


def change_examples(p: TracePredictions) -> list[SharpChange]:
    """Choose the largest sharp changes of a trace that lie apart: some rises, then some drops."""
    lines = _lines(p)
    true = lines["true"]
    chosen: list[SharpChange] = []
    for rise in (True, False):
        at = _changes(p, rise)
        taken: list[int] = []
        for i in at[np.argsort(-np.abs(true[at] - true[at - 1]), kind="stable")]:
            if len(taken) == EXAMPLES:
                break
            if all(abs(i - other) > 2 * AROUND for other in taken):
                taken.append(int(i))
        for i in sorted(taken):
            around = {name: line[i - AROUND : i + AROUND + 1] for name, line in lines.items()}
            chosen.append(SharpChange(p.trace, i, rise, around))
    return chosen


def _lines(p: TracePredictions) -> dict[str, Floats]:
    """Return true and predicted latencies (ms) of the packets of known latency, in send order."""
    known = np.isfinite(p.y_BH)
    predicted = {m: p.us_BH[m][known] / 1e3 for m in SHOWN}
    return {"true": p.y_BH[known] / 1e3, **predicted}


def _changes(p: TracePredictions, rise: bool) -> Ints:
    """Find, among packets of known latency, the sharp changes with enough packets around them."""
    y_N = p.y_BH[np.isfinite(p.y_BH)]
    at = np.flatnonzero(change_direction(y_N[1:], y_N[:-1], p.change) == (1 if rise else -1)) + 1
    inside: Ints = at[(at >= AROUND) & (at < y_N.size - AROUND)]
    return inside


def _mean(total_H: Floats, y_BH: Floats) -> Floats:
    """Return the mean over the packets of known latency; NaN if there is none."""
    with np.errstate(invalid="ignore"):
        mean: Floats = total_H / np.isfinite(y_BH).sum(axis=0)
    return mean
