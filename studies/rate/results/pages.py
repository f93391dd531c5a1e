"""The study's pages: tables and pictures beside the published data that they are drawn from."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from swiftqueue.benchmarks import published as benchmarks_published
from swiftqueue.benchmarks.results.pages import Tables, filled
from swiftqueue.benchmarks.results.tables import benchmark_table
from swiftqueue.models.scoring.plot_style import svg
from swiftqueue.studies.rate.results import exchange, feedback, pictures, published

FOLDER: Final = Path("studies/rate/results")
BENCHMARKS: Final = FOLDER / "bench.json"
NOTHING: Final = "Nothing is published yet: `swiftqueue rate {}`, then `swiftqueue rate results FILE`."


def drawn(root: Path) -> dict[Path, bytes]:
    """Return what each page and picture should be, by its path below `root`.

    Raises:
        OSError: published data, or a page, is not there.
        ValueError: data is damaged, or a page names no table that there is.
    """
    rates = published.load(root)
    of_data = tables(rates, root)
    found = {FOLDER / name: svg(partial(draw, rates)) for name, draw in PICTURES.items()}
    for page in sorted((root / FOLDER).glob("*.md")):
        path = page.relative_to(root)
        found[path] = filled(page.read_text(), path, of_data).encode()
    return found


PICTURES: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "rate-errors.svg": lambda rates: pictures.errors(rates),
    "rate-kernel-errors.svg": lambda rates: pictures.errors(rates["kernel"]),
    "rate-fields.svg": lambda rates: pictures.fields(rates),
    "rate-plain.svg": lambda rates: pictures.plain(rates),
    "rate-completions.svg": lambda rates: pictures.completions(rates["fed_back"]),
    "bed-completions.svg": lambda rates: pictures.completions(rates["fed_kernel"]),
}


def tables(rates: Mapping[str, Any], root: Path = Path()) -> Tables:
    """Return the tables that a page may name, each drawn from the published studies."""
    study, kernel = partial(_study, rates), partial(_study, rates.get("kernel", {}))
    fed_back = partial(_fed_back, rates)
    return {
        "rate-headline": partial(study, published.headline),
        "rate-fields": partial(study, published.fields),
        "rate-pairs": partial(study, published.pairs),
        "rate-alone": partial(study, published.alone),
        "rate-kernel": partial(kernel, published.headline),
        **{
            f"{name}-{part}": partial(of, partial(published.grid, part=part))
            for name, of in (("rate", study), ("rate-kernel", kernel))
            for part in published.PARTS
        },
        "rate-plain": partial(_plain, rates),
        "rate-feedback": partial(fed_back, feedback.rows),
        "rate-feedback-trips": partial(fed_back, feedback.by_trip),
        "bed-fct": partial(fed_back, feedback.rows, of="fed_kernel"),
        "bed-fct-trips": partial(fed_back, feedback.by_trip, of="fed_kernel"),
        **{f"rate-exchange-{of}": partial(_exchanged, rates, of) for of in ("latency", "rate")},
        "bench-rate": lambda: benchmark_table(benchmarks_published.load(root / BENCHMARKS)["rate"]),
    }


Rows = Callable[[Mapping[str, Any]], list[str]]


def _study(one: Mapping[str, Any], rows: Rows) -> list[str]:
    """A table of a study of forecasts, with what was measured; or a line that nothing is."""
    if "grid" not in one:
        return [NOTHING.format("study")]
    return [*_wrapped(published.said(one)), "", *rows(one)]


def _plain(rates: Mapping[str, Any]) -> list[str]:
    return published.plain(rates["plain"]) if "plain" in rates else [NOTHING.format("plain")]


def _fed_back(rates: Mapping[str, Any], rows: Rows, of: str = "fed_back") -> list[str]:
    """A table of completion times with and without feedback; or a line that none are published."""
    if of not in rates:
        return [NOTHING.format("feedback" if of == "fed_back" else "completions")]
    one = {**rates[of], "beside": rates.get(f"{of}_beside")}
    return [*_wrapped(feedback.said(one)), *rows(one)]


def _exchanged(rates: Mapping[str, Any], question: str) -> list[str]:
    """A table of what forecasts gain by each other's inputs; or a line that nothing is published."""
    if "exchanged" not in rates:
        return [NOTHING.format("exchange")]
    return [*_wrapped(exchange.said(rates["exchanged"])), *exchange.rows(rates["exchanged"], question)]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)
