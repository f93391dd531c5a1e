"""The study's tables and picture."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from swiftqueue.laboratory.report import tables as lab
from swiftqueue.laboratory.report.noticed import interval
from swiftqueue.models.scoring.intervals import paired_change
from swiftqueue.models.scoring.plot_style import INK, grid
from swiftqueue.studies.drift.judging import MINUTES, UNGATED, WEIGHTS, decisions, ratios, repaired_after
from swiftqueue.studies.drift.traces import BEFORE
from swiftqueue.studies.drift.walk import FRESH, MEMORY, NEVER, RETRAINED, TUNED
from swiftqueue.studies.drift.weights import HEAD

MODELS: Final = {  # in the tables' order, with their colours
    NEVER: INK,
    UNGATED: "#9c36b5",
    TUNED: "#1c7ed6",
    MEMORY: "#2f9e44",
    RETRAINED: "#f08c00",
    FRESH: "#e64980",
}
WORDS: Final = {
    "rate": "the rate halves",
    "round-trip": "the round trip grows from 20 to 60 ms",
    "application": "video and others to new receivers",
    "l-step": "the L step moves from 20 to 5 ms",
}
ALL: Final = "**all four simulated changes**"
NOT: Final = "never"
COLUMNS: Final = 3


def repairs(rows: pl.DataFrame) -> list[str]:
    """Return each change and model: error over the new state's model's, and the minutes until it is near.

    The errors beside those of the untuned model are of the same windows as `later`. The last rows are means
    over the simulated changes, with the number of walks in which the change was repaired.
    """
    found = ratios(rows)
    head = ["change", "model", "seeds", "first 5 minutes", "later", "beside never tuned, %"]
    lines = lab.head_of([*head, "minutes until within 10 %"])
    for change in (*_changes(found), ALL):
        own = found.filter(
            pl.col("change").is_in(list(WORDS)) if change == ALL else pl.col("change") == change
        )
        later = own.filter(pl.col("round") > 0)
        base = _by_seed(later, NEVER)
        for model in MODELS:
            ours = own.filter(pl.col("model") == model)
            if ours.is_empty():
                continue
            soon = [
                _minutes(walk.sort("round"))
                for _, walk in ours.group_by("change", "seed", maintain_order=True)
            ]
            first = _by_seed(ours.filter(pl.col("round") == 0), model, "ratio")
            said = (
                f"{sum(one != NOT for one in soon)} of {len(soon)} walks"
                if change == ALL
                else ", ".join(soon)
            )
            cells = [
                _interval(first),
                _interval(_by_seed(later, model, "ratio")),
                "–" if model == NEVER else _percent(_by_seed(later, model), base),
                said,
            ]
            seeds = str(ours["seed"].n_unique())
            lines.append(lab.row_of([WORDS.get(change, change), model, seeds, *cells]))
    return lines


def gate(rows: pl.DataFrame) -> list[str]:
    """Return in how many rounds the gate kept the champion, before a change and after it."""
    lines = lab.head_of(["rounds", "policy", "rounds", "champion kept", "re-trains judged", "passed"])
    for row in decisions(rows).iter_rows(named=True):
        share = f"{row['kept']} ({100 * row['kept'] / row['rounds']:.0f} %)"
        when = "after a change" if row["after"] else "before it"
        cells = [row["rounds"], share, row["candidates"], row["passed"]]
        lines.append(lab.row_of([when, row["model"], *map(str, cells)]))
    return lines


def stationary(rows: pl.DataFrame) -> list[str]:
    """Return what a tune is worth where nothing changes: error and precision over those without a tune."""
    own = rows.filter(pl.col("course") == BEFORE, pl.col("log_error").is_not_null())
    lines = lab.head_of(["policy", "seeds", "change of the error, %"])
    base = _by_seed(own, NEVER)
    for model in (TUNED, MEMORY):
        lines.append(lab.row_of([model, str(len(base)), _percent(_by_seed(own, model), base)]))
    return lines


def sets(rows: pl.DataFrame) -> list[str]:
    """Return each small set of weights beside the whole head, tuned in the same rounds."""
    own = rows.filter(pl.col("model").str.starts_with(WEIGHTS))
    lines = lab.head_of(["weights", "seeds", "change of the error, %", "CPU seconds of a tune"])
    base = _by_seed(own, WEIGHTS + HEAD)
    for model in own["model"].unique(maintain_order=True):
        seconds = float(np.median(own.filter(pl.col("model") == model)["seconds"].to_numpy()))
        beside = "–" if model == WEIGHTS + HEAD else _percent(_by_seed(own, model), base)
        cells = [model.removeprefix(WEIGHTS), str(len(base)), beside, f"{seconds:.2f}"]
        lines.append(lab.row_of(cells))
    return lines


def picture(rows: pl.DataFrame) -> Figure:
    """Draw each change: minutes since it across, error over the new state's model's upwards."""
    found = ratios(rows)
    shown = [change for change in _changes(found) if found.filter(pl.col("change") == change)["round"].max()]
    figure, panels = grid(
        -(-max(1, len(shown)) // COLUMNS), COLUMNS, 8.4, 2.4 * -(-max(1, len(shown)) // COLUMNS)
    )
    places = [axes for row in panels for axes in row]
    for axes in places[len(shown) :]:
        axes.set_axis_off()
    for change, axes in zip(shown, places, strict=False):
        own = found.filter(pl.col("change") == change)
        for model, colour in MODELS.items():
            line = (
                own.filter(pl.col("model") == model)
                .group_by("round")
                .agg(pl.col("ratio").mean())
                .sort("round")
            )
            minutes = [MINUTES * (number + 0.5) for number in line["round"]]
            axes.plot(
                minutes, line["ratio"].round(3).to_list(), ".-", color=colour, label=model, linewidth=1.2
            )
        axes.axhline(1, color=INK, linewidth=1, linestyle="--")
        axes.set_title(WORDS.get(change, change), fontsize=8)
        axes.set_xlabel("minutes of the loop since the change", fontsize=7)
    places[0].set_ylabel("error over the new state's model's", fontsize=7)
    places[0].legend(fontsize=6, frameon=False, labelcolor=INK)
    return figure


def _changes(found: pl.DataFrame) -> list[str]:
    there = found["change"].unique(maintain_order=True).to_list()
    return [*(one for one in WORDS if one in there), *(one for one in there if one not in WORDS)]


def _interval(by_seed: dict[int, float]) -> str:
    return interval(list(by_seed.values()), 2) if by_seed else "–"


def _minutes(walk: pl.DataFrame) -> str:
    place = repaired_after(walk["ratio"].to_list())
    return NOT if place is None else str(MINUTES * int(walk["round"][place]))


def _by_seed(rows: pl.DataFrame, model: str, column: str = "log_error") -> dict[int, float]:
    """Return the mean of a model's column over all windows of each seed, changes counted alike."""
    own = rows.filter(pl.col("model") == model)
    by = ["change", "seed"] if "change" in own.columns else ["course", "seed"]
    means = own.group_by(by).agg(pl.col(column).mean()).group_by("seed").agg(pl.col(column).mean())
    return dict(means.sort("seed").iter_rows())


def _percent(ours: dict[int, float], base: dict[int, float]) -> str:
    found = paired_change(ours, base)
    if found is None:
        return "–"
    said = f"{100 * found.mean:+.1f}"
    if found.low is None or found.high is None:
        return said
    return f"{said} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
