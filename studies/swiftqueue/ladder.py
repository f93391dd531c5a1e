"""The ladder of information: what the model gains between controls that know less, and more, than it."""

from __future__ import annotations

import textwrap
from typing import Final, NamedTuple

import polars as pl

from swiftqueue.laboratory.report.comparison import (
    NOT_SETTLED,
    Place,
    by_seed,
    change_of,
    compare,
    percent,
    rests_on,
)
from swiftqueue.laboratory.report.judging import FEWEST_PACKETS, FEWEST_SEEDS, SETTLED
from swiftqueue.laboratory.report.measures import (
    CHOICE_RIGHT,
    MOVED,
    QUEUEING_MAX,
    QUEUEING_P99,
    QUEUEING_P999,
    REGRET,
    REORDERED,
    Measure,
)
from swiftqueue.laboratory.report.tables import (
    NONE,
    WRAPPED,
    beyond_limits,
    cell,
    head_of,
    in_a_word,
    row_of,
    sample,
)
from swiftqueue.models.scoring.intervals import Estimate, corrected

SCENARIO: Final = "ladder"
LONG: Final = "ladder-long"  # under `uncoupled`, in runs that are long enough for P99.9
LONG_RFC9332: Final = "ladder-long-rfc9332"
FRESH: Final = "fresh-ladder"  # with the network that the loop serves
TAILS: Final = (("P99", QUEUEING_P99), ("P99.9", QUEUEING_P999))
RUNGS: Final = {
    "default": "nothing is moved",
    "constant_share": "a constant share of the batches",
    "flow_split": "a constant share of the flows, nothing reordered",
    "always": "everything, up to the limit",
    "last_latency_batched": "the flow's last latency",
    "virtual_queue_batched": "the virtual queue: four numbers each",
    "anchor": "untrained model: either queue's last latency",
    "placebo": "the model's decisions, at another time",
    "model": "the model",
    "oracle_late": "both queues, a round trip ago",
    "oracle_batched": "both queues, now",
}
COLUMNS: Final = (QUEUEING_P99, QUEUEING_P999, QUEUEING_MAX, CHOICE_RIGHT, REGRET, MOVED, REORDERED)


class Step(NamedTuple):
    """The difference between two rungs."""

    name: str
    above: str
    below: str
    what: str


STEPS: Final = (
    Step("Balance", "constant_share", "default", "moving a constant share of the batches by chance"),
    Step("Reacting", "anchor", "constant_share", "following the last latency in either queue"),
    Step("Learning", "model", "anchor", "the model's training"),
    Step("Timing", "model", "placebo", "deciding when the model decides, and not at another time"),
    Step("Predicting", "oracle_batched", "oracle_late", "seeing the queues now and not a round trip ago"),
)


def ladder(runs: pl.DataFrame, profile: str, scenario: str = SCENARIO) -> list[str]:
    """Return the ladder of a profile as a table, and a sentence about each step."""
    place = Place(scenario, "", profile)
    if not by_seed(runs, place, "default", QUEUEING_P99):
        return [f"`{profile}`: not run."]
    titles = [f"{m.title.removeprefix('queueing ')}, {m.unit}" for m in COLUMNS]
    lines = [f"**`{profile}`** ({sample(runs, place)})", ""]
    lines += head_of(["what is known", "control", "verdict", "P99 against default", *titles])
    verdicts: dict[str, str] = {}
    for control, what in RUNGS.items():
        found = compare(runs, place, control) if control != "default" else None
        change = percent(found.queueing) if found else NONE
        cells = [cell(runs, place, control, measure).text for measure in COLUMNS]
        verdicts[control] = found.verdict if found else NONE
        word = in_a_word(verdicts[control]).partition(" (")[0]
        lines.append(row_of([what, f"`{control}`", word, change, *cells]))
    return [*lines, *beyond_limits(verdicts), "", *steps(runs, place)]


def steps(runs: pl.DataFrame, place: Place) -> list[str]:
    """Return a sentence about each step: what it changes, and whether that is settled (Holm over all)."""
    enough = (rests_on(runs, place, QUEUEING_P999) or 0) >= FEWEST_PACKETS
    tails = TAILS if enough else TAILS[:1]
    found = {
        (step, name): change_of(runs, place, step.above, measure, base=step.below)
        for step in STEPS
        for name, measure in tails
    }
    asked = {which: change for which, change in found.items() if change and change.n >= FEWEST_SEEDS}
    chances = corrected([2 * one.chance(0, below=one.mean < 0) for one in asked.values()])  # two-sided
    settled = {which for which, chance in zip(asked, chances, strict=True) if chance < SETTLED}
    lines: list[str] = []
    for step in STEPS:
        changes = [
            f"{name} by {_said(change, (step, name) in settled)}"
            for name, _ in tails
            if (change := found[step, name])
        ]
        said = (
            f"changes {', and '.join(changes)}{_fall(runs, place, step, REGRET)}"
            if changes
            else "was not run"
        )
        line = f"- **{step.name}** (`{step.below}` to `{step.above}`): {step.what} {said}."
        lines += textwrap.wrap(line, **WRAPPED)
    return lines


def _said(change: Estimate, is_settled: bool) -> str:
    """Say a change, and whether it is settled."""
    seeds = f"{change.n} seed{'' if change.n == 1 else 's'}"
    if change.n < FEWEST_SEEDS:
        return f"{percent(change)}, which {seeds} cannot settle"
    return f"{percent(change)}, {'settled' if is_settled else f'{NOT_SETTLED} by {seeds}'}"


def _fall(runs: pl.DataFrame, place: Place, step: Step, measure: Measure) -> str:
    """Say how a measure differs between the rungs, where both have it."""
    means = [
        sum(values) / len(values) * measure.scale
        for control in (step.below, step.above)
        if (values := by_seed(runs, place, control, measure).values())
    ]
    if len(means) < 2:
        return ""
    before, after = (f"{mean:.{measure.digits}f}" for mean in means)
    if before == after:
        return ""  # nothing that can be read
    return f"; {measure.title} from {before} to {after} {measure.unit}"
