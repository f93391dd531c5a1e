"""The results: one Parquet file, a row per run that was asked for, written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from swiftqueue.common.atomic import new_file
from swiftqueue.common.parquet import read_parquet
from swiftqueue.laboratory.scenarios.schema import FORMER_PROFILES

FILE: Final = "results.parquet"
COMPLETE: Final = "complete"
NOT_RUN: Final = "not run"
KEY: Final = ("scenario", "point", "profile", "control", "seed")

SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "scenario": pl.String,
    "point": pl.String,  # point of the scenario's axis; "" where it has none
    "at": pl.Float64,  # the point's place on a numeric axis
    "profile": pl.String,
    "control": pl.String,
    "seed": pl.Int64,
    "about": pl.String,  # the scenario's line as it was run, so that a report needs no scenario's file
    "figure": pl.String,  # figure of the paper that it redraws
    "axis_label": pl.String,  # null where it has no axis
    "axis_log": pl.Boolean,
    "status": pl.String,  # complete | not run
    "reason": pl.String,  # why it was not run
    "run": pl.String,  # hash of everything the run's result depends on
    "program": pl.String,  # hash of the program that ran it
    "artifact": pl.String,  # hash of the model that drove it
    "share_of": pl.String,  # control random: whose moved share it was given; or `scenario`
    "seconds": pl.Float64,
    "warmup_s": pl.Float64,  # time at the start that all figures but the costs leave out
    "parameters": pl.String,  # run.json
    "reordering": pl.String,  # the rule by which S1's flows take reordering for loss
    "queueing_mean_us": pl.Float64,  # wait of S1's L4S flows, as are the next columns up to rtt
    "queueing_p50_us": pl.Float64,
    "queueing_p90_us": pl.Float64,
    "queueing_p99_us": pl.Float64,
    "one_way_p50_us": pl.Float64,
    "one_way_p90_us": pl.Float64,
    "one_way_p99_us": pl.Float64,
    "rtt_p50_us": pl.Float64,
    "rtt_p90_us": pl.Float64,
    "rtt_p99_us": pl.Float64,
    "queueing_cdf_us": pl.List(pl.Float64),  # CDF_LEVELS
    "rtt_cdf_us": pl.List(pl.Float64),
    "packets": pl.Float64,
    "moved_share": pl.Float64,  # share of the L4S flows' packets that were sent to the classic queue
    "unforeseen_share": pl.Float64,  # share of S1's packets: L4S, not asked about; null but for model
    "retransmitted_share": pl.Float64,
    "reordered_share": pl.Float64,  # arrived after one of their flow that was sent later
    "dropped_share": pl.Float64,
    "s1_l4s_goodput_bps": pl.Float64,
    "s1_classic_goodput_bps": pl.Float64,
    "s1_goodput_bps": pl.Float64,
    "cross_goodput_bps": pl.Float64,
    "classic_share": pl.Float64,  # classic flows' part of all goodput
    "engine_wall_s": pl.Float64,  # wall time of the model's forward passes
    "cpu_s": pl.Float64,  # CPU time of the program and of the processes that fine-tune
    "queueing_p999_us": pl.Float64,  # wait of S1's L4S flows, as are the next columns
    "queueing_max_us": pl.Float64,
    "queueing_packets": pl.Float64,  # packets that these and the other quantiles rest on
    "choice_right_share": pl.Float64,  # packets in the shorter queue, where the queues were apart
    "choice_regret_mean_us": pl.Float64,  # wait in the chosen queue less that in the shorter one
    "choice_regret_p99_us": pl.Float64,
    "s1_message_us": pl.Float64,  # until a message is whole, each weighted by its bytes; null without any
    "cross_message_us": pl.Float64,
    "unfinished_share": pl.Float64,  # share of these bytes; their messages count with their age at the end
}
LATER: Final = tuple(SCHEMA)[-9:]
"""Columns that older results lack: there they are null, but for what other columns say."""


def load(output: Path) -> pl.DataFrame:
    """Return the results of an output folder; none yet is an empty table.

    Raises:
        ValueError: the file is damaged, or has other columns: another version of this project made it.
    """
    path = output / FILE
    if not path.is_file():
        return pl.DataFrame(schema=SCHEMA)
    remedy = "give another --output, or remove it: `swiftqueue lab run` puts the rows of whole runs back"
    try:
        table = read_parquet([path])
    except ValueError:
        raise ValueError(f"{path} is damaged; {remedy}") from None
    table = with_later(table, SCHEMA, LATER)
    if table.schema != pl.Schema(SCHEMA):
        raise ValueError(f"{path} was made by another version; {remedy}")
    return table.with_columns(pl.col("profile").replace(FORMER_PROFILES))


def with_later(table: pl.DataFrame, schema: Mapping[str, Any], later: Sequence[str]) -> pl.DataFrame:
    """Add the columns that an older table lacks; one that lacks others than `later` is left as it is."""
    lacks = set(schema) - set(table.columns)
    if not (lacks <= set(later) and "queueing_cdf_us" in table.columns):
        return table
    added = {name: pl.lit(None, schema[name]) for name in lacks}
    if "queueing_max_us" in lacks:
        added["queueing_max_us"] = pl.col("queueing_cdf_us").list.last()
    return table.with_columns(**added).select([*schema, pl.exclude(list(schema))])


def kept_table(path: Path, schema: Mapping[str, Any], command: str) -> pl.DataFrame:
    """Return a table beside the results, without columns that it has no more; none yet is an empty one.

    Raises:
        ValueError: the file is damaged, or another version of this project made it; `command` makes it again.
    """
    if not path.is_file():
        return pl.DataFrame(schema=schema)
    try:
        table = read_parquet([path])
    except ValueError:
        raise ValueError(f"{path} is damaged: remove it, and `{command}` again") from None
    if not table.schema.items() >= schema.items():
        raise ValueError(f"{path} was made by another version: remove it, and `{command}` again")
    return table.select(list(schema))


def merge(output: Path, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Put rows in the place of those of the same key, and return all.

    A reader sees the old file or the new one, never a part.
    """
    new = pl.DataFrame([dict(row) for row in rows], schema=SCHEMA)
    table = pl.concat([load(output).join(new, on=list(KEY), how="anti"), new])
    return _write(output, table)


def publish(source: Path, scenario: str, output: Path) -> None:
    """Put a scenario's rows of one results.parquet among those of another.

    They replace all of the same points, profiles and controls, other seeds too: a place's rows are those of
    one command.

    Raises:
        ValueError: it has no whole run of it; or others of another length, model or program would stay.
    """
    rows = load(source).filter(scenario=scenario, status=COMPLETE)
    if rows.is_empty():
        raise ValueError(f"{source / FILE} has no whole run of {scenario}; `swiftqueue lab run {scenario}`")
    published = load(output).join(rows, on=list(KEY[:-1]), how="anti")
    stay = published.filter(scenario=scenario, status=COMPLETE)
    beside = stay.join(rows, on=["profile", "control"])  # a profile has a model of its own
    for what in ("seconds", "program", "artifact"):
        if not beside.filter(pl.col(what).ne_missing(pl.col(f"{what}_right"))).is_empty():
            raise ValueError(f"{output / FILE} would keep runs of {scenario} with another {what}: run all")
    _write(output, pl.concat([published, rows]))


def forget(output: Path, scenarios: Sequence[str]) -> pl.DataFrame:
    """Take out the rows of some scenarios; those of whole runs can be put back from their folders.

    So a scenario's rows are always those of one command: never of two lengths, programs or models.
    """
    return _write(output, load(output).filter(~pl.col("scenario").is_in(list(scenarios))))


def _write(output: Path, table: pl.DataFrame) -> pl.DataFrame:
    table = table.sort("scenario", "at", *KEY[1:])
    with new_file(output / FILE) as partial:
        table.write_parquet(partial, compression="zstd")
    return table
