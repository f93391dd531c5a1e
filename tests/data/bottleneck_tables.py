"""Packet tables of a made-up sender: Poisson packets of a few flows through two FIFO queues.

Written in the layout of `data/packets`, so that the stages after `extract` can be tried without captures.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from feature_store.schema import PACKET_SCHEMA

START_NS = 1_700_000_000 * 10**9


def bottleneck_table(
    trace: str, seconds: float, packets_per_s: int = 1000, seed: int = 0, flows: int = 4
) -> pl.DataFrame:
    """A sender at 80 % of each queue's rate, 20 ms away; 2 % retransmitted, 1 % never acknowledged."""
    rng = np.random.default_rng(seed)
    packets = int(seconds * packets_per_s)
    sent_ns = np.cumsum(rng.exponential(1e9 / packets_per_s, packets)).astype(np.int64)
    flow = rng.integers(0, flows, packets).astype(np.int32)
    l4s = flow % 2 == 0
    left_ns = np.zeros(packets, np.int64)  # when the queue has served the packet
    for queue in (False, True):
        here = np.flatnonzero(l4s == queue)
        service_ns = int(0.8 * 1e9 / (packets_per_s / 2))
        free_ns = 0
        for packet in here:
            free_ns = max(free_ns, int(sent_ns[packet])) + service_ns
            left_ns[packet] = free_ns
    acked_ns = START_NS + left_ns + 20_000_000
    fate = rng.random(packets)
    lost, retransmitted = fate < 0.01, (fate >= 0.01) & (fate < 0.03)
    return pl.DataFrame(
        {
            "trace": [trace] * packets,
            "packet": np.arange(packets),
            "sent_ns": START_NS + sent_ns,
            "flow_id": flow,
            "receiver_id": flow // 2,
            "size_bytes": rng.choice([60, 1500], packets).astype(np.int32),
            "ecn": np.where(l4s, 1, 2).astype(np.uint8),
            "queue": np.where(l4s, "l4s", "classic"),
            "acked_ns": pl.Series(acked_ns).set(pl.Series(lost), None),
            "latency_us": pl.Series((left_ns + 20_000_000 - sent_ns) / 1000).set(
                pl.Series(lost | retransmitted), None
            ),
            "retransmitted": retransmitted,
            "lost": lost,
        }
    ).cast(dict(PACKET_SCHEMA))


def write_table(packets_dir: Path, table: pl.DataFrame) -> None:
    """Write one trace's table by trace and minute."""
    minute = (table["sent_ns"] - table["sent_ns"][0]) // 60_000_000_000
    for (number,), part in table.with_columns(minute=minute).partition_by("minute", as_dict=True).items():
        folder = packets_dir / f"trace={table['trace'][0]}" / f"minute={number}"
        folder.mkdir(parents=True)
        part.drop("minute").write_parquet(folder / "part-0.parquet")
