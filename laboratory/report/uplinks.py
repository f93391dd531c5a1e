"""Judge what steering over two uplinks gains its calls, and what it costs others.

Changes are of geometric means, paired by seed. A change is settled with `FEWEST_SEEDS` seeds, where it would
come by chance in less than one case of twenty, corrected (Holm) for the points of its scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from swiftqueue.laboratory.report.comparison import by_numbers, percent
from swiftqueue.laboratory.report.judging import FEWEST_SEEDS, NO_HARM, SETTLED
from swiftqueue.laboratory.report.noticed import VERDICT, interval, verdict_cells
from swiftqueue.laboratory.report.tables import NONE, head_of, row_of
from swiftqueue.laboratory.report.verdict import Values, Verdict, ratio
from swiftqueue.laboratory.scenarios.controls import AGENT_RULE, ALL_CONTROLS, TREES
from swiftqueue.models.scoring.intervals import Estimate, corrected, estimate, paired_change

AGAINST: Final = {
    "default": "pinned",
    "least_mean": "1 s averages",
    "least_latency": "last latency",
    "virtual_queue": "virtual queue",
}
"""The controls that every other is compared with, as the tables name them."""
FRAME: Final = "frame_p99_s"
OTHERS: Final = "cross_message_p99_s"
ONE_WAY: Final = "one_way_p99_s"
MOST_OF: Final = {"default": 0.7, "least_mean": 1.0, "least_latency": 0.95, "virtual_queue": 1 + NO_HARM}
"""Most that the model's frame P99 may be, as a part of each control's."""
JUDGED_AT: Final = ("0.6", "0.8")
LEARNED: Final = {"model": "network", TREES: "trees"}
"""The controls that learned, as the tables name them."""
WORDS: Final = {
    "always": "other",
    "constant_share": "static",
    "flow_split": "flows",
    **{name: said for name, said in AGAINST.items() if name != "default"},
    "least_srtt": "min-SRTT",
    AGENT_RULE: "agent",
    **LEARNED,
    "oracle": "oracle",
}
"""The controls of the short tables in their order, as these name them."""
CROSS_MESSAGES, CROSS_GOODPUT, SPURIOUS = "cross messages", "cross goodput", "spurious retransmissions"
IN_SHORT: Final = {CROSS_MESSAGES: "messages", CROSS_GOODPUT: "goodput", SPURIOUS: "resent"}
"""The harms to others as the short tables name them."""


@dataclass(frozen=True)
class UplinkTable:
    """A table of a scenario: its title, its head and its lines."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> list[str]:
        """Return it as Markdown."""
        return ["", f"**{self.title}**", "", *head_of(self.head), *(row_of(cells) for cells in self.rows)]


def tables(runs: pl.DataFrame) -> list[UplinkTable]:
    """Return each scenario's tables: what steering gains and costs, and the model's figures to reach."""
    found = []
    for (key,), here in sorted(runs.group_by("scenario"), key=lambda one: str(one[0][0])):
        name = str(key)
        found += [_gains(name, here), _costs(name, here)]
        if any(control in here["control"] for control in LEARNED):
            rows = [verdict_cells(one) for one in judge(here)]
            found.append(UplinkTable(f"{name}: figures to reach", VERDICT, rows))
    return found


def _gains(name: str, here: pl.DataFrame) -> UplinkTable:
    head = ["load", "control", "frame P99, ms", "stalls, s", "one-way P99, ms", "moved, %"]
    head += [f"frame P99 against {said}" for said in AGAINST.values()]
    changes = {base: _settled_changes(here, base, FRAME) for base in AGAINST}
    shown = ((FRAME, 1e3, 0), ("stall_s", 1, 1), (ONE_WAY, 1e3, 0), ("moved_share", 100, 0))
    rows = [
        [
            point,
            control,
            *(_mean(own, column, factor, digits) for column, factor, digits in shown),
            *(_change(changes[base].get((point, control))) for base in AGAINST),
        ]
        for point, control, own in _cells(here)
    ]
    return UplinkTable(f"{name}: what steering gains; * is settled", head, rows)


def _costs(name: str, here: pl.DataFrame) -> UplinkTable:
    head = ["load", "control", "cross messages' P99", "cross goodput", "spurious, %", "reordered, %", "harm"]
    changes = {column: _settled_changes(here, "default", column) for column in (OTHERS, "cross_mbps")}
    harmed = _harmed(here)
    rows = []
    for point, control, own in _cells(here):
        harms = [said for said, where in harmed.items() if (point, control) in where]
        rows.append(
            [
                point,
                control,
                _change(changes[OTHERS].get((point, control))),
                _change(changes["cross_mbps"].get((point, control))),
                _mean(own, "spurious_share", 100, 2),
                _mean(own, "reordered_share", 100, 2),
                NONE if control == "default" else ", ".join(harms) or "none settled",
            ]
        )
    return UplinkTable(f"{name}: what it costs, against pinned", head, rows)


def judge(runs: pl.DataFrame) -> list[Verdict]:
    """Judge the frame P99 of what learned at the loads that count, against the controls it is held to."""
    return [
        ratio(
            f"frame P99 at load {point}, {said} over {AGAINST[base]}",
            _by_seed(runs, point, control, FRAME),
            _by_seed(runs, point, base, FRAME),
            most,
        )
        for control, said in LEARNED.items()
        if control in runs["control"]
        for point in JUDGED_AT
        for base, most in MOST_OF.items()
    ]


def places_in_brief(runs: pl.DataFrame) -> list[str]:
    """Return two lines for each place: P99 if pinned, and its change under each other control.

    The first is of the calls' frames, the second of other senders' messages, with a word for settled harm.
    """
    shown = [control for control in WORDS if control in runs["control"]]
    lines = head_of(["place", "seeds", "P99 of", "pinned, ms", *(WORDS[control] for control in shown)])
    for place, point, here in _places(runs):
        pinned = here.filter(point=point, control="default")
        frames, others = (_settled_changes(here, "default", column) for column in (FRAME, OTHERS))
        harmed = _harmed(here)
        said = [_brief(frames.get((point, name))) for name in shown]
        seeds = str(len(_by_seed(here, point, "default", FRAME)))
        lines.append(row_of([place, seeds, "frames", _mean(pinned, FRAME, 1e3, 0), *said]))
        harms = {
            name: ", ".join(IN_SHORT[said] for said, where in harmed.items() if (point, name) in where)
            for name in shown
        }
        said = [
            _brief(others.get((point, name)), star=False) + (f" ({harms[name]})" if harms[name] else "")
            for name in shown
        ]
        lines.append(row_of(["", "", "others' messages", _mean(pinned, OTHERS, 1e3, 0), *said]))
    return lines


def change_of_frames(here: pl.DataFrame, point: str, control: str) -> Estimate | None:
    """Return the change of the frames' P99 from pinned, of one scenario's runs."""
    return paired_change(_by_seed(here, point, control, FRAME), _by_seed(here, point, "default", FRAME))


def _places(runs: pl.DataFrame) -> list[tuple[str, str, pl.DataFrame]]:
    """Return each place that counts: scenario and load in short, the load, and the scenario's runs."""
    found = []
    for (key,), here in sorted(runs.group_by("scenario"), key=lambda one: str(one[0][0])):
        points = sorted(set(here["point"]) & set(JUDGED_AT), key=by_numbers)
        found += [(f"{str(key).removeprefix('uplinks-')} {point}", point, here) for point in points]
    return found


def _harmed(here: pl.DataFrame) -> dict[str, set[tuple[str, str]]]:
    """Return where each harm to others is settled: points and controls by the harm's name."""
    return {
        CROSS_MESSAGES: _beyond(here, OTHERS, falls=False),
        CROSS_GOODPUT: _beyond(here, "cross_mbps", falls=True),
        SPURIOUS: _more_spurious(here),
    }


def _brief(found: tuple[Estimate, bool] | None, *, star: bool = True) -> str:
    """Return a change in whole percent, with a star where it is settled."""
    if found is None:
        return NONE
    one, settled = found
    return f"{100 * one.mean:+.0f} %{' *' if settled and star else ''}"


def _cells(here: pl.DataFrame) -> list[tuple[str, str, pl.DataFrame]]:
    """Return the runs of each point and control, in the order of points and of all controls."""
    found = [(str(p), str(c), own) for (p, c), own in here.group_by("point", "control")]
    return sorted(found, key=lambda one: (by_numbers(one[0]), ALL_CONTROLS.index(one[1])))


def _by_seed(here: pl.DataFrame, point: str, control: str, column: str) -> Values:
    own = here.filter(point=point, control=control).select("seed", column).drop_nulls()
    return dict(own.iter_rows())


def _mean(own: pl.DataFrame, column: str, factor: float, digits: int) -> str:
    return interval([factor * value for value in own[column].drop_nulls()], digits)


Changes = dict[tuple[str, str], tuple[Estimate, bool]]
"""A change at a point by a control, and whether it is settled."""


def _settled_changes(here: pl.DataFrame, base: str, column: str) -> Changes:
    """Return each control's change from another one, at each point."""
    found: Changes = {}
    for control, changes in _changes(here, base, column).items():
        chances = {
            point: 2 * min(one.chance(0, below=True), one.chance(0, below=False))
            for point, one in changes.items()
        }
        settled = _unlikely(changes, chances)
        found |= {(point, control): (one, point in settled) for point, one in changes.items()}
    return found


def _beyond(here: pl.DataFrame, column: str, *, falls: bool) -> set[tuple[str, str]]:
    """Return where a measure is settled to be worse than pinned by more than 2 %."""
    limit = -NO_HARM if falls else NO_HARM
    return {
        (point, control)
        for control, changes in _changes(here, "default", column).items()
        for point in _unlikely(changes, {p: one.chance(limit, below=falls) for p, one in changes.items()})
    }


def _more_spurious(here: pl.DataFrame) -> set[tuple[str, str]]:
    """Return where S1 is settled to resend at least 2 % more of its packets in vain than pinned."""
    differences = _compared(here, "default", "spurious_share", _difference)
    return {
        (point, control)
        for control, found in differences.items()
        for point in _unlikely(found, {p: one.chance(NO_HARM, below=False) for p, one in found.items()})
    }


def _changes(here: pl.DataFrame, base: str, column: str) -> dict[str, dict[str, Estimate]]:
    return _compared(here, base, column, paired_change)


def _compared(
    here: pl.DataFrame, base: str, column: str, how: Callable[[Values, Values], Estimate | None]
) -> dict[str, dict[str, Estimate]]:
    """Return each other control's comparison with the base at each point, by control and point."""
    found: dict[str, dict[str, Estimate]] = {}
    for point, control, _ in _cells(here):
        pair = (_by_seed(here, point, one, column) for one in (control, base))
        if control != base and (one := how(*pair)) is not None:
            found.setdefault(control, {})[point] = one
    return found


def _difference(ours: Values, base: Values) -> Estimate | None:
    return estimate([ours[seed] - base[seed] for seed in sorted(set(ours) & set(base))])


def _unlikely(found: Mapping[str, Estimate], chances: Mapping[str, float]) -> set[str]:
    """Return the points whose chance is small, corrected for the points that have enough seeds."""
    counted = [point for point, one in found.items() if one.n >= FEWEST_SEEDS]
    holm = corrected([chances[point] for point in counted])
    return {point for point, chance in zip(counted, holm, strict=True) if chance < SETTLED}


def _change(found: tuple[Estimate, bool] | None) -> str:
    if found is None:
        return NONE
    one, settled = found
    return f"{percent(one)}{' *' if settled else ''}"
