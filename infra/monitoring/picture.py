"""The dashboard's panels drawn from a running Prometheus, for the docs and for machines without Grafana.

    swiftqueue monitor picture --output docs/pictures/dashboard.png --minutes 30

The panels and queries are those of the Grafana dashboard. Panels without any data say so.
"""

from __future__ import annotations

import re
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from swiftqueue.infra.local.prometheus_query import ask
from swiftqueue.infra.monitoring.dashboard import Panel, Query, panels

COLUMNS: Final = 3
POINTS: Final = 180  # points per series
LEGEND_MAX: Final = 6  # series named in one panel's legend
_LABEL: Final = re.compile(r"{{(\w+)}}")
AXIS: Final = {"s": "s", "bytes": "bytes", "percentunit": "part", "cps": "1/s", "pps": "1/s", "reqps": "1/s"}


def series_of(server: str, query: Query, begin: float, end: float) -> dict[str, tuple[Any, Any]]:
    """Return each series of a query by its legend: times (minutes before the end) and values."""
    import numpy as np

    step = max(1.0, (end - begin) / POINTS)
    answer = ask(
        server, "query_range", query=query.expr, start=f"{begin:.3f}", end=f"{end:.3f}", step=f"{step:.3f}"
    )
    found = {}
    for one in answer["result"]:
        name = _LABEL.sub(partial(_value, one["metric"]), query.legend)
        points = np.array(one["values"], dtype=float)
        found[name] = ((points[:, 0] - end) / 60, points[:, 1])
    return found


def _value(labels: dict[str, str], name: re.Match[str]) -> str:
    return labels.get(name[1], "")


def draw(server: str, output: Path, minutes: float) -> int:
    """Draw every panel into one PNG; return how many panels had data."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    end = time.time()
    drawn = panels()
    rows = -(-len(drawn) // COLUMNS)
    with mpl.rc_context({"font.size": 7, "axes.titlesize": 8, "axes.spines.top": False}):
        figure, axes = plt.subplots(rows, COLUMNS, figsize=(12, 1.9 * rows), layout="constrained")
        filled = 0
        for axis, panel in zip(axes.flat, drawn, strict=False):
            filled += _draw_panel(axis, panel, server, end - 60 * minutes, end)
        for axis in axes.flat[len(drawn) :]:
            axis.axis("off")
        now = time.strftime("%H:%M:%S")
        figure.suptitle(f"SwiftQueue: the dashboard's panels, drawn from Prometheus; minutes before {now}")
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=75)
        plt.close(figure)
    # 64 colours are enough for lines, and need a third of the bytes.
    Image.open(output).convert("RGB").quantize(64).save(output, optimize=True)
    return filled


def _draw_panel(axis: Any, panel: Panel, server: str, begin: float, end: float) -> bool:
    """Draw one panel; return False when it has no data."""
    import numpy as np

    series = {}
    for query in panel.queries:
        series.update(series_of(server, query, begin, end))
    axis.set_title(panel.title, loc="left")
    axis.set_xlim((begin - end) / 60, 0)
    if unit := AXIS.get(panel.unit):
        axis.set_ylabel(unit)
    for k, (name, (minutes, values)) in enumerate(sorted(series.items())):
        shown = name if k < LEGEND_MAX else None
        axis.plot(minutes, values, lw=1, label=shown)
    if not any(np.isfinite(values).any() for _, values in series.values()):
        axis.text(0.5, 0.5, "no data", ha="center", va="center", transform=axis.transAxes, color="grey")
        return False
    axis.set_ylim(0, 1.4 * axis.get_ylim()[1])  # room for the legend
    axis.grid(alpha=0.3)
    axis.legend(loc="upper left", frameon=False, ncols=2, fontsize=6)
    return True


def main(
    output: Annotated[Path, typer.Option(help="PNG file")],
    server: Annotated[str, typer.Option(help="Prometheus' address")] = "http://127.0.0.1:9090",
    minutes: Annotated[float, typer.Option(help="minutes of the past to draw")] = 30.0,
) -> None:
    """Draw the dashboard's panels from a running Prometheus.

    Example: swiftqueue monitor picture --output dashboard.png --minutes 30
    """
    if not minutes > 0:
        raise ValueError(f"--minutes {minutes:g}: must be above 0")
    filled = draw(server, output, minutes)
    print(f"{output}: {filled} of {len(panels())} panels have data")
