"""Write and read what a simulator knows of packets and a sender does not: a table beside the packet table.

Its rows are those of the packet table, in send order. Shapes: N packets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.common.atomic import new_file
from swiftqueue.common.parquet import read_parquet
from swiftqueue.feature_store.packets.schema import QUEUES

TRUTH: Final = "truth.npy"  # file of a simulator run (simulation/doc/lab.md)
WAITS: Final = "waits.npy"  # waits of each packet in both queues, if the run recorded them


@dataclass(frozen=True)
class Waits:
    """The simulated waits of a table's packets in either queue."""

    classic_us_N: NDArray[np.float32]  # NaN: it did not arrive
    l4s_us_N: NDArray[np.float32]
    movable_N: NDArray[np.bool_]  # whether its flow is L4S, so that a sender may choose

    def of(self, packets_N: NDArray[np.int64]) -> Waits:
        """Return the waits of some packets by their numbers."""
        return Waits(self.classic_us_N[packets_N], self.l4s_us_N[packets_N], self.movable_N[packets_N])


def write_truth(run: Path, target: Path) -> None:
    """Write a run's truth as Parquet, with the packet table's column names.

    If the run recorded waits in both queues, the table has `classic_wait_us` and `l4s_wait_us`, null for a
    packet that did not arrive.
    """
    rows = np.load(run / TRUTH)
    table = pl.DataFrame({name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names})
    queues = pl.Enum(QUEUES)
    flags = ("retransmitted", "dropped", "marked", "reordered", "ambiguous")
    if (run / WAITS).is_file():
        found = np.load(run / WAITS)
        table = table.with_columns(
            pl.Series(f"{name}_wait_us", found[f"{name}_us"]).fill_nan(None) for name in QUEUES
        )
    table = table.rename({"flow": "flow_id"}).with_columns(
        *(
            pl.col(name).replace_strict(dict(enumerate(QUEUES)), return_dtype=queues)
            for name in ("queue", "default_queue")
        ),
        *(pl.col(name).cast(pl.Boolean) for name in flags),
        *(pl.col(name).fill_nan(None) for name in ("one_way_us", "queueing_us", "latency_us")),
        pl.when(pl.col("acked_ns") >= 0).then("acked_ns").alias("acked_ns"),
    )
    with new_file(target) as partial:
        table.write_parquet(partial, compression="zstd")


def read_waits(truth: Path, packets: pl.DataFrame) -> Waits:
    """Read the waits in either queue of a packet table's packets.

    A truth may have more packets, because no packet table holds control connections. Packets are matched by
    their time of sending, which is unique within a sender.

    Raises:
        ValueError: the file cannot be read, has no waits, or belongs to other packets.
    """
    columns = ("sent_ns", "default_queue", "classic_wait_us", "l4s_wait_us")
    table = read_parquet([truth])
    are_numbers = {name: name != "default_queue" for name in columns}
    found = {name: kind.is_numeric() for name, kind in table.schema.items()}
    if wrong := [name for name, is_number in are_numbers.items() if found.get(name) != is_number]:
        said = "is missing or of a wrong type; it must tell of both queues"
        raise ValueError(f"{truth}: column {wrong[0]} {said}")
    told = table.height
    table = table.filter(pl.col("sent_ns").is_in(packets["sent_ns"].implode()))
    if not table["sent_ns"].equals(packets["sent_ns"]):
        raise ValueError(f"{truth}: its {told} packets are not the {packets.height} of the trace")
    classic, l4s = (table[name].fill_null(float("nan")).to_numpy() for name in columns[2:])
    return Waits(classic, l4s, (table["default_queue"] == QUEUES[1]).to_numpy())
