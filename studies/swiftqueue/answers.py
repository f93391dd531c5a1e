"""From rows to what an exhibit's claim asks: pairs by seed, and the figures of its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from swiftqueue.studies.swiftqueue.asked import BATCHES, LAST, LSTM, OURS, PREVIOUS, SHOWN
from swiftqueue.studies.swiftqueue.exhibits import BASELINES, PLAIN, Exhibit, Form
from swiftqueue.studies.swiftqueue.verdicts import Answer, answer

SCORE: Final = "f1_truth_change"  # score of the paper's protocol; the other variant stands beside it
MEDIAN_MS: Final = {"video-wifi": 70, "web-wifi": 66, "video-eth": 74, "web-eth": 57}  # the paper's table 1
Row = Mapping[str, Any]
Figure = Callable[[Row], float | None]


class Rows:
    """The rows of a form, found by trace, method and interval."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Take them in any order."""
        self._rows: dict[tuple[str, str, float, str], dict[int, Row]] = {}
        for row in rows:
            key = (row["trace"], row["method"], row["every"], row["visibility"])
            self._rows.setdefault(key, {})[row["seed"]] = row

    def of(self, trace: str, method: str, every: float = 1, visibility: str = PREVIOUS) -> list[Row]:
        """Return the rows of a cell, by seed."""
        found = self._rows.get((trace, method, every, visibility), {})
        return [found[seed] for seed in sorted(found)]

    def values(
        self, trace: str, method: str, figure: Figure, every: float = 1, visibility: str = PREVIOUS
    ) -> dict[int, float]:
        """Return a figure of each seed that has one."""
        found = ((row["seed"], figure(row)) for row in self.of(trace, method, every, visibility))
        return {seed: value for seed, value in found if value is not None}

    def complete(self, exhibit: Exhibit, form: Form) -> bool:
        """Return whether every row that an exhibit asks for is there."""
        return all(
            asked.seed in self._rows.get((asked.trace, asked.method, asked.every, asked.visibility), {})
            for asked in exhibit.rows(form)
        )


def f1(row: Row) -> float | None:
    """Return F1 of sharp changes, with the tuned head."""
    return row["tuned"][SCORE]  # type: ignore[no-any-return]


def _pairs(ours: Mapping[int, float], other: Mapping[int, float]) -> list[tuple[float, float]]:
    return [(ours[seed], other[seed]) for seed in sorted(set(ours) & set(other))]


def answers(exhibit: Exhibit, rows: Rows, form: Form) -> list[Answer]:
    """Answer the exhibit's questions; none of a row that is missing."""
    if not rows.complete(exhibit, form):
        return []
    asked = (
        (where, answer(where, pairs, exhibit.factor)) for where, pairs in _questions(exhibit, rows, form)
    )
    return [found for _, found in asked if found is not None]


def _questions(exhibit: Exhibit, rows: Rows, form: Form) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    name = exhibit.name
    if name == "table-1":
        for trace in exhibit.shown(form):
            medians = rows.values(trace, LAST, lambda row: row["about"]["median_ms"])
            yield (
                f"{exhibit.traces[trace]}: the smaller median by the larger, and 1",
                [(min(m / MEDIAN_MS[trace], MEDIAN_MS[trace] / m), 1.0) for m in medians.values() if m > 0],
            )
    elif name == "figure-3":
        features, inputs = (
            rows.values(SHOWN, OURS, lambda row, key=key: row["apart"][key])  # type: ignore[misc]
            for key in ("features", "inputs")
        )
        yield "alike among nearest: features, inputs", _pairs(features, inputs)
    elif name == "figure-13":
        for trace in exhibit.shown(form):
            for way in ("cached", "uncached"):
                lstm, ours = (
                    rows.values(trace, method, lambda row, way=way: row["tune_s"][way])  # type: ignore[misc]
                    for method in (LSTM, OURS)
                )
                yield f"{exhibit.traces[trace]}, {way}: seconds of BiLSTM, of Transformer", _pairs(lstm, ours)
    elif name == "figure-14":
        lstm, ours = (
            rows.values(SHOWN, method, lambda row: row["tuned"]["mae_ms"]) for method in (LSTM, OURS)
        )
        yield "mean error, ms: BiLSTM, Transformer", _pairs(lstm, ours)
        untuned = rows.values(SHOWN, OURS, lambda row: row["pretrained"][SCORE])
        yield "F1: tuned, untuned", _pairs(rows.values(SHOWN, OURS, f1), untuned)
    elif name == "figure-16":
        shortest = rows.values(SHOWN, OURS, f1, form.every[0])
        yield (
            "F1: tuned each test slice, oftenest",
            _pairs(rows.values(SHOWN, OURS, f1), shortest),
        )
    elif name == "figure-17":
        largest, one = (
            rows.values(SHOWN, OURS, lambda row, size=size: row["batches"][str(size)])  # type: ignore[misc]
            for size in (BATCHES[-1], BATCHES[0])
        )
        yield "F1: batches of 8, of 1", _pairs(largest, one)
    else:
        against = (PLAIN,) if name == "figure-15" else BASELINES
        for trace in exhibit.shown(form):
            for method in against:
                ours, other = (
                    rows.values(trace, each, lambda row: row["tuned"][exhibit.score], 1, exhibit.visibility)
                    for each in (OURS, method)
                )
                yield f"{exhibit.traces[trace]}: {OURS}, {method}", _pairs(ours, other)
