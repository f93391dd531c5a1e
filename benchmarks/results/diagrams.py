"""Diagrams that explain: the loop, and the two dual queues that the results compare."""

from __future__ import annotations

import itertools
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from swiftqueue.models.scoring.plot_style import INK

MARKED: Final = "#e64980"
# Steps of the loop, clockwise from the left above: name, what it hands on, place.
STEPS: Final = (
    ("sender and agent", "each packet is marked\nfor one of two queues", (0.02, 0.66)),
    ("telemetry", "SENDs and ACKs,\nas they happened", (0.36, 0.66)),
    ("log of events", "inputs, fixed when\nthe event happened", (0.70, 0.66)),
    ("network", "the encoder once,\nthe head each round", (0.70, 0.08)),
    ("gate", "better on packets that\nit has not seen?", (0.36, 0.08)),
    ("serving", "one version number,\nnever half a model", (0.02, 0.08)),
)
WIDTH, HEIGHT = 0.27, 0.27
# The two profiles: title, L4S queue, classic queue, coupling, shares of the link.
QUEUES: Final = (
    (
        "rfc9332: the standard's dual queue",
        "marks from 0.8 to 1.2 ms of wait on",
        "PI2, target 15 ms",
        "coupled: by twice its\nprobability (k = 2)",
        "weights 15 to 1",
    ),
    (
        "uncoupled: the paper's premise",
        "marks from 20 ms of wait on",
        "PI2, target 15 ms, of its own delay",
        "not coupled",
        "half of the link each",
    ),
)


def _panel(figure: Figure, place: tuple[float, float, float, float]) -> Axes:
    axes = figure.add_axes(place)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_axis_off()
    return axes


def _box(axes: Axes, corner: tuple[float, float], size: tuple[float, float], title: str, said: str) -> None:
    """Draw a box with its title and what it does."""
    style = "round,pad=0,rounding_size=0.02"
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=style, facecolor="none", edgecolor=INK))
    middle, top = corner[0] + size[0] / 2, corner[1] + size[1]
    axes.text(middle, top - 0.035, title, ha="center", va="top", fontsize=9, weight="bold")
    axes.text(middle, top - 0.105, said, ha="center", va="top", fontsize=8)


def _arrow(axes: Axes, begin: tuple[float, float], end: tuple[float, float], colour: str = INK) -> None:
    axes.add_patch(
        FancyArrowPatch(begin, end, arrowstyle="-|>", mutation_scale=11, color=colour, linewidth=1.2)
    )


def loop() -> Figure:
    """Draw the loop: from a sender's packets to the version that answers it."""
    figure = Figure(figsize=(8.4, 3.4))
    axes = _panel(figure, (0.01, 0.01, 0.98, 0.98))
    for title, said, corner in STEPS:
        _box(axes, corner, (WIDTH, HEIGHT), title, said)
    middle = HEIGHT / 2
    for (_, _, (x, y)), (_, _, (to_x, to_y)) in itertools.pairwise(STEPS):
        if y == to_y:
            begin, end = (x + WIDTH, to_x) if to_x > x else (x, to_x + WIDTH)
            _arrow(axes, (begin, y + middle), (end, y + middle))
        else:
            _arrow(axes, (x + WIDTH / 2, y), (x + WIDTH / 2, to_y + HEIGHT))
    x = STEPS[0][2][0] + WIDTH / 2
    _arrow(axes, (x, STEPS[-1][2][1] + HEIGHT), (x, STEPS[0][2][1]), MARKED)
    axes.text(x + 0.015, 0.5, "both queues' latencies,\nbefore the packets are due", fontsize=8, va="center")
    axes.text(0.72 + WIDTH / 2, 0.5, "every few minutes", fontsize=8, va="center", ha="left")
    return figure


def dual_queues() -> Figure:
    """Draw the paper's premise beside RFC 9332's queue: when each queue marks, how they share the link."""
    figure = Figure(figsize=(8.4, 3.2))
    for place, (title, l4s, classic, coupling, shared) in enumerate(QUEUES):
        axes = _panel(figure, (0.01 + 0.5 * place, 0.01, 0.48, 0.98))
        axes.text(0.5, 0.98, title, ha="center", va="top", fontsize=10, weight="bold")
        _box(axes, (0.16, 0.58), (0.62, 0.26), "L4S queue", l4s)
        _box(axes, (0.16, 0.16), (0.62, 0.26), "classic queue", classic)
        for y, codepoint in ((0.71, "ECT(1), CE"), (0.29, "the rest")):
            _arrow(axes, (0.0, y), (0.16, y), MARKED if y > 0.5 else INK)
            axes.text(0.0, y + 0.05, codepoint, fontsize=7)
            _arrow(axes, (0.78, y), (0.93, 0.5 + (y - 0.5) * 0.2))
        axes.text(0.99, 0.5, "link", fontsize=8, rotation=90, va="center", ha="right")
        if coupling.startswith("coupled"):
            _arrow(axes, (0.47, 0.42), (0.47, 0.58), MARKED)
        axes.text(0.5, 0.5, coupling.replace(": ", ":\n"), fontsize=8, va="center", ha="left")
        axes.text(0.5, 0.05, f"the link: {shared}", fontsize=8, ha="center")
    return figure
