"""Plain flows, what forecasts err by, and what they do to downloads: the paper's figures 5 to 8, 10, 11."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from swiftqueue.laboratory.report.legend import legend_below
from swiftqueue.models.scoring.plot_style import grid
from swiftqueue.studies.rate.model.plain import LAST
from swiftqueue.studies.rate.results.feedback import NAMES
from swiftqueue.studies.rate.results.published import NETWORKS, studies

SWIFTQUEUE: Final = "#e64980"  # the colour of the model on every page
DIGITS: Final = 3  # digits kept, so that a page has the same bytes on every machine
OTHERS: Final = [colormaps["tab20"](i) for i in (0, 2, 4, 8, 12, 10)]
PREDICTORS: Final = (
    "transformer", "lstm", "linear", "xgboost", "dispersion-of-all", "previous-flow", "dispersion"
)  # fmt: skip
SENDERS: Final = ("network", "oracle", "dispersion", "random", "initial-window-32", "suss")


def plain(rates: Mapping[str, Any]) -> Figure:
    """Quartiles, least and most of plain flows: times by round trip, estimates by packet, their growth."""
    found = rates["plain"]["plain"]
    figure, [panels] = grid(1, 3, 8.4, 2.9)
    times, estimates, growth = panels
    by_buffer: dict[float, list[Mapping[str, Any]]] = {}
    for each in found["downloads"]:
        by_buffer.setdefault(each["buffer_bdp"], []).append(each)
    for place, (buffer_bdp, cells) in enumerate(by_buffer.items()):
        trips = [each["rtt_ms"] for each in cells]
        colour, shift = (SWIFTQUEUE, *OTHERS)[place], 14 * (place - (len(by_buffer) - 1) / 2)
        _boxes(times, [trip + shift for trip in trips], cells, colour, 11, f"{buffer_bdp:g} BDP of buffer")
        times.set_xticks(trips, [f"{trip:g}" for trip in trips], fontsize=7)
    times.set_xlabel("round trip, ms", fontsize=8)
    times.set_ylabel(f"{LAST:,} packets, s", fontsize=8)
    times.set_ylim(bottom=0)
    packets = list(found["estimates"])
    _boxes(estimates, range(len(packets)), list(found["estimates"].values()), SWIFTQUEUE, 0.6)
    estimates.set_ylabel("estimate, Mbit/s", fontsize=8)
    pairs = [pair.split("-") for pair in found["growth"]]
    prefixes = list(dict.fromkeys(n for n, _ in pairs))
    for place, n in enumerate(prefixes):
        later = [k for prefix, k in pairs if prefix == n]
        at = [packets.index(k) + 0.26 * (place - (len(prefixes) - 1) / 2) for k in later]
        cells = [found["growth"][f"{n}-{k}"] for k in later]
        _boxes(growth, at, cells, (SWIFTQUEUE, *OTHERS)[place], 0.2, f"against sample {n}")
    growth.set_yscale("log")
    growth.set_ylabel("estimate against the sample's", fontsize=8)
    for axes in (estimates, growth):
        axes.set_xlabel("packet", fontsize=8)
        axes.set_xticks(range(len(packets)), packets, fontsize=7, rotation=45)
    growth.set_xlim(left=len(prefixes) - 0.5)
    handles = [one for axes in (times, growth) for one in axes.get_legend_handles_labels()[0]]
    legend_below(figure, handles, 5)
    return figure


def _boxes(
    axes: Axes, at: Sequence[float], cells: Sequence[Mapping[str, Any]], colour: Any, width: float,
    label: str | None = None,
) -> None:  # fmt: skip
    names = {"whislo": "least", "q1": "lower", "med": "median", "q3": "upper", "whishi": "most"}
    shown = [(x, cell) for x, cell in zip(at, cells, strict=True) if cell["n"]]
    stats = [{key: round(cell[name], DIGITS) for key, name in names.items()} for _, cell in shown]
    line = {"color": colour, "linewidth": 0.9}
    axes.bxp(
        stats, positions=[x for x, _ in shown], widths=width, showfliers=False, manage_ticks=False,
        boxprops=line, whiskerprops=line, capprops=line, medianprops={**line, "linewidth": 1.8},
    )  # fmt: skip
    axes.plot([], [], color=colour, label=label or "_")


def errors(rates: Mapping[str, Any]) -> Figure:
    """Error on held-out paths of the networks and the best baselines."""
    there = [name for name in PREDICTORS if name in rates["grid"]]  # an older study has no `dispersion`
    return _by_packet({NETWORKS.get(name, name): rates["grid"][name] for name in there}, most=2000)


def fields(rates: Mapping[str, Any]) -> Figure:
    """Error on held-out paths of the networks, by all fields and by some."""
    seen = studies(rates, "{}")
    each = {f"{NETWORKS[n]}, {told}": one["grid"][n] for n in NETWORKS for told, one in seen.items()}
    return _by_packet(each, most=100)


def _by_packet(each: Mapping[str, Mapping[str, Any]], most: float) -> Figure:
    """Error on held-out paths by the packet that is forecast, a panel for each number of samples."""
    held_out = {name: parts["held_out"] for name, parts in each.items()}
    pairs = [pair.split("-") for pair in next(iter(held_out.values()))]
    prefixes = list(dict.fromkeys(n for n, _ in pairs))
    figure, [panels] = grid(1, len(prefixes), 8.4, 2.9)
    for axes, n in zip(panels, prefixes, strict=True):
        packets = [int(k) for prefix, k in pairs if prefix == n]
        for name, colour in zip(held_out, itertools.cycle((SWIFTQUEUE, *OTHERS)), strict=False):
            _line(axes, packets, [held_out[name][f"{n}-{k}"] for k in packets], name, colour)
        axes.set_xscale("log")
        axes.set_xticks(packets, [str(k) for k in packets], fontsize=7, rotation=45)
        axes.set_yscale("log")
        axes.set_yticks([10, 100, 1000], ["10", "100", "1000"])
        axes.set_ylim(5, most)
        axes.minorticks_off()
        axes.set_title(f"from {n} samples", fontsize=9)
        axes.set_xlabel("to packet", fontsize=8)
    panels[0].set_ylabel("mean error on held-out paths, %", fontsize=8)
    legend_below(figure, panels[0].get_legend_handles_labels()[0], 3)
    return figure


def completions(one: Mapping[str, Any]) -> Figure:
    """Change of the median download's time by round trip, beside plain BBR, by receive window."""
    figure, [panels] = grid(1, len(one["feedback"]), 8.4, 2.9)
    for axes, (window, variants) in zip(panels, one["feedback"].items(), strict=True):
        axes.axhline(0, color="black", linewidth=0.8)
        for name, colour in zip(SENDERS, (SWIFTQUEUE, *OTHERS), strict=False):
            if name not in variants:
                continue
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
