"""Draw the report's plots as SVG files, each with the sentence that it supports.

A plot of several panels is a file for each, so that a page lays them beside each other where it is wide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from swiftqueue.models.scoring import plot_style
from swiftqueue.models.scoring.plot_sentences import PlotSentences
from swiftqueue.models.scoring.plot_tables import AROUND, SHOWN, SharpChange
from swiftqueue.models.scoring.predictions import FINETUNED, METHODS

COLOURS: Final = {  # middle tones, which are readable on light and dark pages
    "finetuned": "#d6336c",
    "finetuned_at_once": "#f06595",
    "pretrained": "#e599b5",
    "xgboost": "#1c7ed6",
    "xgboost_continued": "#74c0fc",
    "virtual_queue": "#0c8599",
    "virtual_queue_online": "#3bc9db",
    "ewma": "#2f9e44",
    "last_flow": "#e67700",
    "last_queue": "#fab005",
    "last_sender": "#868e96",
    "true": plot_style.INK,
    "base_rate": "#adb5bd",
}
PANEL: Final = 5.2, 3.5  # inches of a panel; its words can be read at the width of a phone
SMALL: Final = 3.4, 2.5  # inches of one of many panels


@dataclass
class EvaluationPlot:
    """A plot of the report: its title, what it shows, and the names of its panels' files."""

    title: str
    sentence: str
    panels: dict[str, str] = field(default_factory=dict)  # description by file
    small: bool = False


def draw(
    folder: Path,
    tables: Mapping[str, pl.DataFrame],
    over_time: Mapping[str, pl.DataFrame],
    rounds: Mapping[str, Sequence[Mapping[str, Any]]],
    changes: Sequence[SharpChange],
    sentences: PlotSentences,
) -> list[EvaluationPlot]:
    """Draw all plots into `folder`; return them in the order of the page."""
    late = EvaluationPlot("Late packets: precision at each recall", sentences.late)
    around = EvaluationPlot("Mean latency around sharp changes", sentences.changes)
    time = EvaluationPlot("Over time", sentences.rounds)
    place = EvaluationPlot("Error by the packet's place in its batch", sentences.horizon)
    single = EvaluationPlot("The largest sharp changes, packet by packet", sentences.examples, small=True)

    def panel(plot: EvaluationPlot, name: str, words: str, fill: Callable[[Axes], None]) -> None:
        def drawn() -> Figure:
            figure, [[axes]] = plot_style.grid(1, 1, *(SMALL if plot.small else PANEL))
            fill(axes)
            return figure

        (folder / f"{name}.svg").write_bytes(plot_style.svg(drawn))
        plot.panels[f"{name}.svg"] = words

    panel(late, "precision_recall", late.title, lambda axes: _precision_recall(axes, tables))
    for word in ("rise", "drop"):
        panel(around, f"sharp_{word}s", f"Sharp {word}s", lambda axes, word=word: _around(axes, tables, word))  # type: ignore[misc]
    for trace, table in over_time.items():
        panel(time, f"error_{trace}", f"{trace}: error", lambda axes, t=trace, of=table: _error(axes, t, of))  # type: ignore[misc]
        words = f"{trace}: average precision by round"
        panel(time, f"rounds_{trace}", words, lambda axes, t=trace: _rounds(axes, t, rounds[t]))  # type: ignore[misc]
    panel(place, "error_by_horizon", place.title, lambda axes: _horizon(axes, tables["error_by_horizon"]))
    for number, change in enumerate(changes):
        words = f"{change.trace}: {'rise' if change.rise else 'drop'}"
        panel(single, f"change_{number}", words, lambda axes, n=number, of=change: _example(axes, n, of))  # type: ignore[misc]
    return [late, around, time, place, single]


def _line(axes: Axes, x: Any, y: Any, name: str, **more: Any) -> None:
    width = 2.0 if name in (FINETUNED, "true") else 1.3
    style = {"color": COLOURS[name], "linewidth": width, "label": name, **more}
    axes.plot(list(x), list(y), **style)


def _legend(axes: Axes, columns: int = 3) -> None:
    """Put the names of the lines below the panel, where they hide none and none of them is cut off."""
    lines, names = axes.get_legend_handles_labels()
    axes.figure.legend(lines, names, fontsize=7.5, frameon=False, ncols=columns, loc="outside lower center")


def _precision_recall(axes: Axes, tables: Mapping[str, pl.DataFrame]) -> None:
    table = tables["precision_recall"]
    if table.is_empty():
        axes.text(0.5, 0.5, "no late packet in the test slices", ha="center", transform=axes.transAxes)
    for method in METHODS:
        _line(axes, table["recall"], table[method], method)
    _line(axes, table["recall"], table["base_rate"], "base_rate", linestyle=":")
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    _legend(axes)


def _horizon(axes: Axes, table: pl.DataFrame) -> None:
    for method in METHODS:
        _line(axes, table["place"], table[method], method, marker="o", markersize=3)
    axes.set(xlabel="place in the batch", ylabel="mean absolute error, ms")
    axes.set_ylim(bottom=0)
    _legend(axes)


def _error(axes: Axes, trace: str, table: pl.DataFrame) -> None:
    marks = table.filter(pl.col("fine_tuned").is_not_null())["time_s"].to_list()
    for i, second in enumerate(marks):
        label = "fine-tuned here" if i == 0 else None
        axes.axvline(second, color=plot_style.INK, linewidth=0.9, linestyle="--", label=label)
    for method in (*SHOWN, "pretrained"):
        _line(axes, table["time_s"], table[method], method)
    axes.set(title=trace, xlabel="time since the first test, s", ylabel="mean absolute error, ms")
    axes.set_ylim(bottom=0)
    _legend(axes)


def _rounds(axes: Axes, trace: str, rounds: Sequence[Mapping[str, Any]]) -> None:
    for method in (*SHOWN, "pretrained"):
        points = [(one["round"] + 1, one[method]["average_precision"]) for one in rounds]
        shown = [(number, ap) for number, ap in points if ap is not None]
        _line(axes, [n for n, _ in shown], [ap for _, ap in shown], method, marker="o", markersize=4)
    axes.set(title=f"{trace}, by round", xlabel="round", ylabel="average precision, late packets")
    axes.set_xticks(range(1, len(rounds) + 1))
    axes.set_ylim(0, None)
    _legend(axes)


def _around(axes: Axes, tables: Mapping[str, pl.DataFrame], word: str) -> None:
    table = tables["sharp_changes"]
    axes.axvline(0, color=plot_style.INK, linewidth=0.9)
    if table[f"{word}_true"].null_count() == 0:
        for name in ("true", *SHOWN):
            _line(axes, table["offset"], table[f"{word}_{name}"], name)
        _legend(axes)
    axes.set(xlabel="packets from the change", ylabel="mean latency, ms", title=f"Sharp {word}s")


def _example(axes: Axes, number: int, change: SharpChange) -> None:
    for name, line in change.lines.items():
        # Packets of two queues alternate, and a line between them would show only the zigzag.
        _line(axes, range(-AROUND, AROUND + 1), line, name, linestyle="none", marker="o", markersize=2.5)
    axes.set(xlabel="packets from the change", ylabel="latency, ms")
    axes.set_title(f"{change.trace}: {'rise' if change.rise else 'drop'}", fontsize=9)
    if number == 0:
        _legend(axes, 2)
