"""The study's tables and picture, drawn from what is published in `data/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.laboratory.runs import experience
from swiftqueue.models.scoring.plot_style import svg
from swiftqueue.studies.confucius import tables, web_pages

DATA: Final = Path("studies/confucius/data")


def of(root: Path, file: str, draw: Callable[[pl.DataFrame], list[str]]) -> list[str]:
    """Draw a table of one of the published tables."""
    return draw(experience.load(root / DATA, file))


def verdicts(root: Path) -> list[str]:
    """Draw every figure to reach."""
    files = (experience.FILE, experience.FLOWS, experience.CLASSES)
    return tables.verdicts(*(experience.load(root / DATA, file) for file in files))


TABLES: Final[Mapping[str, Callable[[Path], list[str]]]] = {
    "confucius-verdicts": verdicts,
    "confucius-pages": partial(of, file=experience.FILE, draw=tables.pages),
    "confucius-shares": partial(of, file=experience.FLOWS, draw=tables.shares),
    "confucius-occupancy": partial(of, file=experience.FLOWS, draw=tables.occupancies),
    "confucius-bounds": partial(of, file=experience.FILE, draw=tables.bounds),
    "queues-web": partial(of, file=experience.FILE, draw=tables.web),
    "queues-web-pages": partial(of, file=experience.PAGES, draw=web_pages.table),
    "queues-web-verdicts": partial(of, file=experience.FILE, draw=tables.web_verdicts),
}


def drawn(root: Path) -> dict[str, bytes]:
    """Return the pictures by their files' names."""
    pages = experience.load(root / DATA, experience.PAGES)
    return {"confucius-figure-12.svg": svg(lambda: web_pages.picture(pages))}
