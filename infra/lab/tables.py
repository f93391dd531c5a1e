"""The results' figures as cells, and as Markdown tables for the README."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import polars as pl

from infra.lab.comparison import Place, by_seed, change_of, compare, percent, places
from infra.lab.intervals import Estimate, estimate
from infra.lab.measures import (
    CLASSIC_SHARE,
    MOVED,
    QUEUEING_P99,
    REORDERED,
    RETRANSMITTED,
    RTT_P99,
    S1_GOODPUT,
    Measure,
)
from infra.lab.results import COMPLETE
from infra.lab.scenario import CONTROLS, PROFILES
from infra.lab.targets import remarks, targets

NONE: Final = "–"
README_COLUMNS: Final = (QUEUEING_P99, RTT_P99, S1_GOODPUT, CLASSIC_SHARE, MOVED, RETRANSMITTED, REORDERED)
SWEPT_COSTS: Final = (  # beside a gain
    (RTT_P99, "RTT P99"),
    (S1_GOODPUT, "S1's goodput"),
    (CLASSIC_SHARE, "classic share"),
)
COSTS_OF: Final = ("random", "oracle", "model")


class Cell(NamedTuple):
    """A figure in a table: its mean, and half its interval."""

    text: str
    interval: str


def cell(runs: pl.DataFrame, place: Place, control: str, measure: Measure) -> Cell:
    """Return the mean over seeds, in the measure's unit."""
    found = estimate(list(by_seed(runs, place, control, measure).values()))
    if found is None:
        return Cell(NONE, "")
    text = f"{found.mean * measure.scale:,.{measure.digits}f}"
    if found.high is None:
        return Cell(text, "")
    return Cell(text, f"± {(found.high - found.mean) * measure.scale:,.{measure.digits}f}")


def change(runs: pl.DataFrame, place: Place, control: str, measure: Measure = QUEUEING_P99) -> str:
    """Return the change against default marking, with its interval."""
    found = change_of(runs, place, control, measure) if control != "default" else None
    return percent(found) if found else NONE


def controls_run(runs: pl.DataFrame, here: Sequence[Place]) -> list[str]:
    """Controls that have figures at any of the places, in the order of all."""
    return [c for c in CONTROLS if any(by_seed(runs, place, c, QUEUEING_P99) for place in here)]


def markdown(runs: pl.DataFrame) -> str:
    """Return Markdown tables: targets, scenarios with every control, sweeps with the changes that matter."""
    parts = (
        _targets(runs),
        _scenarios(runs, places(runs.filter(pl.col("point") == ""))),
        brief(runs),
        _swept(runs, places(runs.filter(pl.col("point") != ""))),
        loss_rules(runs),
    )
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def brief(runs: pl.DataFrame) -> list[str]:
    """Sweeps, a table for each profile: mean changes of P99 in %, and the model's costs beyond their limits.

    Bold is a change whose whole interval is on one side of zero.
    """
    lines: list[str] = []
    for profile in sorted(PROFILES):
        here = [p for p in places(runs.filter(pl.col("point") != "")) if p.profile == profile]
        controls = [control for control in controls_run(runs, here) if control != "default"]
        if not controls:
            continue
        head = [f"`{profile}`", "at", "default, ms", *controls]
        lines += ["", *_head([*head, "the model's costs beyond their limits"])]
        for place in here:
            default = cell(runs, place, "default", QUEUEING_P99).text
            changes = [_settled(change_of(runs, place, control, QUEUEING_P99)) for control in controls]
            lines.append(_row([place.scenario, place.point, default, *changes, _costs(runs, place)]))
    return lines[1:]


def _costs(runs: pl.DataFrame, place: Place) -> str:
    model = compare(runs, place, "model")
    if model is None:
        return NONE
    return ", ".join(f"{cost.name} {_settled(cost.change)}" for cost in model.broken()) or "none"


def _settled(found: Estimate | None) -> str:
    if found is None:
        return NONE
    text = f"{found.mean * 100:+,.0f}"
    return f"**{text}**" if found.below(0) or found.above(0) else text


def loss_rules(runs: pl.DataFrame) -> list[str]:
    """Say by which rules S1's L4S flows take reordering for loss, but for `no_l4s`, which moves nothing."""
    done = runs.filter(pl.col("status") == COMPLETE, pl.col("control") != "no_l4s")
    found = done.group_by("reordering").agg(pl.col("scenario").unique().sort()).sort("reordering").rows()
    rules = [rule if len(found) == 1 else f"{rule} ({', '.join(names)})" for rule, names in found]
    return [f"S1's L4S flows take reordering for loss by: {'; '.join(rules)}"] if rules else []


def _targets(runs: pl.DataFrame) -> list[str]:
    found = targets(runs)
    said = remarks(runs, found)
    if not found:
        return said
    lines = _head(["target", "wanted", "measured", "oracle", "seeds", "verdict"])
    lines += [_row([t.place.words(), t.wanted, t.measured, t.oracle, str(t.seeds), t.said]) for t in found]
    return [*lines, *(["", *said] if said else [])]


def _scenarios(runs: pl.DataFrame, here: Sequence[Place]) -> list[str]:
    if not here:
        return []
    head = ["scenario", "profile", "control", "P99 against default"]
    lines = _head([*head, *(f"{m.title}, {m.unit}" for m in README_COLUMNS)])
    for place in here:
        for control in controls_run(runs, [place]):
            cells = [cell(runs, place, control, m).text for m in README_COLUMNS]
            lines.append(_row([place.scenario, place.profile, control, change(runs, place, control), *cells]))
    return lines


def _swept(runs: pl.DataFrame, here: Sequence[Place]) -> list[str]:
    """All controls' changes of P99 queueing, with what chance, oracle and model cost beside theirs."""
    if not here:
        return []
    columns: list[tuple[str, str, Measure]] = []
    for control in controls_run(runs, here):
        if control != "default":
            columns.append((control, control, QUEUEING_P99))
        if control in COSTS_OF:
            columns += [(f"{control}: {title}", control, measure) for measure, title in SWEPT_COSTS]
    head = ["scenario", "profile", "at", "default P99, ms"]
    lines = _head([*head, *(title for title, _, _ in columns)])
    for place in here:
        default = cell(runs, place, "default", QUEUEING_P99).text
        changes = [change(runs, place, control, measure) for _, control, measure in columns]
        lines.append(_row([place.scenario, place.profile, place.point, default, *changes]))
    return lines


def _head(names: Sequence[str]) -> list[str]:
    return [_row(names), "|" + "---|" * len(names)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
