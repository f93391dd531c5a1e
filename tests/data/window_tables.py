"""Draw packet tables for the tests of windows and events, and make their event logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl
from hypothesis import strategies as st

from swiftqueue.feature_store.packets.schema import PACKET_SCHEMA

MS = 1_000_000
# Around every threshold of the definition: 0, the 5 ms hole, giving up at 2 s, forgetting at 60 s.
GAPS_NS = st.one_of(
    st.sampled_from([0, 0, 1, 1500, 5 * MS - 1, 5 * MS, 2000 * MS, 61_000 * MS]),
    st.integers(0, 3 * MS),
    st.integers(-2 * MS, 700 * MS),
)
LATENCIES_NS = st.one_of(
    st.none(),
    st.sampled_from([0, 2000 * MS - 1, 2000 * MS, 60_000 * MS, 60_000 * MS + 1]),
    st.integers(1, 40 * MS),
    st.integers(1, 4000 * MS),
)
ROW = st.tuples(
    GAPS_NS,
    LATENCIES_NS,
    st.booleans(),  # an ACK without a latency (Karn)
    st.sampled_from([60, 1432, 1500, 65535]),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from(["classic", "l4s"]),
)


def table_of(rows: list[tuple[Any, ...]], start_ns: int = 1_700_000_000 * 10**9) -> pl.DataFrame:
    now_ns = start_ns
    records = []
    for packet, (gap_ns, latency_ns, karn, size, flow, receiver, queue) in enumerate(rows):
        now_ns += gap_ns
        known = latency_ns is not None and not karn
        records.append(
            {
                "trace": "t",
                "packet": packet,
                "sent_ns": now_ns,
                "flow_id": flow,
                "receiver_id": receiver,
                "size_bytes": size,
                "ecn": 1 if queue == "l4s" else 2,
                "queue": queue,
                "acked_ns": None if latency_ns is None else now_ns + latency_ns,
                "latency_us": latency_ns / 1000 if known else None,
                "retransmitted": karn,
                "lost": latency_ns is None,
            }
        )
    return pl.DataFrame(records, schema=PACKET_SCHEMA)


def tables(max_size: int = 70) -> st.SearchStrategy[pl.DataFrame]:
    # The size is drawn first: lists drawn freely are mostly short.
    sizes = st.integers(8, max_size)
    return sizes.flatmap(lambda n: st.lists(ROW, min_size=n, max_size=n)).map(table_of)


def events(packets: pl.DataFrame) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the table's log in time order; at one instant an ACK comes before the sends of later packets."""
    log: list[tuple[tuple[int, int, int], str, dict[str, Any]]] = []
    latest = 0
    for row in packets.to_dicts():
        latest = max(latest, row["sent_ns"])
        log.append(((latest, row["packet"], 0), "sent", row))
        if row["acked_ns"] is not None:
            log.append(((max(row["acked_ns"], latest), row["packet"], 1), "acked", row))
    for _, kind, row in sorted(log, key=lambda event: event[0]):
        yield kind, row
