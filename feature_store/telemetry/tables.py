"""Turn events into packet tables, and join later ACKs to them.

`packets` are tables of `PACKET_SCHEMA`, and `acks` of `ACK_SCHEMA`; every function takes and returns them in
the order of the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from swiftqueue.common.atomic import new_file
from swiftqueue.common.parquet import read_parquet
from swiftqueue.feature_store.packets.schema import PACKET_SCHEMA, queue_column
from swiftqueue.feature_store.telemetry.events import ACK, EVENT, SEND, UNKNOWN_US, Events

ACK_SCHEMA: Final = pl.Schema({name: PACKET_SCHEMA[name] for name in ("packet", "acked_ns", "latency_us")})


def event_frame(batches: Sequence[Events]) -> pl.DataFrame:
    """Return the events of several batches as one frame."""
    return pl.DataFrame(
        {name: np.concatenate([events[name] for events in batches]) for name in EVENT.names or ()}
    )


def packets_of(sender: str, events: pl.DataFrame) -> pl.DataFrame:
    """Return a packet table of the SENDs, with nothing acknowledged yet."""
    return (
        events.lazy()
        .filter(pl.col("kind") == SEND)
        .with_columns(
            pl.lit(sender).alias("trace"),
            pl.col("time_ns").alias("sent_ns"),
            queue_column(pl.col("queue") == 1),
            pl.lit(None).alias("acked_ns"),
            pl.lit(None).alias("latency_us"),
            pl.lit(value=False).alias("lost"),  # unknown in telemetry
        )
        .select(pl.col(name).cast(kind) for name, kind in PACKET_SCHEMA.items())
        .collect()
    )


def acks_of(events: pl.DataFrame) -> pl.DataFrame:
    """Return the ACKs; an unknown latency is null."""
    latency_us = pl.col("latency_us")
    return events.filter(pl.col("kind") == ACK).select(
        "packet",
        pl.col("time_ns").alias("acked_ns"),
        pl.when(latency_us != UNKNOWN_US).then(latency_us).alias("latency_us"),
    )


def with_acks(packets: pl.DataFrame, acks: pl.DataFrame) -> pl.DataFrame:
    """Acknowledge each packet by its first ACK; packets acknowledged before stay unchanged.

    An ACK without a latency leaves it unknown (Karn). An ACK stamped before its packet counts as of the
    packet's time and has no latency.
    """
    if acks.is_empty():
        return packets
    first = acks.unique("packet", keep="first", maintain_order=True).rename(
        {"acked_ns": "ack_ns", "latency_us": "ack_latency_us"}
    )
    news = pl.col("acked_ns").is_null() & pl.col("ack_ns").is_not_null()
    backwards = pl.col("ack_ns") < pl.col("sent_ns")
    return (
        packets.lazy()
        .join(first.lazy(), on="packet", how="left", maintain_order="left")
        .with_columns(
            pl.when(news)
            .then(pl.max_horizontal("ack_ns", "sent_ns"))
            .otherwise("acked_ns")
            .alias("acked_ns"),
            pl.when(news & ~backwards).then("ack_latency_us").otherwise("latency_us").alias("latency_us"),
        )
        .select(PACKET_SCHEMA.names())
        .collect()
    )


def merged(packets: Sequence[pl.DataFrame], acks: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return a partition's parts as one packet table in send order; a repeated packet's first row stays."""
    whole = pl.concat(packets).unique("packet", keep="first", maintain_order=True).sort("packet")
    return with_acks(whole, pl.concat(acks)) if acks else whole


def write_part(folder: Path, name: str, table: pl.DataFrame) -> None:
    """Write a table to `folder/name` durably and atomically.

    The name itself is durable once its folder is.

    Raises:
        OSError: the table cannot be written.
    """
    try:
        with new_file(folder / name, on_disk=True) as partial:
            table.write_parquet(partial, compression="zstd", compression_level=1)
    except pl.exceptions.PolarsError as error:
        raise OSError(f"{folder / name}: cannot be written: {error}") from None


def read_part(folder: Path, name: str) -> pl.DataFrame:
    """Read a table that `write_part` wrote.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is damaged; the line names it.
    """
    file = folder / name
    try:
        table = read_parquet([file])
    except ValueError:
        file.stat()  # raises if the file is missing, not damaged
        raise
    if table.schema not in (PACKET_SCHEMA, ACK_SCHEMA):
        raise ValueError(f"{file}: not a table of packets or of ACKs")
    return table
