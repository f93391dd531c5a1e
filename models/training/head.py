"""Tune a head, the two last linear layers, on outputs of the frozen encoder that were computed once.

In eval mode the encoder's output for a decision is the same in every epoch, so training on cached outputs
equals training through the encoder, an order of magnitude sooner.

Shapes: N decisions, H horizon (8 packets).
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from common.section import Above0, Count, Section
from models.networks.prediction import HeadedNetwork, HeadInputs
from models.sharp import Change, sharp_changes
from models.training.loss import example_weights, weighted_error

ADAM_BETAS = (0.9, 0.98)  # as in pre-training
ADAM_EPSILON = 1e-9


class FinetuneParams(Section):
    """Parameters of fine-tuning the head before each test slice, and in live rounds."""

    section: ClassVar = "finetune"
    seed: Annotated[int, Field(ge=0)]
    """Seed of the order of the decisions."""
    workers: Count
    """Number of Ray Train workers, one core each; they share the traces."""
    epochs: Count
    """Number of passes over the slice."""
    batch_size: Count
    """Number of decisions in a step."""
    learning_rate: Above0
    """Learning rate of Adam."""
    sharp_weight: Above0
    """Weight of sharp changes in the loss (alpha)."""


M = TypeVar("M", bound=HeadedNetwork)


@dataclass(frozen=True)
class TuningReport:
    """The record of a head's training."""

    loss: tuple[float, ...]  # loss before the first epoch, then of each epoch
    decisions: int
    seconds: float


def train_head(
    model: M, encoded: HeadInputs, came_BH: NDArray[np.float32], change: Change, how: FinetuneParams
) -> tuple[M, TuningReport | None]:
    """Return a copy with a trained head; the model itself, and None, if no latency is known.

    The encoder of the copy is the model's, bit for bit.

    Args:
        model: network whose encoder encoded the decisions.
        encoded: decisions in time order.
        came_BH: latencies in µs; NaN where unknown.
        change: least change of latency that the loss weights.
        how: epochs, batch size and rate.

    Raises:
        ValueError: the loss is no longer finite.
    """
    if not np.isfinite(came_BH).any():
        return model, None
    return train_head_on(model, encoded, came_BH, sharp_changes(came_BH, change), how)


def train_head_on(
    model: M,
    encoded: HeadInputs,
    y_us_NH: NDArray[np.float32],
    sharp_NH: NDArray[np.bool_],
    how: FinetuneParams,
) -> tuple[M, TuningReport]:
    """Train a copy's head as `train_head` does, given which changes are sharp."""
    started = time.monotonic()
    tuned = copy.deepcopy(model)
    # The head gives the anchor's correction; (head + anchor) - target is head - (target - anchor).
    missing_NH = torch.from_numpy(model.target.apply(y_us_NH)) - encoded.anchor_BH
    weight_NH = torch.from_numpy(example_weights(y_us_NH, sharp_NH, how.sharp_weight))
    optimizer = torch.optim.Adam(
        tuned.head.parameters(), lr=how.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON
    )
    known_all = max(1, int((weight_NH > 0).sum()))
    with torch.no_grad():
        before = weighted_error(tuned.head(encoded.read_BRD), missing_NH, weight_NH, model.quantiles)
    losses = [float(before) / known_all]
    for epoch in range(how.epochs):
        total = torch.zeros(())
        order_N = np.random.default_rng([how.seed, epoch]).permutation(len(y_us_NH))
        for first in range(0, len(order_N), how.batch_size):
            batch_N = order_N[first : first + how.batch_size]
            known = max(1, int((weight_NH[batch_N] > 0).sum()))
            optimizer.zero_grad(set_to_none=True)
            error = weighted_error(
                tuned.head(encoded.read_BRD[batch_N]),
                missing_NH[batch_N],
                weight_NH[batch_N],
                model.quantiles,
            )
            (error / known).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += error.detach()
        losses.append(float(total) / known_all)
    if not np.isfinite(losses).all():
        raise ValueError(f"fine-tuning diverged (loss {losses[-1]}); lower finetune.learning_rate")
    tuned.eval()
    return tuned, TuningReport(tuple(losses), len(y_us_NH), time.monotonic() - started)
