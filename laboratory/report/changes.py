"""Tables of a control's changes against default marking at each point of scenarios, and of settled harm."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

import polars as pl

from swiftqueue.laboratory.report.comparison import (
    LIMITS,
    Limit,
    Place,
    compare,
    places,
    why_not_judged,
)
from swiftqueue.laboratory.report.judging import FEWEST_SEEDS, NO_HARM
from swiftqueue.laboratory.report.measures import (
    CLASSIC_SHARE,
    MOVED,
    QUEUEING_MAX,
    QUEUEING_P99,
    QUEUEING_P999,
    RTT_P99,
    S1_GOODPUT,
    Measure,
)
from swiftqueue.laboratory.report.tables import (
    NONE,
    SHARES,
    TIMES,
    WRAPPED,
    cell,
    change,
    head_of,
    measured,
    row_of,
    sample,
)

OFF: Final = "off"  # a point that comes first
DELAYS: Final = (
    (QUEUEING_P99, "P99"),
    (QUEUEING_P999, "P99.9"),
    (QUEUEING_MAX, "longest wait"),
    (RTT_P99, "RTT P99"),
)
WANTED: Final = tuple(
    limit._replace(most=NO_HARM, name="classic share" if limit.measure == CLASSIC_SHARE else limit.name)
    for limit in LIMITS
    if limit.measure in (QUEUEING_P99, QUEUEING_P999, RTT_P99, S1_GOODPUT, CLASSIC_SHARE)
)
"""What is wanted: none of these is settled to be worse by more than 2 %, or a packet's time."""
WITHOUT_TAIL: Final = tuple(
    limit for limit in WANTED if limit.measure != QUEUEING_P999
)  # no run there can judge P99.9


def along_axis(
    runs: pl.DataFrame,
    prefix: str,
    axis: str,
    control: str = "model",
    wanted: Sequence[Limit] = WANTED,
) -> list[str]:
    """Return tables of scenarios whose names begin so: a control's changes at each point of their axis."""
    here = runs.filter(pl.col("scenario").str.starts_with(prefix))
    lines: list[str] = []
    for title, at in _scenarios(here, prefix, control):
        at.sort(key=lambda place: (place.profile, place.point != OFF))  # and as the axis has them
        lines += title
        lines += head_of(["profile", axis, "moved, %", "default P99, ms", *(name for _, name in DELAYS)])
        for place in at:
            lines.append(row_of(_figures(here, place, control, [measure for measure, _ in DELAYS])))
        messages = measured(here, at, TIMES)
        if messages:
            lines += ["", *head_of(["profile", axis, *(name for _, name in messages)])]
        for place in at if messages else []:
            changes = [
                why_not_judged(here, place, measure) or change(here, place, control, measure)
                for measure, _ in messages
            ]
            lines.append(row_of([f"`{place.profile}`", place.point, *changes]))
        lines += ["", *head_of(["profile", axis, *(name for _, name in SHARES), "settled harm"])]
        for place in at:
            changes = [change(here, place, control, measure) for measure, _ in SHARES]
            said = harm(here, place, control, wanted)
            lines.append(row_of([f"`{place.profile}`", place.point, *changes, said]))
    return lines[1:] or ["Not run."]


def in_places(runs: pl.DataFrame, prefix: str) -> list[str]:
    """Return a table for each scenario of places: what the model changes, and whether it harms."""
    here = runs.filter(pl.col("scenario").str.starts_with(prefix))
    measures = (QUEUEING_P99, RTT_P99, S1_GOODPUT, CLASSIC_SHARE)
    lines: list[str] = []
    for title, at in _scenarios(here, "", "model"):
        names = ("P99", "RTT P99", "S1's goodput", "classic share")
        heads = ["profile", "place", "moved, %", "default P99, ms", *names, "settled harm"]
        lines += [*title, *head_of(heads)]
        for place in at:
            said = harm(here, place, wanted=WITHOUT_TAIL).replace("P99, RTT P99 unj", "P99s unj")  # too wide
            lines.append(row_of([*_figures(here, place, "model", measures), said]))
        lines += ["", *_other_limits(here, at)]
    return lines[1:] or ["Not run."]


def _other_limits(here: pl.DataFrame, at: Sequence[Place]) -> list[str]:
    """Say where the model is settled to break a limit of the report that is not among those wanted."""
    asked, broken = {limit.measure for limit in WITHOUT_TAIL}, []
    for place in at:
        found = compare(here, place, "model")
        over = [one.limit for one in found.broken() if one.beyond] if found else []
        if names := ", ".join(limit.name for limit in over if limit.measure not in asked):
            broken.append(f"{place.point} under `{place.profile}` ({names})")
    said = f"settled to be broken: {'; '.join(broken)}" if broken else "none is settled to be broken"
    which = "(longest wait, cross traffic, messages), where judged"
    return textwrap.wrap(f"- Of the other limits {which}, {said}.", **WRAPPED)


def _figures(here: pl.DataFrame, place: Place, control: str, measures: Sequence[Measure]) -> list[str]:
    """Return a place's first cells: the share moved, P99 by default, and the control's changes."""
    figures = [cell(here, place, *one).text for one in ((control, MOVED), ("default", QUEUEING_P99))]
    changes = [change(here, place, control, measure) for measure in measures]
    return [f"`{place.profile}`", place.point, *figures, *changes]


def _scenarios(here: pl.DataFrame, prefix: str, control: str) -> list[tuple[list[str], list[Place]]]:
    """Return every scenario's title with its places that can be compared, in the order of its axis."""
    found = []
    for scenario in sorted(set(here["scenario"])):
        at = [p for p in places(here) if p.scenario == scenario and compare(here, p, control)]
        if at:
            name = scenario.removeprefix(prefix) or scenario
            found.append((["", f"**{name}** ({sample(here, *at)})", ""], at))
    return found


def harm(runs: pl.DataFrame, place: Place, control: str = "model", wanted: Sequence[Limit] = WANTED) -> str:
    """Name what is settled to be worse than wanted there, and what is not judged at all."""
    found = compare(runs, place, control, wanted)
    if found is None:
        return NONE
    if found.queueing.n < FEWEST_SEEDS:
        return f"{found.queueing.n} of {FEWEST_SEEDS} seeds"
    said = ", ".join(one.limit.name for one in found.broken() if one.beyond) or "none"
    unjudged = ", ".join(limit.name for limit in wanted if limit.measure not in found.found)
    return f"{said}; {unjudged} unjudged" if unjudged else said
