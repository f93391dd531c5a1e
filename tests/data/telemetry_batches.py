"""Make batches of events from packet tables for the telemetry tests, and put them into a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from event_rows import batch
from window_tables import MS, events, table_of

from swiftqueue.feature_store.telemetry.compact import CompactionReport, Compactor
from swiftqueue.feature_store.telemetry.events import ACK, SEND, SEND_COLUMNS, BatchKey, encode
from swiftqueue.feature_store.telemetry.log import SegmentWriter

SECOND = 1000 * MS
START_NS = 1_700_000_040 * 10**9  # 20 s after a full minute


def steady(packets: int, gap_ns: int = 2 * MS, latency_ns: int = 30 * MS) -> pl.DataFrame:
    """Return packets of two flows; each 50th is never acknowledged, each 40th has no latency."""
    return table_of(
        [
            (
                gap_ns,
                None if p % 50 == 49 else latency_ns,
                p % 40 == 39,
                1500,
                p % 2,
                0,
                ("l4s", "classic")[p % 2],
            )
            for p in range(packets)
        ],
        START_NS,
    )


def event_rows(packets: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the table's log, one dictionary per event, with the fields of `EVENT`."""
    rows = []
    for kind, row in events(packets):
        if kind == "sent":
            sent = {name: row[name] for name in SEND_COLUMNS if name != "queue"}
            queue = int(row["queue"] == "l4s")
            rows.append(
                {"kind": SEND, "time_ns": row["sent_ns"], "packet": row["packet"], **sent, "queue": queue}
            )
        else:
            latency = {"latency_us": row["latency_us"]}
            rows.append({"kind": ACK, "time_ns": row["acked_ns"], "packet": row["packet"], **latency})
    return rows


def bodies(
    packets: pl.DataFrame, size: int, sender: str = "a", session: int = 1, first: int = 0
) -> list[bytes]:
    """Return the table's log in encoded batches of `size` events, numbered from `first`."""
    rows = event_rows(packets)
    return [
        encode(BatchKey(sender, session, first + n), batch(rows[at : at + size]))
        for n, at in enumerate(range(0, len(rows), size))
    ]


def log(root: Path, batches: Sequence[bytes], writer: SegmentWriter | None = None) -> None:
    """Append batches and close their segment."""
    writer = writer or SegmentWriter(root)
    writer.append(batches)
    writer.close()


def compact(root: Path, **options: Any) -> CompactionReport:
    """Run a compactor of its own once."""
    compactor = Compactor(root, **options)
    report = compactor.run()
    compactor.close()
    return report


def store(root: Path, batches: Sequence[bytes], **options: Any) -> CompactionReport:
    """Append batches and compact them."""
    log(root, batches)
    return compact(root, **options)
