"""Tune a head, the two last linear layers, on outputs of the frozen encoder that were computed once.

In eval mode the encoder's output for a decision is the same in every epoch. Training on cached outputs
therefore equals training through the encoder, but is ten times as fast.

Shapes: B decisions, H horizon (8 packets).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from swiftqueue.common.section import Above0, Count, Section
from swiftqueue.models.networks.prediction import HeadedNetwork, HeadInputs
from swiftqueue.models.sharp import Change, sharp_changes
from swiftqueue.models.training.loss import example_weights, weighted_error

ADAM_BETAS = (0.9, 0.98)  # as in pre-training
ADAM_EPSILON = 1e-9


class FinetuneParams(Section):
    """Parameters of fine-tuning the head, before each test slice and in live rounds."""

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
    """Number of times that a sharp change counts in the loss (alpha)."""


M = TypeVar("M", bound=HeadedNetwork)
T = TypeVar("T", bound="Tunable")


@dataclass(frozen=True)
class TuningReport:
    """The record of a tuning, of a head or of added trees."""

    loss: tuple[float, ...]  # loss before the first epoch, then of each epoch
    decisions: int
    seconds: float
    changed: str = "head"  # the trained part, in words


class Tunable(Protocol):
    """A forecaster whose network has a head."""

    model: Any
    tuning: TuningReport | None  # report of the last tuning of its head


def with_tuned_head(
    found: T,
    encoded: HeadInputs,
    came_BH: NDArray[np.float32],
    change: Change,
    how: FinetuneParams,
    starts: Sequence[int] = (),
) -> T:
    """Return a copy of a forecaster whose head is trained; itself if no latency is known.

    The arguments and errors are those of `train_head`.
    """
    model, tuning = train_head(found.model, encoded, came_BH, change, how, starts)
    if tuning is None:
        return found
    other = copy.copy(found)
    other.model, other.tuning = model, tuning
    return other


def train_head(
    model: M,
    encoded: HeadInputs,
    came_BH: NDArray[np.float32],
    change: Change,
    how: FinetuneParams,
    starts: Sequence[int] = (),
) -> tuple[M, TuningReport | None]:
    """Return a copy whose head is trained; the model itself and None if no latency is known.

    The encoder of the copy is the model's, bit for bit.

    Args:
        model: network whose encoder encoded the decisions.
        encoded: decisions in time order.
        came_BH: latencies in µs; NaN where unknown.
        change: least change of latency that the loss weights.
        how: epochs, batches and rate.
        starts: decisions that begin another stretch of time; no change is sharp across them.

    Raises:
        ValueError: the loss is no longer finite.
    """
    if not np.isfinite(came_BH).any():
        return model, None
    started = time.monotonic()
    stretches = np.split(came_BH, list(starts))
    sharp_BH = np.concatenate([sharp_changes(one, change) for one in stretches])
    tuned = copy.deepcopy(model)
    # The head gives what the anchor lacks: (head + anchor) - target is head - (target - anchor).
    missing_BH = torch.from_numpy(model.target.apply(came_BH)) - encoded.anchor_BH
    weight_BH = torch.from_numpy(example_weights(came_BH, sharp_BH, how.sharp_weight))
    optimizer = torch.optim.Adam(
        tuned.head.parameters(), lr=how.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON
    )
    known_all = max(1, int((weight_BH > 0).sum()))

    def error_of(batch: Any) -> torch.Tensor:
        out = tuned.head(encoded.read_BRD[batch])
        return weighted_error(out, missing_BH[batch], weight_BH[batch], model.quantiles)

    with torch.no_grad():
        losses = [float(error_of(slice(None))) / known_all]
    for epoch in range(how.epochs):
        total = torch.zeros(())
        order_B = np.random.default_rng([how.seed, epoch]).permutation(len(came_BH))
        for first in range(0, len(order_B), how.batch_size):
            batch = order_B[first : first + how.batch_size]
            known = max(1, int((weight_BH[batch] > 0).sum()))
            optimizer.zero_grad(set_to_none=True)
            error = error_of(batch)
            (error / known).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += error.detach()
        losses.append(float(total) / known_all)
    if not np.isfinite(losses).all():
        raise ValueError(f"fine-tuning diverged (loss {losses[-1]}); lower finetune.learning_rate")
    tuned.eval()
    return tuned, TuningReport(tuple(losses), len(came_BH), time.monotonic() - started)
