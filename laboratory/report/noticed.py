"""Tables of what users notice: calls, web pages, and how flows share a link; means over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import polars as pl

from swiftqueue.laboratory.report.judging import SEEDS_SHOWN
from swiftqueue.laboratory.report.tables import NONE, head_of, row_of
from swiftqueue.laboratory.report.verdict import Verdict
from swiftqueue.models.scoring.intervals import estimate

# Column of the table, its heading here, its unit's factor, digits; times are in ms
SHOWN: Final = (
    ("stall_per_page_s", "stall", 1e3, 1),
    ("stalling_pages_share", "stalling, %", 100, 1),
    ("frame_p99_s", "frame P99", 1e3, 0),
    ("load_mean_s", "load", 1e3, 0),
    ("load_p95_s", "P95", 1e3, 0),
)
CALL: Final = ("call_mbps", "call, Mbit/s", 1, 1)
VERDICT: Final = ("figure", "wanted", "measured", "verdict")  # headings
FEW: Final = "not enough packets"
ShownColumns = Sequence[tuple[str, str, float, int]]


def runs_table(rows: pl.DataFrame, by: Sequence[str], names: Sequence[str], shown: ShownColumns) -> list[str]:
    """Return a line for each key of `by`, with means over seeds."""
    lines = head_of([*names, "seeds", *(heading for _, heading, _, _ in shown)])
    for key, own in sorted(rows.group_by(by), key=lambda one: [str(part) for part in one[0]]):
        cells = [
            FEW
            if column == "queueing_p999_s" and own[column].is_null().all()
            else interval([factor * value for value in own[column].drop_nulls()], digits)
            for column, _, factor, digits in shown
        ]
        lines.append(row_of([*map(str, key), str(own.height), *cells]))
    return lines


def verdict_table(found: Iterable[Verdict]) -> list[str]:
    """Return a line for each verdict."""
    return [*head_of(VERDICT), *(row_of(verdict_cells(one)) for one in found)]


def verdicts_by(head: str, found: Mapping[str, Iterable[Verdict]]) -> list[str]:
    """Return a line for each verdict, with what it belongs to in a first column of that head."""
    lines = [row_of([f"`{name}`", *verdict_cells(one)]) for name, some in found.items() for one in some]
    return [*head_of([head, *VERDICT]), *lines]


def verdict_cells(one: Verdict) -> list[str]:
    """Return a figure to reach, its limit, what came of it or why nothing did, and the verdict."""
    limit = f"at least {one.at_least:g}" if one.at_most is None else f"at most {one.at_most:g}"
    measured = one.reason or NONE
    if one.measured is not None and one.low is not None:
        measured = f"{one.measured:.3f} ({one.low:.3f} to {one.high:.3f})"
    return [one.figure, limit, measured, one.verdict]


def interval(values: Sequence[float], digits: int = 1) -> str:
    """Return the mean, and Student's 95 % interval in brackets from `SEEDS_SHOWN` values on."""
    found = estimate(values)
    if found is None:
        return NONE
    if found.low is None or found.n < SEEDS_SHOWN:
        return f"{found.mean:.{digits}f}"
    return f"{found.mean:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def fairness(goodputs: Sequence[float]) -> float:
    """Return Jain's index of goodputs."""
    return sum(goodputs) ** 2 / (len(goodputs) * sum(each**2 for each in goodputs))
