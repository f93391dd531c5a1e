"""The map between the premise and the standard, as SVG: where choosing pays, and where it harms."""

from __future__ import annotations

from typing import Final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from swiftqueue.laboratory.report.legend import legend_below
from swiftqueue.models.scoring.plot_style import INK, grid
from swiftqueue.studies.swiftqueue.premise_map import SHOWN, Setting, Square, default_ms, settings_of, square

PAYS: Final = "#2f9e44"
HARMS: Final = "#e03131"
SETTLED_ALPHA: Final = 0.8
OPEN_ALPHA: Final = 0.16
HATCH_COLOUR: Final = "#868e9644"
HATCH: Final = "////"  # not settled
CROSSED: Final = "xxxx"  # P99 is not judged
GAP: Final = 0.06  # between squares
INK_ON_COLOUR: Final = "#f8f9fa"
WIDE_CHANGE: Final = 10.0  # as a ratio from here on


def premise_map(runs: pl.DataFrame) -> Figure:
    """Draw a panel for each control and each of L's shares: L's step across, the coupling upwards."""
    places = settings_of(runs)
    shares = sorted({setting.l4s_share for setting in places})
    figure, panels = grid(len(SHOWN), max(len(shares), 1), 8.4, 5.4)
    for row, (control, who) in zip(panels, SHOWN.items(), strict=True):
        for axes, share in zip(row, shares, strict=True):
            here = {s: place for s, place in places.items() if s.l4s_share == share}
            squares = {s: square(runs, place, control) for s, place in here.items()}
            waits = {s: default_ms(runs, place) for s, place in here.items()}
            _panel(axes, squares, waits)
            axes.set_title(f"{who}; L has {share:.0%} of the link".replace("%", " %"), fontsize=9)
    handles = [
        Patch(facecolor=to_rgba(PAYS, SETTLED_ALPHA), label="P99 falls"),
        Patch(facecolor=to_rgba(HARMS, SETTLED_ALPHA), label="P99 grows, or another limit is broken"),
        *(
            Patch(facecolor="none", edgecolor=HATCH_COLOUR, linewidth=0, hatch=hatch, label=label)
            for hatch, label in ((HATCH, "not settled"), (CROSSED, "too few packets to judge P99"))
        ),
    ]
    legend_below(figure, handles, 2)
    return figure


def _panel(axes: Axes, squares: dict[Setting, Square | None], waits: dict[Setting, float]) -> None:
    steps, couplings = (sorted({getattr(s, name) for s in squares}) for name in ("step_ms", "coupling"))
    for setting, one in squares.items():
        if one is None:
            continue
        x, y = steps.index(setting.step_ms), couplings.index(setting.coupling)
        is_open = not one.is_settled
        harms = one.change.mean > 0 if is_open else one.word != "pays"
        side = 1 - GAP
        axes.add_patch(
            Rectangle(
                (x - side / 2, y - side / 2),
                side,
                side,
                facecolor=to_rgba(HARMS if harms else PAYS, OPEN_ALPHA if is_open else SETTLED_ALPHA),
                edgecolor=HATCH_COLOUR if is_open else to_rgba(INK_ON_COLOUR, 0.35),
                hatch=CROSSED if one.found.few_packets else HATCH if is_open else None,
                linewidth=0,
            )
        )
        ink = INK if is_open else INK_ON_COLOUR
        weight = "normal" if is_open else "bold"
        axes.text(x, y + 0.12, _short(one.change.mean), ha="center", va="center", color=ink, weight=weight)
        axes.text(x, y - 0.24, f"of {waits[setting]:.0f} ms", ha="center", va="center", color=ink, fontsize=7)
    axes.set_xticks(range(len(steps)), [f"{step:g} ms" for step in steps])
    axes.set_yticks(range(len(couplings)), [f"k = {coupling:g}" for coupling in couplings])
    axes.set(xlim=(-0.5, len(steps) - 0.5), ylim=(-0.5, len(couplings) - 0.5), xlabel="L marks from")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def _short(change: float) -> str:
    return f"× {1 + change:.0f}" if change >= WIDE_CHANGE else f"{change * 100:+.0f} %"
