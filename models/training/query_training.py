"""Train networks that answer queries on the caller's batches: a cosine schedule, the best epoch's weights.

Weights depend only on data, seed and the number of workers.

Shapes: Q decisions of a batch, H horizon (8 packets).
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
from abc import ABC
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import Tensor, nn

from swiftqueue.models.networks.parameters import QueryNetworkParams
from swiftqueue.models.networks.prediction import HeadedNetwork, HeadInputs, latencies, quantiles
from swiftqueue.models.networks.query_network import QueryNetwork
from swiftqueue.models.networks.scaling import MIN_LATENCY_US
from swiftqueue.models.training import checkpoint
from swiftqueue.models.training.epochs import ALONE, SPEED, WorkerShare, all_sum
from swiftqueue.models.training.head import ADAM_BETAS
from swiftqueue.models.training.loss import weighted_error
from swiftqueue.models.training.ray_job import report_progress

LEAST_RATE: Final = 0.02  # share of the learning rate at the cosine's end
MOST_GRADIENT: Final = 1.0  # largest norm, so that one batch in a congestion episode cannot undo the epoch
WARM_UP_STEPS: Final = 60
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Batch:
    """A worker's part of a step: the network's inputs and its targets."""

    inputs: tuple[Tensor, ...]  # inputs of `scaled`; empty if the step has nothing for this worker
    target_QH: Tensor  # scaled target space; NaN: unknown
    weight_QH: Tensor  # 0 where unknown
    known: int  # targets of the step, over all workers


class QueryTrainer:
    """A worker's share of a training; alone it needs no Ray, and a resumed one ends with the same bits."""

    def __init__(
        self,
        model: QueryNetwork,
        batches: Callable[[int], Iterable[Batch]],
        steps: int,
        validate: Callable[[], float],
        params: QueryNetworkParams,
        seed: int,
        share: WorkerShare = ALONE,
    ) -> None:
        """Keep the parts of the training.

        Args:
            model: network, trained in place.
            batches: yields the batches of epoch 0, 1, …, as many for each worker.
            steps: approximate number of batches in an epoch, for the schedule.
            validate: returns the error on held-out decisions, as `held_out_error`.
            params: parameters of the training.
            seed: seed of dropout.
            share: this worker among all.
        """
        matrices = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": params.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=params.learning_rate,
            betas=ADAM_BETAS,
            fused=True,
        )
        self.model, self.batches, self.steps, self.validate = model, batches, steps, validate
        self.params, self.seed, self.share = params, seed, share
        self.judged_by = "validation_log_pinball" if model.quantiles else "validation_log_mse"
        self.best = copy.deepcopy(model.state_dict())
        self.step = 0
        self.epochs: list[dict[str, Any]] = []

    def run_epoch(self) -> dict[str, Any]:
        """Train one epoch, remember the weights if they are the best so far, and return its record.

        Raises:
            ValueError: the loss is no longer finite.
        """
        number = len(self.epochs)
        dropout_seed = np.random.SeedSequence([self.seed, number, self.share.rank]).generate_state(1)
        torch.manual_seed(int(dropout_seed[0]))  # set anew for each epoch, so that a resumed one is the same
        record = {"epoch": number + 1, **self._learn(number)}
        error = record[self.judged_by]
        if not math.isfinite(record["loss"] + error):
            line = f"training diverged in epoch {number + 1} (loss {record['loss']}); lower learning_rate"
            raise ValueError(line)
        if all(error < earlier[self.judged_by] for earlier in self.epochs):
            self.best = copy.deepcopy(self.model.state_dict())
        self.epochs.append(record)
        return record

    def run(self, say: Callable[[dict[str, Any]], None]) -> None:
        """Train in this process to the last epoch; leave the model with the best epoch's weights.

        Raises:
            ValueError: the loss is no longer finite.
        """
        while len(self.epochs) < self.params.epochs:
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

    def _learn(self, number: int) -> dict[str, Any]:
        """Train one epoch and validate; return its figures, among them `loss` and `judged_by`."""
        total = self.steps * self.params.epochs
        started, error_sum, known_sum = time.process_time(), 0.0, 0
        self.model.train()
        for batch in self.batches(number):
            if not batch.known:
                continue
            for group in self.optimizer.param_groups:
                group["lr"] = self.params.learning_rate * rate_share(self.step, total)
            error_sum += self._step(batch)
            self.step, known_sum = self.step + 1, known_sum + int((batch.weight_QH > 0).sum())
        seconds = time.process_time() - started
        speed = known_sum / max(seconds, 1e-9)
        error_sum, known = all_sum([error_sum, known_sum], self.share.workers)
        return {
            "loss": error_sum / max(1.0, known),
            self.judged_by: self.validate(),
            SPEED: speed,
        }

    def _step(self, batch: Batch) -> float:
        """Train on a step; return this worker's error."""
        scaled: Callable[..., Tensor] = self.model.scaled  # type: ignore[assignment]
        self.optimizer.zero_grad(set_to_none=True)
        error_sum = 0.0
        if batch.inputs:
            said = scaled(*batch.inputs)
            error = weighted_error(said, batch.target_QH, batch.weight_QH, self.model.quantiles)
            (error / batch.known).backward()  # type: ignore[no-untyped-call]
            error_sum = float(error.detach())
        if self.share.workers > 1:
            _sum_gradients(self.model)
        nn.utils.clip_grad_norm_(self.model.parameters(), MOST_GRADIENT)
        self.optimizer.step()
        return error_sum


class Course(ABC):
    """An untrained network, and its trainer with a worker's share of the data."""

    model: QueryNetwork
    trainer: QueryTrainer


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


def _sum_gradients(model: nn.Module) -> None:
    """Sum the workers' gradients; a worker without a part of the step adds zeros."""
    parameters = list(model.parameters())
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = nn.utils.parameters_to_vector([p.grad for p in parameters if p.grad is not None])
    torch.distributed.all_reduce(flat)
    nn.utils.vector_to_parameters(flat, [p.grad for p in parameters if p.grad is not None])


def epoch_line(record: Mapping[str, Any], epochs: int) -> str:
    """Return a line about an epoch."""
    validation = next(name for name in record if name.startswith("validation"))
    return (
        f"epoch {record['epoch']}/{epochs}  loss {record['loss']:.4f}  {validation} "
        f"{record[validation]:.4f}  {record[SPEED]:,.0f} targets/s and core"
    )


def rate_share(step: int, total: int) -> float:
    """Return the share of the highest learning rate at a step: a short rise, then half a cosine."""
    rise = min(1.0, (step + 1) / WARM_UP_STEPS)
    fall = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, total))))
    return rise * (LEAST_RATE + (1 - LEAST_RATE) * fall)


def held_out_error(
    model: HeadedNetwork, shown: Iterable[tuple[HeadInputs, Floats]], workers: int = 1
) -> float:
    """Return the error of log-latency on held-out decisions: the pinball error by level, or the squared one.

    Args:
        model: network whose encoder encoded the decisions.
        shown: decisions and latencies in µs (NaN: left out); each worker has its own.
        workers: number of workers with such decisions.

    Raises:
        ValueError: no latency is known.
    """
    error, count = 0.0, 0.0
    for encoded, came_BH in shown:
        logs_BH = torch.from_numpy(np.log(np.maximum(came_BH, MIN_LATENCY_US)))
        said = torch.from_numpy(quantiles(model, encoded) if model.quantiles else latencies(model, encoded))
        known_BH = torch.isfinite(logs_BH).double()
        logs = said.clamp(min=MIN_LATENCY_US).log().double()
        error += float(weighted_error(logs, logs_BH.double(), known_BH, model.quantiles))
        count += int(known_BH.sum())
    error, count = all_sum([error, count], workers)
    if not count:
        raise ValueError("no held-out packet of the training slice has a known latency")
    return error / count
