"""Style every plot: its axes, and SVG that is readable on light and dark pages."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DPI: Final = 110
INK: Final = "#7d858c"  # colour of an SVG's text and lines: contrast 3.8 on white, 5.0 on #0d1117
_GRID: Final = "#868e9630"
_SVG: Final[dict[str, Any]] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "swiftqueue",  # the same ids each time
}


def grid(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of the given size in inches and its axes, row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes_by_row: list[list[Axes]] = figure.subplots(rows, columns, squeeze=False).tolist()
    for row in axes_by_row:
        for axes in row:
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(color=_GRID)
            axes.set_axisbelow(True)
            axes.tick_params(labelsize=8)
    return figure, axes_by_row


def svg(draw: Callable[[], Figure]) -> bytes:
    """Return what `draw` draws as SVG: transparent, in middle tones, the same bytes each time."""
    out = io.BytesIO()
    with mpl.rc_context(_SVG):
        draw().savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return b"\n".join(line.rstrip() for line in out.getvalue().splitlines()) + b"\n"
