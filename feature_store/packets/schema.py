"""Define the packet table: one row per data packet that the sender sent, in send order."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.common.parquet import read_parquet

QUEUES: Final = ("classic", "l4s")  # RFC 9332 section 2.1: ECT(1) and CE go to the L queue, the rest to C
HORIZON: Final = 8  # packets decided at once (SwiftQueue, section 4)

_COLUMNS: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "trace": pl.String,
    "packet": pl.Int64,  # index in the sender's send order
    "sent_ns": pl.Int64,
    "flow_id": pl.Int32,  # a 5-tuple in one direction, numbered by first appearance
    "receiver_id": pl.Int32,  # a destination address, numbered by first appearance
    "size_bytes": pl.Int32,  # IP length
    "ecn": pl.UInt8,  # IP codepoint as sent, 0..3
    "queue": pl.Enum(QUEUES),
    "acked_ns": pl.Int64,  # first cumulative ACK covering it; null until acknowledged
    "latency_us": pl.Float32,  # null where unknown (unacknowledged, or retransmitted: Karn)
    "retransmitted": pl.Boolean,
    "lost": pl.Boolean,
}
PACKET_SCHEMA: Final = pl.Schema(_COLUMNS)


def queue_column(l4s: pl.Expr) -> pl.Expr:
    """Return the column `queue`, given which packets go to the L4S queue."""
    named = pl.when(l4s).then(pl.lit(QUEUES[1])).otherwise(pl.lit(QUEUES[0]))
    return named.cast(pl.Enum(QUEUES)).alias("queue")


def scan_packets(packets_dir: Path, trace: str | None = None) -> pl.LazyFrame:
    """Lazily read the packet table of one trace, or of all, in send order.

    Raises:
        FileNotFoundError: there is no packet table, or none of that trace, under `packets_dir`.
    """
    files = _files(packets_dir, trace)
    return pl.scan_parquet(files, hive_partitioning=False).sort("trace", "packet")


def read_packets(packets_dir: Path, trace: str) -> pl.DataFrame:
    """Read a packet table, which another program may have made, in send order.

    Raises:
        FileNotFoundError: there is no packet table of that trace under `packets_dir`.
        ValueError: a file is damaged or has other columns; the line names it.
    """
    table = read_parquet(_files(packets_dir, trace))
    try:
        table = table.match_to_schema(PACKET_SCHEMA, extra_columns="ignore")
    except pl.exceptions.PolarsError as error:
        said = str(error).splitlines()[0][:200]
        raise ValueError(f"{packets_dir}, trace {trace}: not a packet table: {said}") from None
    return table.sort("trace", "packet")


def _files(packets_dir: Path, trace: str | None) -> list[Path]:
    files = sorted(packets_dir.glob(f"trace={trace or '*'}/minute=*/*.parquet"))
    if not files:
        what = f"trace {trace!r}" if trace else "any trace"
        raise FileNotFoundError(f"no packet table of {what} under {packets_dir}; run `swiftqueue extract`")
    return files


def traces_in(packets_dir: Path) -> list[str]:
    """Return the names of the traces whose packet tables lie under `packets_dir`, sorted."""
    return sorted(p.name.removeprefix("trace=") for p in packets_dir.glob("trace=*") if p.is_dir())
