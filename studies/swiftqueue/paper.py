"""Published rows of `swiftqueue paper forecasts`, `data/paper.json`, an entry for each form; their tables."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from swiftqueue.benchmarks.published import check, entries_of, origin
from swiftqueue.common.atomic import write_file
from swiftqueue.common.json_file import read_object
from swiftqueue.laboratory.report import tables as lab
from swiftqueue.models.scoring.intervals import Estimate, estimate
from swiftqueue.studies.swiftqueue.answers import MEDIAN_MS, Rows, answers, f1
from swiftqueue.studies.swiftqueue.asked import LAST, OURS, SHOWN
from swiftqueue.studies.swiftqueue.exhibits import EXHIBITS, FORMS, Exhibit, Form, command
from swiftqueue.studies.swiftqueue.verdicts import NOT_RUN, Answer, verdict

FILE: Final = Path("studies/swiftqueue/data/paper.json")
NEEDED: Final = {"form", "seeds", "lengths", "rows"}
OF_A_ROW: Final = {
    *("trace", "method", "seed", "every", "visibility"),
    *("about", "fit_cpu_s", "tune_s", "tuned", "pretrained"),
}
DIGITS: Final = 3


@dataclass(frozen=True)
class CompleteExhibit:
    """An exhibit as it stands: the form that is complete, its rows and what they answer."""

    exhibit: Exhibit
    form: Form
    rows: Rows
    answers: Sequence[Answer]


def load(root: Path) -> dict[str, Any]:
    """Read what is published below a checkout; nothing, where nothing is.

    Raises:
        ValueError: it is damaged; the line says how.
    """
    path = root / FILE
    found = entries_of(path)
    for entry in found.values():
        _check(path, entry)
    return found


def take(summary: Path, path: Path = FILE) -> None:
    """Put a summary into the file, in the place of that of its form.

    Raises:
        OSError: it is not there.
        ValueError: it is not one.
    """
    found = read_object(summary)
    _check(summary, found)
    entries = {**entries_of(path), found["form"]: {**origin(), **found}}
    write_file(path, _written(entries))


def _written(entries: Mapping[str, Any]) -> str:
    """Return the entries as JSON with a line for each row, so that a change shows its row."""
    forms = []
    for name in sorted(entries):
        about = {key: value for key, value in entries[name].items() if key != "rows"}
        rows = ",\n".join(json.dumps(row, allow_nan=False) for row in entries[name]["rows"])
        forms.append(f'{json.dumps(name)}: {json.dumps(about)[:-1]}, "rows": [\n{rows}\n]}}')
    return "{\n" + ",\n".join(forms) + "\n}\n"


def _check(path: Path, entry: Any) -> None:
    if not isinstance(entry, dict):
        raise ValueError(f"{path} is no summary of `swiftqueue paper forecasts`: an entry is no object")
    check(path, entry, NEEDED, "summary of `swiftqueue paper forecasts`")
    if entry["form"] not in FORMS:
        raise ValueError(f"{path}: form {entry['form']!r} is unknown; there are {', '.join(FORMS)}")
    for number, row in enumerate(entry["rows"]):
        lacks = sorted(OF_A_ROW - set(row)) if isinstance(row, dict) else ["all of it"]
        if lacks:
            raise ValueError(f"{path}: rows.{number}: {lacks[0]} is missing")


def shown(published: Mapping[str, Any]) -> list[CompleteExhibit]:
    """Return the exhibits that were run, each in its longest complete form."""
    forms = [
        (replace(FORMS[name], seeds=published[name]["seeds"]), Rows(published[name]["rows"]))
        for name in FORMS
        if name in published
    ]
    found = []
    for exhibit in EXHIBITS:
        for form, rows in forms:
            if given := answers(exhibit, rows, form):
                found.append(CompleteExhibit(exhibit, form, rows, given))
                break
    return found


def verdicts(published: Mapping[str, Any]) -> list[str]:
    """Return a line for each exhibit: its verdict, or the command that would give it one."""
    by_name = {each.exhibit.name: each for each in shown(published)}
    lines = lab.head_of(["exhibit", "later version", "claim", "form", "verdict"])
    for exhibit in EXHIBITS:
        one = by_name.get(exhibit.name)
        said = f"**{verdict(one.answers)}**" if one else f"{NOT_RUN}: `{command(exhibit)}`"
        form = one.form.name if one else lab.NONE
        lines.append(lab.row_of([exhibit.title, exhibit.later, exhibit.claim, form, said]))
    return lines


def origins(published: Mapping[str, Any]) -> list[str]:
    """Return what each published form consists of."""
    if not published:
        return ["Nothing is published yet: `swiftqueue paper forecasts --small`."]
    lines = []
    for name in FORMS:
        if name not in published:
            lines.append(f"- **{name}**: not run.")
            continue
        one = published[name]
        kinds, swept = (one["lengths"][what] for what in ("kinds", "swept"))
        seeds = FORMS[name].seeds  # seeds of the command without --seeds
        core_min = sum(row["fit_cpu_s"] for row in one["rows"] if row["seed"] <= seeds) / 60
        lines += [
            f"- **{name}**: measured on {one['date']} at commit `{one['commit']}`, on {one['machine']};",
            f"  seeds 1 to {one['seeds']}. Seconds of a trace, to pre-train on, to tune on, to test on:",
            f"  {_seconds(kinds)} of the four kinds (table 1), {_seconds(swept)} of figures 9 to 12.",
            f"  Training took {core_min:.0f} minutes of a core in seeds 1 to {seeds}.",
        ]
    return lines


def _seconds(lengths: Mapping[str, Any]) -> str:
    return " / ".join(f"{lengths[key]:g}" for key in ("trace_s", "pretrain_s", "finetune_s", "test_s"))


def sections(published: Mapping[str, Any]) -> list[str]:
    """Return every exhibit that was run: its picture, figures, questions and command."""
    return [line for one in shown(published) for line in _section(one)]


def _section(one: CompleteExhibit) -> Iterator[str]:
    exhibit = one.exhibit
    yield from ("", f"### {exhibit.title}", "")
    yield f"{exhibit.claim}: **{verdict(one.answers)}**, {one.form.name} form, {one.form.seeds} seeds."
    yield from ("", f"![{exhibit.title}](paper-{exhibit.name}.svg)")
    yield from ("", *_figures(one), "", *_asked(one))
    yield from ("", f"    {command(exhibit, one.form)}")


def _figures(one: CompleteExhibit) -> list[str]:
    exhibit, rows = one.exhibit, one.rows
    if exhibit.name == "table-1":
        return _of_traces(one)
    if exhibit.name == "figure-16":
        found = ((f"{every:g}", rows.values(SHOWN, OURS, f1, every)) for every in one.form.every)
        return _in_one_line("fine-tuned every … test slices", found)
    if exhibit.name == "figure-17":
        sizes = rows.of(SHOWN, OURS)[0]["batches"]
        found = (
            (size, rows.values(SHOWN, OURS, lambda row, size=size: row["batches"][size]))  # type: ignore[misc]
            for size in sizes
        )
        return _in_one_line("packets of a batch", found)
    if exhibit.name == "figure-3":
        return []
    lines = _by_method(one, "F1 of sharp changes", lambda *of: _bounded(_estimate(scored(one, *of))))
    for way in ("cached", "uncached") if exhibit.name == "figure-13" else ():
        lines += ["", *_by_method(one, f"seconds to tune, {way}", partial(_to_tune, one, way))]
    return lines


def _by_method(one: CompleteExhibit, what: str, said: Callable[[str, str], str]) -> list[str]:
    """Return a table with a row for each method and a column for each trace."""
    traces = one.exhibit.shown(one.form)
    lines = lab.head_of([what, *(one.exhibit.traces[trace] for trace in traces)])
    for method in one.exhibit.compared(one.form):
        named = f"**`{method}`**" if method == OURS else f"`{method}`"
        lines.append(lab.row_of([named, *(said(trace, method) for trace in traces)]))
    return lines


def _to_tune(one: CompleteExhibit, way: str, trace: str, method: str) -> str:
    """Return the seconds of tuning a head."""
    return _bounded(_estimate(one.rows.values(trace, method, lambda row: row["tune_s"][way])), math.inf)


def _estimate(by_seed: Mapping[int, float]) -> Estimate | None:
    return estimate(list(by_seed.values()))


def scored(one: CompleteExhibit, trace: str, method: str) -> dict[int, float]:
    """Return F1 by seed, in the variant and visibility of an exhibit."""
    score = one.exhibit.score
    return one.rows.values(trace, method, lambda row: row["tuned"][score], 1, one.exhibit.visibility)


def _in_one_line(what: str, found: Iterator[tuple[str, Mapping[int, float]]]) -> list[str]:
    by_value = list(found)
    cells = [_bounded(_estimate(values)) for _, values in by_value]
    return [*lab.head_of([what, *(value for value, _ in by_value)]), lab.row_of(["F1", *cells])]


def _of_traces(one: CompleteExhibit) -> list[str]:
    lines = lab.head_of(["kind", "median, ms", "the paper's", "sharp changes", "seconds", "flows", "flow, s"])
    for trace in one.exhibit.shown(one.form):
        rows = one.rows.of(trace, LAST)
        about = [row["about"] for row in rows]
        ends = [min(each["flow_s"][0] for each in about), max(each["flow_s"][1] for each in about)]
        lines.append(
            lab.row_of(
                [
                    one.exhibit.traces[trace],
                    interval(estimate([each["median_ms"] for each in about]), 1),
                    str(MEDIAN_MS[trace]),
                    f"{statistics.fmean(row['tuned']['n_sharp'] for row in rows):.0f}",
                    f"{statistics.fmean(each['seconds'] for each in about):.0f}",
                    f"{statistics.fmean(each['flows'] for each in about):.0f}",
                    f"{ends[0]:.0f} to {ends[1]:.0f}",
                ]
            )
        )
    return lines


def _asked(one: CompleteExhibit) -> list[str]:
    factor = one.exhibit.factor
    lines = lab.head_of(["question", "first", "second", f"first - {factor:g} × second", "verdict"])
    for each in one.answers:
        first, second = (f"{value:.{DIGITS}f}" for value in (each.ours, each.other))
        lines.append(
            lab.row_of([each.where, first, second, interval(each.contrast, signed=True), each.verdict])
        )
    return lines


def _bounded(found: Estimate | None, most: float = 1.0) -> str:
    """Return a mean of values from 0 to `most`; its interval ends where they do."""
    if found is None or found.low is None or found.high is None:
        return interval(found)
    return interval(replace(found, low=max(found.low, 0.0), high=min(found.high, most)))


def interval(found: Estimate | None, digits: int = DIGITS, *, signed: bool = False) -> str:
    """Return a mean with 95 % over seeds."""
    if found is None:
        return lab.NONE
    sign = "+" if signed else ""
    if found.low is None or found.high is None:
        return f"{found.mean:{sign}.{digits}f}"
    return f"{found.mean:{sign}.{digits}f} ({found.low:{sign}.{digits}f} to {found.high:{sign}.{digits}f})"
