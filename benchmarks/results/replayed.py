"""Two seconds of a replayed sender, published as `docs/results/sender.csv` for the README's first picture."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.common.atomic import write_file
from swiftqueue.common.parquet import read_parquet
from swiftqueue.feature_store.packets.schema import QUEUES

FILE: Final = Path("docs/results/sender.csv")
SHOWN_MS: Final = 2_000.0
DIGITS: Final = 3
CLASSIC, L4S = QUEUES


def take(replayed: Path, path: Path = FILE) -> None:
    """Put a replay's two seconds into the file."""
    write_file(path, two_seconds(replayed).write_csv())


def two_seconds(replayed: Path) -> pl.DataFrame:
    """Return the L4S packets of a replay's two seconds with the most marks' changes: one per decision.

    `replayed` is what `swiftqueue replay` records. Times are from the first of them.

    Raises:
        ValueError: it cannot be read, has other columns, or no decided L4S packet of known latency.
    """
    table = read_parquet([replayed])
    try:
        packets = (
            table.filter(pl.col("queue_sent") == L4S, pl.col("predicted_us").is_not_null())
            .filter(pl.col("latency_us").is_not_null())
            .unique("decision_ns", keep="first", maintain_order=True)
            .select(
                time_ms=pl.col("decision_ns") / 1e6,
                latency_ms=pl.col("latency_us") / 1e3,
                predicted_ms=pl.col("predicted_us") / 1e3,
                moved=(pl.col("queue_chosen") == CLASSIC).cast(pl.Int8),
            )
            .sort("time_ms")
        )
    except pl.exceptions.PolarsError as error:
        said = str(error).splitlines()[0]
        raise ValueError(f"{replayed} is nothing that `swiftqueue replay` recorded: {said}") from None
    if packets.is_empty():
        raise ValueError(f"{replayed}: no packet was decided and acknowledged")
    window = (pl.col("time_ms") // SHOWN_MS).alias("window")
    spread = packets.group_by(window).agg(pl.col("latency_ms").std()).sort("latency_ms", "window")
    chosen = packets.filter(window == spread["window"][-1])
    return chosen.with_columns(pl.col("time_ms") - chosen["time_ms"][0]).with_columns(
        pl.col("time_ms", "latency_ms", "predicted_ms").round(DIGITS)
    )
