"""Judge the walks: how soon a model is as good as one trained on the new state, and what the gate decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from swiftqueue.studies.drift.study import NEW_STATE
from swiftqueue.studies.drift.traces import BEFORE
from swiftqueue.studies.drift.weights import HEAD

NEAR: Final = 1.10  # error over the new state's model's, up to which a change counts as repaired
UNGATED: Final = "tuned, without the gate"
MINUTES: Final = 5  # minutes of the loop for which a round of the walk stands
WEIGHTS: Final = "weights: "  # begins the model's name in rows of a set of weights


def ratios(rows: pl.DataFrame) -> pl.DataFrame:
    """Return each model's error over the new state's model's: `change`, `seed`, `model`, `round`, `ratio`.

    `at_once` is the same as if a round took no time. The head that was tuned without a gate is a model, too.
    """
    own = rows.filter(pl.col("course") != BEFORE).with_columns(
        pl.col("model").replace(WEIGHTS + HEAD, UNGATED), change=pl.coalesce("state", "course")
    )
    key = ["change", "seed", "round"]
    new = own.filter(pl.col("model") == NEW_STATE).select(*key, base="log_error")
    return (
        own.filter(pl.col("model") != NEW_STATE, ~pl.col("model").str.starts_with(WEIGHTS))
        .join(new, on=key)
        .with_columns(
            ratio=pl.col("log_error") / pl.col("base"), at_once=pl.col("log_error_at_once") / pl.col("base")
        )
        .sort("change", "model", "seed", "round")
    )


def repaired_after(ratio_by_round: Sequence[float]) -> int | None:
    """Return the first window whose ratio is near 1 and from which on the mean is, too; None without one."""
    for number, ratio in enumerate(ratio_by_round):
        rest = ratio_by_round[number:]
        if ratio <= NEAR and sum(rest) / len(rest) <= NEAR:
            return number
    return None


def decisions(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rounds of each policy before a change and after it, and those that kept the champion."""
    own = rows.filter(pl.col("outcome").is_not_null()).with_columns(
        after=pl.col("course") != BEFORE, retrained=pl.col("retrained").fill_null(value=False)
    )
    counted = own.group_by("model", "after").agg(
        rounds=pl.len(),
        kept=(pl.col("outcome") == "kept").sum(),
        declined=(pl.col("outcome") == "declined").sum(),
        candidates=pl.col("retrained").sum(),
        passed=(pl.col("retrained") & (pl.col("outcome") == "pushed")).sum(),
    )
    return counted.sort("after", "model")
