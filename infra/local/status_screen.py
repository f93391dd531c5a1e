"""The screen of `swiftqueue status`: what is not well, what to do, the alerts, and what is well."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from swiftqueue.infra.local.judgement import Judgement

ALERT: Final = "alert"  # part name of an alert's line
CAUSE: Final = "first"  # part name of the line that explains the others


def lines(judged: Sequence[Judgement], steps: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines of the screen, each with its style."""
    unwell = [one for one in judged if not one.well and one.part != CAUSE]
    alerts = [one for one in judged if one.part == ALERT]
    well = [one for one in judged if one.well and one.part != ALERT]
    yield from ((f"{one.part}: {one.line}", "bold red") for one in judged if one.part == CAUSE)
    groups = ((f"NOT WELL ({len(unwell)})", unwell, "red"), (f"ALERTS ({len(alerts)})", alerts, "yellow"))
    for title, members, style in groups:
        if members:
            yield title, "bold"
            yield from ((f"{one.part}: {one.line}", style) for one in members)
    if steps:
        yield "TO DO", "bold"
        yield from ((f"{number}. {step}", "") for number, step in enumerate(steps, 1))
    if well:
        yield f"WELL ({len(well)})", "bold"
        yield from ((f"{one.part}: {one.line}", "green") for one in well)


def show(judged: Sequence[Judgement], steps: Sequence[str]) -> None:
    """Print the screen once; a terminal gets colours, and nobody gets lines that are broken."""
    console = Console(file=sys.stdout, soft_wrap=True, highlight=False, markup=False, emoji=False)
    for line, style in lines(judged, steps):
        console.print(Text(line, style))


@contextmanager
def watching() -> Iterator[Callable[[Sequence[Judgement], Sequence[str]], None]]:
    """Give a function that draws the screen in the place of the one before; a file gets one after another."""
    with Live(screen=True, auto_refresh=False) if sys.stdout.isatty() else nullcontext() as live:

        def redraw(judged: Sequence[Judgement], steps: Sequence[str]) -> None:
            title = f"swiftqueue status at {time.strftime('%H:%M:%S')}; Ctrl-C ends it"
            if live is None:
                print(title, flush=True)
                show(judged, steps)
            else:
                styled = [Text(line, style) for line, style in ((title, "dim"), *lines(judged, steps))]
                live.update(Group(*styled), refresh=True)

        yield redraw
