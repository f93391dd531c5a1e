"""Measure how long the event stream learns from 1.5 million packets until it is near its best error.

The forecaster of `forecasters.yaml` learns from simulated traces, as a Ray Train job on two cores. Its least
validation error is that of all its epochs, so the time is known at the end only.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swiftqueue.benchmarks.rows import Row
from swiftqueue.benchmarks.simulated_traces import given, simulated
from swiftqueue.common.state import private_dir, state_dir

if TYPE_CHECKING:
    from swiftqueue.models.forecasters.traces import TracePart

PACKETS: Final = 1_500_000
SECONDS: Final = 660.0  # seconds of a simulated trace
FIRST_SEED: Final = 801  # first seed of the traces; nothing is judged on these
MOST_TRACES: Final = 10
VARIANT: Final = "event-stream-2"  # a variant with the sizes of params.yaml
WORKERS: Final = 2  # workers, each on a core
NEXT_TO: Final = 1.02  # multiple of the least validation error that counts as near it
WANTED_S: Final = 600.0
WANTED_TARGETS_PER_S: Final = 20_000.0


def measure(rounds: int, packets: str | None = None) -> list[Row]:
    """Train with seeds 1 to `rounds`; return medians of seconds, and of targets a second and core.

    Raises:
        ValueError: the folder `packets` has no packet table.
        RuntimeError: a trace could not be simulated.
    """
    folder = state_dir() / "pretrain"
    private_dir(folder)
    with contextlib.redirect_stdout(sys.stderr):  # `--json` owns the standard output
        parts = list(_parts(packets, folder))
        found = [_seconds(packets, folder, seed) for seed in range(1, rounds + 1)]
    learnt = sum(part.packets.height for part in parts)
    seconds, rates = (statistics.median(column) for column in zip(*found, strict=True))
    return [
        Row(
            f"until the validation error is within 2 % of its least: {learnt:,} packets, {VARIANT}, 2 cores",
            seconds,
            WANTED_S,
            "ten minutes, wanted",
            WANTED_S / seconds,
            "s",
            rounds,
        ),
        Row(
            "targets a second and core",
            rates,
            WANTED_TARGETS_PER_S,
            "20,000, wanted",
            rates / WANTED_TARGETS_PER_S,
            "targets/s",
            rounds,
        ),
    ]


def _parts(packets: str | None, folder: Path) -> Iterator[TracePart]:
    """Return whole traces to learn from: PACKETS in all if there are that many."""
    from swiftqueue.feature_store.packets.schema import HORIZON
    from swiftqueue.models.forecasters.traces import TracePart
    from swiftqueue.models.training.protocol import Slice

    seeds = range(FIRST_SEED, FIRST_SEED + MOST_TRACES)
    left = PACKETS
    for name, table in given(Path(packets)) if packets else simulated(folder, SECONDS, seeds):
        part = table.head(left)
        yield TracePart(name, part, Slice(0, part.height // HORIZON))
        left -= part.height
        if left < HORIZON:
            return


def _seconds(packets: str | None, folder: Path, seed: int) -> tuple[float, float]:
    """Return the seconds until the error is near its least, and the targets a second and core."""
    from swiftqueue.models.forecasters.forecaster import variants
    from swiftqueue.models.training.ray_job import discard, run_job

    storage = state_dir() / "ray" / f"bench-pretrain-{seed}"
    discard(storage)  # discards the files of a stopped run
    started, ends, epochs = time.perf_counter(), list[float](), list[dict[str, Any]]()

    def say(record: dict[str, Any]) -> None:
        if "epoch" not in record:  # a worker was started again
            return
        ends.append(time.perf_counter() - started)
        epochs.append(record)
        print(f"seed {seed}, {ends[-1]:.0f} s: {record}", flush=True)

    config: dict[str, Any] = {
        "packets": packets and str(Path(packets).absolute()),
        "folder": str(folder.absolute()),
    }
    (variant,) = variants(Path("forecasters.yaml"), [VARIANT])
    config |= {"seed": seed, "params": variant.params.model_dump()}
    run_job(learn, config, workers=WORKERS, storage=storage, say=say)
    discard(storage)
    errors = [epoch["validation_log_mse"] for epoch in epochs]
    reached = next(end for end, error in zip(ends, errors, strict=True) if error <= NEXT_TO * min(errors))
    return reached, statistics.median(epoch["targets_per_s"] for epoch in epochs)


def learn(config: dict[str, Any]) -> None:
    """Train in one Ray Train worker."""
    import ray.train
    import torch

    from swiftqueue.models.event_stream.parameters import EventStreamParams
    from swiftqueue.models.event_stream.training import EventStreamCourse
    from swiftqueue.models.training.epochs import WorkerShare
    from swiftqueue.models.training.query_training import run_in_job

    params = EventStreamParams(**config["params"])
    torch.set_num_threads(1)
    context = ray.train.get_context()
    share = WorkerShare(context.get_world_rank(), context.get_world_size())
    parts = list(_parts(config["packets"], Path(config["folder"])))
    run_in_job(config, EventStreamCourse(parts, params, config["seed"], share).trainer)
