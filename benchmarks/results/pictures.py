"""The pictures of README and laboratory, as SVG."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import polars as pl
from matplotlib.figure import Figure

from swiftqueue.benchmarks.results import bars, diagrams, replayed
from swiftqueue.benchmarks.results.forecasters import Beside, beside
from swiftqueue.benchmarks.results.replayed import SHOWN_MS
from swiftqueue.benchmarks.results.tables import Data
from swiftqueue.benchmarks.results.themes import themed
from swiftqueue.laboratory.report import uplinks
from swiftqueue.laboratory.report.comparison import Place, by_seed
from swiftqueue.laboratory.report.judging import SERVED
from swiftqueue.laboratory.report.measures import MS, QUEUEING_P99, QUEUEING_P999
from swiftqueue.laboratory.report.plots import COLOURS as LAB_COLOURS
from swiftqueue.laboratory.scenarios.controls import CONTROLS
from swiftqueue.models.scoring.intervals import estimate
from swiftqueue.models.scoring.plot_style import INK, grid

MODEL: Final = "#e64980"  # on both pages
OF_LOADS: Final = {"0.6": "none", "0.8": None}  # how a load's points are filled
DIGITS: Final = 3  # digits of a drawn figure: machines differ beyond them, and the file must not


def _bars(_: Path, data: Data, name: str) -> bytes:
    return themed(lambda: bars.bars(data, name))


def _precision(_: Path, data: Data, name: str) -> bytes:
    return themed(lambda: bars.precision(data.evaluation(name)))


PICTURES: Final[Mapping[str, Callable[[Path, Data], bytes]]] = {
    "sender.svg": lambda root, _: themed(lambda: sender(pl.read_csv(root / replayed.FILE))),
    "p99.svg": lambda _, data: themed(lambda: tails(data.of(SERVED))),
    "forecasters.svg": lambda _, data: themed(lambda: differences(beside(data.forecasters))),
    "loop.svg": lambda *_: themed(diagrams.loop),
    "dual-queues.svg": lambda *_: themed(diagrams.dual_queues),
    "live.svg": lambda _, data: themed(lambda: bars.timeline(data)),
    "uplinks.svg": lambda _, data: themed(lambda: steered_calls(data.uplinks)),
    **{f"{name}.svg": partial(_bars, name=name) for name in bars.BARS},
    **{f"{name}.svg": partial(_precision, name=name) for name in ("speed-tests", "wifi")},
}


def sender(packets: pl.DataFrame) -> Figure:
    """Draw true latency and prediction, packet by packet, and the packets that would have been moved."""
    figure, [[above], [below]] = grid(2, 1, 8.4, 3.6)
    time_s = packets["time_ms"] / 1e3
    above.plot(time_s, packets["latency_ms"], "o", color=INK, markersize=3.4, label="came")
    said = "predicted before it was sent"
    above.plot(time_s, packets["predicted_ms"], "o", color=MODEL, markersize=2.2, label=said)
    above.set(ylabel="latency, ms", xlim=(0, SHOWN_MS / 1e3))
    above.set_ylim(bottom=0)
    above.legend(fontsize=8, frameon=False, ncols=2, loc="upper left", labelcolor=INK)
    for moved in (0, 1):
        here = packets.filter(pl.col("moved") == moved)["time_ms"] / 1e3
        below.plot(here, [1 - moved] * len(here), "|", color=LAB_COLOURS["last_latency"], markersize=7)
    below.set(xlabel="s", xlim=(0, SHOWN_MS / 1e3), ylim=(-0.6, 1.6))
    below.set_yticks([1, 0], ["marked L4S", "marked classic"])
    below.grid(visible=False)
    above.get_gridspec().set_height_ratios([4, 1])  # type: ignore[union-attr]
    return figure


def steered_calls(runs: pl.DataFrame) -> Figure:
    """Draw how each control changes the P99 of calls' frames from pinned, a panel for each scenario."""
    shown = [control for control in uplinks.WORDS if control in runs["control"]]
    scenarios = sorted(set(runs["scenario"])) or [""]
    figure, [panels] = grid(1, len(scenarios), 8.4, 0.9 + 0.25 * len(shown))
    for axes, scenario in zip(panels, scenarios, strict=True):
        here = runs.filter(scenario=scenario)
        axes.axvline(0, color=INK, linewidth=1)
        for (point, face), row in itertools.product(OF_LOADS.items(), range(len(shown))):
            found = uplinks.change_of_frames(here, point, shown[row])
            if found is None or found.low is None or found.high is None:
                continue
            colour = MODEL if shown[row] in uplinks.LEARNED else LAB_COLOURS["least_latency"]
            place = row - 0.15 if point == "0.6" else row + 0.15
            low, mean, high = (round(100 * value, 1) for value in (found.low, found.mean, found.high))
            axes.hlines(place, low, high, color=colour, linewidth=1.5)
            axes.plot(mean, place, "o", color=colour, markerfacecolor=face or colour, markersize=4)
        is_first = scenario == scenarios[0]
        axes.set_yticks(range(len(shown)), [uplinks.WORDS[name] for name in shown] if is_first else [])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlim(-100, 100)
        axes.set_title(scenario.removeprefix("uplinks-"), fontsize=9)
    figure.supxlabel(
        "frame P99 against pinned, % (95 % intervals); hollow: load 0.6, filled: 0.8", fontsize=8
    )
    return figure


def differences(found: Sequence[Beside]) -> Figure:
    """Draw how two layers differ from each other forecaster in precision and in error, with intervals."""
    figure, [panels] = grid(1, 2, 8.4, 4.4)
    scores = {"average_precision": "average precision", "mae_ms": "error in ms"}
    for axes, (key, title) in zip(panels, scores.items(), strict=True):
        axes.axvline(0, color=INK, linewidth=1)
        for row, one in enumerate(found):
            less = estimate([ours - other for ours, other in one.pairs[key]])
            if less is None or less.low is None or less.high is None:
                continue
            low, mean, high = (round(value, DIGITS) for value in (less.low, less.mean, less.high))
            colour = INK if low <= 0 <= high else MODEL
            axes.hlines(row, low, high, color=colour, linewidth=2)
            axes.plot(mean, row, "o", color=colour, markersize=5)
        names = [f"{one.kind}: {one.other}" for one in found] if axes is panels[0] else []
        axes.set_yticks(range(len(found)), names, fontsize=8)
        axes.invert_yaxis()
        axes.set_title(f"{title}, less the other's", fontsize=9)
    return figure


def tails(runs: pl.DataFrame) -> Figure:
    """Draw P99 and P99.9 of the sender's L4S packets' wait under each control, a column for each profile."""
    measures = {"P99": QUEUEING_P99, "P99.9": QUEUEING_P999}
    figure, panels = grid(2, 2, 8.4, 5.0)
    shown = [control for control in CONTROLS if control in set(runs["control"])]
    for (name, measure), row_of_panels in zip(measures.items(), panels, strict=True):
        for axes, profile in zip(row_of_panels, ("uncoupled", "rfc9332"), strict=True):
            place = Place(SERVED, "", profile)
            for row, control in enumerate(shown):
                found = estimate([v * MS for v in by_seed(runs, place, control, measure).values()])
                if found is None:
                    continue
                colour = {"default": INK, "no_l4s": INK, "model": MODEL}.get(control, LAB_COLOURS[control])
                if found.low is not None and found.high is not None:
                    low, high = round(found.low, DIGITS), round(found.high, DIGITS)
                    axes.hlines(row, low, high, color=colour, linewidth=2)
                fill = colour if found.n > 1 else "none"
                axes.plot(
                    round(found.mean, DIGITS), row, "o", color=colour, markerfacecolor=fill, markersize=6
                )
            axes.set_yticks(range(len(shown)), shown if profile == "uncoupled" else [])
            axes.set_ylim(len(shown) - 0.5, -0.5)
            axes.set_title(f"{profile}: {name} wait of L4S packets, ms", fontsize=9)
            if profile == "rfc9332":
                axes.set_xscale("log")
                axes.set_xticks([2, 5, 10, 20, 50], ["2", "5", "10", "20", "50"])
                axes.minorticks_off()
            else:
                axes.set_xlim(left=0)
    return figure
