"""`swiftqueue paper waits`: what the paper says of P99 (7b, halves of 9 to 12), each with a verdict.

Each point of an axis asks for the lower end of what the paper claims there, by the rule of `verdicts.py`.
Runs are the laboratory's, so they are resumed and shared with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.common.section import near
from swiftqueue.laboratory.command import Request, run_lab
from swiftqueue.laboratory.report.comparison import Place, by_seed, change_of, compare, percent
from swiftqueue.laboratory.report.judging import FEWEST_SEEDS, LEAST_P99_FALL
from swiftqueue.laboratory.report.measures import QUEUEING_P99
from swiftqueue.laboratory.report.tables import NONE, head_of, row_of
from swiftqueue.laboratory.runs import results
from swiftqueue.laboratory.scenarios.files import load, path_of
from swiftqueue.studies.swiftqueue.verdicts import NOT_RUN, NOT_SETTLED, REPRODUCED, Answer, answer, verdict

SMALL_S: Final = 30.0
NO_CLAIM: Final = "no claim"
CONTROLS: Final = ("default", "model")


@dataclass(frozen=True)
class Waits:
    """A figure of the paper, and the scenario that redoes it."""

    title: str
    scenario: str
    profile: str
    least: float | None  # fall of P99 that the paper claims, its lower end; None: it claims none
    choice: str  # the open point of the paper's prose, and our choice
    small: tuple[str, ...] = ()  # points of the small form; none named: all

    def points(self) -> list[str]:
        """Return the points of its axis; one without a name where it has none."""
        axis = load(path_of(self.scenario)).axis
        return list(axis.points) if axis else [""]


EXHIBITS: Final[Mapping[str, Waits]] = {
    "figure-7b": Waits(
        "Figure 7b",
        "figure8",
        "uncoupled",
        LEAST_P99_FALL,
        "the queues: coupled as RFC 9332 has it, or not; here not, the premise of its figures",
    ),
    "figure-7b-rfc9332": Waits(
        "Figure 7b, RFC 9332", "figure8", "rfc9332", LEAST_P99_FALL, "the same; here coupled"
    ),
    "figure-9-p99": Waits(
        "Figure 9: L4S flows",
        "paper-flows",
        "uncoupled",
        0.10,
        "whose they are; here 6 of 10 are S1's, and the 4 Cubic flows stay",
        ("10", "100"),
    ),
    "figure-10-p99": Waits(
        "Figure 10: queue limit",
        "paper-queue",
        "uncoupled",
        0.33,
        "of which round trip; here 40 ms",
        ("2 BDP", "20 BDP"),
    ),
    "figure-11-p99": Waits(
        "Figure 11: propagation",
        "paper-delay",
        "uncoupled",
        0.10,
        "one way, or a round trip; here one way. The later version has a number, the first none",
        ("20 ms", "200 ms"),
    ),
    "figure-12-p99": Waits(
        "Figure 12: congestion control",
        "paper-tcp",
        "uncoupled",
        None,
        "whether Cubic and BBR are marked as L4S; here they are. The paper evaluated no P99 there",
        ("DCTCP", "BBR"),
    ),
}


def chosen(names: Sequence[str]) -> dict[str, Waits]:
    """Return the exhibits of some names; none named means all.

    Raises:
        ValueError: there is none of a name.
    """
    if wrong := [name for name in names if name not in EXHIBITS]:
        raise ValueError(f"the paper has no wait {wrong[0]!r}; {near(wrong[0], list(EXHIBITS))}")
    return {name: EXHIBITS[name] for name in names or EXHIBITS}


def run_waits(names: Sequence[str], artifact: str, output: Path, *, small: bool) -> int:
    """Run what some exhibits ask for, and say their verdicts; 1 if a run failed. Goes on where it stopped.

    Raises:
        ValueError: an exhibit or the model is unknown, or there is no simulator; nothing was run.
    """
    exhibits = chosen(names)
    failed = 0
    for scenario in dict.fromkeys(each.scenario for each in exhibits.values()):
        points = next(each.small for each in exhibits.values() if each.scenario == scenario) if small else ()
        request = Request(
            [scenario],
            seconds=SMALL_S if small else None,
            artifact=artifact,
            controls=list(CONTROLS),
            points=list(points) or None,
        )
        failed |= run_lab(request, output)
    runs = results.load(output)
    for each in exhibits.values():
        print(f"{each.title}: {said(runs, each)}")
    return failed


def answers(runs: pl.DataFrame, one: Waits) -> list[Answer]:
    """Ask at each point that was run whether P99 falls by what is claimed; by seed, in ms."""
    return [found for point in one.points() if (found := answer_at(runs, one, point))]


def answer_at(runs: pl.DataFrame, one: Waits, point: str) -> Answer | None:
    """Ask it at one point; None where too few seeds were run, or nothing is claimed."""
    base, ours = (
        by_seed(runs, Place(one.scenario, point, one.profile), control, QUEUEING_P99) for control in CONTROLS
    )
    pairs = [
        (base[seed] * QUEUEING_P99.scale, ours[seed] * QUEUEING_P99.scale)
        for seed in sorted(set(base) & set(ours))
    ]
    if one.least is None or len(pairs) < FEWEST_SEEDS:
        return None
    return answer(f"{point or 'its one point'}: default, model", pairs, 1 / (1 - one.least))


def said(runs: pl.DataFrame, one: Waits) -> str:
    """Return the verdict; a point that was not run leaves it open, unless another refutes it."""
    if one.least is None:
        return NO_CLAIM
    given = answers(runs, one)
    word = verdict(given)
    complete = len(given) == len(one.points())
    return word if complete or word != REPRODUCED else NOT_SETTLED


def table(runs: pl.DataFrame) -> list[str]:
    """Return a row for each point that was run, and each exhibit's verdict with its command."""
    head = ["exhibit", "point", "P99 against default", "claimed", "seeds", "seconds", "verdict"]
    lines = head_of([*head, "settled harm"])
    for name, one in EXHIBITS.items():
        command = f"`swiftqueue paper waits {name}`"
        word = said(runs, one)
        claimed = NONE if one.least is None else f"-{one.least:.0%} or more".replace("%", " %")
        rows = []
        for point in one.points():
            place = Place(one.scenario, point, one.profile)
            change = change_of(runs, place, "model", QUEUEING_P99)
            if change is None:
                continue
            here = runs.filter(
                pl.col("scenario") == one.scenario,
                pl.col("point") == point,
                pl.col("profile") == one.profile,
                pl.col("control") == "model",
            )
            asked = answer_at(runs, one, point)
            seconds = f"{here['seconds'].to_numpy().max():g}"
            verdict_at = asked.verdict if asked else NO_CLAIM if one.least is None else NOT_SETTLED
            rows.append([one.title, point, percent(change), claimed, str(change.n), seconds, verdict_at])
            rows[-1].append(_harm(runs, place))
        if not rows:
            lines.append(row_of([one.title, NONE, NONE, claimed, NONE, NONE, f"{NOT_RUN}: {command}", NONE]))
        elif len(one.points()) == 1:
            lines.append(row_of([one.title, NONE, *rows[0][2:6], f"**{word}**: {command}", rows[0][-1]]))
        else:
            lines += map(row_of, rows)
            of_all = f"{len(rows)} of {len(one.points())} points"
            cells = [one.title, of_all, NONE, claimed, NONE, NONE, f"**{word}**: {command}", NONE]
            lines.append(row_of(cells))
    return lines


def _harm(runs: pl.DataFrame, place: Place) -> str:
    """Return the limits that the model is settled to break there."""
    found = compare(runs, place, "model")
    costs = [one for one in found.broken() if one.beyond] if found else []
    return ", ".join(f"{one.limit.name} {one.change.mean * 100:+.0f} %" for one in costs) or "none"


def choices() -> list[str]:
    """Return the open point of the paper's prose in each exhibit, and our choice."""
    return [f"- **{one.title}**: {one.choice}." for one in EXHIBITS.values()]
