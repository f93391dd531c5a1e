"""The queue of one flow over time: what `swiftqueue lab run lfq-traces --truth` kept, as a small table."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from swiftqueue.common.parquet import read_parquet
from swiftqueue.laboratory.runs import execution
from swiftqueue.laboratory.runs.results import COMPLETE, kept_table
from swiftqueue.laboratory.runs.results import load as load_runs

NAME: Final = "lfq-traces"
FILE: Final = "queue-traces.parquet"
BIN_NS: Final = 10_000_000
KEY: Final = ("scenario", "point", "profile", "control", "seed", "run", "program")
SCHEMA: Final[dict[str, Any]] = {
    **dict.fromkeys(KEY, pl.String),
    "seed": pl.Int64,
    "time_s": pl.Float64,  # beginning of the 10 ms
    "queue_packets": pl.Int64,  # the most that waited at once in them
}


def load(folder: Path) -> pl.DataFrame:
    """Return the published traces; none yet is an empty table.

    Raises:
        ValueError: the file is damaged, or another version of this project made it.
    """
    return kept_table(folder / FILE, SCHEMA, "swiftqueue lfq publish FOLDER")


def of_runs(output: Path) -> pl.DataFrame:
    """Return the traces of an output folder's runs of `lfq-traces`.

    Raises:
        ValueError: there is no such run, or one did not keep its truth.
    """
    command = f"swiftqueue lab run {NAME} --truth --output {output}"
    runs = load_runs(output).filter(pl.col("scenario") == NAME, pl.col("status") == COMPLETE)
    if runs.is_empty():
        raise ValueError(f"{output} has no runs of {NAME}: {command}")
    tables = []
    for row in runs.iter_rows(named=True):
        truth = execution.folder_of(output, row["run"]) / execution.TRUTH_PARQUET
        if not truth.is_file():
            raise ValueError(f"{truth} is not there: {command}")
        queue = longest(read_parquet([truth]), row["seconds"])
        times = [round(i * BIN_NS / 1e9, 2) for i in range(len(queue))]
        key = [pl.lit(row[name], SCHEMA[name]).alias(name) for name in KEY]
        tables.append(pl.DataFrame({"time_s": times, "queue_packets": queue}).select(*key, pl.all()))
    return pl.concat(tables).cast(pl.Schema(SCHEMA)).sort(*KEY, "time_s")


def longest(truth: pl.DataFrame, seconds: float) -> list[int]:
    """Return how many packets waited at once, at most, in each 10 ms of a run but its last.

    A packet that was still under way at the end counts as waiting until then. That is wrong of those that had
    left the queue. They left it in the last 10 ms (half a round trip is less), which is therefore left out.
    A dropped packet never counts: nobody knows how long it waited.
    """
    end_ns = round(seconds * 1e9)
    waited = truth.filter(~pl.col("dropped"), pl.col("queueing_us").fill_null(1) > 0).select(
        came_ns="sent_ns",
        left_ns=(pl.col("sent_ns") + (pl.col("queueing_us") * 1e3).round().cast(pl.Int64)).fill_null(end_ns),
    )
    at_ns = np.concatenate([waited["left_ns"].to_numpy(), waited["came_ns"].to_numpy()])
    change = np.repeat([-1, 1], waited.height)
    order = np.argsort(at_ns, kind="stable")  # who leaves goes before who comes
    waiting = np.concatenate([[0], np.cumsum(change[order])])  # after so many comings and goings
    ends = np.searchsorted(at_ns[order], np.arange(end_ns // BIN_NS) * BIN_NS)
    return [int(waiting[a : b + 1].max()) for a, b in pairwise(ends)]
