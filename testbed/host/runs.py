"""The rows of the bed's scenarios, by kernel and simulator: the laboratory's columns, and `source`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl

from swiftqueue.common.atomic import new_file
from swiftqueue.common.parquet import read_parquet
from swiftqueue.laboratory.runs import results

FILE: Final = "bed.parquet"
SOURCES: Final = ("kernel", "ns3")
CONTROLS: Final = ("default", "no_l4s", "random", "last_latency", "oracle", "model")
ROUTER: Final[dict[str, pl.DataType | type[pl.DataType]]] = {  # the router's own error; null for ns-3
    "late_p50_us": pl.Float64,  # time after the virtual due time; packets in stalls are masked
    "late_p99_us": pl.Float64,
    "late_p999_us": pl.Float64,
    "stalled_share": pl.Float64,  # share of the packets that is masked
}
EXPERIMENT: Final = ("seconds", "program")  # equal in all rows of a source and scenario
SCHEMA: Final = {"source": pl.String, **results.SCHEMA, **ROUTER}
LATER: Final = (*results.LATER, *ROUTER)  # as `results.LATER`


def load(output: Path) -> pl.DataFrame:
    """Return the rows of a folder, of kernel and simulator; a missing file gives an empty table.

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


def check_same(output: Path, rows: pl.DataFrame, new: Mapping[str, Any]) -> None:
    """Raise ValueError if rows of the same source and scenario had other seconds or programs.

    Rows without a program are older than that column, and nobody can say that it is the same.

    Raises:
        ValueError: there are such rows; the line names the folder.

    """
    beside = rows.filter(source=new["source"], scenario=new["scenario"])
    for name in EXPERIMENT:
        if others := [one for one in beside[name].unique() if one != new[name]]:
            raise ValueError(
                f"{output / FILE} has {new['source']} runs of {new['scenario']} with {name} {others[0]}, and "
                f"these are with {new[name]}: name another folder with --output"
            )


def keep(output: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows, in place of those of the same key.

    Raises:
        ValueError: rows of another experiment would stay (`check_same`).

    """
    new = pl.DataFrame([dict(row) for row in rows], schema=SCHEMA)
    key = ["source", *results.KEY]
    others = load(output).join(new, on=key, how="anti")
    for one in new.unique(["source", "scenario", *EXPERIMENT]).iter_rows(named=True):
        check_same(output, others, one)
    table = pl.concat([others, new]).sort(key)
    output.mkdir(parents=True, exist_ok=True)
    with new_file(output / FILE) as partial:
        table.write_parquet(partial, compression="zstd")


def simulated(name: str, laboratory: Path) -> list[dict[str, Any]]:
    """Return the simulator's rows of a scenario, for the controls that the bed has too."""
    rows = results.load(laboratory).filter(
        pl.col("scenario") == name, pl.col("control").is_in(CONTROLS), pl.col("status") == results.COMPLETE
    )
    return [{"source": "ns3", **row} for row in rows.iter_rows(named=True)]
