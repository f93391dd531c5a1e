"""Train networks over windows in one process: Noam's schedule, the best epoch's weights.

Weights depend only on the examples, the parameters and the seed.

Shapes: N examples, B batch, W window tokens, F features, H horizon (8 packets).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from swiftqueue.common.section import Above0, Count, Section
from swiftqueue.models.forecasters.traces import Floats
from swiftqueue.models.networks.prediction import HeadInputs, RawWindows, encode, predict
from swiftqueue.models.networks.scaling import MIN_LATENCY_US
from swiftqueue.models.sharp import Change, sharp_changes
from swiftqueue.models.training.loss import example_weights, weighted_squared_error
from swiftqueue.models.window.network import Transformer
from swiftqueue.models.window.windows import Windows

ADAM_BETAS: Final = (0.9, 0.98)  # Vaswani et al. 2017, section 5.3, as the paper
ADAM_EPSILON: Final = 1e-9
ENCODED_AT_ONCE: Final = 256  # windows whose encoder outputs are cached; more would not fit the cache

Ints = NDArray[np.int64]


class TrainingParams(Section):
    """Parameters of training a network over windows, and of tuning its head."""

    epochs: Count
    """Number of passes over the training slices; the best one's weights are kept."""
    batch_size: Count
    """Number of windows in a step."""
    warmup_steps: Count
    """Number of steps until the Noam schedule's highest rate; half a minute of training has fewer than the
    paper's 2000."""
    noam_factor: Above0
    """Factor applied to the Noam schedule's learning rate."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Rate of Adam's weight decay."""
    sharp_weight: Above0
    """Number of times that a sharp change counts in the loss (alpha). The paper's 10 costs accuracy here
    (docs/MODEL.md)."""


@dataclass(frozen=True)
class Examples:
    """Windows of some slices with their labels; N examples in all, slice after slice."""

    slices: Sequence[Windows]
    y_us_NH: Floats  # NaN: unknown
    sharp_NH: NDArray[np.bool_]  # whether the latency is a sharp change from its predecessor

    @classmethod
    def of(cls, slices: Sequence[tuple[Windows, Floats, Change]]) -> Examples:
        """Join slices, each with its labels in µs and its sharp changes.

        Raises:
            ValueError: no label is known.
        """
        windows, labels, _ = zip(*slices, strict=True)
        y_us_NH = np.concatenate(labels)
        if not np.isfinite(y_us_NH).any():
            raise ValueError("no latency is known in a training slice")
        sharp = [sharp_changes(y_BH, change) for _, y_BH, change in slices]
        return cls(windows, y_us_NH, np.concatenate(sharp))

    def __len__(self) -> int:
        return len(self.y_us_NH)

    def __getitem__(self, which: slice) -> Floats:
        """Return the raw windows of some consecutive examples."""
        return self.gather(np.arange(len(self))[which])

    def gather(self, which_N: Ints) -> Floats:
        """Return the raw windows (N, W, F) of some examples."""
        ends = np.cumsum([len(windows) for windows in self.slices])
        slice_N = np.searchsorted(ends, which_N, side="right")
        starts = ends - [len(windows) for windows in self.slices]
        made = [windows[which_N[slice_N == s] - starts[s]] for s, windows in enumerate(self.slices)]
        x_NWF = np.empty((len(which_N), *made[0].shape[1:]), np.float32)
        for s, some in enumerate(made):
            x_NWF[slice_N == s] = some
        return x_NWF


def encoded(model: Transformer, windows: RawWindows) -> HeadInputs:
    """Return the head's inputs for windows, and the anchor."""
    parts = list(encode(model, windows, ENCODED_AT_ONCE))
    if not parts:
        return HeadInputs(torch.zeros(0, 1, 1), torch.zeros(0, model.sizes.horizon))
    return HeadInputs(torch.cat([p.read_BRD for p in parts]), torch.cat([p.anchor_BH for p in parts]))


def train(
    model: Transformer,
    learnt: Examples,
    held_out: Examples,
    params: TrainingParams,
    seed: int,
    say: Callable[[str], None],
) -> None:
    """Train a network in place; leave it with the weights of the best epoch on held-out examples.

    Raises:
        ValueError: the loss is no longer finite.
    """
    optimizer = torch.optim.Adam(
        model.parameters(), betas=ADAM_BETAS, eps=ADAM_EPSILON, weight_decay=params.weight_decay
    )
    target_NH = torch.from_numpy(model.target.apply(learnt.y_us_NH))
    weight_NH = torch.from_numpy(example_weights(learnt.y_us_NH, learnt.sharp_NH, params.sharp_weight))
    steps = math.ceil(len(learnt) / params.batch_size)
    best, best_error = copy.deepcopy(model.state_dict()), math.inf
    for epoch in range(1, params.epochs + 1):
        started, total = time.monotonic(), 0.0
        # Dropout gets a seed for each epoch.
        torch.manual_seed(int(np.random.SeedSequence([seed, epoch - 1, 0]).generate_state(1)[0]))
        model.train()
        order = np.random.default_rng([seed, epoch]).permutation(len(learnt))
        for number, start in enumerate(range(0, len(learnt), params.batch_size)):
            batch_N = order[start : start + params.batch_size]
            rate = noam_rate((epoch - 1) * steps + number + 1, model.sizes.width, params)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
            scaled_NH = model.scaled(torch.from_numpy(learnt.gather(batch_N)))
            squared = weighted_squared_error(scaled_NH, target_NH[batch_N], weight_NH[batch_N])
            known = max(1, int((weight_NH[batch_N] > 0).sum()))
            (squared * (1 / known)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += float(squared.detach()) / known
        log_mse, mae_ms = validate(model, held_out)
        if not math.isfinite(total + log_mse):
            raise ValueError(f"training diverged in epoch {epoch} (loss {total / steps}); lower noam_factor")
        if log_mse < best_error:  # log error: a few 1-second latencies would dominate a raw one
            best, best_error = copy.deepcopy(model.state_dict()), log_mse
        seconds = time.monotonic() - started
        say(
            f"epoch {epoch}/{params.epochs}  loss {total / steps:.4f}  validation log-MSE {log_mse:.4f}  "
            f"MAE {mae_ms:.2f} ms  {seconds:.1f} s  {len(learnt) / max(seconds, 1e-3):,.0f} windows/s"
        )
    model.load_state_dict(best)
    model.eval()


def noam_rate(step: int, width: int, params: TrainingParams) -> float:
    """Return the learning rate of step 1, 2, … (Vaswani et al. 2017, equation 3)."""
    return float(params.noam_factor * width**-0.5 * min(step**-0.5, step * params.warmup_steps**-1.5))


def validate(model: Transformer, examples: Examples) -> tuple[float, float]:
    """Return the mean squared error of log-latency, and the mean absolute error in ms, over known ones."""
    predicted = [predict(model, windows) for windows in examples.slices if len(windows)]
    known_NH = np.isfinite(examples.y_us_NH)
    us, truth_us = np.concatenate(predicted)[known_NH].astype(np.float64), examples.y_us_NH[known_NH]
    logs = np.log(np.maximum(us, MIN_LATENCY_US)) - np.log(np.maximum(truth_us, MIN_LATENCY_US))
    return float(np.square(logs).mean()), float(np.abs(us - truth_us).mean()) / 1e3
