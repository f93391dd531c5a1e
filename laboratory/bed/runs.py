"""Rows of the bed's scenarios, by a kernel and by the simulator: the laboratory's columns, and `source`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from feature_store.atomic import new_file
from feature_store.parquet import read_parquet
from laboratory.runs import results

FILE: Final = "bed.parquet"
SOURCES: Final = ("kernel", "ns3")
CONTROLS: Final = ("default", "no_l4s", "random", "last_latency", "oracle", "model")
ROUTER: Final[dict[str, pl.DataType | type[pl.DataType]]] = {  # its own error; null of ns-3
    "late_p50_us": pl.Float64,  # written after it was due in virtual time; packets in stalls are masked
    "late_p99_us": pl.Float64,
    "late_p999_us": pl.Float64,
    "stalled_share": pl.Float64,  # of the packets, masked
}
SCHEMA: Final = {"source": pl.String, **results.SCHEMA, **ROUTER}
LATER: Final = (*results.LATER, *ROUTER)  # as `results.LATER`


def load(output: Path) -> pl.DataFrame:
    """Rows of a folder, of kernel and simulator; none yet is an empty table.

    Raises:
        ValueError: the file is damaged or of another version.

    """
    path = output / FILE
    if not path.is_file():
        return pl.DataFrame(schema=SCHEMA)
    table = results.with_later(read_parquet([path]), SCHEMA, LATER)
    if table.schema != pl.Schema(SCHEMA):
        raise ValueError(f"{path} was made by another version; remove it, and `swiftqueue bed run` again")
    return table


def keep(output: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put rows in the place of those of the same key; a source's rows of a scenario are of one length."""
    new = pl.DataFrame([dict(row) for row in rows], schema=SCHEMA)
    key = ["source", *results.KEY]
    others = load(output).join(new, on=key, how="anti")
    lengths = new.select("source", "scenario", one_s="seconds").unique()
    same = others.join(lengths, on=["source", "scenario"], how="left")
    same = same.filter(pl.col("one_s").is_null() | (pl.col("one_s") == pl.col("seconds"))).drop("one_s")
    table = pl.concat([same, new]).sort(key)
    output.mkdir(parents=True, exist_ok=True)
    with new_file(output / FILE) as partial:
        table.write_parquet(partial, compression="zstd")


def simulated(name: str, laboratory: Path) -> list[dict[str, Any]]:
    """The simulator's rows of a scenario, of the controls that the bed has too."""
    rows = results.load(laboratory).filter(
        pl.col("scenario") == name, pl.col("control").is_in(CONTROLS), pl.col("status") == results.COMPLETE
    )
    return [{"source": "ns3", **row} for row in rows.iter_rows(named=True)]
