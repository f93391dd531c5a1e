"""Pre-training: the paper's loss and schedule, sharded over Ray Train workers, resumed from any epoch.

Batches, dropout and weights of a run depend on its parameters only, so a job that is killed and run again
ends with the very weights it would have had, bit for bit.

Shapes: B batch, N examples, W window tokens, F features, H horizon (8 packets).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Protocol

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from feature_store.events.definition import WINDOW
from models.import_closure import code_hash
from models.networks.loop_network import Data, Pretrained
from models.networks.parameters import check_heads
from models.networks.prediction import BATCH, encode, latencies
from models.networks.scaling import (
    MIN_LATENCY_US,
    ScaledFeature,
    Target,
    TargetTransform,
    fit_features,
    fit_target,
    unseen,
)
from models.networks.transformer import Architecture, Readout
from models.networks.window_network import WindowNetwork
from models.section import Above0, Count, Section, near
from models.sharp import Change
from models.training.epochs import Trainer, all_sum, best_of, resumed_line, run_in_job
from models.training.examples import Chosen, Examples, epoch_batches, owned, pretraining_split
from models.training.loss import example_weights, weighted_squared_error
from models.training.ray_job import run_job
from models.training.windows import WindowSet, fingerprint, load_windows

ADAM_BETAS: Final = (0.9, 0.98)  # Vaswani et al. 2017, section 5.3, as the paper
ADAM_EPSILON: Final = 1e-9
FIT_WINDOWS: Final = 4096  # evenly spaced windows that the scaling is fitted on; more change no digit
FEED_FORWARD: Final = 4  # times the width (Vaswani et al. 2017, table 3; the paper's 256 for 64)


class PretrainParams(Section):
    """Sizes of the predictor and how it is trained; docs/MODEL.md has where it leaves the paper."""

    section: ClassVar = "pretrain"
    layers: Annotated[int, Field(ge=1, le=16)]
    """Of the encoder."""
    width: Annotated[int, Field(ge=1, le=1024)]
    """Of each token in it; the inner layers of the feed-forward networks are four times as wide."""
    heads: Annotated[int, Field(ge=1, le=64)]
    """Of its attention; they divide the width. The engine computes 64 with 4, ONNX Runtime any."""
    seed: Annotated[int, Field(ge=0)]
    """Of weights, batches and dropout."""
    workers: Count
    """Ray Train workers, one core each."""
    epochs: Count
    """Passes over the pre-training slices; the best one's weights are kept."""
    batch_size: Count
    """Windows of a step, over all workers."""
    warmup_steps: Count
    """Of the Noam schedule; the paper's 2000 are more steps than half a minute trains."""
    noam_factor: Above0
    """Times the Noam schedule's learning rate."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Of Adam."""
    sharp_weight: Above0
    """Alpha of the loss, on sharp changes; the paper's 10 costs accuracy here (docs/MODEL.md)."""
    target: TargetTransform
    """What the loss compares: the latency, or its logarithm."""
    readout: Readout
    """Which tokens the latencies are read from: each candidate's own, or the last one (the paper's)."""
    anchor: str | None
    """A visible latency that the network corrects, by the input's name; null is the paper's form."""
    left_out: Annotated[list[str], Field(default_factory=list)]
    """Inputs that it does not see, by name (docs/WINDOWS.md)."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> PretrainParams:
        check_heads(self.section, self.width, self.heads)
        return self

    def sizes(self, horizon: int) -> Architecture:
        """Form and sizes of the network, for so many packets decided at once."""
        return Architecture(
            width=self.width,
            heads=self.heads,
            feed_forward=FEED_FORWARD * self.width,
            layers=self.layers,
            horizon=horizon,
            readout=self.readout,
            anchor=self.anchor,
        )


class OverWindows(Protocol):
    """What is asked here of a network of the loop (models/loop/window.py)."""

    @property
    def name(self) -> str:
        """What `architecture.name` takes."""

    def params(self) -> type[Section]:
        """Class of its section."""

    def make(
        self, features: Sequence[ScaledFeature], target: Target, params: PretrainParams, horizon: int, /
    ) -> WindowNetwork:
        """Make an untrained network."""


def noam_rate(step: int, width: int, warmup_steps: int, factor: float) -> float:
    """Learning rate of step 1, 2, … (Vaswani et al. 2017, equation 3)."""
    return float(factor * width**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def pretrain(
    data: Data, params: PretrainParams, network: OverWindows, say: Callable[[dict[str, Any]], None]
) -> Pretrained:
    """Train the whole predictor on the pre-training slices of all traces, as a Ray Train job.

    The job's checkpoints lie in a folder named after a hash of windows, parameters, network and code: only
    the same work is ever resumed. The caller removes it once the result is saved.

    Raises:
        ValueError: the windows cannot be trained on, or training diverged.
    """
    windows = load_windows(data.windows, data.split)
    if windows.schema_hash != WINDOW.schema_hash:
        raise ValueError(
            f"architecture.name is {network.name}, and the windows are of another definition of features; "
            "run the stages `windows` and `split` again"
        )
    if params.anchor is not None and params.anchor not in windows.feature_names:
        raise ValueError(f"{params.section}.anchor is {params.anchor!r}; it must name an input or be null")
    train, _ = pretraining_split(windows)
    features, target = fit_scaling(windows, train, params)
    config = {
        "windows_dir": str(data.windows.absolute()),
        "split": str(data.split.absolute()),
        "network": network,
        "params": params.model_dump(),
        "change": data.change.model_dump(),
        "features": [asdict(feature) for feature in features],
        "target": asdict(target),
        "horizon": windows.horizon,
    }
    work = {**params.model_dump(), "network": network.name, "change": data.change.model_dump()}
    code = code_hash(__name__, type(network).__module__)
    name = fingerprint(data.windows, data.split, work, code)[:16]
    storage = data.state / "ray" / f"pretrain-{name}"
    result = run_job(
        *(pretrain_worker, config),
        workers=params.workers,
        storage=storage,
        say=say,
        takes=("windows_dir", "split"),
    )
    best, epochs = best_of(result, storage)
    model = network.make(features, target, params, windows.horizon)
    model.load_state_dict(best)
    return Pretrained(model.eval(), epochs, storage)


def fit_scaling(
    windows: WindowSet, train: Examples, params: PretrainParams
) -> tuple[tuple[ScaledFeature, ...], Target]:
    """Fit inputs and target on the training part of the pre-training slices, and on nothing later.

    Raises:
        ValueError: an input that is to be left out is none, or there is nothing to fit on.
    """
    known = list(windows.feature_names)
    if wrong := [name for name in params.left_out if name not in known]:
        hint = near(wrong[0], known)
        raise ValueError(f"{params.section}.left_out names {wrong[0]!r}, which no window has; {hint}")
    chosen_N = np.unique(np.linspace(0, len(train) - 1, min(FIT_WINDOWS, len(train))).astype(np.int64))
    features = fit_features(train.gather(chosen_N), known, windows.feature_units)
    seen = tuple(unseen(each) if each.name in params.left_out else each for each in features)
    return seen, fit_target(train.y_us_NH, params.target)


def pretrain_worker(config: dict[str, Any]) -> None:
    """Train in one Ray Train worker: it reads its own windows, gradients are averaged over all."""
    import ray.train
    from ray.train.torch import prepare_model

    torch.set_num_threads(1)  # one core per worker; a model this small only loses by more
    context = ray.train.get_context()
    network: OverWindows = config["network"]
    params: Any = network.params()(**config["params"])
    target = Target(**config["target"])
    windows = load_windows(
        Path(config["windows_dir"]), Path(config["split"]), change=Change(**config["change"])
    )
    train, validation = pretraining_split(windows)
    torch.manual_seed(params.seed)
    features = [ScaledFeature(**feature) for feature in config["features"]]
    model = network.make(features, target, params, config["horizon"])
    trainer = Pretrainer(
        model,
        prepare_model(ScaledPrediction(model)),
        train,
        validation,
        params,
        rank=context.get_world_rank(),
        workers=context.get_world_size(),
    )
    run_in_job(config, trainer)


class ScaledPrediction(nn.Module):
    """The predictor up to scaled target space: one module for the averaging of gradients to wrap."""

    def __init__(self, model: WindowNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, x_BWF: Tensor) -> Tensor:
        """Latencies (B, H) in scaled target space."""
        return self.model.scaled(x_BWF)


class Pretrainer(Trainer):
    """Of a network over windows."""

    judged_by = "validation_log_mse"  # a few 1-second latencies would rule a raw error

    def __init__(
        self,
        model: WindowNetwork,
        forward: nn.Module,
        train: Examples,
        validation: Examples,
        params: PretrainParams,
        rank: int = 0,
        workers: int = 1,
    ) -> None:
        optimizer = torch.optim.Adam(
            model.parameters(), betas=ADAM_BETAS, eps=ADAM_EPSILON, weight_decay=params.weight_decay
        )
        super().__init__(model, optimizer, params.epochs, params.seed, rank, workers)
        self.model: WindowNetwork = model
        self.forward, self.params = forward, params
        self.train, self.validation = train, validation
        self.slower = f"{params.section}.noam_factor"
        self.target_NH = model.target.apply(train.y_us_NH)
        self.weight_NH = example_weights(train.y_us_NH, train.sharp_NH, params.sharp_weight)

    def learn(self, number: int) -> dict[str, Any]:
        """Train over all examples in random order, by Noam's schedule."""
        started, params = time.monotonic(), self.params
        self.forward.train()
        loss_sum = trained_on = 0.0
        for batch_N in epoch_batches(len(self.train), params.batch_size, params.seed, number + 1):
            self.step += 1
            rate = noam_rate(self.step, self.model.sizes.width, params.warmup_steps, params.noam_factor)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            known = max(1, int((self.weight_NH[batch_N] > 0).sum()))
            own_N = owned(batch_N, self.rank, self.workers)
            self.optimizer.zero_grad(set_to_none=True)
            squared = weighted_squared_error(
                self.forward(torch.from_numpy(self.train.gather(own_N))),
                torch.from_numpy(self.target_NH[own_N]),
                torch.from_numpy(self.weight_NH[own_N]),
            )
            # Gradients are averaged over the workers; times their number it is the sum over the batch.
            (squared * (self.workers / known)).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            loss_sum += float(squared.detach()) / known
            trained_on += len(own_N)
        steps = math.ceil(len(self.train) / params.batch_size)
        loss_sum, trained_on = all_sum([loss_sum, trained_on], self.workers)
        return {
            "epochs": params.epochs,
            "loss": loss_sum / steps,
            **self.validate(),
            "learning_rate": rate,
            "windows": int(trained_on),
            "seconds": round(time.monotonic() - started, 2),
        }

    def validate(self) -> dict[str, float]:
        """Mean squared error of log-latency and mean absolute error on the validation part."""
        self.forward.eval()
        log_squared = absolute_us = count = 0.0
        own_N = owned(np.arange(len(self.validation)), self.rank, self.workers)
        parts = encode(self.model, Chosen(self.validation, own_N))
        for number, part in enumerate(parts):
            predicted_us = latencies(self.model, part)
            truth_us = self.validation.y_us_NH[own_N[number * BATCH : (number + 1) * BATCH]]
            known = np.isfinite(truth_us)
            predicted_us, truth_us = predicted_us[known].astype(np.float64), truth_us[known]
            floor_us = MIN_LATENCY_US
            logs = np.log(np.maximum(predicted_us, floor_us)) - np.log(np.maximum(truth_us, floor_us))
            log_squared += float(np.square(logs).sum())
            absolute_us += float(np.abs(predicted_us - truth_us).sum())
            count += known.sum()
        log_squared, absolute_us, count = all_sum([log_squared, absolute_us, count], self.workers)
        return {
            "validation_log_mse": log_squared / count,
            "validation_mae_ms": absolute_us / count / 1e3,
        }


def epoch_line(record: Mapping[str, Any]) -> str:
    """One line about an epoch, or about where the job was resumed."""
    if "resumed_at_epoch" in record:
        return resumed_line(record)
    speed = record["windows"] / max(record["seconds"], 1e-3)
    return (
        f"pretrain: epoch {record['epoch']}/{record['epochs']}  loss {record['loss']:.4f}  "
        f"validation log-MSE {record['validation_log_mse']:.4f}  MAE {record['validation_mae_ms']:.2f} ms  "
        f"{record['seconds']:.1f} s  {speed:,.0f} windows/s"
    )
