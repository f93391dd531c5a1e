"""Write packet tables to disk: Parquet by trace and minute, one trace at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.feature_store.packets.pcaplib import Rows
from swiftqueue.feature_store.packets.schema import PACKET_SCHEMA, queue_column

MINUTE_NS: Final = 60_000_000_000


class TraceWriter:
    """A writer of one trace's rows to `folder/minute=M/part-N.parquet`.

    Raises:
        OSError: the output cannot be written (no permission, disk full).
    """

    def __init__(self, folder: Path, trace: str) -> None:
        self.trace = trace
        self.rows_written = 0
        self._folder = folder
        self._parts: dict[int, int] = {}
        self._start_ns: int | None = None

    def write(self, rows: Rows) -> None:
        """Write all rows, which follow those of the last call, and empty `rows`."""
        if not rows.used:
            return
        frame = self._frame(rows)
        if self._start_ns is None:
            self._start_ns = int(frame["sent_ns"][0])
        minutes = ((frame["sent_ns"] - self._start_ns) // MINUTE_NS).alias("minute")
        first, last = int(minutes[0]), int(minutes[-1])  # rows are in time order
        parts = (
            {first: frame}
            if first == last
            else {
                int(part["minute"][0]): part.drop("minute")
                for part in frame.with_columns(minutes).partition_by("minute", maintain_order=True)
            }
        )
        for minute, part in parts.items():
            self._write_part(minute, part)
        self.rows_written += rows.used
        rows.used = 0

    def _frame(self, rows: Rows) -> pl.DataFrame:
        columns = {name: column[: rows.used] for name, column in rows.columns.items()}
        acked, latency, ecn = pl.col("acked_ns"), pl.col("latency_us"), pl.col("ecn")
        l4s = (ecn == 1) | (ecn == 3)  # RFC 9331 section 5.1: ECT(1) and CE
        return (
            pl.DataFrame(columns)
            .select(
                pl.lit(self.trace).alias("trace"),
                pl.int_range(self.rows_written, self.rows_written + rows.used, dtype=pl.Int64).alias(
                    "packet"
                ),
                pl.exclude("acked_ns", "latency_us"),
                pl.when(acked >= 0).then(acked).alias("acked_ns"),
                latency.fill_nan(None),
                queue_column(l4s),
            )
            .select(pl.col(name).cast(kind) for name, kind in PACKET_SCHEMA.items())
        )

    def _write_part(self, minute: int, part: pl.DataFrame) -> None:
        folder = self._folder / f"minute={minute}"
        number = self._parts.get(minute, 0)
        self._parts[minute] = number + 1
        folder.mkdir(exist_ok=True)
        try:
            part.write_parquet(folder / f"part-{number}.parquet")
        except pl.exceptions.PolarsError as error:
            raise OSError(f"{folder}: cannot be written: {error}") from None
