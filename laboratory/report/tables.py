"""The results' figures as cells, and as Markdown tables."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import polars as pl

from swiftqueue.laboratory.report.comparison import (
    Place,
    against_chance,
    by_seed,
    change_of,
    compare,
    mean_of,
    percent,
    places,
    rests_on,
    settled,
    why_not_judged,
)
from swiftqueue.laboratory.report.measures import (
    CHOICE_RIGHT,
    CLASSIC_SHARE,
    CROSS_GOODPUT,
    CROSS_MESSAGE,
    MOVED,
    QUEUEING_MAX,
    QUEUEING_P99,
    QUEUEING_P999,
    REGRET,
    REORDERED,
    RETRANSMITTED,
    RTT_P99,
    S1_GOODPUT,
    S1_MESSAGE,
    Measure,
)
from swiftqueue.laboratory.report.targets import remarks, targets
from swiftqueue.laboratory.runs.results import COMPLETE
from swiftqueue.laboratory.scenarios.controls import ALL_CONTROLS
from swiftqueue.laboratory.scenarios.schema import PROFILES
from swiftqueue.models.scoring.intervals import Estimate

NONE: Final = "–"
WRAPPED: Final[Any] = {"width": 118, "subsequent_indent": "  ", "break_on_hyphens": False}
WAITS: Final = (
    (QUEUEING_P99, "queueing P99, ms"),
    (QUEUEING_P999, "P99.9, ms"),
    (QUEUEING_MAX, "longest, ms"),
    (RTT_P99, "RTT P99, ms"),
)
COSTS: Final = (
    (S1_GOODPUT, "S1, Mbit/s"),
    (CROSS_GOODPUT, "cross, Mbit/s"),
    (CLASSIC_SHARE, "classic, %"),
    (S1_MESSAGE, "S1's messages, s"),
    (CROSS_MESSAGE, "cross messages, s"),
    (MOVED, "moved, %"),
    (RETRANSMITTED, "resent, %"),
    (REORDERED, "reordered, %"),
    (CHOICE_RIGHT, "right, %"),
    (REGRET, "regret, ms"),
)
SWEPT_WAITS: Final = ((QUEUEING_P99, "P99 queueing"), (QUEUEING_MAX, "longest wait"), (RTT_P99, "RTT P99"))
SHARES: Final = (
    (S1_GOODPUT, "S1's goodput"),
    (CROSS_GOODPUT, "cross goodput"),
    (CLASSIC_SHARE, "classic share"),
)
TIMES: Final = ((S1_MESSAGE, "S1's messages"), (CROSS_MESSAGE, "cross messages"))
SWEPT_COSTS: Final = (*SHARES, *TIMES)
COSTS_OF: Final = ("random", "oracle", "model")


class TableCell(NamedTuple):
    """A figure in a table: its mean and its interval."""

    text: str
    interval: str


class TableVerdict(NamedTuple):
    """A verdict in a table, and the colour that it has."""

    text: str
    kind: str


def cell(runs: pl.DataFrame, place: Place, control: str, measure: Measure) -> TableCell:
    """Return the mean over seeds, in the measure's unit."""
    found = mean_of(runs, place, control, measure)
    if found is None:
        return TableCell(NONE, "")
    mean, *ends = (f"{one:,.{measure.digits}f}" for one in (found.mean, *found.ends))
    return TableCell(mean, "…".join(ends))


def change(runs: pl.DataFrame, place: Place, control: str, measure: Measure = QUEUEING_P99) -> str:
    """Return the change against default marking, with its interval."""
    found = change_of(runs, place, control, measure) if control != "default" else None
    return percent(found) if found else NONE


def verdict(runs: pl.DataFrame, place: Place, control: str) -> TableVerdict:
    """Return how a control is judged against default marking."""
    found = compare(runs, place, control) if control != "default" else None
    return TableVerdict(found.verdict, found.judged.replace(" ", "-")) if found else TableVerdict(NONE, "")


def chance(runs: pl.DataFrame, place: Place, control: str) -> str:
    """Return the model's change against random marking of the same share."""
    found = against_chance(runs, place) if control == "model" else None
    return percent(found) if found else NONE


def controls_run(runs: pl.DataFrame, here: Sequence[Place]) -> list[str]:
    """Return the controls that have figures at any of the places, in the order of all."""
    return [c for c in ALL_CONTROLS if any(by_seed(runs, place, c, QUEUEING_P99) for place in here)]


def measured(
    runs: pl.DataFrame, here: Sequence[Place], columns: Sequence[tuple[Measure, str]]
) -> list[tuple[Measure, str]]:
    """Return the columns that have a figure at any of the places."""
    return [
        (measure, title)
        for measure, title in columns
        if any(by_seed(runs, place, control, measure) for place in here for control in ALL_CONTROLS)
    ]


def markdown(runs: pl.DataFrame) -> str:
    """Return Markdown tables: targets, scenarios with every control, sweeps with the changes that matter."""
    swept = [p.scenario for p in places(runs.filter(pl.col("point") != ""))]
    parts = (
        judged(runs),
        by_control(runs),
        *(brief(runs, profile) for profile in PROFILES),
        *(costs(runs, name) for name in dict.fromkeys(swept)),
        loss_rules(runs),
    )
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def brief(runs: pl.DataFrame, profile: str, *, with_costs: bool = True) -> list[str]:
    """Return the sweeps of a profile: mean changes of P99 in %, and the model's costs beyond their limits.

    Bold is a change that is settled, in brackets one of too few packets to be judged.
    """
    here = [p for p in places(runs.filter(pl.col("point") != "")) if p.profile == profile]
    controls = [control for control in controls_run(runs, here) if control != "default"]
    if not controls:
        return []
    costs = ["the model's costs beyond their limits"] if with_costs else []
    lines = head_of([f"`{profile}`", "at", "default, ms", *controls, *costs])
    for place in here:
        default = cell(runs, place, "default", QUEUEING_P99).text
        changes = [_changed(runs, place, control) for control in controls]
        costs = [_costs(runs, place)] if with_costs else []
        lines.append(row_of([place.scenario, place.point, default, *changes, *costs]))
    return lines


def _costs(runs: pl.DataFrame, place: Place) -> str:
    model = compare(runs, place, "model")
    if model is None:
        return NONE
    costs = [one for one in model.broken() if one.limit.measure != QUEUEING_P99]
    return ", ".join(f"{one.limit.name} {_bold(one.change, one.beyond)}" for one in costs) or "none"


def _changed(runs: pl.DataFrame, place: Place, control: str) -> str:
    if (found := change_of(runs, place, control, QUEUEING_P99)) is None:
        return NONE
    said = _bold(found, settled(runs, place, control, QUEUEING_P99))
    return f"({said})" if why_not_judged(runs, place, QUEUEING_P99) else said


def _bold(found: Estimate, is_settled: bool) -> str:
    text = f"{found.mean * 100:+,.0f}"
    return f"**{text}**" if is_settled else text


def loss_rules(runs: pl.DataFrame) -> list[str]:
    """Say by which rules S1's L4S flows take reordering for loss, but for `no_l4s`, which moves nothing."""
    done = runs.filter(pl.col("status") == COMPLETE, pl.col("control") != "no_l4s")
    found = done.group_by("reordering").agg(pl.col("scenario").unique().sort()).sort("reordering").rows()
    rules = [rule if len(found) == 1 else f"{rule} ({', '.join(names)})" for rule, names in found]
    return [f"S1's L4S flows take reordering for loss by: {'; '.join(rules)}"] if rules else []


def judged(runs: pl.DataFrame) -> list[str]:
    """Return the targets, each with its verdict."""
    found = targets(runs)
    said = remarks(runs, found)
    if not found:
        return said
    lines = head_of(["target", "wanted", "measured", "oracle", "seeds", "verdict"])
    lines += [row_of([t.place.words(), t.wanted, t.measured, t.oracle, str(t.seeds), t.said]) for t in found]
    return [*lines, *(["", *said] if said else [])]


def by_control(runs: pl.DataFrame) -> list[str]:
    """Return two tables for each place of scenarios without an axis: verdicts and waits, then costs."""
    lines: list[str] = []
    head = ["control", "verdict", "P99 against default", "against random"]
    for place in places(runs.filter(pl.col("point") == "")):
        lines += ["", f"**{place.scenario}, `{place.profile}`** ({sample(runs, place)})", ""]
        lines += head_of([*head, *(title for _, title in WAITS)])
        for control in controls_run(runs, [place]):
            said = [in_a_word(verdict(runs, place, control).text), change(runs, place, control)]
            cells = [cell(runs, place, control, measure).text for measure, _ in WAITS]
            lines.append(row_of([control, *said, chance(runs, place, control), *cells]))
        shown = measured(runs, [place], COSTS)
        lines += ["", *head_of(["control", *(title for _, title in shown)])]
        for control in controls_run(runs, [place]):
            lines.append(row_of([control, *(cell(runs, place, control, m).text for m, _ in shown)]))
        lines += beyond_limits({c: verdict(runs, place, c).text for c in controls_run(runs, [place])})
    return lines[1:]


def controls_in_brief(runs: pl.DataFrame, wanted: Sequence[str] = ALL_CONTROLS) -> list[str]:
    """Return one table of all places: P99 by each control, changes against default marking, verdicts."""
    head = ["place", "control", "default, ms", "P99, ms", "P99", "longest wait", "cross goodput", "verdict"]
    lines = head_of(head)
    for place in places(runs):
        where = " ".join(filter(None, [place.point or place.scenario, f"`{place.profile}`"]))
        for control in controls_run(runs, [place]):
            if control == "default" or control not in wanted:
                continue
            waits = [cell(runs, place, one, QUEUEING_P99).text for one in ("default", control)]
            shown = (QUEUEING_P99, QUEUEING_MAX, CROSS_GOODPUT)
            changes = [change(runs, place, control, one) for one in shown]
            said = in_a_word(verdict(runs, place, control).text)
            lines.append(row_of([where, f"`{control}`", *waits, *changes, said]))
    return lines


def in_a_word(verdict: str) -> str:
    """Return a verdict without what is beyond its limit."""
    return verdict.partition(":")[0]


def beyond_limits(verdicts: Mapping[str, str]) -> list[str]:
    """Return a list of the controls whose verdicts name something beyond its limit, and what."""
    lines: list[str] = []
    for control, said in verdicts.items():
        if ":" in said:
            lines += textwrap.wrap(f"- `{control}`, {said}", **WRAPPED)
    return ["", *lines] if lines else []


def sample(runs: pl.DataFrame, *here: Place) -> str:
    """Say how many seeds there are, and how many packets of a run the quantiles rest on, over some places."""
    seeds = max(len(by_seed(runs, p, control, QUEUEING_P99)) for p in here for control in ALL_CONTROLS)
    said = f"{seeds} seed{'' if seeds == 1 else 's'}"
    p99, p999 = (
        min((n for p in here if (n := rests_on(runs, p, tail)) is not None), default=None)
        for tail in (QUEUEING_P99, QUEUEING_P999)
    )
    if p99 is None:
        return said
    return f"{said}; of a run, P99 rests on {p99:,} packets or more, P99.9 on {p999:,}, the longest on one"


def costs(runs: pl.DataFrame, scenario: str) -> list[str]:
    """Return the changes by chance, oracle and model along a scenario's axis, with intervals."""
    here = [p for p in places(runs.filter(pl.col("point") != "")) if p.scenario == scenario]
    lines: list[str] = []
    for control in COSTS_OF:
        if control not in controls_run(runs, here):
            continue
        lines += ["", f"**{scenario}: {control}** against `default`", ""]
        lines += head_of(["profile", "at", "verdict", *(title for _, title in SWEPT_WAITS)])
        for place in here:
            said = in_a_word(verdict(runs, place, control).text)
            cells = [change(runs, place, control, measure) for measure, _ in SWEPT_WAITS]
            lines.append(row_of([place.profile, place.point, said, *cells]))
        shown = measured(runs, here, SWEPT_COSTS)
        lines += ["", *head_of(["profile", "at", *(title for _, title in shown)])]
        for place in here:
            cells = [change(runs, place, control, measure) for measure, _ in shown]
            lines.append(row_of([place.profile, place.point, *cells]))
    return lines[1:]


def head_of(names: Sequence[str]) -> list[str]:
    """Return a table's first two lines."""
    return [row_of(names), "|" + "---|" * len(names)]


def row_of(cells: Sequence[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"
