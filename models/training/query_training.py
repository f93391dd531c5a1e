"""Training of networks that answer queries: the caller's batches, a cosine schedule, the best epoch.

Weights depend on data and seed only.

Shapes: Q decisions of a batch, H horizon (8 packets).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from models.architecture import QueryFit
from models.networks.prediction import Encoded
from models.networks.query_predictor import QueryPredictor
from models.networks.scaling import MIN_LATENCY_US
from models.section import Above0, Count
from models.training.finetuning import FinetuneParams, M, with_trained_head
from models.training.loss import weighted_squared_error
from models.training.pretraining import ADAM_BETAS
from models.training.sharp import sharp_changes
from models.training.windows import Floats

LEAST_RATE: Final = 0.02  # of the learning rate: where the cosine ends
MOST_GRADIENT: Final = 1.0  # norm: one batch within a congestion episode must not undo the epoch
WARM_UP_STEPS: Final = 60


class QueryTraining(QueryFit):
    """How a network over queries is trained, and its head tuned."""

    head_epochs: Count
    """Passes over a fine-tuning slice."""
    head_batch_size: Count
    """Decisions of a step of fine-tuning."""
    head_learning_rate: Above0
    """Of Adam, of the head alone."""


@dataclass(frozen=True)
class Batch:
    """What the network is given, and what it should say."""

    inputs: tuple[Tensor, ...]  # of `scaled`
    target_QH: Tensor  # in scaled target space; NaN: unknown
    weight_QH: Tensor  # 0 where unknown


def train(
    model: QueryPredictor,
    batches: Callable[[int], Iterable[Batch]],
    steps: int,
    validate: Callable[[], float],
    params: QueryFit,
    say: Callable[[str], None],
) -> list[dict[str, float]]:
    """Train a network; it ends with the weights of the epoch whose validation error was least.

    Args:
        model: trained in place.
        batches: those of an epoch, by its number from 0.
        steps: batches of an epoch, or about so many: for the schedule.
        validate: mean squared error of log-latency on what is held out.
        params: how.
        say: told of each epoch in a line.

    Returns:
        A record of each epoch.

    Raises:
        ValueError: the loss is no longer finite.
    """
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": params.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=params.learning_rate,
        betas=ADAM_BETAS,
    )
    scaled: Callable[..., Tensor] = model.scaled  # type: ignore[assignment]
    records: list[dict[str, float]] = []
    best, step, total = copy.deepcopy(model.state_dict()), 0, steps * params.epochs
    for epoch in range(params.epochs):
        started, squared_sum, known_sum = time.process_time(), 0.0, 0
        model.train()
        for batch in batches(epoch):
            known = int((batch.weight_QH > 0).sum())
            if not known:
                continue
            for group in optimizer.param_groups:
                group["lr"] = params.learning_rate * rate_share(step, total)
            squared = weighted_squared_error(scaled(*batch.inputs), batch.target_QH, batch.weight_QH)
            optimizer.zero_grad(set_to_none=True)
            (squared / known).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), MOST_GRADIENT)
            optimizer.step()
            step, known_sum = step + 1, known_sum + known
            squared_sum += float(squared.detach())
        seconds = time.process_time() - started
        record = {
            "loss": squared_sum / max(1, known_sum),
            "validation_log_mse": validate(),
            "targets_per_s": known_sum / max(seconds, 1e-9),
        }
        if not math.isfinite(record["loss"] + record["validation_log_mse"]):
            raise ValueError(f"training diverged in epoch {epoch + 1}; lower learning_rate")
        if all(record["validation_log_mse"] < earlier["validation_log_mse"] for earlier in records):
            best = copy.deepcopy(model.state_dict())
        records.append(record)
        say(
            f"epoch {epoch + 1}/{params.epochs}  loss {record['loss']:.4f}  validation log-MSE "
            f"{record['validation_log_mse']:.4f}  {record['targets_per_s']:,.0f} targets/s"
        )
    model.load_state_dict(best)
    model.eval()
    return records


def rate_share(step: int, total: int) -> float:
    """Share of the highest learning rate at a step: a short rise, then half a cosine."""
    rise = min(1.0, (step + 1) / WARM_UP_STEPS)
    fall = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, total))))
    return rise * (LEAST_RATE + (1 - LEAST_RATE) * fall)


def log_mse(pairs: Iterable[tuple[Floats, Floats]]) -> float:
    """Mean squared error of log-latency of predictions beside what came, in µs; unknown ones left out.

    Raises:
        ValueError: nothing is known.
    """
    squared, count = 0.0, 0
    for predicted_us, came_us in pairs:
        known = np.isfinite(came_us)
        logs = [
            np.log(np.maximum(each[known], MIN_LATENCY_US), dtype=np.float64)
            for each in (predicted_us, came_us)
        ]
        squared, count = squared + float(np.square(logs[0] - logs[1]).sum()), count + int(known.sum())
    if not count:
        raise ValueError("no latency is known in what is held out of the training slice")
    return squared / count


def head_tuned(model: M, encoded: Encoded, came_BH: Floats, params: QueryTraining) -> M:
    """A copy whose head is trained on encoded decisions; the model itself where no latency is known."""
    if not np.isfinite(came_BH).any():
        return model
    how = FinetuneParams(
        seed=1,
        workers=1,
        epochs=params.head_epochs,
        batch_size=params.head_batch_size,
        learning_rate=params.head_learning_rate,
        sharp_weight=params.sharp_weight,
    )
    return with_trained_head(model, encoded, came_BH, sharp_changes(came_BH), how)[0]
