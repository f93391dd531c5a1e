"""The benchmarks' rows, how they are printed, and the module that measures each benchmark."""

from __future__ import annotations

import importlib
import inspect
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass


class UnsupportedMachineError(RuntimeError):
    """The error of a machine that lacks what a benchmark measures; it is no failure."""


@dataclass(frozen=True)
class Row:
    """One measured figure beside its reference from the same run; `ratio` > 1 means ours is better."""

    name: str
    ours: float
    reference: float
    reference_name: str
    ratio: float
    unit: str
    rounds: int


def interleaved_medians(rounds: int, *measures: Callable[[], float]) -> list[float]:
    """Return the medians of several measures taken in turn, so that other load affects all alike."""
    samples: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for values, measure in zip(samples, measures, strict=True):
            values.append(measure())
    return [statistics.median(values) for values in samples]


def run_benchmark(name: str, *, rounds: int, as_json: bool, **options: object) -> list[Row]:
    """Run `benchmarks.NAME.measure(rounds, ...)` and print its rows as a table or as JSON; return them.

    Options that are None were not given.

    Raises:
        ValueError: the benchmark has no such option.
    """
    if rounds < 1:
        raise ValueError(f"--rounds {rounds}: must be 1 or more")
    measure: Callable[..., list[Row]] = importlib.import_module(f"swiftqueue.benchmarks.{name}").measure
    given = {option: value for option, value in options.items() if value is not None}
    for option in given.keys() - inspect.signature(measure).parameters.keys():
        raise ValueError(f"--{option}: bench {name} has no such option")
    title = f"swiftqueue bench {name}" if given else f"swiftqueue bench {name}: medians of {rounds} rounds"
    rows = measure(rounds, **given)
    print_rows(rows, title, as_json=as_json)
    return rows


def print_rows(rows: list[Row], title: str, *, as_json: bool) -> None:
    """Print rows as a table or as JSON."""
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for column in ("name", "ours", "reference", "unit", "ratio", "reference is"):
        table.add_column(column, justify="right" if column in ("ours", "reference", "ratio") else "left")
    for r in rows:
        table.add_row(
            r.name, f"{r.ours:,.4g}", f"{r.reference:,.4g}", r.unit, f"{r.ratio:.2f}×", r.reference_name
        )
    Console().print(table)
