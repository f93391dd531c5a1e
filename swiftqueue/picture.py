"""A Matplotlib figure that a notebook shows without further commands."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure of its own, outside Matplotlib's list of open figures."""

    def _repr_png_(self) -> bytes:
        """Return what a notebook shows."""
        out = io.BytesIO()
        self.savefig(out, format="png")
        return out.getvalue()
