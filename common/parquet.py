"""Read Parquet files that another program may have written, or a disk damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa

_POLARS: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
_REFUSED: Final = (pa.ArrowException, OSError, ValueError, *_POLARS)


def read_parquet(files: Sequence[Path]) -> pl.DataFrame:
    """Read files of one schema into one table; their columns may stand in any order.

    PyArrow decodes them: on some damaged pages Polars' own reader ends the process, as it asks for 2 EiB.

    Raises:
        ValueError: a file is damaged, or two have other columns; the line names them.
    """
    import pyarrow.parquet as pq

    tables: list[pl.DataFrame] = []
    for file in files:
        try:
            table = pq.ParquetFile(file).read()
            table.validate(full=True)  # Polars would accept damage, such as an index past its dictionary
            own = pl.DataFrame(table)
        except _REFUSED as error:
            said = (str(error) or type(error).__name__).splitlines()[0][:200]
            raise ValueError(f"{file} cannot be read: {said}") from None
        first = tables[0] if tables else own
        if dict(own.schema) != dict(first.schema):  # in any order
            raise ValueError(f"{file} has other columns or types than {files[0]}")
        tables.append(own.select(first.columns))
    return pl.concat(tables)
