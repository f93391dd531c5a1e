"""Pictures of benchmarks and evaluations: a bar or a point for each row that a page's answer is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.figure import Figure

from swiftqueue.benchmarks.inference import BATCH
from swiftqueue.benchmarks.results.tables import WORDS, Data
from swiftqueue.benchmarks.rows import Row
from swiftqueue.laboratory.report.plots import COLOURS
from swiftqueue.models.scoring.plot_style import INK, grid
from swiftqueue.models.scoring.predictions import FINETUNED, METHODS

OURS: Final = "#e64980"
DIGITS: Final = 4  # significant digits of a drawn figure, so that no machine draws other bytes


@dataclass(frozen=True)
class Bar:
    """One bar: its label, and where its figure stands in the published rows."""

    label: str
    row: str  # the row's name
    reference: str = ""  # the row's reference, where several rows have the name
    drawn: str = "ours"  # or `reference`: the column that is drawn

    def of(self, rows: Sequence[Row]) -> float:
        """Return its figure.

        Raises:
            ValueError: no row is meant.
        """
        for row in rows:
            if row.name == self.row and self.reference in ("", row.reference_name):
                return float(f"{getattr(row, self.drawn):.{DIGITS}g}")
        raise ValueError(
            f"no published row {self.row!r} beside {self.reference!r}: publish the benchmark again"
        )


def _reference(label: str, row: str, reference: str = "") -> Bar:
    return Bar(label, row, reference, "reference")


_BATCH: Final = f"{BATCH}, avx512, p50"
_STREAM: Final = "event stream, p50"
_ONNX: Final = "ONNX in the Python backend, Python client, p50"
_RATE: Final = "highest rate with 99% in time, asked 2 ms ahead, 4 flows"
_TUNE: Final = (
    "fine-tune the head: 10 epochs, 500,000 packets = 62,500 decisions, the one encoder pass included"
)
_EVENTS: Final = (
    "ingest over HTTP through Ray Serve, fsynced, checked and compacted on one core, 12 senders, "
    "batches of 4,096 events"
)
# The benchmark's name: the axis, its bars from above.
BARS: Final[Mapping[str, tuple[str, tuple[Bar, ...]]]] = {
    "inference": (
        "µs for a batch: 16 new events, 8 packets in both queues (p50)",
        (
            Bar("this engine, bf16", f"{BATCH}, bf16, p50", f"{BATCH}, avx512"),
            Bar("this engine", _BATCH, "PyTorch, both queues"),
            _reference("ONNX Runtime", _BATCH, "ONNX Runtime, both queues"),
            _reference("PyTorch", _BATCH, "PyTorch, both queues"),
        ),
    ),
    "serving": (
        "round trip, µs (p50)",
        (
            _reference("a model that computes nothing", _STREAM, "identity, p50"),
            Bar("native backend", _STREAM, "identity, p50"),
            _reference("Python backend and client", _STREAM, _ONNX),
        ),
    ),
    "linerate": (
        "highest rate with 99 % in time, asked 2 ms ahead, Mbit/s",
        (Bar("through Triton", _RATE), _reference("in the agent's process", _RATE)),
    ),
    "swap": (
        "round trip, µs (p99)",
        (
            _reference("without pushes", "a swap every 5 s, 500 questions/s: round trip, p99"),
            Bar("a push every 5 s", "a swap every 5 s, 500 questions/s: round trip, p99"),
            _reference("without pushes, other run", "a swap every 1 s, 1000 questions/s: round trip, p99"),
            Bar("a push every second", "a swap every 1 s, 1000 questions/s: round trip, p99"),
        ),
    ),
    "finetune": (
        "seconds for ten epochs of the head, on a minute at 100 Mbit/s",
        (Bar("the encoder runs once", _TUNE), _reference("the encoder runs in each epoch", _TUNE)),
    ),
    "ingest": (
        "events a second on one core",
        (
            Bar("the ingest", _EVENTS),
            _reference("wanted", _EVENTS, "promised at least"),
            _reference(
                "append without a server", _EVENTS, "check, append and fsync of each batch, without a server"
            ),
            _reference(
                "a Parquet file a batch", _EVENTS, "a Parquet file per batch, fsynced, without a server"
            ),
        ),
    ),
    "marker": (
        "ns for a packet",
        (
            _reference("a flow that is not registered", "marked with another codepoint"),
            Bar("the decision is over", "plain, the decision is over"),
            Bar("marked as the kernel had", "marked as the kernel had"),
            Bar("marked with another codepoint", "marked with another codepoint"),
            _reference("wanted at most", "dearest of them"),
        ),
    ),
}


def bars(data: Data, name: str) -> Figure:
    """Draw a benchmark's figures as horizontal bars, each with its value.

    Raises:
        ValueError: the benchmark, or one of its rows, is not published.
    """
    axis, shown = BARS[name]
    rows = data.benchmark(name).rows
    figure, [[axes]] = grid(1, 1, 8.4, 0.6 + 0.3 * len(shown))
    values = [bar.of(rows) for bar in shown]
    colours = [OURS if bar.drawn == "ours" else INK for bar in shown]
    axes.barh(range(len(shown)), values, color=colours, height=0.6)
    for place, value in enumerate(values):
        said = f"{value:,.0f}" if value >= 10 else f"{value:.3g}"
        axes.text(value, place, f" {said}", va="center", fontsize=8)
    axes.set_yticks(range(len(shown)), [bar.label for bar in shown])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(axis, fontsize=8)
    axes.set_xlim(0, max(values) * 1.12)
    return figure


# Steps of a live round, in their order.
STEPS: Final = (
    *("champion", "telemetry", "validate", "fetch", "workers", "load", "encode", "train"),
    *("judge", "register", "shadow", "push"),
)


def timeline(data: Data) -> Figure:
    """Draw a live round from its trigger to the first answer of its head: each step where it took place.

    Raises:
        ValueError: the benchmark, or one of its steps, is not published.
    """
    rows = data.benchmark("live").rows
    figure, [[axes]] = grid(1, 1, 8.4, 3.4)
    begun = 0.0
    for place, step in enumerate(STEPS):
        seconds = Bar(step, f"step {step}").of(rows)
        axes.barh(place, seconds, left=begun, color=OURS, height=0.6)
        begun = round(begun + seconds, DIGITS)
        said = f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1e3:.0f} ms"
        axes.text(begun, place, f" {said}", va="center", fontsize=8)
    axes.set_yticks(range(len(STEPS)), STEPS)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds since the round's trigger", fontsize=8)
    axes.set_xlim(0, begun * 1.08)
    return figure


def precision(evaluation: Mapping[str, Any]) -> Figure:
    """Draw each method's average precision of late packets with its interval, and chance as a line."""
    methods = [method for method in METHODS if method in evaluation["methods"]]
    figure, [[axes]] = grid(1, 1, 8.4, 0.6 + 0.25 * len(methods))
    axes.axvline(round(evaluation["base_rate"], DIGITS), color=INK, linewidth=1, linestyle="--")
    for place, method in enumerate(methods):
        found = evaluation["methods"][method]
        colour = OURS if method == FINETUNED else COLOURS["last_latency"]
        low, high = (round(end, DIGITS) for end in found["average_precision_95"])
        axes.hlines(place, low, high, color=colour, linewidth=2)
        axes.plot(round(found["average_precision"], DIGITS), place, "o", color=colour, markersize=5)
    axes.set_yticks(range(len(methods)), [WORDS[method].strip("*") for method in methods])
    axes.invert_yaxis()
    axes.set_xlabel("average precision of late packets, 95 % intervals; dashed: chance", fontsize=8)
    axes.set_xlim(left=0)
    return figure
