"""What the guard is worth: the model without it and with it, against default marking."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

import polars as pl

from laboratory.report.comparison import (
    LIMITS,
    Limit,
    Place,
    change_of,
    compare,
    percent,
    places,
    why_not_judged,
)
from laboratory.report.judging import FEWEST_SEEDS, LEAST_GAIN_KEPT, NO_HARM
from laboratory.report.measures import (
    CLASSIC_SHARE,
    L4S_GOODPUT,
    MOVED,
    QUEUEING_MAX,
    QUEUEING_P99,
    QUEUEING_P999,
    RTT_P99,
    S1_GOODPUT,
    Measure,
)
from laboratory.report.tables import (
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
from models.scoring.intervals import Estimate

FIRST: Final = "guard-"  # scenarios with the guard's first form
SHIPPED: Final = "shipped-guard-"
FRESH: Final = "fresh-guard-"  # as it is shipped, with the network that the loop serves
PLACES: Final = "guarded-"  # with the shipped guard, in places of the sweeps and the maps
UNHEARD: Final = "unheard-guard-"  # whose flows hear nothing of their moved packets
DISCOUNTED: Final = "discounted-guard-"  # whose flows discount their moved packets
ON: Final = "on"
OFF: Final = "off"
TRIED: Final = "try-guard-"
FORMS: Final = (
    *(OFF, "eight packets", "eight packets, watched"),
    *("one packet", "one packet, watched", "one packet, advantage watched"),
)
ANSWERS: Final = ("", ", classic answer", ", unheard", ", discounted")  # what moved packets' ACKs say
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
"""What is wanted of the guard: none of these is settled to be worse by more than 2 %, or a packet's time."""
WITHOUT_TAIL: Final = tuple(
    limit for limit in WANTED if limit.measure != QUEUEING_P999
)  # which no run there can judge


def guarded(
    runs: pl.DataFrame,
    prefix: str = FIRST,
    axis: str = "guard",
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
            lines.append(
                row_of(
                    [
                        f"`{place.profile}`",
                        place.point,
                        *changes,
                        harm(here, place, control, wanted),
                    ]
                )
            )
    return lines[1:] or ["Not run."]


def in_places(runs: pl.DataFrame, prefix: str = PLACES) -> list[str]:
    """Return a table for each scenario of places: what the model changes, and whether it harms."""
    here = runs.filter(pl.col("scenario").str.starts_with(prefix))
    measures = (QUEUEING_P99, RTT_P99, S1_GOODPUT, CLASSIC_SHARE)
    lines: list[str] = []
    for title, at in _scenarios(here, "", "model"):
        names = ("P99", "RTT P99", "S1's goodput", "classic share")
        lines += [
            *title,
            *head_of(["profile", "place", "moved, %", "default P99, ms", *names, "settled harm"]),
        ]
        for place in at:
            said = harm(here, place, wanted=WITHOUT_TAIL).replace("P99, RTT P99 unj", "P99s unj")  # too wide
            lines.append(row_of([*_figures(here, place, "model", measures), said]))
        lines += ["", *_other_limits(here, at)]
    return lines[1:] or ["Not run."]


def _other_limits(here: pl.DataFrame, at: Sequence[Place]) -> list[str]:
    """Say where the model is settled to break a limit of the report that is not asked of the guard."""
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
    """A place's first cells: what was moved, P99 by default, and what the control changes."""
    figures = [cell(here, place, *one).text for one in ((control, MOVED), ("default", QUEUEING_P99))]
    changes = [change(here, place, control, measure) for measure in measures]
    return [f"`{place.profile}`", place.point, *figures, *changes]


def _scenarios(here: pl.DataFrame, prefix: str, control: str) -> list[tuple[list[str], list[Place]]]:
    """Every scenario's title with its places that can be compared, in the order of its axis."""
    found = []
    for scenario in sorted(set(here["scenario"])):
        at = [p for p in places(here) if p.scenario == scenario and compare(here, p, control)]
        if at:
            name = scenario.removeprefix(prefix) or scenario
            found.append((["", f"**{name}** ({sample(here, *at)})", ""], at))
    return found


def tried(runs: pl.DataFrame) -> list[str]:
    """Return what each form of the guard changed on the seeds that it was chosen on."""
    here = runs.filter(pl.col("scenario").str.starts_with(TRIED))
    lines = head_of(
        ["scenario", "guard", "moved, %", "P99", "classic share", "S1's L4S flows", "settled harm"]
    )
    at = [place for place in places(here) if compare(here, place, "model")]
    for place in sorted(at, key=lambda place: (place.scenario, _order(place.point))):
        changes = [
            change(here, place, "model", measure) for measure in (QUEUEING_P99, CLASSIC_SHARE, L4S_GOODPUT)
        ]
        moved = cell(here, place, "model", MOVED).text
        scenario = place.scenario.removeprefix(TRIED)
        lines.append(row_of([scenario, place.point, moved, *changes, harm(here, place, wanted=WITHOUT_TAIL)]))
    return lines if at else ["Not run."]


def _order(point: str) -> tuple[int, int]:
    answer = max((end for end in ANSWERS if point.endswith(end)), key=len)
    form = point.removesuffix(answer)
    return ANSWERS.index(answer), FORMS.index(form) if form in FORMS else len(FORMS)


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


def kept(runs: pl.DataFrame, prefix: str = FIRST) -> list[str]:
    """Say what part of the model's gain in figure 8 is left with the guard."""
    lines = head_of(
        ["`uncoupled`, P99 against default", "without the guard", "with it", "kept", "wanted", "seeds"]
    )
    changes = [change_of(runs, _place(prefix, point), "model", QUEUEING_P99) for point in (OFF, ON)]
    if None in changes:
        return ["Not run."]
    off, on = (found for found in changes if found)
    wanted = f"{LEAST_GAIN_KEPT:.0%} or more".replace("%", " %")
    return [*lines, row_of(["figure 8", percent(off), percent(on), _part(on, off), wanted, str(on.n)])]


def _place(prefix: str, point: str) -> Place:
    return Place(f"{prefix}figure8", point, "uncoupled")


def _part(on: Estimate, off: Estimate) -> str:
    """Ratio of the mean gains; none where there was no gain to keep."""
    return f"{on.mean / off.mean * 100:.0f} %" if off.mean < 0 else NONE
