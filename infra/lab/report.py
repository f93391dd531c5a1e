"""`swiftqueue lab report`: the results as one self-contained page, and as a table for the README."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from infra.lab import results
from infra.lab.figures import plots_of
from infra.lab.findings import (
    LEAST_CLASSIC_SHARE,
    LEAST_GOODPUT,
    MOST_RTT_CHANGE,
    NO_HARM,
    Place,
    Sentence,
    by_seed,
    compare,
    findings,
    percent,
    places,
    share,
    sweep_summary,
)
from infra.lab.intervals import estimate
from infra.lab.measures import (
    CLASSIC_SHARE,
    MOVED,
    QUEUEING_P99,
    REORDERED,
    RETRANSMITTED,
    RTT_P99,
    S1_GOODPUT,
    TABLE,
    Measure,
)
from infra.lab.scenario import CONTROLS, Scenario
from infra.lab.scenario_file import load, path_of

TEMPLATE: Final = "report.html.j2"
PAGE: Final = "report.html"
MARKDOWN: Final = "table.md"
SWEPT_COLUMNS: Final = ("oracle", "oracle_in_order", "random", "model")
README_COLUMNS: Final = (QUEUEING_P99, RTT_P99, S1_GOODPUT, CLASSIC_SHARE, MOVED, RETRANSMITTED, REORDERED)


def make_report(output: Path) -> Path:
    """Write `report/report.html` and `report/table.md` from the results; return the page.

    Raises:
        FileNotFoundError: there are no results.
    """
    runs = results.load(output)
    if runs.is_empty():
        raise FileNotFoundError(f"{output} has no results yet; `swiftqueue lab run SCENARIO` makes them")
    folder = output / "report"
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / MARKDOWN, markdown_table(runs))
    _write(folder / PAGE, render(runs))
    return folder / PAGE


def render(runs: pl.DataFrame) -> str:
    """Render the page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    scenarios = [_section(runs, name) for name in sorted(set(runs["scenario"]), key=_order)]
    return environment.get_template(TEMPLATE).render(
        scenarios=scenarios,
        summary=sweep_summary(runs),
        about=_about(runs),
        columns=[f"{m.title}, {m.unit}" for m in TABLE],
        limits={
            "rtt": share(MOST_RTT_CHANGE, 0),
            "goodput": share(LEAST_GOODPUT, 0),
            "classic": share(LEAST_CLASSIC_SHARE, 0),
            "harm": share(NO_HARM, 0),
        },
    )


def markdown_table(runs: pl.DataFrame) -> str:
    """Return two Markdown tables: scenarios with every control, and sweeps with the changes that matter."""
    head = ["scenario", "profile", "control", "P99 against default"]
    lines = _markdown_head([*head, *(f"{m.title}, {m.unit}" for m in README_COLUMNS)])
    for place in places(runs.filter(pl.col("point") == "")):
        for control in _run_controls(runs, place):
            cells = [_cell(runs, place, control, m)["text"] for m in README_COLUMNS]
            change = _change(runs, place, control)
            lines.append(_markdown_row([place.scenario, place.profile, control, change, *cells]))
    swept = places(runs.filter(pl.col("point") != ""))
    if not swept:
        return "\n".join(lines) + "\n"
    lines += ["", *_markdown_head(["scenario", "profile", "at", "default P99, ms", *SWEPT_COLUMNS])]
    for place in swept:
        default = _cell(runs, place, "default", QUEUEING_P99)["text"]
        changes = [_change(runs, place, control) for control in SWEPT_COLUMNS]
        lines.append(_markdown_row([place.scenario, place.profile, place.point, default, *changes]))
    return "\n".join(lines) + "\n"


def _markdown_head(names: Sequence[str]) -> list[str]:
    return [_markdown_row(names), "|" + "---|" * len(names)]


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def _order(name: str) -> tuple[int, str]:
    """Figure 8 first, then what extends it, the maps last."""
    return (0 if name == "figure8" else 2 if name.startswith("map-") else 1, name)


def _scenario(name: str) -> Scenario | None:
    """The scenario's file, if it is the project's: a user's own may have gone since."""
    try:
        return load(path_of(name))
    except (FileNotFoundError, ValueError):
        return None


def _section(runs: pl.DataFrame, name: str) -> dict[str, Any]:
    here = runs.filter(pl.col("scenario") == name)
    scenario = _scenario(name)
    swept = here.filter(pl.col("point") != "").height > 0
    label = scenario.axis.label if scenario and scenario.axis else "point"
    log = bool(scenario and scenario.axis and scenario.axis.log)
    return {
        "name": name,
        "about": scenario.about if scenario else "",
        "figure": scenario.figure if scenario else None,
        "caption": _caption(here),
        "sentences": findings(here),
        "tables": [_table(here, place) for place in places(here)],
        "plots": plots_of(runs, name, label if swept else "", log=log),
        "not_run": _not_run(here),
    }


def _caption(here: pl.DataFrame) -> str:
    done = here.filter(pl.col("status") == results.COMPLETE)
    if done.is_empty():
        return "nothing was run"
    seconds = ", ".join(f"{s:g}" for s in sorted(set(done["seconds"])))
    seeds = done["seed"].n_unique()
    moved = done.filter(pl.col("control") != "no_l4s")  # which moves nothing
    rules = "; ".join(sorted(set(moved["reordering"])))
    return (
        f"{done.height:,} runs of {seconds} s, {seeds} seed{'' if seeds == 1 else 's'}; "
        f"S1's L4S flows take reordering for loss by: {rules}"
    )


def _about(runs: pl.DataFrame) -> dict[str, Any]:
    done = runs.filter(pl.col("status") == results.COMPLETE)
    programs = sorted(set(done["program"]))
    return {
        "runs": done.height,
        "simulated_s": f"{done['seconds'].sum():,.0f}",
        "cpu_s": f"{done['cpu_s'].sum():,.0f}",
        "programs": programs,
        "artifacts": sorted({a[:12] for a in done["artifact"] if a}),
    }


def _run_controls(runs: pl.DataFrame, place: Place) -> list[str]:
    return [c for c in CONTROLS if by_seed(runs, place, c, QUEUEING_P99)]


def _table(runs: pl.DataFrame, place: Place) -> dict[str, Any]:
    return {
        "title": ", ".join(part for part in (place.profile, place.point) if part),
        "rows": [
            {
                "name": control,
                "change": _change(runs, place, control),
                "cells": [_cell(runs, place, control, measure) for measure in TABLE],
            }
            for control in _run_controls(runs, place)
        ],
    }


def _change(runs: pl.DataFrame, place: Place, control: str) -> str:
    compared = compare(runs, place, control) if control != "default" else None
    return percent(compared.queueing) if compared else "–"


def _cell(runs: pl.DataFrame, place: Place, control: str, measure: Measure) -> dict[str, str]:
    found = estimate(list(by_seed(runs, place, control, measure).values()))
    if found is None:
        return {"text": "–", "interval": ""}
    text = f"{found.mean * measure.scale:,.{measure.digits}f}"
    if found.high is None:
        return {"text": text, "interval": ""}
    return {"text": text, "interval": f"± {(found.high - found.mean) * measure.scale:,.{measure.digits}f}"}


def _not_run(here: pl.DataFrame) -> Sequence[Sentence]:
    """Say which controls are missing, and why."""
    missing = (
        here.filter(pl.col("status") == results.NOT_RUN)
        .group_by("profile", "control", "reason")
        .agg(pl.len())
        .sort("profile", "control", "reason")
    )
    return [
        Sentence("note", f"{profile}, {control}: not run ({count} runs): {reason}")
        for profile, control, reason, count in missing.iter_rows()
    ]
