"""Draw the report's plots as PNG files, each with protocol, visibility, seed and packets in its title."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from swiftqueue.models.scoring.plot_style import DPI, grid
from swiftqueue.models.scoring.plot_tables import AROUND, SHOWN, SharpChange
from swiftqueue.models.scoring.predictions import FINETUNED, METHODS

COLOURS: Final = {
    "finetuned": "#c2255c",
    "finetuned_at_once": "#f06595",
    "pretrained": "#e599b5",
    "xgboost": "#1c7ed6",
    "xgboost_continued": "#74c0fc",
    "virtual_queue": "#0b7285",
    "virtual_queue_online": "#3bc9db",
    "ewma": "#2f9e44",
    "last_flow": "#e67700",
    "last_queue": "#fab005",
    "last_sender": "#868e96",
    "true": "#212529",
    "base_rate": "#adb5bd",
}


def draw(
    folder: Path,
    caption: str,
    tables: Mapping[str, pl.DataFrame],
    over_time: Mapping[str, pl.DataFrame],
    rounds: Mapping[str, Sequence[Mapping[str, Any]]],
    changes: Sequence[SharpChange],
) -> dict[str, str]:
    """Draw all plots into `folder`; return each file's name and a description."""
    drawn = {
        "precision_recall.png": _precision_recall(tables["precision_recall"]),
        "error_by_horizon.png": _error_by_horizon(tables["error_by_horizon"]),
        "score_over_time.png": _score_over_time(over_time, rounds),
        "sharp_changes.png": _sharp_changes(tables["sharp_changes"]),
        "sharp_change_examples.png": _examples(changes),
    }
    for name, figure in drawn.items():
        figure.suptitle(caption, x=0.995, ha="right", fontsize=7, color="#868e96")
        figure.savefig(folder / name, dpi=DPI)
    return {
        "precision_recall.png": "Late packets: precision at each recall; dotted, the base rate",
        "error_by_horizon.png": "Error by the packet's place in its batch of 8",
        "score_over_time.png": "Score over time: error per second with each fine-tuning marked (left), "
        "average precision of late packets in each round's test slice (right)",
        "sharp_changes.png": "Around sharp changes: mean true and predicted latency, aligned at the change",
        "sharp_change_examples.png": "The largest sharp changes of each trace, packet by packet",
    }


def _line(axes: Axes, x: Any, y: Any, name: str, **more: Any) -> None:
    width = 2.0 if name in (FINETUNED, "true") else 1.3
    style = {"color": COLOURS[name], "linewidth": width, "label": name, **more}
    axes.plot(list(x), list(y), **style)


def _precision_recall(table: pl.DataFrame) -> Figure:
    figure, [[axes]] = grid(1, 1, 7, 4.2)
    if table.is_empty():
        axes.text(0.5, 0.5, "no late packet in the test slices", ha="center", transform=axes.transAxes)
    for method in METHODS:
        _line(axes, table["recall"], table[method], method)
    _line(axes, table["recall"], table["base_rate"], "base_rate", linestyle=":")
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02), title="Late packets")
    axes.legend(fontsize=8, frameon=False)
    return figure


def _error_by_horizon(table: pl.DataFrame) -> Figure:
    figure, [[axes]] = grid(1, 1, 7, 3.8)
    for method in METHODS:
        _line(axes, table["place"], table[method], method, marker="o", markersize=3)
    axes.set(xlabel="place in the batch", ylabel="mean absolute error, ms", title="Error by horizon")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False, ncols=2)
    return figure


def _score_over_time(
    over_time: Mapping[str, pl.DataFrame], rounds: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Figure:
    figure, pairs = grid(len(over_time), 2, 11, 2.9 * len(over_time) + 0.2)
    for (trace, table), (left, right) in zip(over_time.items(), pairs, strict=True):
        marks = table.filter(pl.col("fine_tuned").is_not_null())["time_s"].to_list()
        for i, second in enumerate(marks):
            label = "fine-tuned" if i == 0 else None
            left.axvline(second, color="#495057", linewidth=0.9, linestyle="--", label=label)
        for method in (*SHOWN, "pretrained"):
            _line(left, table["time_s"], table[method], method)
            points = [(r["round"], r[method]["average_precision"]) for r in rounds[trace]]
            shown = [(k, ap) for k, ap in points if ap is not None]
            _line(right, [k for k, _ in shown], [ap for _, ap in shown], method, marker="o", markersize=4)
        left.set(title=trace, xlabel="time since the first test, s", ylabel="MAE, ms")
        left.set_ylim(bottom=0)
        right.set(title=f"{trace}, by round", xlabel="round", ylabel="average precision, late")
        right.set_xticks(range(len(rounds[trace])))
        right.set_ylim(0, None)
        left.legend(fontsize=7, frameon=False, ncols=2)
    return figure


def _sharp_changes(table: pl.DataFrame) -> Figure:
    figure, [both] = grid(1, 2, 11, 3.6)
    for word, axes in zip(("rise", "drop"), both, strict=True):
        axes.axvline(0, color="#ced4da", linewidth=0.9)
        if table[f"{word}_true"].null_count() == 0:
            for name in ("true", *SHOWN):
                _line(axes, table["offset"], table[f"{word}_{name}"], name)
            axes.legend(fontsize=8, frameon=False)
        axes.set(xlabel="packets from the change", ylabel="mean latency, ms", title=f"Sharp {word}s")
    return figure


def _examples(changes: Sequence[SharpChange]) -> Figure:
    columns = 3
    rows = max(1, -(-len(changes) // columns))
    figure, by_row = grid(rows, columns, 11, 2.4 * rows + 0.2)
    places = [axes for row in by_row for axes in row]
    for axes in places[len(changes) :]:
        axes.set_visible(False)
    for i, (change, axes) in enumerate(zip(changes, places, strict=False)):
        for name, line in change.lines.items():
            # Packets of two queues alternate, and a line between them would show only the zigzag.
            _line(axes, range(-AROUND, AROUND + 1), line, name, linestyle="none", marker="o", markersize=2.5)
        axes.set_title(f"{change.trace}: {'rise' if change.rise else 'drop'}", fontsize=9)
        if i == 0:
            axes.legend(fontsize=7, frameon=False)
    figure.supxlabel("packets from the change", fontsize=9)
    figure.supylabel("latency, ms", fontsize=9)
    return figure
