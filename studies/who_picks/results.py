"""The study's tables and picture, drawn from what is published in `data/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.laboratory.runs import experience
from swiftqueue.models.scoring.plot_style import svg
from swiftqueue.studies.who_picks import tables

DATA: Final = Path("studies/who_picks/data")


def of_runs(root: Path, draw: Callable[[pl.DataFrame], list[str]]) -> list[str]:
    """Draw a table of the published runs."""
    return draw(experience.load(root / DATA))


TABLES: Final[Mapping[str, Callable[[Path], list[str]]]] = {
    "who-picks": partial(of_runs, draw=tables.who),
    "who-picks-waits": partial(of_runs, draw=tables.who_waits),
    "who-picks-shares": partial(of_runs, draw=tables.who_shares),
    "who-picks-else": partial(of_runs, draw=tables.who_else),
    "who-picks-verdicts": partial(of_runs, draw=tables.who_verdicts),
    "cheats": partial(of_runs, draw=tables.cheats),
    "cheats-verdicts": partial(of_runs, draw=tables.cheats_verdicts),
}


def drawn(root: Path) -> dict[str, bytes]:
    """Return the pictures by their files' names."""
    return {"who-picks.svg": svg(lambda: tables.picture(experience.load(root / DATA)))}
