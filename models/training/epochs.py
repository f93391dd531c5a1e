"""A training that has epochs, as a Ray Train job: each epoch leaves a checkpoint that it goes on from."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from safetensors.torch import load_file
from torch import Tensor

from models.training import checkpoint
from models.training.ray_job import report_progress

if TYPE_CHECKING:
    from ray.train import Result


class Trainer(Protocol):
    """A worker's share of a training."""

    rank: int
    epochs: list[dict[str, Any]]

    def run_epoch(self) -> dict[str, Any]:
        """Train one epoch and return its record."""

    def save(self, folder: Path, /) -> None:
        """Write a checkpoint."""

    def resume(self, folder: Path, /) -> None:
        """Continue after the last epoch of a checkpoint."""


def run_epochs(config: Mapping[str, Any], trainer: Trainer, epochs: int) -> None:
    """Train to the last epoch in one worker of a job, from the job's last checkpoint on if it has one."""
    import ray.train

    if (found := ray.train.get_checkpoint()) is not None:
        with found.as_directory() as folder:
            trainer.resume(Path(folder))
        if trainer.rank == 0:
            report_progress(config, {"resumed_at_epoch": len(trainer.epochs) + 1})
    while len(trainer.epochs) < epochs:
        record = trainer.run_epoch()
        if trainer.rank != 0:
            ray.train.report(record)
            continue
        with tempfile.TemporaryDirectory() as folder:
            trainer.save(Path(folder))
            ray.train.report(record, checkpoint=ray.train.Checkpoint.from_directory(folder))
        report_progress(config, record)


def best_of(result: Result, storage: Path) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The weights of a job's best epoch, and the record of each.

    Raises:
        ValueError: the job has no checkpoint.
    """
    if result.checkpoint is None:
        raise ValueError(f"{storage}: the job ended without a checkpoint; remove the folder and run again")
    with result.checkpoint.as_directory() as folder:
        epochs: list[dict[str, Any]] = checkpoint.read_progress(Path(folder))["epochs"]
        return load_file(Path(folder) / checkpoint.BEST_FILE), epochs


def resumed_line(record: Mapping[str, Any]) -> str:
    """One line about where a job went on."""
    return f"pretrain: resumed at epoch {record['resumed_at_epoch']} from the last checkpoint"
