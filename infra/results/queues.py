"""Published runs that show what users notice: `docs/laboratory/experience.parquet` (`swiftqueue lab run`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from infra.results.lfq import interval, measured, wanted
from laboratory.report import tables as lab
from laboratory.report.verdicts import JUDGED

WEB: Final = "confucius-web"
WHO: Final = "who-picks"
# Column of the table, its heading here, its unit's factor, digits; times are in ms
SHOWN: Final = (
    ("stall_per_page_s", "stall", 1e3, 1),
    ("stalling_pages_share", "stalling, %", 100, 1),
    ("frame_p99_s", "frame P99", 1e3, 0),
    ("load_mean_s", "load", 1e3, 0),
    ("load_p95_s", "P95", 1e3, 0),
)
CALL: Final = ("call_mbps", "call, Mbit/s", 1, 1)
WAITS: Final = (
    ("queueing_p99_s", "wait P99", 1e3, 1),
    ("queueing_p999_s", "P99.9", 1e3, 1),
    ("rtt_p99_s", "RTT P99", 1e3, 0),
    ("reordered_share", "reordered, %", 100, 1),
    ("cpu_s", "CPU, s", 1, 0),
)
Shown = Sequence[tuple[str, str, float, int]]


def web(runs: pl.DataFrame) -> list[str]:
    """Every rule and call of confucius-web, means over seeds."""
    return runs_table(runs.filter(pl.col("scenario") == WEB), ["point"], ["rule, call"], (*SHOWN, CALL))


def web_verdicts(runs: pl.DataFrame) -> list[str]:
    """Every figure to reach with the calls that were run."""
    own = runs.filter(pl.col("scenario") == WEB)
    lines = lab.head_of(["figure", "wanted", "measured", "verdict"])
    for one in JUDGED[WEB](own):
        if one.seeds or own["point"].str.ends_with(one.figure.split(":")[0]).any():
            lines.append(lab.row_of([one.figure, wanted(one), measured(one), one.verdict]))
    return lines


def who(runs: pl.DataFrame) -> list[str]:
    """Who picks: every rule, profile and control of who-picks."""
    own = runs.filter(pl.col("scenario") == WHO)
    return runs_table(
        own, ["point", "profile", "control"], ["who picks", "profile", "control"], (*SHOWN, CALL, *WAITS)
    )


def runs_table(rows: pl.DataFrame, by: Sequence[str], names: Sequence[str], shown: Shown) -> list[str]:
    """A line for each key of `by`, with means over seeds."""
    lines = lab.head_of([*names, "seeds", *(heading for _, heading, _, _ in shown)])
    for key, own in sorted(rows.group_by(by), key=lambda one: [str(part) for part in one[0]]):
        cells = [
            interval([factor * value for value in own[column].drop_nulls()], digits)
            for column, _, factor, digits in shown
        ]
        lines.append(lab.row_of([*map(str, key), str(own.height), *cells]))
    return lines
