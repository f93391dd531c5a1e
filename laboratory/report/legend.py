"""The legend of a picture with several axes: below them, in the ink of its text."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from swiftqueue.models.scoring.plot_style import INK


def legend_below(figure: Figure, handles: Sequence[Artist], columns: int) -> None:
    """Draw one legend of the handles, by their labels, for the whole figure."""
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=columns,
        fontsize=8,
        frameon=False,
        labelcolor=INK,
    )
