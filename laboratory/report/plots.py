"""The report's plots as PNG files: distributions, costs and sweeps, every control in the same colour."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from swiftqueue.laboratory.report.comparison import Place, mean_of, places
from swiftqueue.laboratory.report.judging import FEWEST_SEEDS
from swiftqueue.laboratory.report.measures import (
    CLASSIC_SHARE,
    MS,
    QUEUEING_P99,
    RETRANSMITTED,
    RTT_P99,
    S1_GOODPUT,
    Measure,
)
from swiftqueue.laboratory.runs.results import COMPLETE
from swiftqueue.laboratory.scenarios.controls import ALL_CONTROLS
from swiftqueue.laboratory.scenarios.schema import PROFILES
from swiftqueue.models.scoring.intervals import estimate
from swiftqueue.models.scoring.plot_style import DPI, grid

COLOURS: Final = {
    "default": "#212529",
    "no_l4s": "#adb5bd",
    "random": "#fab005",
    "oracle": "#2f9e44",
    "oracle_in_order": "#8ce99a",
    "last_latency": "#1c7ed6",
    "virtual_queue": "#0b7285",
    "model": "#c2255c",
    "constant_share": "#ffd43b",
    "flow_split": "#e8590c",
    "always": "#868e96",
    "last_latency_batched": "#74c0fc",
    "virtual_queue_batched": "#3bc9db",
    "anchor": "#9c36b5",
    "placebo": "#f783ac",
    "oracle_late": "#66a80f",
    "least_mean": "#a9e34b",
    "least_latency": "#4dabf7",
    "least_srtt": "#845ef7",
    "agent_rule": "#f06595",
    "trees": "#d9480f",
    "oracle_batched": "#087f5b",
}
SHOWN: Final = (QUEUEING_P99, RTT_P99, S1_GOODPUT, CLASSIC_SHARE, RETRANSMITTED)
OF_MANY_SIZES: Final = (QUEUEING_P99, RTT_P99)  # a hundred times as much without L4S
PROFILE_WIDTH: Final = 5.4  # inches
LABELS_WIDE: Final = 4  # columns of the legend over one profile
NARROW: Final = 5.0  # times its beginning: a logarithmic axis with few round numbers
PLAIN: Final = StrMethodFormatter("{x:g}")
ERRORS: Final = {"linewidth": 1, "capsize": 3}
LEVELS: Final = np.linspace(0, 1, 101)  # levels of the quantiles in the results


@dataclass(frozen=True)
class Plot:
    """A drawn plot and what it shows."""

    title: str
    png: bytes

    @property
    def base64(self) -> str:
        """Return the picture in base64, for the page."""
        return base64.b64encode(self.png).decode()


def plots_of(runs: pl.DataFrame, scenario: str, axis_label: str, *, log: bool) -> list[Plot]:
    """Draw a scenario: over its axis if it has one, as distributions and bars otherwise."""
    here = runs.filter(pl.col("scenario") == scenario, pl.col("status") == COMPLETE)
    if here.is_empty():
        return []
    enough = here["seed"].n_unique() >= FEWEST_SEEDS
    bands = ", means over seeds in bands of each quantile's 95 % interval" if enough else ""
    intervals = ", means over seeds with 95 % intervals" if enough else ""
    if axis_label:
        swept = _sweep(here, scenario, axis_label, log=log)
        return [_plot(f"{scenario}: over {axis_label}{intervals}", swept)]
    waiting = "waiting in the queues and round trips of S1's L4S packets"
    return [
        _plot(f"{scenario}: {waiting}{bands}", _distributions(here)),
        _plot(f"{scenario}: P99 of waiting and of round trips{intervals}", _bars(here)),
    ]


def _plot(title: str, figure: Figure) -> Plot:
    picture = io.BytesIO()
    figure.savefig(picture, dpi=DPI, format="png", metadata={"Software": None})
    return Plot(title, picture.getvalue())


def _legend(figure: Figure, by_row: list[list[Axes]]) -> None:
    drawn = {
        label: handle
        for row in by_row
        for axes in row
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    labels = [control for control in ALL_CONTROLS if control in drawn]
    handles = [drawn[label] for label in labels]
    columns = max(LABELS_WIDE, LABELS_WIDE * round(figure.get_figwidth() / PROFILE_WIDTH))
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, fontsize=8, frameon=False)


def _controls(runs: pl.DataFrame) -> list[str]:
    run = set(runs["control"])
    return [control for control in ALL_CONTROLS if control in run]


def _profiles(runs: pl.DataFrame) -> list[str]:
    return [profile for profile in PROFILES if profile in set(runs["profile"])]


def _distributions(runs: pl.DataFrame) -> Figure:
    """Draw cumulative distributions: each quantile's mean over seeds, in the band of its 95 % interval."""
    profiles = _profiles(runs)
    figure, by_row = grid(2, len(profiles), PROFILE_WIDTH * len(profiles), 6.2)
    for (column, title), row in zip(
        (("queueing_cdf_us", "waiting in the queues"), ("rtt_cdf_us", "round trip")), by_row, strict=True
    ):
        for profile, axes in zip(profiles, row, strict=True):
            for control in _controls(runs):
                chosen = runs.filter(pl.col("profile") == profile, pl.col("control") == control)
                quantiles = [q for q in chosen[column].to_list() if q and None not in q]
                _distribution(axes, control, quantiles)
            axes.set(xlabel="ms", ylabel="share of packets", ylim=(0, 1.01))
            axes.set_title(f"{profile}: {title}", fontsize=9)
            if column == "rtt_cdf_us":
                _log_axis(axes, "x")
            else:  # many packets do not wait at all
                axes.set_xscale("symlog", linthresh=0.1)
                axes.set_xlim(left=0)
                axes.xaxis.set_major_formatter(PLAIN)
            axes.axhline(0.99, color="#ced4da", linewidth=0.8, linestyle="--")
    _legend(figure, by_row)
    return figure


def _distribution(axes: Axes, control: str, quantiles_us: Sequence[Sequence[float]]) -> None:
    """Draw a control's line and, with FEWEST_SEEDS and more, its band."""
    found = [e for at_level in zip(*quantiles_us, strict=True) if (e := estimate(at_level)) is not None]
    if not found:
        return
    width = 2.2 if control in ("default", "model") else 1.3
    ms = np.array([e.mean for e in found]) * MS
    axes.plot(ms, LEVELS, color=COLOURS[control], label=control, linewidth=width)
    bands = [(max(0.0, e.low), e.high) for e in found if e.low is not None and e.high is not None]
    if bands and len(quantiles_us) >= FEWEST_SEEDS:
        low_ms, high_ms = np.array(bands).T * MS
        axes.fill_betweenx(LEVELS, low_ms, high_ms, color=COLOURS[control], alpha=0.15, linewidth=0)


def _log_axis(axes: Axes, which: Literal["x", "y"]) -> None:
    """Give a logarithmic axis numbers as people write them, also where it spans less than a decade."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    narrow = high < NARROW * low
    axis.set_major_locator(
        MaxNLocator(6, steps=[1, 2, 5, 10]) if narrow else LogLocator(subs=(1.0, 2.0, 5.0))
    )
    axis.set_major_formatter(PLAIN)
    axis.set_minor_locator(NullLocator())


def _bars(runs: pl.DataFrame) -> Figure:
    profiles = _profiles(runs)
    figure, by_row = grid(1, 2 * len(profiles), PROFILE_WIDTH * len(profiles), 3.4)
    pairs = [(profile, measure) for profile in profiles for measure in (QUEUEING_P99, RTT_P99)]
    for (profile, measure), axes in zip(pairs, by_row[0], strict=True):
        place = Place(runs["scenario"][0], "", profile)
        for i, control in enumerate(_controls(runs)):
            for mean, errors in _error_bars(runs, [place], control, measure):
                axes.bar(i, mean, yerr=errors, color=COLOURS[control], error_kw=ERRORS)
        axes.set_xticks(range(len(_controls(runs))), _controls(runs), rotation=60, ha="right", fontsize=8)
        axes.set_title(f"{profile}: {measure.title}, {measure.unit}", fontsize=9)
    return figure


def _sweep(runs: pl.DataFrame, scenario: str, label: str, *, log: bool) -> Figure:
    """Draw a row per measure, a column per profile and a line per control, joined on a numeric axis only."""
    profiles = _profiles(runs)
    figure, by_row = grid(len(SHOWN), len(profiles), PROFILE_WIDTH * len(profiles), 2.5 * len(SHOWN))
    controls = _controls(runs)
    for measure, row in zip(SHOWN, by_row, strict=True):
        for profile, axes in zip(profiles, row, strict=True):
            here = [p for p in places(runs) if p.profile == profile and p.scenario == scenario]
            at = _positions(runs, here)
            for i, control in enumerate(controls):
                points = [
                    (x if at else j + 0.09 * (i - len(controls) / 2), mean, errors)
                    for j, place in enumerate(here)
                    for x in [at[j] if at else 0.0]
                    for mean, errors in _error_bars(runs, [place], control, measure)
                ]
                axes.errorbar(
                    [x for x, _, _ in points],
                    [mean for _, mean, _ in points],
                    yerr=np.array([[e[0][0], e[1][0]] for _, _, e in points]).T if points else None,
                    color=COLOURS[control],
                    label=control,
                    marker="o",
                    markersize=3.5,
                    capsize=2,
                    linewidth=1.3,
                    linestyle="-" if at else "none",
                )
            if not at:
                axes.set_xticks(range(len(here)), [p.point for p in here], fontsize=8)
            elif log:
                axes.set_xscale("log")
                axes.set_xticks(at, [p.point for p in here])
                axes.minorticks_off()
            axes.set_title(f"{profile}: {measure.title}, {measure.unit}", fontsize=9)
            if measure in OF_MANY_SIZES:
                _log_axis(axes, "y")
            else:
                axes.set_ylim(bottom=0)
            axes.set_xlabel(label, fontsize=8)
    _legend(figure, by_row)
    return figure


def _positions(runs: pl.DataFrame, here: Sequence[Place]) -> list[float]:
    """Return the places on a numeric axis; empty where the points have none."""
    at = dict(runs.select("point", "at").unique().iter_rows())
    found = [at[p.point] for p in here]
    return [float(x) for x in found] if all(x is not None for x in found) else []


def _error_bars(
    runs: pl.DataFrame, here: Sequence[Place], control: str, measure: Measure
) -> Iterator[tuple[float, tuple[list[float], list[float]]]]:
    """Yield each place's mean and its distances to the interval's ends, in the measure's unit.

    Where there are fewer than FEWEST_SEEDS they are NaN: nothing is drawn.
    """
    for place in here:
        if found := mean_of(runs, place, control, measure):
            low, high = found.ends or (np.nan, np.nan)
            yield found.mean, ([found.mean - low], [high - found.mean])
