"""Share a training among workers, and read the outcome of its Ray Train job."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import torch.distributed
from safetensors.torch import load_file
from torch import Tensor

from swiftqueue.models.training import checkpoint

if TYPE_CHECKING:
    from ray.train import Result

SPEED: Final = "targets_per_s"  # name in an epoch's record; the figure is for one core


class WorkerShare(NamedTuple):
    """A worker's number, and the number of workers that share each step."""

    rank: int
    workers: int


ALONE: Final = WorkerShare(0, 1)


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


class TimeLeft:
    """An estimate of the time that a training still takes, from the epochs that were reported."""

    def __init__(self, epochs: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._epochs, self._clock = epochs, clock
        self._first: tuple[int, float] | None = None

    def words(self, epoch: int) -> str:
        """Return the time left after an epoch that has just ended; empty after the first one and the last."""
        now = self._clock()
        if self._first is None:
            self._first = (epoch, now)
        begun, since = self._first
        if epoch in (begun, self._epochs):
            return ""
        return f", about {(now - since) / (epoch - begun) * (self._epochs - epoch):.0f} s left"


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
