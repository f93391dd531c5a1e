"""Runs of one flow through one queue: what is asked for, and what came of it.

The program `lfq` simulates them. What it gave for a batch of runs is kept under the batch's hash, so a
command that is stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.common.atomic import new_folder
from swiftqueue.laboratory.runs.programs import hash_of
from swiftqueue.pipelines.simulators import Runs, build_simulator, cores
from swiftqueue.pipelines.stage import StageError
from swiftqueue.studies.lfq.weight_file import INPUTS, LEAST_LIMIT, MOST_LIMIT, content_of

LFQ: Final = "swiftqueue::LfqQueueDisc"
SEGMENT_BYTES: Final = 1446
NO_LIMIT: Final = "10240p"  # limit of a disc whose flows have limits of their own
CHUNK: Final = 20  # runs of one program: a batch of the literal rules has 20 or 40, for all cores
BYTES_PER_MBIT: Final = 125_000


@dataclass(frozen=True)
class FlowPath:
    """A path, and a flow on it."""

    tcp: str
    mbps: float
    rtt_ms: float
    seconds: float
    initial_window: int


@dataclass(frozen=True)
class FlowDisc:
    """A queue disc; `weights` is the file of an LFQ's network, whose content counts and not its name."""

    type: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    weights: Path | None = None


@dataclass(frozen=True)
class Flow:
    """One run. At `fork_s` the limit becomes `limit`, or changes by `change`, and stays.

    `times_s`: when what the disc knows of the flow is written down.
    """

    environment: FlowPath
    disc: FlowDisc
    fork_s: float = 0.0
    limit: int | None = None
    change: int | None = None
    times_s: tuple[float, ...] = ()

    def line(self, weights: str) -> str:
        """Return the line of the program's file; `weights` stands for the file of an LFQ's network."""
        e = self.environment
        kind, value = ("limit", self.limit) if self.limit is not None else ("change", self.change)
        if value is None:
            kind, value = "none", 0
        times = ",".join(map(repr, self.times_s)) or "-"
        given = dict(self.disc.attributes) | ({"Weights": weights} if self.disc.weights else {})
        path = f"{e.tcp} {e.mbps * 1e6!r} {e.rtt_ms!r} {e.seconds!r} {e.initial_window}"
        disc = " ".join([self.disc.type, *(f"{name}={value}" for name, value in given.items())])
        return f"{path} {self.fork_s!r} {kind} {value} {times} {disc}"


@dataclass(frozen=True)
class Outcome:
    """The outcome of some flows: a row each, and each one's inputs `x_TF`, T times, F inputs."""

    rows: pl.DataFrame
    inputs: list[NDArray[np.float32]]


class Simulator:
    """The program, and the folder where what it gave is kept."""

    def __init__(self, kept: Path) -> None:
        """Build the program where it is missing.

        Raises:
            ValueError: it cannot be built.
        """
        try:
            self.program = build_simulator(program="lfq")
        except StageError as error:
            raise ValueError(str(error)) from None
        self.name = hash_of(self.program)
        self._kept = kept

    def run(self, flows: Sequence[Flow], title: str) -> Outcome:
        """Simulate what is not kept yet, as many programs at a time as there are cores, with progress.

        Raises:
            ValueError: the program refused a run; the line names it.
        """
        chunks = [flows[i : i + CHUNK] for i in range(0, len(flows), CHUNK)]
        with _bar(title, len(flows)) as advance, ThreadPoolExecutor(cores()) as pool:

            def one(chunk: Sequence[Flow]) -> Outcome:
                found = self._chunk(chunk)
                advance(len(chunk))
                return found

            try:
                parts = list(pool.map(one, chunks))
            except StageError as error:
                pool.shutdown(cancel_futures=True)
                raise ValueError(str(error)) from None
        rows = pl.concat([part.rows for part in parts])
        return Outcome(rows, [x for part in parts for x in part.inputs])

    def _chunk(self, flows: Sequence[Flow]) -> Outcome:
        hashes = {path: content_of(path) for path in {f.disc.weights for f in flows} if path}
        named = [f.line(hashes.get(f.disc.weights, "") if f.disc.weights else "") for f in flows]
        key = hashlib.sha256("\n".join([self.name, *named]).encode()).hexdigest()[:24]
        folder = self._kept / key
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with new_folder(folder) as partial, tempfile.NamedTemporaryFile("w") as lines:
                lines.write("\n".join(f.line(str(f.disc.weights)) for f in flows) + "\n")
                lines.flush()
                options = [f"--runs={lines.name}", f"--rows={partial / 'rows.csv'}"]
                Runs(self.program).run([*options, f"--inputs={partial / 'inputs.f32'}"], "runs of one flow")
        rows = pl.read_csv(folder / "rows.csv", schema_overrides=ROWS)
        x_TF = np.fromfile(folder / "inputs.f32", dtype="<f4").reshape(-1, INPUTS)
        ends = np.cumsum([len(f.times_s) for f in flows])
        if rows.height != len(flows) or len(x_TF) != ends[-1]:
            raise StageError(f"{folder} is damaged: remove it")
        return Outcome(rows, np.split(x_TF, ends[:-1]))


ROWS: Final[dict[str, Any]] = {
    "bytes": pl.Int64,  # bytes that the receiver's application got
    "queue_mean": pl.Float64,  # packets, over time
    "queue_max": pl.Float64,
    "dropped": pl.Int64,
    "limit_mean": pl.Float64,  # over time; of an LFQ, as are the next two
    "decisions": pl.Int64,
    "fallbacks": pl.Int64,
    "fork_limit": pl.Int64,  # before the fork
    "after_s": pl.Float64,  # the fork, as are the next two
    "after_bytes": pl.Int64,
    "after_queue_mean": pl.Float64,
}


def drawn(settings: Any, number: int) -> tuple[FlowPath, np.random.Generator]:
    """Return the environment of a number, and a generator for what else is drawn for it.

    More environments leave the first ones as they are.
    """
    random = np.random.default_rng([settings.seed, number])
    environment = FlowPath(
        tcp=str(random.choice(settings.tcps)),
        mbps=float(random.uniform(*settings.mbps)),
        rtt_ms=float(random.uniform(*settings.rtt_ms)),
        seconds=settings.seconds * float(random.uniform(1 - settings.spread, 1 + settings.spread)),
        initial_window=settings.initial_window,
    )
    return environment, random


def reward(bytes_per_s: float, queue_mean: float, alpha: float) -> float:
    """Return the reward of a limit in MB/s: throughput less alpha times the waiting bytes."""
    return (bytes_per_s - alpha * queue_mean * SEGMENT_BYTES) * 1e-6


def better_arm(limit: int, less: float, more: float) -> int:
    """Return the limit to learn from an arm with a packet less and one with one more; a tie goes to less."""
    return min(max(limit + (1 if more > less else -1), LEAST_LIMIT), MOST_LIMIT)


def best_limit(rewards: Mapping[int, float], tolerance: float) -> int:
    """Return the smallest limit whose reward is within `tolerance` of the best one's."""
    best = max(rewards.values())
    least = best - tolerance * abs(best)
    return min(limit for limit, value in rewards.items() if value >= least)


def _bar(title: str, total: int) -> Any:
    import contextlib
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    @contextlib.contextmanager
    def bars() -> Iterator[Callable[[int], None]]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task(title, total=total)
            yield lambda runs: progress.update(task, advance=runs)

    return bars()
