"""A foreign trace of tcp_info becomes a path of the project's: `swiftqueue rate add`."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.common.parquet import read_parquet
from swiftqueue.studies.rate.samples.definition import NAMES, inputs
from swiftqueue.studies.rate.samples.tables import ADDED, KINDS, tables_of, write_path

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def add(file: Path, output: Path, name: str, kind: str = "train") -> dict[str, Any]:
    """Write a trace's tables as `output`/path=`name`; returns what `path.json` says.

    A row is what one ACK of one flow says: `flow`, and the 28 fields in tcp_info's units, in the order of
    the ACKs. Optional are `receiver` and `started_ns`, of the flow; other columns are left alone. What the
    SYN's ACK says is left out, and so is a flow that has nothing else.

    Args:
        file: CSV, or Parquet where its name ends so.
        output: folder of the tables.
        name: name of the path.
        kind: `train` or `held-out`.

    Raises:
        OSError: there is no such file.
        ValueError: it is no such trace, cannot be read, or the name is taken; the line names file and flow.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"path {name!r}: a name has letters, digits, dots and dashes")
    if kind not in KINDS:
        raise ValueError(f"path {name}: its kind is none of {', '.join(KINDS)}")
    if (output / f"path={name}").exists():
        raise ValueError(f"{output / f'path={name}'}: is there; choose another name")
    samples, flows = tables_of(_flows(file, _read(file)))
    if not len(flows):
        raise ValueError(f"{file}: no flow has delivered a packet")
    about = {
        "format": 1,
        "kind": kind,
        "source": ADDED,
        "file": file.name,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "flows": len(flows),
        "samples": int(flows["samples"].sum()),
    }
    try:
        write_path(output, name, about, samples, flows)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return about


def _read(file: Path) -> pl.DataFrame:
    """The columns that are taken, whole numbers all."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: there is no such file")
    try:
        table = read_parquet([file]) if file.suffix == ".parquet" else pl.read_csv(file)
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not a table: {str(error).splitlines()[0][:200]}") from None
    except OSError as error:  # as of a compressed file that is cut: it does not say which
        raise ValueError(f"{file}: cannot be read: {str(error).splitlines()[0][:200]}") from None
    if missing := [column for column in ("flow", *NAMES) if column not in table.columns]:
        raise ValueError(f"{file}: column {missing[0]} is missing ({len(missing)} are)")
    table = table.select("flow", *NAMES, *({"receiver", "started_ns"} & set(table.columns)))
    for column in table.columns:
        if not table[column].dtype.is_integer():
            raise ValueError(
                f"{file}: column {column} is of type {table[column].dtype}, not of whole numbers"
            )
        if (row := table[column].is_null().arg_max()) is not None and table[column].null_count():
            raise ValueError(f"{file}: row {row}, column {column}: has no value")
    try:
        return table.cast(pl.Int64)
    except pl.exceptions.PolarsError:
        raise ValueError(f"{file}: a number is beyond 2^63") from None


def _flows(file: Path, table: pl.DataFrame) -> list[tuple[int, int, NDArray[np.int64]]]:
    """Receiver, beginning and samples of each flow, in the order of their first rows."""
    found = []
    begin_ns = 0
    for (flow,), own in table.group_by("flow", maintain_order=True):
        try:
            inputs(own.select(NAMES).to_numpy())
        except ValueError as error:
            raise ValueError(f"{file}: flow {flow}, {error}") from None
        # Left out is what the SYN's ACK says: no packet, or as Linux counts one packet of one byte.
        syn = pl.when(pl.col("bytes_acked") > 1).then(0).otherwise(1)
        own = own.filter(pl.col("delivered") > syn)
        if not len(own):
            continue
        x_NF = own.select(NAMES).to_numpy()
        started_ns = int(own["started_ns"][0]) if "started_ns" in own.columns else begin_ns
        begin_ns = started_ns + 1000 * int(own["ts"][-1])  # without times: one after the other
        if not -(2**63) <= begin_ns < 2**63:
            raise ValueError(f"{file}: flow {flow}, started_ns + 1000 ts of an ACK is beyond 2^63 ns")
        found.append((int(own["receiver"][0]) if "receiver" in own.columns else 0, started_ns, x_NF))
    return found
