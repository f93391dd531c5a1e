"""Train in epochs, in one process or as a Ray Train job, and resume from any epoch."""

from __future__ import annotations

import copy
import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torch.distributed
from safetensors.torch import load_file
from torch import Tensor, nn

from models.training import checkpoint
from models.training.ray_job import report_progress

if TYPE_CHECKING:
    from ray.train import Result


SPEED: Final = "targets_per_s"  # name in an epoch's record; the figure is for one core


class Trainer(ABC):
    """A worker's share of a training; alone it needs no Ray, and a resumed one ends with the same bits."""

    judged_by: str
    """Name of the figure in an epoch's record by which the best epoch is the lowest."""
    slower: str
    """Name of the parameter to lower if training diverges."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        epochs: int,
        seed: int,
        rank: int = 0,
        workers: int = 1,
    ) -> None:
        """Keep the parts of the training.

        Args:
            model: network, trained in place.
            optimizer: optimizer of its parameters.
            epochs: number of epochs in all.
            seed: seed of dropout.
            rank: this worker's number.
            workers: number of workers that share each step.
        """
        self.model, self.optimizer, self.last_epoch = model, optimizer, epochs
        self.seed, self.rank, self.workers = seed, rank, workers
        self.best = copy.deepcopy(model.state_dict())
        self.step = 0
        self.epochs: list[dict[str, Any]] = []

    @abstractmethod
    def learn(self, number: int) -> dict[str, Any]:
        """Train one epoch and validate; return its figures, among them `loss` and `judged_by`."""

    def run_epoch(self) -> dict[str, Any]:
        """Train one epoch, remember the weights if they are the best so far, and return its record.

        Raises:
            ValueError: the loss is no longer finite.
        """
        number = len(self.epochs)
        dropout_seed = np.random.SeedSequence([self.seed, number, self.rank]).generate_state(1)
        torch.manual_seed(int(dropout_seed[0]))  # set anew for each epoch, so that a resumed one is the same
        record = {"epoch": number + 1, **self.learn(number)}
        error = record[self.judged_by]
        if not math.isfinite(record["loss"] + error):
            raise ValueError(
                f"training diverged in epoch {number + 1} (loss {record['loss']}); lower {self.slower}"
            )
        if all(error < earlier[self.judged_by] for earlier in self.epochs):
            self.best = copy.deepcopy(self.model.state_dict())
        self.epochs.append(record)
        return record

    def run(self, say: Callable[[dict[str, Any]], None]) -> None:
        """Train in this process to the last epoch; leave the model with the best epoch's weights.

        Raises:
            ValueError: the loss is no longer finite.
        """
        while len(self.epochs) < self.last_epoch:
            say(self.run_epoch())
        self.model.load_state_dict(self.best)
        self.model.eval()

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        progress = {"step": self.step, "epochs": self.epochs}
        checkpoint.save_checkpoint(folder, self.model, self.optimizer, self.best, progress)

    def resume(self, folder: Path) -> None:
        """Continue after the last epoch of a checkpoint."""
        self.best, progress = checkpoint.load_checkpoint(folder, self.model, self.optimizer)
        self.step, self.epochs = progress["step"], progress["epochs"]


def run_in_job(config: Mapping[str, Any], trainer: Trainer) -> None:
    """Train to the last epoch in one worker of a job, from the job's last checkpoint if it has one."""
    import ray.train

    if (found := ray.train.get_checkpoint()) is not None:
        with found.as_directory() as folder:
            trainer.resume(Path(folder))
        if trainer.rank == 0:
            report_progress(config, {"resumed_at_epoch": len(trainer.epochs) + 1})
    while len(trainer.epochs) < trainer.last_epoch:
        record = trainer.run_epoch()
        if trainer.rank != 0:
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
