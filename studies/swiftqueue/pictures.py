"""The paper's figures from our rows, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from swiftqueue.models.scoring.intervals import estimate
from swiftqueue.models.scoring.plot_style import INK, grid, svg
from swiftqueue.studies.swiftqueue.answers import MEDIAN_MS
from swiftqueue.studies.swiftqueue.asked import DRAWN_SEED, LAST, LSTM, OURS, SHOWN
from swiftqueue.studies.swiftqueue.exhibits import ALL
from swiftqueue.studies.swiftqueue.paper import CompleteExhibit, scored, shown

SWIFTQUEUE: Final = "#e64980"  # the colour of the model on every page
OTHERS: Final = [colormaps["tab20"](i) for i in (0, 2, 4, 8, 10, 12, 16, 18, 1, 3, 5, 9)]
DIGITS: Final = 3  # digits of a drawn figure: machines differ beyond them, and the file must not
WIDE: Final = 8.4
F1: Final = "F1 of sharp changes"


def pictures(published: Mapping[str, Any]) -> dict[str, bytes]:
    """Return every exhibit's picture by its file name."""
    return {
        f"paper-{one.exhibit.name}.svg": svg(lambda one=one: _draw(one))  # type: ignore[misc]
        for one in shown(published)
    }


def _draw(one: CompleteExhibit) -> Figure:
    figure, [[axes]] = grid(1, 1, WIDE, 3.2)
    _OF.get(one.exhibit.name, _scores)(one, axes)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(
            fontsize=7, frameon=False, ncols=1, loc="center left", bbox_to_anchor=(1, 0.5), labelcolor=INK
        )
    return figure


def _colour(method: str) -> Any:
    """Return a method's colour, the same on every picture."""
    return SWIFTQUEUE if method == OURS else OTHERS[[each for each in ALL if each != OURS].index(method)]


def _bar(axes: Axes, x: float, values: list[float], most: float = 1.0, **how: Any) -> None:
    """Draw a mean with its 95 % interval over seeds, cut to values from 0 to the most."""
    found = estimate(values)
    if found is None:
        return
    axes.plot([x], [round(found.mean, DIGITS)], "o", markersize=4, **how)
    if found.low is not None and found.high is not None:
        ends = [round(min(max(end, 0.0), most), DIGITS) for end in (found.low, found.high)]
        axes.vlines(x, *ends, color=how["color"], linewidth=1.2)


def _scores(one: CompleteExhibit, axes: Axes) -> None:
    traces, methods = one.exhibit.shown(one.form), one.exhibit.compared(one.form)
    for number, method in enumerate(methods):
        shift = (number - (len(methods) - 1) / 2) * 0.8 / len(methods)
        for place, trace in enumerate(traces):
            label = method if place == 0 else None
            values = list(scored(one, trace, method).values())
            _bar(axes, round(place + shift, DIGITS), values, color=_colour(method), label=label)
    axes.set_xticks(range(len(traces)), [one.exhibit.traces[trace] for trace in traces])
    axes.set(ylabel=F1, ylim=(0, 1))


def _medians(one: CompleteExhibit, axes: Axes) -> None:
    traces = one.exhibit.shown(one.form)
    for place, trace in enumerate(traces):
        medians = [row["about"]["median_ms"] for row in one.rows.of(trace, LAST)]
        ours, theirs = ("ours, simulated", "the paper's") if place == 0 else (None, None)
        _bar(axes, place, medians, np.inf, color=SWIFTQUEUE, label=ours)
        axes.plot([place], [MEDIAN_MS[trace]], "_", color=INK, markersize=18, label=theirs)
    axes.set_xticks(range(len(traces)), [one.exhibit.traces[trace] for trace in traces])
    axes.set(ylabel="median latency, ms")
    axes.set_ylim(bottom=0)


def _speed(one: CompleteExhibit, axes: Axes) -> None:
    for method in one.exhibit.compared(one.form):
        for number, trace in enumerate(one.exhibit.shown(one.form)):
            found = estimate(list(scored(one, trace, method).values()))
            seconds = [row["tune_s"]["cached"] for row in one.rows.of(trace, method)]
            if found is not None and min(seconds) > 0:
                at = float(f"{np.mean(seconds):.3g}"), round(found.mean, DIGITS)
                label = method if number == 0 else None
                axes.plot(*at, "o", color=_colour(method), markersize=4, label=label)
    axes.set_xscale("log")
    axes.set(xlabel="seconds of fine-tuning the head, cached, one core", ylabel=F1, ylim=(0, 1))


def _stretch(one: CompleteExhibit, axes: Axes) -> None:
    for method in (OURS, LSTM):
        rows = [row for row in one.rows.of(SHOWN, method) if row["seed"] == DRAWN_SEED]
        stretch = rows[0]["stretch"]
        if method == OURS:
            axes.plot(stretch["came_ms"], color=INK, linewidth=1.2, label="came")
        axes.plot(stretch["predicted_ms"], color=_colour(method), linewidth=1.2, label=method)
    axes.set(xlabel="packet", ylabel="latency, ms")
    axes.set_ylim(bottom=0)


def _apart(one: CompleteExhibit, axes: Axes) -> None:
    rows = [row for row in one.rows.of(SHOWN, OURS) if row["seed"] == DRAWN_SEED]
    points = np.array(rows[0]["apart"]["points"])
    for high, label, colour in ((0, "lowest quarter", INK), (1, "highest quarter", SWIFTQUEUE)):
        some = points[points[:, 2] == high]
        axes.plot(some[:, 0], some[:, 1], "o", markersize=3, color=colour, label=label)
    axes.set(xlabel="t-SNE of what the head reads; each point is a decision, by its first packet's latency")


def _by_interval(one: CompleteExhibit, axes: Axes) -> None:
    for place, every in enumerate(one.form.every):
        values = one.rows.values(SHOWN, OURS, lambda row: row["tuned"]["f1_truth_change"], every)
        _bar(axes, place, list(values.values()), color=SWIFTQUEUE)
    seconds = [f"{every * one.form.kinds.test_s:g}" for every in one.form.every]
    axes.set_xticks(range(len(seconds)), seconds)
    axes.set(xlabel="fine-tuned every … s", ylabel=F1, ylim=(0, 1))


def _by_batch(one: CompleteExhibit, axes: Axes) -> None:
    sizes = list(one.rows.of(SHOWN, OURS)[0]["batches"])
    for place, size in enumerate(sizes):
        values = one.rows.values(SHOWN, OURS, lambda row, size=size: row["batches"][size])  # type: ignore[misc]
        _bar(axes, place, list(values.values()), color=SWIFTQUEUE)
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set(xlabel="packets decided together", ylabel=F1, ylim=(0, 1))


_OF: Final[Mapping[str, Callable[[CompleteExhibit, Axes], None]]] = {
    "table-1": _medians,
    "figure-3": _apart,
    "figure-13": _speed,
    "figure-14": _stretch,
    "figure-16": _by_interval,
    "figure-17": _by_batch,
}
