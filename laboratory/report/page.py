"""`swiftqueue lab report`: the results as one self-contained page, as pictures and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from swiftqueue.common.atomic import write_file
from swiftqueue.laboratory.report.comparison import Place, by_numbers, places, share
from swiftqueue.laboratory.report.judging import (
    FEWEST_PACKETS,
    FEWEST_SEEDS,
    JUDGED,
    LEAST_CLASSIC_SHARE,
    LEAST_CROSS_GOODPUT,
    LEAST_GOODPUT,
    LONG_S,
    MOST_RTT_CHANGE,
    NO_HARM,
    SERVED,
)
from swiftqueue.laboratory.report.measures import DELAYS, TRAFFIC, Measure
from swiftqueue.laboratory.report.opening import QUESTION, Opening, opening
from swiftqueue.laboratory.report.plots import plots_of
from swiftqueue.laboratory.report.tables import (
    cell,
    chance,
    change,
    controls_run,
    loss_rules,
    markdown,
    measured,
    verdict,
)
from swiftqueue.laboratory.report.targets import remarks, targets
from swiftqueue.laboratory.report.uplinks import UplinkTable, tables
from swiftqueue.laboratory.runs import experience, results
from swiftqueue.laboratory.scenarios.controls import CONTROLS

TEMPLATE: Final = "page.html.j2"
PAGE: Final = "report.html"
MARKDOWN: Final = "table.md"
OPENING: Final = "opening.png"


def make_report(output: Path, scenarios: Sequence[str] = ()) -> tuple[Path, tuple[str, ...]]:
    """Write `report/report.html`, its plots as PNG files and `report/table.md`.

    Args:
        output: folder of the runs and of the report.
        scenarios: names of the scenarios to report; none means all results.

    Returns:
        The page, and the answer that it opens with.

    Raises:
        FileNotFoundError: there are no results.
        ValueError: there are none of a scenario.
    """
    runs = results.load(output)
    if runs.is_empty():
        raise FileNotFoundError(f"{output} has no results yet; `swiftqueue lab run SCENARIO` makes them")
    there = sorted(set(runs["scenario"]))
    if unknown := [name for name in scenarios if name not in there]:
        raise ValueError(f"{output} has no results of {', '.join(unknown)}, but of {', '.join(there)}")
    of_these = pl.col("scenario").is_in(scenarios or there)
    runs = runs.filter(of_these)
    folder = output / "report"
    folder.mkdir(parents=True, exist_ok=True)
    sections, first = _sections(runs), opening(runs)
    head = "\n".join(first.markdown()) + "\n\n" if first else ""
    missing = [f"- {section['name']}: {line}" for section in sections for line in section["not_run"]]
    tail = "\n".join(["", *missing, ""]) if missing else ""
    over_uplinks = tables(experience.load(output, experience.UPLINKS).filter(of_these))
    steered = "".join("\n".join([*table.markdown(), ""]) for table in over_uplinks)
    write_file(folder / MARKDOWN, head + steered + markdown(runs) + tail)
    if first:
        write_file(folder / OPENING, first.plot.png)
    for section in sections:
        for number, plot in enumerate(section["plots"], 1):
            name = f"{section['name']}-{number}" if len(section["plots"]) > 1 else section["name"]
            write_file(folder / f"{name}.png", plot.png)
    write_file(folder / PAGE, _page(runs, sections, first, over_uplinks))
    return folder / PAGE, first.answer if first else ()


def _sections(runs: pl.DataFrame) -> list[dict[str, Any]]:
    return [_section(runs, name) for name in sorted(set(runs["scenario"]), key=_order)]


def _page(
    runs: pl.DataFrame,
    sections: Sequence[dict[str, Any]],
    first: Opening | None,
    over_uplinks: Sequence[UplinkTable],
) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    judged = targets(runs)
    return environment.get_template(TEMPLATE).render(
        question=QUESTION,
        opening=first,
        scenarios=sections,
        uplinks=over_uplinks,
        targets=judged,
        remarks=remarks(runs, judged),
        about=_about(runs),
        limits={
            "rtt": share(MOST_RTT_CHANGE, 0),
            "goodput": share(LEAST_GOODPUT, 0),
            "classic": share(LEAST_CLASSIC_SHARE, 0),
            "cross": share(LEAST_CROSS_GOODPUT, 0),
            "harm": share(NO_HARM, 0),
            "seeds": FEWEST_SEEDS,
            "packets": FEWEST_PACKETS,
        },
    )


def _order(name: str) -> tuple[int, str]:
    """Return a key that puts figure 8 first (that of the served network before all) and the maps last."""
    return ({SERVED: 0, JUDGED: 1}.get(name, 3 if name.startswith("map-") else 2), name)


def _section(runs: pl.DataFrame, name: str) -> dict[str, Any]:
    here = runs.filter(pl.col("scenario") == name)
    # All rows of a scenario are those of one command, so the first speaks for them.
    about, figure, label, log = here.select("about", "figure", "axis_label", "axis_log").row(0)
    swept = here.filter(pl.col("point") != "").height > 0
    return {
        "name": name,
        "about": about,
        "figure": figure,
        "caption": _caption(here),
        "variance": _variance(here),
        "tables": [_table(here, place) for place in places(here)],
        "plots": plots_of(runs, name, (label or "point") if swept else "", log=bool(log)),
        "not_run": [*_not_run(here), *_not_asked(here)],
    }


def _caption(here: pl.DataFrame) -> str:
    done = here.filter(pl.col("status") == results.COMPLETE)
    if done.is_empty():
        return "nothing was run"
    seconds = ", ".join(f"{s:g}" for s in sorted(set(done["seconds"])))
    counted = f"{_counted(done.height, 'run')} of {seconds} s, {_counted(done['seed'].n_unique(), 'seed')}"
    return "; ".join([counted, *loss_rules(here)])


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _variance(here: pl.DataFrame) -> str:
    """Say it where runs are short (simulation/doc/lab.md, "Short runs mislead")."""
    done = here.filter(pl.col("status") == results.COMPLETE, pl.col("seconds") < LONG_S)
    if done.is_empty():
        return ""
    judged_s = min(seconds - warmup_s for seconds, warmup_s in done.select("seconds", "warmup_s").iter_rows())
    return f"Short runs of heavy-tailed messages vary: these figures are of {judged_s:g} s after the warm-up."


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


def _table(runs: pl.DataFrame, place: Place) -> dict[str, Any]:
    return {
        "title": ", ".join(part for part in (place.profile, place.point) if part),
        "parts": [
            _part(runs, place, measured(runs, [place], [(m, f"{m.title}, {m.unit}") for m in measures]))
            for measures in (DELAYS, TRAFFIC)
        ],
    }


def _part(runs: pl.DataFrame, place: Place, columns: Sequence[tuple[Measure, str]]) -> dict[str, Any]:
    """Return every control's figures; delays and traffic are apart, so that a table fits the page."""
    return {
        "columns": [title for _, title in columns],
        "rows": [
            {
                "name": control,
                "verdict": verdict(runs, place, control),
                "change": change(runs, place, control),
                "chance": chance(runs, place, control),
                "cells": [cell(runs, place, control, measure) for measure, _ in columns],
            }
            for control in controls_run(runs, [place])
        ],
    }


def _not_run(here: pl.DataFrame) -> list[str]:
    """Say which points and controls are missing, and why."""
    ran = set(here.filter(pl.col("status") == results.COMPLETE)["point"])
    missing = here.filter(pl.col("status") == results.NOT_RUN)
    whole = pl.col("point").is_in(ran) | (pl.col("point") == "")
    points = missing.filter(~whole).group_by("reason").agg(pl.col("point").unique()).sort("reason")
    controls = (
        missing.filter(whole)
        .group_by("profile", "control", "reason")
        .agg(pl.len())
        .sort("profile", "control", "reason")
    )
    return [
        *(
            f"not run at {', '.join(sorted(names, key=by_numbers))}: {reason}"
            for reason, names in points.iter_rows()
        ),
        *(
            f"{profile}, {control}: not run ({_counted(count, 'run')}): {reason}"
            for profile, control, reason, count in controls.iter_rows()
        ),
    ]


def _not_asked(here: pl.DataFrame) -> list[str]:
    """Name the controls that were left out when the scenario was run."""
    left_out = [control for control in CONTROLS if control not in set(here["control"])]
    return [f"not asked for: {', '.join(left_out)}"] if left_out else []
