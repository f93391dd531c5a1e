"""The study's tables and picture, drawn from what is published in `data/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.laboratory.runs import experience
from swiftqueue.models.scoring.plot_style import svg
from swiftqueue.studies.lfq import queues, table, tables, traces

DATA: Final = Path("studies/lfq/data")


def of_table(root: Path, draw: Callable[[pl.DataFrame], list[str]]) -> list[str]:
    """Draw a table of the published runs of single flows."""
    return draw(table.read(root / DATA))


TABLES: Final[Mapping[str, Callable[[Path], list[str]]]] = {
    "lfq-400": partial(of_table, draw=tables.of_400),
    "lfq-correlations": partial(of_table, draw=tables.correlations),
    "lfq-beyond": partial(of_table, draw=tables.beyond),
    "lfq-best": partial(of_table, draw=tables.best_of),
    "lfq-verdicts": partial(of_table, draw=tables.verdicts),
    "lfq-flows": lambda root: tables.many(experience.load(root / DATA, experience.FLOWS)),
    "lfq-traces": lambda root: queues.table(traces.load(root / DATA)),
}


def drawn(root: Path) -> dict[str, bytes]:
    """Return the pictures by their files' names."""
    return {"lfq-traces.svg": svg(lambda: queues.picture(traces.load(root / DATA)))}
