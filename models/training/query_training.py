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
from models.networks.prediction import Encoded, latencies, quantiles
from models.networks.query_predictor import QueryPredictor
from models.networks.scaling import MIN_LATENCY_US
from models.search import Between, Space
from models.section import Above0, Count
from models.sharp import PAPERS, Change, sharp_changes
from models.training.finetuning import FinetuneParams, M, with_trained_head
from models.training.loss import weighted_error
from models.training.pretraining import ADAM_BETAS
from models.training.windows import Floats

LEAST_RATE: Final = 0.02  # of the learning rate: where the cosine ends
MOST_GRADIENT: Final = 1.0  # norm: one batch within a congestion episode must not undo the epoch
WARM_UP_STEPS: Final = 60


SEARCH: Final[Space] = {  # of a network over queries
    "learning_rate": Between(5e-4, 8e-3),
    "weight_decay": Between(1e-4, 0.3),
    "dropout": (0.0, 0.05, 0.1, 0.2, 0.3),
    "head_learning_rate": Between(1e-4, 1e-2),
}


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
        validate: error on what is held out, as `held_out_error`.
        params: how.
        say: told of each epoch in a line.

    Returns:
        A record of each epoch.

    Raises:
        ValueError: the loss is no longer finite.
    """
    validation = "validation_log_pinball" if model.quantiles else "validation_log_mse"
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": params.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=params.learning_rate,
        betas=ADAM_BETAS,
        fused=True,
    )
    scaled: Callable[..., Tensor] = model.scaled  # type: ignore[assignment]
    records: list[dict[str, float]] = []
    best, step, total = copy.deepcopy(model.state_dict()), 0, steps * params.epochs
    for epoch in range(params.epochs):
        started, error_sum, known_sum = time.process_time(), 0.0, 0
        model.train()
        for batch in batches(epoch):
            known = int((batch.weight_QH > 0).sum())
            if not known:
                continue
            for group in optimizer.param_groups:
                group["lr"] = params.learning_rate * rate_share(step, total)
            error = weighted_error(scaled(*batch.inputs), batch.target_QH, batch.weight_QH, model.quantiles)
            optimizer.zero_grad(set_to_none=True)
            (error / known).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), MOST_GRADIENT)
            optimizer.step()
            step, known_sum = step + 1, known_sum + known
            error_sum += float(error.detach())
        seconds = time.process_time() - started
        record = {
            "loss": error_sum / max(1, known_sum),
            validation: validate(),
            "targets_per_s": known_sum / max(seconds, 1e-9),
        }
        if not math.isfinite(record["loss"] + record[validation]):
            raise ValueError(f"training diverged in epoch {epoch + 1}; lower learning_rate")
        if all(record[validation] < earlier[validation] for earlier in records):
            best = copy.deepcopy(model.state_dict())
        records.append(record)
        say(
            f"epoch {epoch + 1}/{params.epochs}  loss {record['loss']:.4f}  {validation} "
            f"{record[validation]:.4f}  {record['targets_per_s']:,.0f} targets/s"
        )
    model.load_state_dict(best)
    model.eval()
    return records


def rate_share(step: int, total: int) -> float:
    """Share of the highest learning rate at a step: a short rise, then half a cosine."""
    rise = min(1.0, (step + 1) / WARM_UP_STEPS)
    fall = 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, total))))
    return rise * (LEAST_RATE + (1 - LEAST_RATE) * fall)


def held_out_error(model: QueryPredictor, shown: Iterable[tuple[Encoded, Floats]]) -> float:
    """Error of log-latency on what is held out: squared, or by level; unknown latencies are left out.

    Args:
        model: the network, whose own encoder has encoded.
        shown: decisions and the latencies that came, in µs.

    Raises:
        ValueError: nothing is known.
    """
    error, count = 0.0, 0
    for encoded, came_BH in shown:
        logs_BH = torch.from_numpy(np.log(np.maximum(came_BH, MIN_LATENCY_US)))
        said = torch.from_numpy(quantiles(model, encoded) if model.quantiles else latencies(model, encoded))
        known_BH = torch.isfinite(logs_BH).double()
        logs = said.clamp(min=MIN_LATENCY_US).log().double()
        error += float(weighted_error(logs, logs_BH.double(), known_BH, model.quantiles))
        count += int(known_BH.sum())
    if not count:
        raise ValueError("no latency is known in what is held out of the training slice")
    return error / count


def head_tuned(
    model: M, encoded: Encoded, came_BH: Floats, params: QueryTraining, change: Change = PAPERS
) -> M:
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
    return with_trained_head(model, encoded, came_BH, sharp_changes(came_BH, change), how)[0]
