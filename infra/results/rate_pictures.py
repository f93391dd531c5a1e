"""What the rate forecasts err by, and what they do to downloads, as SVG: the paper's figures 8, 10 and 11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from infra.results.legend import legend_below
from infra.results.paper_pictures import DIGITS, SWIFTQUEUE
from infra.results.rate_feedback import NAMES
from infra.results.rates import NETWORKS
from models.scoring.plot_style import grid

OTHERS: Final = [colormaps["tab20"](i) for i in (0, 2, 4, 8, 12)]
PREDICTORS: Final = ("transformer", "lstm", "linear", "xgboost", "dispersion", "previous-flow")
SENDERS: Final = ("network", "oracle", "dispersion", "random", "initial-window-32", "suss")


def errors(rates: Mapping[str, Any]) -> Figure:
    """Error on held-out paths by the packet that is forecast, a panel for each number of samples."""
    held_out = {name: parts["held_out"] for name, parts in rates["grid"].items()}
    pairs = [pair.split("-") for pair in held_out[PREDICTORS[0]]]
    prefixes = list(dict.fromkeys(n for n, _ in pairs))
    figure, [panels] = grid(1, len(prefixes), 8.4, 2.9)
    for axes, n in zip(panels, prefixes, strict=True):
        packets = [int(k) for prefix, k in pairs if prefix == n]
        for name, colour in zip(PREDICTORS, (SWIFTQUEUE, *OTHERS), strict=True):
            cells = [held_out[name][f"{n}-{k}"] for k in packets]
            _line(axes, packets, cells, NETWORKS.get(name, name), colour)
        axes.set_xscale("log")
        axes.set_xticks(packets, [str(k) for k in packets], fontsize=7, rotation=45)
        axes.set_yscale("log")
        axes.set_yticks([10, 100, 1000], ["10", "100", "1000"])
        axes.set_ylim(5, 2000)
        axes.minorticks_off()
        axes.set_title(f"from {n} samples", fontsize=9)
        axes.set_xlabel("to packet", fontsize=8)
    panels[0].set_ylabel("mean error on held-out paths, %", fontsize=8)
    legend_below(figure, panels[0].get_legend_handles_labels()[0], 3)
    return figure


def completions(rates: Mapping[str, Any]) -> Figure:
    """Change of the median download's time by round trip, beside plain BBR, by receive window."""
    one = rates["fed_back"]
    figure, [panels] = grid(1, len(one["feedback"]), 8.4, 2.9)
    for axes, (window, variants) in zip(panels, one["feedback"].items(), strict=True):
        axes.axhline(0, color="black", linewidth=0.8)
        for name, colour in zip(SENDERS, (SWIFTQUEUE, *OTHERS), strict=True):
            cells = [variants[name]["by_rtt"][str(trip)] for trip in one["rtts_ms"]]
            _line(axes, one["rtts_ms"], cells, NAMES[name], colour)
        axes.set_title(f"receive window: {window}", fontsize=9)
        axes.set_xlabel("round trip, ms", fontsize=8)
    panels[0].set_ylabel("median time, %", fontsize=8)
    legend_below(figure, panels[0].get_legend_handles_labels()[0], 3)
    return figure


def _line(axes: Axes, x: Sequence[float], cells: Sequence[Mapping[str, Any]], name: str, colour: Any) -> None:
    """Means in % with their 95 % intervals, as far as there are any."""
    means, lows, highs = (
        [round(100 * (cell["mean"] if cell[key] is None else cell[key]), DIGITS) for cell in cells]
        for key in ("mean", "low", "high")
    )
    axes.plot(x, means, "o-", color=colour, markersize=3.2, linewidth=1.2, label=name.replace("**", ""))
    axes.vlines(x, lows, highs, color=colour, linewidth=0.9)
