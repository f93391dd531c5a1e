"""The published pages one by one (`data/pages.parquet`), after figure 12 of Confucius' paper."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from swiftqueue.laboratory.report import tables as lab
from swiftqueue.laboratory.report.legend import legend_below
from swiftqueue.models.scoring.plot_style import INK, grid
from swiftqueue.studies.confucius.judges import CONFUCIUS, FAIR, FQ_CODEL
from swiftqueue.studies.confucius.tables import WEB

LONG_S: Final = 0.5  # the paper's mark in figures 12a and 12c
RULES: Final = {  # colours of the rules that are drawn
    "FIFO": INK,
    FQ_CODEL: "#f08c00",
    FAIR: "#1c7ed6",
    CONFUCIUS: "#2f9e44",
    "CBQ 1:1": "#9c36b5",
    "priority": "#e64980",
}
PANELS: Final = {  # column: title, its axis, ms from and to
    "stall_s": ("stall beside a page", "ms", (0, 450)),
    "later_s": (f"load, less {FAIR}'s", "ms", (-50, 600)),
    "frame_worst_s": ("worst frame beside a page", "ms", (0, 500)),
}
CALL: Final = "Copa"  # the paper's figure 12


def table(pages: pl.DataFrame) -> list[str]:
    """Return shares of the pages, per cent, for every rule and call."""
    each = _each(pages)
    lines = lab.head_of(
        [
            "call",
            "rule",
            "pages",
            "no stall",
            "stall over 500 ms",
            f"no later than {FAIR}",
            "worst frame over 500 ms",
        ]
    )
    for (call, rule), own in each.group_by("call", "rule", maintain_order=True):
        shares = (
            own["stall_s"] == 0,
            own["stall_s"] > LONG_S,
            own["later_s"] <= 0,
            own["frame_worst_s"] > LONG_S,
        )
        texts = [
            lab.NONE if one.null_count() else f"{100 * float(one.to_numpy().mean()):.0f}" for one in shares
        ]
        lines.append(lab.row_of([str(call), str(rule), str(own.height), *texts]))
    return lines


def picture(pages: pl.DataFrame) -> Figure:
    """Draw the cumulative share of the pages beside a call of Copa, for each of three figures."""
    each = _each(pages).filter(pl.col("call") == CALL)
    figure, (axes_of_row,) = grid(1, len(PANELS), 8.4, 2.9)
    for axes, (column, (title, unit, ends)) in zip(axes_of_row, PANELS.items(), strict=True):
        for rule, colour in RULES.items():
            values = each.filter(pl.col("rule") == rule)[column].drop_nulls().to_numpy()
            if values.size:
                _cumulative(axes, 1e3 * values, rule, colour)
        axes.set_title(title, fontsize=9)
        axes.set(xlim=ends, ylim=(0, 100))
        axes.set_xlabel(unit, fontsize=8)
    axes_of_row[0].set_ylabel("% of the pages", fontsize=8)
    handles, _ = axes_of_row[0].get_legend_handles_labels()
    legend_below(figure, handles, len(RULES))
    return figure


def _cumulative(axes: Axes, values: NDArray[np.float64], rule: str, colour: str) -> None:
    axes.step(
        [-1e6, *np.sort(values), 1e6],
        [0, *(100 * np.arange(1, values.size + 1) / values.size), 100],
        where="post",
        color=colour,
        linewidth=1.2,
        label=rule,
    )


def _each(pages: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each page: call, rule, its figures, and its delay behind the fair rule."""
    parts = pl.col("point").str.split(", ").list
    own = pages.filter(pl.col("scenario") == WEB).with_columns(rule=parts.get(0), call=parts.get(1))
    figures = ["load_s", "stall_s", "frame_worst_s"]
    each = own.with_columns(page=pl.int_ranges(pl.col("load_s").list.len())).explode("page", *figures)
    key = ["call", "seed", "page"]
    fair = each.filter(pl.col("rule") == FAIR).select(*key, fair_s=pl.col("load_s"))
    order = {rule: i for i, rule in enumerate(RULES)}
    return (
        each.join(fair, on=key, how="left")
        .with_columns(later_s=pl.when(pl.col("rule") != FAIR).then(pl.col("load_s") - pl.col("fair_s")))
        .sort("call", pl.col("rule").replace_strict(order, default=len(order)), "rule", "seed", "page")
    )
