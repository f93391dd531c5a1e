"""Check the packet table, its events and the queries of its decisions with Great Expectations.

Great Expectations has no Polars engine, so each check gets a pandas frame with only the columns that it
needs. Quantities beyond row-wise expectations (a delay, a shift between slices) are computed in Polars first
and become a column or a row of the frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.feature_store.events.event_stream import INPUTS, MAX_TIME_NS, EventInput, EventReplay
from swiftqueue.feature_store.packets.schema import HORIZON, PACKET_SCHEMA, QUEUES

SHIFT: Final = "distribution-shift"  # the check between slices
TEMPLATE: Final = "data_docs.html.j2"
SHOWN_ROWS: Final = 5  # offending rows named per expectation
MAX_SIZE_BYTES: Final = 1 << 20  # GSO super-segments reach 64 KiB, BIG TCP (RFC 2675) 512 KiB
RANGES: Final[Mapping[str, tuple[float, float]]] = {  # range of a feature by its unit
    "us": (0, MAX_TIME_NS / 1000),
    "packets": (0, 1e9),
    "bytes": (1, MAX_SIZE_BYTES),
}
LEVELS: Final[Mapping[str, list[float]]] = {"flag": [0, 1], "sign": [-1, 1]}
CHANGED_COLUMNS: Final = {"trace": pl.String, "column": pl.String, "found": pl.String, "expected": pl.String}


@dataclass(frozen=True)
class Check:
    """One frame and the expectations that it must meet."""

    name: str  # name of the table, in the data docs too
    frame: pl.DataFrame
    expectations: Sequence[Any]  # great_expectations expectations
    rows_by: tuple[str, ...]  # columns that name a row to a reader


@dataclass(frozen=True)
class Failure:
    """An expectation that was not met, with its offending rows."""

    check: str
    expectation: str
    column: str
    count: int  # offending rows; 0 for an expectation about the table
    rows: tuple[str, ...]  # the first offending rows
    observed: str

    def __str__(self) -> str:
        """Return the failure as one line."""
        where = f"{self.expectation} of {self.column}" if self.column else self.expectation
        if not self.count:
            return f"{self.check}: {where} failed: {self.observed}"
        more = f" and {self.count - len(self.rows)} more" if self.count > len(self.rows) else ""
        return f"{self.check}: {where} failed in {self.count} rows: {'; '.join(self.rows)}{more}"


def schema_check(found: Mapping[str, pl.Schema]) -> Check:
    """Check column names and types of each trace's packet table; `found` holds its schema by trace."""
    import great_expectations.expectations as gxe

    rows = [
        {
            "trace": trace,
            "column": column,
            "found": str(schema.get(column, "missing")),
            "expected": str(PACKET_SCHEMA.get(column, "no such column")),
        }
        for trace, schema in found.items()
        for column in dict.fromkeys((*PACKET_SCHEMA, *schema))
    ]
    return Check(
        "schema",
        pl.DataFrame(rows, schema=CHANGED_COLUMNS),
        [gxe.ExpectColumnPairValuesToBeEqual(column_A="found", column_B="expected")],
        ("trace", "column"),
    )


def packets_check(trace: str, packets: pl.DataFrame, max_unknown: float, max_latency_s: float) -> Check:
    """Check one trace's packet table, its rows in the order of `packet`.

    Args:
        trace: the trace's name.
        packets: columns of `PACKET_SCHEMA`.
        max_unknown: largest share (0 to 1) of packets without a latency.
        max_latency_s: largest latency in seconds.
    """
    import great_expectations.expectations as gxe

    l4s = pl.col("ecn").is_in([1, 3])  # RFC 9331 section 5.1: ECT(1) and CE
    # pandas takes a NaN for a missing value, so it becomes infinity: outside its range, it is reported.
    latency_us = pl.col("latency_us").fill_nan(float("inf"))
    # Great Expectations compares with a range value by value in Python, which takes seconds for a minute at
    # 100 Mbit/s. So what lies outside a range becomes a column that must be empty.
    outside = dict(
        _outside(*limits)
        for limits in (
            ("sent_ns", pl.col("sent_ns"), 0, MAX_TIME_NS),
            ("flow_id", pl.col("flow_id"), 0, None),
            ("receiver_id", pl.col("receiver_id"), 0, None),
            ("size_bytes", pl.col("size_bytes"), 1, MAX_SIZE_BYTES),
            ("ack_after_send_ns", pl.col("acked_ns") - pl.col("sent_ns"), 0, None),
            ("latency_us", latency_us, 0, max_latency_s * 1e6),
        )
    )
    frame = packets.select(
        "trace",
        "packet",
        "sent_ns",
        "flow_id",
        "receiver_id",
        "size_bytes",
        "ecn",
        pl.col("queue").cast(pl.String),
        queue_by_ecn=pl.when(l4s).then(pl.lit(QUEUES[1])).otherwise(pl.lit(QUEUES[0])),
        latency_us=latency_us,
        latency_unacked_us=pl.when(pl.col("acked_ns").is_null()).then("latency_us"),
        latency_retransmitted_us=pl.when("retransmitted").then("latency_us"),
        **outside,
    )
    required = ("packet", "sent_ns", "flow_id", "receiver_id", "size_bytes", "ecn", "queue")
    return Check(
        f"packets-{trace}",
        frame,
        [
            gxe.ExpectTableRowCountToBeBetween(min_value=HORIZON),
            *(gxe.ExpectColumnValuesToNotBeNull(column=c) for c in required),
            gxe.ExpectColumnValuesToBeIncreasing(column="packet", strictly=True),
            gxe.ExpectColumnValuesToBeIncreasing(column="sent_ns"),
            *(gxe.ExpectColumnValuesToBeNull(column=name) for name in outside),
            gxe.ExpectColumnValuesToBeInSet(column="ecn", value_set=[0, 1, 2, 3]),
            gxe.ExpectColumnPairValuesToBeEqual(column_A="queue", column_B="queue_by_ecn"),
            gxe.ExpectColumnProportionOfNonNullValuesToBeBetween(
                column="latency_us", min_value=1 - max_unknown
            ),
            gxe.ExpectColumnValuesToBeNull(column="latency_unacked_us"),
            gxe.ExpectColumnValuesToBeNull(column="latency_retransmitted_us"),  # Karn
        ],
        ("trace", "packet"),
    )


def _outside(name: str, value: pl.Expr, least: float, most: float | None) -> tuple[str, pl.Expr]:
    """Return a column's name and content: the value where it is outside a range, otherwise null."""
    if most is None:
        return f"{name} below {least}", pl.when(value < least).then(value)
    return f"{name} outside {least} to {most:.12g}", pl.when((value < least) | (value > most)).then(value)


def query_frame(trace: str, packets: pl.DataFrame, events: EventReplay) -> pl.DataFrame:
    """Return a row for each packet decided: its query's inputs, and its later latency."""
    decided = len(events.x_DHF) * HORIZON
    rows = packets[:decided]
    inputs_NF = events.x_DHF.reshape(decided, -1)
    return pl.DataFrame(
        {
            "trace": pl.Series([trace] * decided, dtype=pl.String),
            "packet": rows["packet"],
            "decision_ns": rows["sent_ns"].to_numpy()[::HORIZON].repeat(HORIZON),
            **{each.name: inputs_NF[:, i] for i, each in enumerate(INPUTS) if each.rows != "events"},
            "latency_us": rows["latency_us"],
        }
    )


def inputs_check(trace: str, events: EventReplay, queries: pl.DataFrame) -> Check:
    """Check that all inputs of one trace's events and queries are finite and in the range of their unit.

    A row of the frame counts one input's missing and out-of-range values and names the first one's packet, so
    a trace of millions of events needs a few expectations instead of two for each input.

    Args:
        trace: the trace's name.
        events: the trace's event log.
        queries: the frame from `query_frame`.
    """
    import great_expectations.expectations as gxe

    found = [_summary("events", "time_ns", events.packet_E, np.diff(events.time_ns_E, prepend=0) >= 0)]
    for each in INPUTS:
        if each.rows != "queries":
            column = events.x_EF[:, INPUTS.index(each)]
            found.append(_summary("events", each.name, events.packet_E, _sound(each, column), column))
        if each.rows != "events":
            column = queries[each.name].to_numpy()
            packets = queries["packet"].to_numpy()
            found.append(_summary("queries", each.name, packets, _sound(each, column), column))
    counts = dict.fromkeys(("missing", "wrong", "packet"), pl.Int64())
    schema = {"rows": pl.String(), "input": pl.String(), **counts}
    return Check(
        f"inputs-{trace}",
        pl.DataFrame(found, schema=schema, orient="row"),
        [gxe.ExpectColumnValuesToBeInSet(column=name, value_set=[0]) for name in ("missing", "wrong")],
        ("rows", "input", "packet"),
    )


def _sound(each: EventInput, column: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which values of an input are allowed."""
    if each.unit in LEVELS:
        return np.isin(column, LEVELS[each.unit])
    least, most = RANGES[each.unit]
    return (column >= least) & (column <= most)


def _summary(
    rows: str,
    name: str,
    packets: NDArray[np.int64],
    sound: NDArray[np.bool_],
    column: NDArray[np.float32] | None = None,
) -> tuple[str, str, int, int, int | None]:
    missing = np.zeros(len(sound), bool) if column is None else np.isnan(column)
    bad = np.flatnonzero(missing | ~sound)
    first = int(packets[bad[0]]) if len(bad) else None
    return rows, name, int(missing.sum()), int((~sound & ~missing).sum()), first


def shift_check(shifts: pl.DataFrame, max_psi: float) -> Check:
    """Check that no feature's distribution in later slices has left that of the training slice.

    Args:
        shifts: rows of `slice_shifts` from all traces.
        max_psi: largest population stability index.
    """
    import great_expectations.expectations as gxe

    return Check(
        SHIFT,
        shifts,
        [gxe.ExpectColumnValuesToBeBetween(column="psi", min_value=0, max_value=max_psi)],
        ("trace", "feature", "worst_round"),
    )


class Validation:
    """A runner of checks, in a Great Expectations context in memory, that writes their data docs."""

    def __init__(self) -> None:
        import great_expectations as gx

        self._gx = gx
        self._context = gx.get_context(mode="ephemeral")
        self._context.variables.progress_bars = {"globally": False}
        self._source = self._context.data_sources.add_pandas("traces")
        self.failures: list[Failure] = []
        self.report: dict[str, Any] = {}
        self._tables: list[dict[str, Any]] = []  # tables for the data docs

    def run(self, check: Check) -> None:
        """Run one check; add failures to `failures` and results to `report`."""
        gx, context = self._gx, self._context
        frames = self._source.add_dataframe_asset(check.name)
        batch = frames.add_batch_definition_whole_dataframe("all")
        suite = context.suites.add(gx.ExpectationSuite(name=check.name, expectations=check.expectations))
        definition = context.validation_definitions.add(
            gx.ValidationDefinition(name=check.name, data=batch, suite=suite)
        )
        checkpoint = context.checkpoints.add(
            gx.Checkpoint(
                name=check.name,
                validation_definitions=[definition],
                result_format={
                    "result_format": "SUMMARY",
                    "partial_unexpected_count": SHOWN_ROWS,
                    "unexpected_index_column_names": list(check.rows_by),
                },
            )
        )
        ran = checkpoint.run(batch_parameters={"dataframe": check.frame.to_pandas()})
        (result,) = ran.run_results.values()
        judged = [(r, None if r.success else self._failure(check, r)) for r in result.results]
        failures = [failure for _, failure in judged if failure is not None]
        self.failures += failures
        results = [_in_words(*each) for each in judged]
        self._tables.append(
            {"name": check.name, "rows": check.frame.height, "results": results, "failed": len(failures)}
        )
        self.report[check.name] = {
            "rows": check.frame.height,
            "expectations": len(result.results),
            "failures": [str(f) for f in failures],
        }

    @staticmethod
    def _failure(check: Check, result: Any) -> Failure:
        asked, seen = result.expectation_config, result.result
        rows = []
        for row in seen.get("partial_unexpected_index_list") or []:
            where = " ".join(f"{key} {row[key]}" for key in check.rows_by)
            values = ", ".join(f"{k} = {v}" for k, v in row.items() if k not in check.rows_by)
            rows.append(f"{where} ({values})")
        observed = seen.get("observed_value", "no value")
        bounds = [f"{k} {asked.kwargs[k]:g}" for k in ("min_value", "max_value") if k in asked.kwargs]
        exception = (result.exception_info or {}).get("exception_message")
        return Failure(
            check=check.name,
            expectation=asked.type,
            column=_columns_of(asked),
            count=seen.get("unexpected_count", 0),
            rows=tuple(rows),
            observed=exception or f"observed {observed}, asked {' '.join(bounds) or 'otherwise'}",
        )

    def write_docs(self, folder: Path, run: str) -> None:
        """Write the data docs of all checks so far as one page that needs neither a server nor the net.

        Great Expectations' own pages load style, icons and the index's table from other hosts, and their
        templates cannot be replaced.

        Args:
            folder: folder to make; the page is its `index.html`.
            run: name of the validated data, the page's title.
        """
        from jinja2 import Environment, FileSystemLoader, StrictUndefined

        environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
        )
        page = environment.get_template(TEMPLATE).render(
            run=run,
            library=self._gx.__version__,
            tables=self._tables,
            failures=len(self.failures),
        )
        folder.mkdir(parents=True)
        (folder / "index.html").write_text(page)


def _columns_of(asked: Any) -> str:
    """Return the column or columns of an expectation; empty if it is about the table."""
    return asked.kwargs.get("column") or " and ".join(
        asked.kwargs[name] for name in ("column_A", "column_B") if name in asked.kwargs
    )


def _in_words(result: Any, failure: Failure | None) -> dict[str, Any]:
    """Return one expectation and its outcome in words for the data docs' page."""
    asked, seen = result.expectation_config, result.result
    wanted = {
        name: value
        for name, value in asked.kwargs.items()
        if not (value is None or value is False or name in ("batch_id", "column", "column_A", "column_B"))
    }
    if failure is not None:
        rows = "; ".join(failure.rows)
        found = f"{failure.count:,} rows: {rows}" if failure.count else failure.observed
    elif "observed_value" in seen:
        found = str(seen["observed_value"])
    else:
        found = f"{seen.get('element_count', 0):,} values"
    return {
        "met": result.success,
        "column": _columns_of(asked) or "the table",
        "expectation": asked.type.removeprefix("expect_").replace("_", " "),
        "wanted": ", ".join(
            f"{name.replace('_', ' ')} {value:g}"
            if isinstance(value, float)
            else f"{name.replace('_', ' ')} {value}"
            for name, value in wanted.items()
        ),
        "found": found,
    }
