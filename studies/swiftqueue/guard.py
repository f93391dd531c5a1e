"""The part of the model's gain in figure 8 that is left with the guard."""

from __future__ import annotations

from typing import Final

import polars as pl

from swiftqueue.laboratory.report.comparison import Place, change_of, percent
from swiftqueue.laboratory.report.judging import LEAST_GAIN_KEPT
from swiftqueue.laboratory.report.measures import QUEUEING_P99
from swiftqueue.laboratory.report.tables import NONE, head_of, row_of
from swiftqueue.models.scoring.intervals import Estimate

SHIPPED: Final = "shipped-guard-"
FRESH: Final = "fresh-guard-"  # with the network that the loop serves
PLACES: Final = "guarded-"  # in places of the sweeps and the maps
ON: Final = "on"
OFF: Final = "off"


def kept(runs: pl.DataFrame, prefix: str = SHIPPED) -> list[str]:
    """Return a table of the gain without the guard and with it."""
    lines = head_of(
        ["`uncoupled`, P99 against default", "without the guard", "with it", "kept", "wanted", "seeds"]
    )
    changes = [change_of(runs, _place(prefix, point), "model", QUEUEING_P99) for point in (OFF, ON)]
    if None in changes:
        return ["Not run."]
    off, on = (found for found in changes if found)
    wanted = f"{LEAST_GAIN_KEPT:.0%} or more".replace("%", " %")
    return [*lines, row_of(["figure 8", percent(off), percent(on), _part(on, off), wanted, str(on.n)])]


def _place(prefix: str, point: str) -> Place:
    return Place(f"{prefix}figure8", point, "uncoupled")


def _part(on: Estimate, off: Estimate) -> str:
    """Return the ratio of the mean gains; nothing where there was no gain to keep."""
    return f"{on.mean / off.mean * 100:.0f} %" if off.mean < 0 else NONE
