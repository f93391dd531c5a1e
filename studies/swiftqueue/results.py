"""The study's tables and pictures, drawn from what is published in `data/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.laboratory.report import changes
from swiftqueue.laboratory.report.comparison import LIMITS
from swiftqueue.laboratory.runs.results import load
from swiftqueue.laboratory.scenarios.schema import PROFILES
from swiftqueue.models.scoring.plot_style import svg
from swiftqueue.studies.swiftqueue import guard, ladder, paper, pictures, premise_map, waits
from swiftqueue.studies.swiftqueue.map_picture import premise_map as map_picture

DATA: Final = Path("studies/swiftqueue/data")


def of_runs(root: Path, draw: Callable[[pl.DataFrame], list[str]]) -> list[str]:
    """Draw a table of the published runs."""
    return draw(load(root / DATA))


def of_paper(root: Path, draw: Callable[[Mapping[str, object]], list[str]]) -> list[str]:
    """Draw a table of the published rows of `swiftqueue paper forecasts`."""
    return draw(paper.load(root))


def _ladder(scenario: str, profile: str) -> Callable[[pl.DataFrame], list[str]]:
    return partial(ladder.ladder, profile=profile, scenario=scenario)


TABLES: Final[Mapping[str, Callable[[Path], list[str]]]] = {
    "paper-verdicts": partial(of_paper, draw=paper.verdicts),
    "paper-origins": partial(of_paper, draw=paper.origins),
    "paper-exhibits": partial(of_paper, draw=paper.sections),
    "paper-waits": partial(of_runs, draw=waits.table),
    "paper-waits-choices": lambda _: waits.choices(),
    **{f"ladder-{profile}": partial(of_runs, draw=_ladder(ladder.SCENARIO, profile)) for profile in PROFILES},
    **{
        f"fresh-ladder-{profile}": partial(of_runs, draw=_ladder(ladder.FRESH, profile))
        for profile in PROFILES
    },
    "ladder-long": partial(of_runs, draw=_ladder(ladder.LONG, "uncoupled")),
    "ladder-long-rfc9332": partial(of_runs, draw=_ladder(ladder.LONG_RFC9332, "rfc9332")),
    "split": partial(
        of_runs,
        draw=lambda runs: changes.along_axis(runs, "split", "share moved", "random", LIMITS),
    ),
    "guard-shipped": partial(of_runs, draw=lambda runs: changes.along_axis(runs, guard.SHIPPED, "guard")),
    "guard-shipped-kept": partial(of_runs, draw=guard.kept),
    "guard-places": partial(of_runs, draw=lambda runs: changes.in_places(runs, guard.PLACES)),
    "fresh-guard": partial(
        of_runs,
        draw=lambda runs: [
            *guard.kept(runs, guard.FRESH),
            "",
            *changes.along_axis(runs, guard.FRESH, "guard"),
        ],
    ),
    "premise-map": partial(of_runs, draw=premise_map.mapped),
    "premise-map-counted": partial(of_runs, draw=premise_map.counted),
    "premise-map-guarded": partial(of_runs, draw=lambda runs: premise_map.mapped(runs, premise_map.GUARDED)),
    "premise-map-guarded-counted": partial(
        of_runs, draw=lambda runs: premise_map.counted(runs, premise_map.GUARDED)
    ),
}


def drawn(root: Path) -> dict[str, bytes]:
    """Return the pictures by their files' names."""
    runs = load(root / DATA)
    of_map = runs.filter(pl.col("scenario") == premise_map.SCENARIO)
    return {**pictures.pictures(paper.load(root)), "premise-map.svg": svg(lambda: map_picture(of_map))}
