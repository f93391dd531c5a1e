"""Train in epochs, in one process or as a Ray Train job, and resume from any epoch."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import torch.distributed
from safetensors.torch import load_file
from torch import Tensor

from models.training import checkpoint
from models.training.ray_job import report_progress

if TYPE_CHECKING:
    from ray.train import Result

    from models.training.query_training import QueryTrainer

SPEED: Final = "targets_per_s"  # name in an epoch's record; the figure is for one core


class WorkerShare(NamedTuple):
    """A worker's number, and the number of workers that share each step."""

    rank: int
    workers: int


ALONE: Final = WorkerShare(0, 1)


def run_in_job(config: Mapping[str, Any], trainer: QueryTrainer) -> None:
    """Train to the last epoch in one worker of a job, from the job's last checkpoint if it has one."""
    import ray.train

    if (found := ray.train.get_checkpoint()) is not None:
        with found.as_directory() as folder:
            trainer.resume(Path(folder))
        if trainer.share.rank == 0:
            report_progress(config, {"resumed_at_epoch": len(trainer.epochs) + 1})
    while len(trainer.epochs) < trainer.params.epochs:
        record = trainer.run_epoch()
        if trainer.share.rank != 0:
            ray.train.report(record)
            continue
        with tempfile.TemporaryDirectory() as folder:
            trainer.save(Path(folder))
            ray.train.report(record, checkpoint=ray.train.Checkpoint.from_directory(folder))
        report_progress(config, record)


def best_of(result: Result, storage: Path) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Return the weights of a job's best epoch, and the record of each.

    Raises:
        ValueError: the job has no checkpoint.
    """
    if result.checkpoint is None:
        raise ValueError(f"{storage}: the job ended without a checkpoint; remove the folder and run again")
    with result.checkpoint.as_directory() as folder:
        epochs: list[dict[str, Any]] = checkpoint.read_progress(Path(folder))["epochs"]
        return load_file(Path(folder) / checkpoint.BEST_FILE), epochs


def resumed_line(record: Mapping[str, Any]) -> str:
    """Return a line about the epoch from which a job resumed."""
    return f"pretrain: resumed at epoch {record['resumed_at_epoch']} from the last checkpoint"


def all_sum(values: list[float], workers: int) -> list[float]:
    """Sum figures over all workers."""
    if workers == 1:
        return values
    summed = torch.tensor(values, dtype=torch.float64)
    torch.distributed.all_reduce(summed)
    return [float(value) for value in summed]
