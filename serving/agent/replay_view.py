"""The display of a running replay: predictions against outcomes, and the chosen queues."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import polars as pl
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.serving.agent.predictors.reference_client import DecisionCounts

BARS: Final = "▁▂▃▄▅▆▇█"
SHOWN_BATCHES: Final = 60
LIVE_S: Final = 0.25  # seconds between updates on a terminal
LINE_S: Final = 2.0  # seconds between lines elsewhere


def sparkline(values: Sequence[float | None], low: float, high: float) -> str:
    """Return one character a value, between `low` and `high`, with a dot for each missing value."""
    span = max(high - low, 1e-9)
    return "".join(
        "·" if v is None else BARS[round(min(max((v - low) / span, 0.0), 1.0) * (len(BARS) - 1))]
        for v in values
    )


class View:
    """The display of a replay: a live table on a terminal, lines elsewhere, nothing when quiet."""

    def __init__(self, trace: str, batches: int, speed: float, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Console(stderr=quiet)
        pace = f"{speed:g}× real time" if speed > 0 else "as fast as possible"
        self._title = f"replay of {trace}, {pace}"
        self._batches = batches
        self._next = 0.0
        self._live: Live | None = None

    def __enter__(self) -> View:
        if not self._quiet and self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        elif not self._quiet:
            print(self._title, flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print one line of text, on standard error when the output is for a program."""
        if self._live:
            self._live.console.print(line, highlight=False)
        else:
            print(line, file=sys.stderr if self._quiet else sys.stdout, flush=True)

    def due(self) -> bool:
        """Return whether it is time for another `update`."""
        return not self._quiet and time.monotonic() >= self._next

    def update(self, recent: pl.DataFrame, counts: DecisionCounts) -> None:
        """Show the latest batches, as rows of the record."""
        self._next = time.monotonic() + (LIVE_S if self._live else LINE_S)
        if self._live:
            self._live.update(self._table(recent, counts), refresh=True)
        else:
            print(self._line(recent, counts), flush=True)

    def _table(self, recent: pl.DataFrame, counts: DecisionCounts) -> Group:
        predicted, came, moved = _by_batch(recent)
        known = [v for v in (*predicted, *came) if v is not None]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        table = Table(title=self._title, title_justify="left", show_header=False, box=None)
        table.add_row("predicted", sparkline(predicted, low, high), _ms(predicted))
        table.add_row("came", sparkline(came, low, high), _ms(came))
        table.add_row("moved to classic", sparkline(moved, 0.0, 1.0), _share(moved))
        scale = f"last {len(predicted)} batches, {low / 1e3:.1f} to {high / 1e3:.1f} ms"
        return Group(table, Text(f"{scale}   {self._counts(counts)}"))

    def _line(self, recent: pl.DataFrame, counts: DecisionCounts) -> str:
        predicted, came, moved = _by_batch(recent)
        latest = f"predicted {_ms(predicted)}, came {_ms(came)}, moved {_share(moved)}"
        return f"{self._counts(counts)}   {latest}"

    def _counts(self, counts: DecisionCounts) -> str:
        return (
            f"batch {counts.batches} of {self._batches}: {counts.decided} decided in time, "
            f"{counts.late} late, {counts.failed} failed"
        )

    def print_summary(self, summary: dict[str, Any], problem: str) -> None:
        """Print the final figures."""
        table = Table(
            title=f"{self._title}: {summary['seconds']:.1f} s", title_justify="left", show_header=False
        )
        trip, mae, moved = summary["round_trip_us"], summary["mae_us"], summary["moved_share"]
        versions = ", ".join(f"{v} ({n} batches)" for v, n in summary["versions"].items())
        for name, value in (
            ("batches of 8 packets", f"{summary['batches']:,}"),
            ("decided in time", f"{summary['decided']:,}"),
            ("late (default marking)", f"{summary['late']:,}"),
            ("failed (default marking)", f"{summary['failed']:,}" + (f"   {problem}" if problem else "")),
            ("mean error of predictions", "-" if mae is None else f"{mae / 1e3:.2f} ms"),
            ("L4S packets the controller would move", "-" if moved is None else f"{moved:.1%}"),
            (
                "round trip p50 / p99",
                "-" if trip["p50"] is None else f"{trip['p50']:.0f} / {trip['p99']:.0f} µs",
            ),
            ("model version", versions or "-"),
            ("behind schedule", f"{summary['behind_schedule']:,} batches"),
        ):
            table.add_row(name, value)
        self._console.print(table, highlight=False)
        print(f"every decision: {summary['output']}")


def _by_batch(
    recent: pl.DataFrame,
) -> tuple[list[float | None], list[float | None], list[float | None]]:
    """Return mean predicted latency, mean latency that came, and share moved, of each batch."""
    batches = recent.group_by(pl.col("packet") // HORIZON, maintain_order=True).agg(
        pl.col("predicted_us").mean(),
        pl.col("latency_us").mean(),
        moved=(pl.col("queue_chosen") != pl.col("queue_sent")).mean(),
    )
    return (
        batches["predicted_us"].to_list(),
        batches["latency_us"].to_list(),
        batches["moved"].to_list(),
    )


def _ms(values: Sequence[float | None]) -> str:
    return "-" if not values or values[-1] is None else f"{values[-1] / 1e3:.1f} ms"


def _share(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    return f"{sum(known) / len(known):.0%}" if known else "-"
