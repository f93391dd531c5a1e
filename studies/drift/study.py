"""The study's computation: each course with each seed is a file of rows, so an interrupted one goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from swiftqueue.api import read_capture
from swiftqueue.common.atomic import write_file
from swiftqueue.common.say import say
from swiftqueue.common.section import read
from swiftqueue.models.forecasters.forecaster import Variant, kind_named
from swiftqueue.models.registry.gate import Figures
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.studies.drift import weights
from swiftqueue.studies.drift.traces import BEFORE, JoinedTrace, between, simulated, states
from swiftqueue.studies.drift.walk import (
    MEMORY,
    NEVER,
    POLICIES,
    Files,
    Lengths,
    LoopState,
    Trained,
    Walk,
    walked,
)

KIND: Final = "event-stream"
# One layer, and short steps: the traces are short. The rest is params.yaml's.
SIZES: Final = {"layers": 1, "epochs": 6, "segments": 2, "segment_events": 256, "workers": 1}
BATCH: Final = 64  # decisions in a step of the tune, so that it has as many steps as the loop's on a minute
NEW_STATE: Final = "trained on the new state"
OTHER_SEED: Final = 100  # the traces that teach the new state's model have seeds that lie so far away
CAPTURES: Final = "captures"
CAPTURE_LENGTHS: Final = Lengths(train_s=30, every_s=10, judge_s=2)
LEAST_SHARE: Final = 0.25  # windows that are shorter than this share of a round are not scored

Row = dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """The models, parameters and lengths that all courses share."""

    variant: Variant
    how: FinetuneParams
    lengths: Lengths

    @classmethod
    def of(cls, params: Path, lengths: Lengths) -> Setup:
        """Return the setup of a parameter file, with this study's sizes.

        Raises:
            ValueError: the file is invalid; the line names the parameter.
        """
        kind = kind_named(KIND)
        sizes = read(params, kind.Params).model_dump() | SIZES
        how = read(params, FinetuneParams).model_copy(update={"batch_size": BATCH})
        return cls(Variant(KIND, kind, kind.Params(**sizes)), how, lengths)


def run(setup: Setup, seeds: Sequence[int], captures: Sequence[Path], output: Path) -> None:
    """Compute what `output` lacks: the simulated changes, then the captures, seed by seed.

    Raises:
        StageError: the simulator failed.
        ValueError: a capture cannot be read, or training diverged.
        OSError: `output` cannot be written.
    """
    begun: dict[int, _Begun] = {}
    for change in (BEFORE, *states()):
        for seed in seeds:
            if _file(output, change, seed).is_file():
                continue
            if seed not in begun:
                begun[seed] = _before(setup, seed, output / "tables")
            rows = (
                begun[seed].rows
                if change == BEFORE
                else _after(setup, begun[seed], change, output / "tables")
            )
            _write(output, change, seed, rows)
    for seed in seeds if captures else ():
        if not _file(output, CAPTURES, seed).is_file():
            _write(output, CAPTURES, seed, _of_captures(setup, captures, seed))


def seeds_in(text: str) -> list[int]:
    """Return the seeds that a list with commas names.

    Raises:
        ValueError: a word is no whole number above 0, or a seed is named twice.
    """
    words = [word.strip() for word in text.split(",")]
    if wrong := [word for word in words if not word.isdecimal() or int(word) == 0]:
        raise ValueError(f"--seeds: {wrong[0]!r} is no seed; give whole numbers above 0, as 801,802,803")
    found = [int(word) for word in words]
    if len(set(found)) < len(found):
        raise ValueError(f"--seeds: {text} names a seed twice, which would count one walk twice")
    return found


def rows_of(output: Path) -> pl.DataFrame:
    """Return all rows that were computed.

    Raises:
        FileNotFoundError: there are none.
    """
    files = sorted(output.glob("*.rows.json"))
    if not files:
        raise FileNotFoundError(f"{output} has no rows: run `swiftqueue drift run --output {output}` first")
    return pl.DataFrame(
        [row for file in files for row in json.loads(file.read_text())], infer_schema_length=None
    )


def _file(output: Path, course: str, seed: int) -> Path:
    return output / f"{course}-{seed}.rows.json"


def _write(output: Path, course: str, seed: int, rows: Sequence[Row]) -> None:
    content = json.dumps([{"course": course, "seed": seed, **row} for row in rows], indent=0)
    write_file(_file(output, course, seed), content + "\n")
    say(f"{course}, seed {seed}: {time.process_time():.0f} s of this process's CPU so far")


@dataclass(frozen=True)
class _Begun:
    """A seed's course up to the change, which all changes share."""

    seed: int
    old: pl.DataFrame
    base: Trained
    states: Mapping[str, LoopState]
    rows: list[Row]


def _before(setup: Setup, seed: int, tables: Path) -> _Begun:
    """Train the first model, and walk the rounds before the change."""
    lengths = setup.lengths
    old = simulated(BEFORE, seed, lengths.train_s + lengths.before * lengths.every_s, tables)
    trace = JoinedTrace.of([old], same_receivers=True)
    begin_ns, every_ns = round(lengths.train_s * 1e9), round(lengths.every_s * 1e9)
    lesson = between(trace.known_at(begin_ns), 0, begin_ns).to_learn()
    base = Trained.on([lesson], setup.variant, seed)
    walk = Walk(trace, lengths, setup.variant, setup.how, seed)
    times = [begin_ns + k * every_ns for k in range(lengths.before + 1)]
    times[-1] = min(times[-1], trace.ends_ns[0])
    early = [policy for policy in POLICIES if policy.lesson is None]
    start = {policy.name: LoopState(base.files, base.files, base) for policy in early}
    found, rows = start, list[Row]()
    for number, found, records in walked(walk, start, early, times, 1 - lengths.before):
        if number < 0:
            window = times[number + lengths.before], times[number + lengths.before + 1]
            rows += _scored(walk, number, window, {NEVER: base.files}, found, records)
        else:
            rows += [_bare(number, name, record) for name, record in records.items()]
    found |= {policy.name: found[MEMORY] for policy in POLICIES if policy.lesson}
    return _Begun(seed, old, base, found, rows)


def _after(setup: Setup, begun: _Begun, state: str, tables: Path) -> list[Row]:
    """Walk the rounds after a change, and score each window with the model of the new state beside it."""
    lengths, seed = setup.lengths, begun.seed
    new = simulated(state, seed, lengths.after * lengths.every_s, tables)
    joined = JoinedTrace.of([begun.old, new], same_receivers=True)
    other = [
        simulated(one, seed + OTHER_SEED, seconds, tables)
        for one, seconds in ((BEFORE, lengths.every_s), (state, lengths.train_s))
    ]
    taught = JoinedTrace.of(other, same_receivers=True)  # it has seen the old state, as after the change
    lesson = between(taught.packets, taught.begins_ns[1], taught.ends_ns[1] + 1)
    reference = Trained.on([lesson], setup.variant, seed)
    walk = Walk(joined, lengths, setup.variant, setup.how, seed)
    fixed = {NEVER: begun.base.files, NEW_STATE: reference.files}
    every_ns = round(lengths.every_s * 1e9)
    bounds = [joined.begins_ns[1] + k * every_ns for k in range(lengths.after + 1)]
    bounds[-1] = min(bounds[-1], joined.ends_ns[1] + 1)
    rows = _scored(walk, 0, (bounds[0], bounds[1]), fixed, begun.states, {})
    for number, found, records in walked(walk, begun.states, POLICIES, bounds[:-1], 1):
        rows += _scored(walk, number, (bounds[number], bounds[number + 1]), fixed, found, records)
    return [*rows, *_weights(walk, begun.base.files, bounds)]


def _of_captures(setup: Setup, captures: Sequence[Path], seed: int) -> list[Row]:
    """Walk over captures one after another; each but the first is a change."""
    lengths = CAPTURE_LENGTHS
    tables = [read_capture(path) for path in captures]
    trace = JoinedTrace.of(tables, same_receivers=False)
    walk = Walk(trace, lengths, setup.variant, setup.how, seed)
    train_ns, every_ns = round(lengths.train_s * 1e9), round(lengths.every_s * 1e9)
    base = Trained.on([between(trace.known_at(train_ns), 0, train_ns).to_learn()], setup.variant, seed)
    states_ = {policy.name: LoopState(base.files, base.files, base) for policy in POLICIES}
    rows: list[Row] = []
    last_ns, done = train_ns, 0  # rounds that were run
    for place, (begin_ns, end_ns) in enumerate(zip(trace.begins_ns, trace.ends_ns, strict=True)):
        models = _halves(trace, begin_ns, end_ns, setup.variant, seed) if place else None
        at_ns, number = (begin_ns, 0) if place else (train_ns, 0)
        while end_ns - at_ns > LEAST_SHARE * every_ns:
            records: Mapping[str, Row] = {}
            if at_ns > last_ns:
                step = walked(walk, states_, POLICIES, [last_ns, at_ns], done)
                _, states_, records = next(step)
                done += 1
            window = at_ns, min(at_ns + every_ns, end_ns + 1)
            fixed: dict[str, Files] = {NEVER: base.files}
            if models:
                fixed[NEW_STATE] = models[sum(window) < begin_ns + end_ns]
            name = captures[place].name.split(".")[0]
            scored = _scored(walk, number, window, fixed, states_, records)
            rows += [{**row, "state": name} for row in scored]
            last_ns, at_ns, number = at_ns, at_ns + every_ns, number + 1
    return rows


def _halves(
    trace: JoinedTrace, begin_ns: int, end_ns: int, variant: Variant, seed: int
) -> tuple[Files, Files]:
    """Return the models of a capture's halves: the first one's, then the second one's.

    Each judges the other half, so it has learned nothing of what it judges.
    """
    middle_ns = (begin_ns + end_ns) // 2
    parts = [between(trace.packets, begin_ns, middle_ns), between(trace.packets, middle_ns, end_ns + 1)]
    first, second = (Trained.on([part.to_learn()], variant, seed).files for part in parts)
    return first, second


def _scored(
    walk: Walk,
    number: int,
    window: tuple[int, int],
    fixed: Mapping[str, Files],
    states_: Mapping[str, LoopState],
    records: Mapping[str, Row],
) -> list[Row]:
    """Return a row for each model and policy on a window, none where nothing was decided in it."""
    rows = []
    for name, files in fixed.items():
        figures = walk.errors(files, *window)
        if figures is None:
            return []
        rows.append({**_bare(number, name, {}), **_figures(figures)})
    known: dict[int, tuple[Figures, Figures]] = {}
    for name, state in states_.items():
        if id(state) not in known:
            served_BH = walk.served_in(state, *window)
            at_once = walk.errors(state.served, *window)
            if served_BH is None or at_once is None:
                return []
            known[id(state)] = walk.score(served_BH, *window), at_once
        served, at_once = known[id(state)]
        row = _bare(number, name, records.get(name, {}))
        rows.append({**row, **_figures(served), "log_error_at_once": at_once.log_mae})
    return rows


def _bare(number: int, name: str, record: Mapping[str, Any]) -> Row:
    empty = dict.fromkeys(("outcome", "reason", "psi", "retrained", "log_error_at_once", "seconds", "state"))
    empty |= dict.fromkeys(_figures(Figures(None, None, None, 0, 0)))
    return {"round": number, "model": name, **empty, **record}


def _figures(found: Figures) -> Row:
    kept = asdict(found)
    return {
        "log_error": kept["log_mae"],
        **{name: kept[name] for name in ("mae_ms", "average_precision", "n", "n_late")},
    }


def _weights(walk: Walk, base: Files, bounds: Sequence[int]) -> list[Row]:
    """Tune each set of weights in each round after the change, without gate or memory, and score it."""
    version, _ = walk.version(base)
    current = dict.fromkeys((weights.HEAD, *weights.SETS), version)
    rows = []
    for number in range(1, len(bounds) - 1):
        lesson = between(walk.trace.known_at(bounds[number]), bounds[number - 1], bounds[number])
        encoded, came_BH = version.encode(lesson), lesson.latencies_us()
        window = bounds[number], bounds[number + 1]
        shown = version.encode(between(walk.trace.packets, *window))
        for name, found in current.items():
            begun_s = time.process_time()
            current[name] = weights.tuned(found, name, encoded, came_BH, walk.how)
            seconds = time.process_time() - begun_s
            figures = walk.score(np.asarray(current[name].answer(shown)), *window)
            rows.append({**_bare(number, f"weights: {name}", {}), **_figures(figures), "seconds": seconds})
    return rows
