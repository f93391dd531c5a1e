"""Compare heads made with a reservoir of earlier stretches with heads from the last 60 s alone.

Each arm walks a trace as the live loop does, with its own arithmetic and gate (`pipelines/live/minute.py`): a
round every 30 s that learns from 60 s and is judged on 10 s and the slices before. The served head of each
arm is then scored on the next 30 s, which no arm has learned from; the difference is paired by round. All
begin with the pre-trained model of `make run`.

The traces come from section `simulate` with seeds that nothing was trained or chosen on, 11 minutes each
after the first minute of training, or from `--packets`, a folder of packet tables. Each round's outcome is a
line of `var/reservoir/rounds.jsonl`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.rows import Row
from benchmarks.simulated_traces import PARAMS_FILE, given, simulated
from common import json_lines
from common.state import private_dir, state_dir

if TYPE_CHECKING:
    import polars as pl

    from feature_store.events.beginning import Beginning
    from pipelines.live.minute import Minute

PRETRAINED: Final = Path("data/models/pretrained")
FIRST_SEED: Final = 701  # first seed of the simulated traces; 1 and 2 are the default traces'
ARMS: Final = {"4,096 windows beside it": 4096}
WITHOUT: Final = "the last 60 s alone"
EVERY_S, LEARN_S, JUDGE_S, LEAD_IN_S = 30.0, 60.0, 10.0, 5.0  # as `swiftqueue schedule`, at its shortest
SECONDS: Final = LEAD_IN_S + LEARN_S + JUDGE_S + 660.0
LEAST_WINDOWS: Final = 50
LATE, LOG = "average_precision", "log_mae"
NAMES: Final = {LATE: "average precision of late packets", LOG: "log-error"}


@dataclass
class Arm:
    """An arm of the walk: the version it serves and the state it keeps between rounds."""

    memory_windows: int
    served: dict[str, bytes]  # artifact files by name
    state: dict[str, Any] = field(default_factory=dict)  # `earlier` and `reservoir` of its next minute
    refused: int = 0


def measure(rounds: int, packets: str | None = None) -> list[Row]:
    """Walk `rounds` simulated traces, or all tables of a folder.

    Raises:
        ValueError: there is no pre-trained model, or the folder has no packet table.
        RuntimeError: a trace could not be simulated.
    """
    if not PRETRAINED.is_dir():
        raise ValueError(f"{PRETRAINED} is not here: `make run` makes it")
    folder = state_dir() / "reservoir"
    private_dir(folder)
    log = folder / "rounds.jsonl"
    log.unlink(missing_ok=True)
    seeds = range(FIRST_SEED, FIRST_SEED + rounds)
    found = []
    with contextlib.redirect_stdout(sys.stderr):  # `--json` owns the standard output
        for name, table in given(Path(packets)) if packets else simulated(folder, SECONDS, seeds):
            for one in walk(table):
                json_lines.append(log, {"trace": name, **one})
                found.append(one)
                late, error = (one[WITHOUT][key] or 0 for key in (LATE, LOG))
                print(f"{name}: {one['at_s']:.0f} s, AP {late:.3f}, log-error {error:.4f}", flush=True)
    return rows(found)


def walk(table: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Walk a packet table; yield each round's time and the figures of each arm after it."""
    import polars as pl

    from common.section import read
    from feature_store.events.beginning import NOTHING
    from models.networks.artifact import read_files
    from models.training.head import FinetuneParams
    from pipelines.live.minute import Minute, tune
    from pipelines.live.rounds_log import DeclinedError
    from pipelines.live.watch import HeadPair, compare

    params = read(PARAMS_FILE, FinetuneParams)
    pretrained = dict(read_files(PRETRAINED))
    arms = {name: Arm(size, pretrained) for name, size in {WITHOUT: 0, **ARMS}.items()}
    begin_ns, end_ns = (int(table["sent_ns"][place]) for place in (0, -1))
    at_ns_P = table["sent_ns"] - begin_ns

    def between(from_s: float, to_s: float) -> tuple[pl.DataFrame, Beginning]:
        at_ns = pl.col("sent_ns") - begin_ns
        part = table.filter(at_ns >= round(from_s * 1e9), at_ns < round(to_s * 1e9))
        newest_ns = begin_ns + round(to_s * 1e9)
        unknown = pl.col("acked_ns") > newest_ns  # not acknowledged yet at that time
        seen = part.with_columns(pl.when(~unknown).then(c).alias(c) for c in ("acked_ns", "latency_us"))
        return seen, NOTHING.moved(table, int((at_ns_P < round(from_s * 1e9)).sum()))

    at_s = LEAD_IN_S + LEARN_S + JUDGE_S
    while begin_ns + round((at_s + EVERY_S) * 1e9) <= end_ns:
        seen, beginning = between(at_s - LEAD_IN_S - LEARN_S - JUDGE_S, at_s)
        newest_ns = begin_ns + round(at_s * 1e9)
        judge_from_ns = newest_ns - round(JUDGE_S * 1e9)
        for arm in arms.values():
            minute = Minute(
                packets=seen,
                beginning=beginning,
                learn_from_ns=judge_from_ns - round(LEARN_S * 1e9),
                judge_from_ns=judge_from_ns,
                champion=arm.served,
                reference=pretrained if arm.served is not pretrained else None,
                params=params,
                trained_on=None,
                least_windows=LEAST_WINDOWS,
                memory_windows=arm.memory_windows,
                **arm.state,
            )
            with contextlib.suppress(DeclinedError):
                _learn(arm, minute, tune)
        after, known_after = between(at_s - LEAD_IN_S, at_s + EVERY_S)
        one: dict[str, Any] = {"at_s": at_s, "refused": {name: arm.refused for name, arm in arms.items()}}
        for name in ARMS:
            pair = HeadPair(after, known_after, newest_ns, arms[name].served, arms[WITHOUT].served)
            with contextlib.suppress(DeclinedError):
                found = compare(pair).figures
                one |= {name: found.get("head"), WITHOUT: found.get("other")}
        if all(one.get(name) for name in arms):
            yield one
        at_s += EVERY_S


def _learn(arm: Arm, minute: Minute, tune: Any) -> None:
    """Run one round of an arm."""
    from pipelines.live.slices import KEPT

    tuned = tune(minute)
    if tuned.verdict.passed:
        arm.served = dict(tuned.files)
    arm.refused += not tuned.verdict.passed
    arm.state = {"earlier": (*minute.earlier, *tuned.slices)[-KEPT:]}
    if tuned.reservoir is not None:
        arm.state["reservoir"] = tuned.reservoir


def rows(found: Sequence[dict[str, Any]]) -> list[Row]:
    """Return a row for each arm and figure: means over rounds, and the paired difference."""
    from models.scoring.intervals import estimate

    made = []
    for name in ARMS:
        for key, called in NAMES.items():
            pairs = [(one[name][key], one[WITHOUT][key]) for one in found]
            pairs = [(ours, other) for ours, other in pairs if ours is not None and other is not None]
            if not pairs:
                continue
            ours, other = np.array(pairs).T
            gain = estimate(list(ours - other))
            if gain is None or gain.low is None or gain.high is None:
                continue
            said = f"{called}, {name} (difference {gain.mean:+.4f}, {gain.low:+.4f} to {gain.high:+.4f})"
            a, b = float(ours.mean()), float(other.mean())
            ratio = (a / b if key == LATE else b / a) if a and b else 1.0
            made.append(Row(said, a, b, WITHOUT, ratio, "", len(pairs)))
    return made
