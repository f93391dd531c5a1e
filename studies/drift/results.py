"""The study's tables and picture, drawn from what is published in `data/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.common.atomic import new_file
from swiftqueue.common.parquet import read_parquet
from swiftqueue.models.scoring.plot_style import svg
from swiftqueue.studies.drift import tables

DATA: Final = Path("studies/drift/data")
FILE: Final = "rounds.parquet"


def write(rows: pl.DataFrame, target: Path) -> None:
    """Publish rows, in place of those that were published."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_file(target) as partial_file:
        rows.sort("course", "seed", "round", "model").write_parquet(partial_file, compression="zstd")


def of_rows(root: Path, draw: Callable[[pl.DataFrame], list[str]]) -> list[str]:
    """Draw a table of the published rows."""
    return draw(read_parquet([root / DATA / FILE]))


TABLES: Final[Mapping[str, Callable[[Path], list[str]]]] = {
    "drift-repairs": partial(of_rows, draw=tables.repairs),
    "drift-gate": partial(of_rows, draw=tables.gate),
    "drift-stationary": partial(of_rows, draw=tables.stationary),
    "drift-weights": partial(of_rows, draw=tables.sets),
}


def drawn(root: Path) -> dict[str, bytes]:
    """Return the pictures by their files' names."""
    return {"drift.svg": svg(lambda: tables.picture(read_parquet([root / DATA / FILE])))}
