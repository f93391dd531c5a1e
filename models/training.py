"""Pre-training: the paper's loss and schedule, sharded over Ray Train workers, resumed from any epoch.

Batches, dropout and weights of a run depend on its parameters only, so a job that is killed and run again
ends with the very weights it would have had, bit for bit.

Shapes: B batch, N examples, W window tokens, F features, H horizon (8 packets).
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed
from safetensors.torch import load_file
from torch import Tensor, nn

from models import checkpoint
from models.artifact import Description
from models.examples import Examples, epoch_batches, owned, pretraining_split
from models.loss import example_weights, weighted_squared_error
from models.predictor import Architecture, Predictor, Readout
from models.ray_job import report_progress, run_job
from models.scaling import MIN_LATENCY_US, Feature, Target, TargetTransform, fit_features, fit_target
from models.windows_data import WindowSet, fingerprint, load_windows

ADAM_BETAS: Final = (0.9, 0.98)  # Vaswani et al. 2017, section 5.3, as the paper
ADAM_EPSILON: Final = 1e-9
FIT_WINDOWS: Final = 4096  # evenly spaced windows that the scaling is fitted on; more change no digit
VALIDATION_BATCH: Final = 512
CODE: Final = ("predictor.py", "training.py", "examples.py", "loss.py", "checkpoint.py")


@dataclass(frozen=True)
class PretrainParams:
    """Section `pretrain` of params.yaml."""

    seed: int
    workers: int
    epochs: int
    batch_size: int  # over all workers
    warmup_steps: int
    noam_factor: float
    weight_decay: float
    sharp_weight: float
    target: TargetTransform
    readout: Readout
    anchor: str | None

    def __post_init__(self) -> None:
        check_positive(
            "pretrain",
            self,
            ("workers", "epochs", "batch_size", "warmup_steps", "noam_factor", "sharp_weight"),
        )
        check_whole("pretrain", self, ("epochs", "workers", "batch_size", "warmup_steps", "seed"))
        if not (isinstance(self.weight_decay, int | float) and self.weight_decay >= 0):
            raise ValueError(f"pretrain.weight_decay is {self.weight_decay!r}; it must not be negative")
        Architecture(readout=self.readout)  # refuses an unknown one, by name


@dataclass(frozen=True)
class Pretrained:
    """What pre-training gives: the model of the best epoch and the record of every epoch."""

    model: Predictor
    description: Description
    epochs: list[dict[str, Any]]


def check_positive(section: str, params: Any, names: tuple[str, ...]) -> None:
    """Raise a ValueError that names the first parameter that is not a number above zero."""
    for name in names:
        value = getattr(params, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{section}.{name} is {value!r}; it must be a number above zero")


def check_whole(section: str, params: Any, names: tuple[str, ...]) -> None:
    """Raise a ValueError that names the first parameter that is not a whole number from 0 on."""
    for name in names:
        value = getattr(params, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{section}.{name} is {value!r}; it must be a whole number from 0 on")


def noam_rate(step: int, width: int, warmup_steps: int, factor: float) -> float:
    """Learning rate of step 1, 2, … (Vaswani et al. 2017, equation 3)."""
    return float(factor * width**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))


def pretrain(
    windows_dir: Path, params: PretrainParams, state_dir: Path, say: Callable[[dict[str, Any]], None]
) -> Pretrained:
    """Train the whole predictor on the pre-training slices of all traces, as a Ray Train job.

    The job's checkpoints lie under `state_dir`, in a folder named after a hash of windows, parameters and
    code: only the same work is ever resumed. The caller removes it with `forget` once the result is saved.

    Raises:
        ValueError: the windows cannot be trained on, or training diverged.
    """
    windows = load_windows(windows_dir)
    if params.anchor is not None and params.anchor not in windows.feature_names:
        raise ValueError(f"pretrain.anchor is {params.anchor!r}; it must name an input or be null")
    train, _ = pretraining_split(windows)
    features, target = fit_scaling(windows, train, params.target)
    config = {
        "windows_dir": str(windows_dir.absolute()),
        "params": asdict(params),
        "features": [asdict(feature) for feature in features],
        "target": asdict(target),
        "horizon": windows.horizon,
    }
    storage = storage_of(windows_dir, params, state_dir)
    result = run_job(pretrain_worker, config, workers=params.workers, storage=storage, say=say)
    if result.checkpoint is None:
        raise ValueError(f"{storage}: the job ended without a checkpoint; remove the folder and run again")
    sizes = Architecture(horizon=windows.horizon, readout=params.readout, anchor=params.anchor)
    model = Predictor(features, target, sizes)
    with result.checkpoint.as_directory() as folder:
        model.load_state_dict(load_file(Path(folder) / checkpoint.BEST_FILE))
        progress = checkpoint.read_progress(Path(folder))
    description = Description(windows.tokens, windows.schema_hash, windows.visibility, dict(windows.protocol))
    return Pretrained(model.eval(), description, progress["epochs"])


def storage_of(windows_dir: Path, params: PretrainParams, state_dir: Path) -> Path:
    """Folder of the checkpoints of exactly this work."""
    here = Path(__file__).parent
    code = [(here / name).read_text() for name in CODE]
    return state_dir / "ray" / f"pretrain-{fingerprint(windows_dir, asdict(params), code)[:16]}"


def fit_scaling(
    windows: WindowSet, train: Examples, transform: TargetTransform
) -> tuple[tuple[Feature, ...], Target]:
    """Fit inputs and target on the training part of the pre-training slices, and on nothing later."""
    chosen_N = np.unique(np.linspace(0, len(train) - 1, min(FIT_WINDOWS, len(train))).astype(np.int64))
    features = fit_features(train.gather(chosen_N), windows.feature_names, windows.feature_units)
    return features, fit_target(train.y_us_NH, transform)


def pretrain_worker(config: dict[str, Any]) -> None:
    """Train in one Ray Train worker: it reads its own windows, gradients are averaged over all."""
    import ray.train
    from ray.train.torch import prepare_model

    torch.set_num_threads(1)  # one core per worker; a model this small only loses by more
    context = ray.train.get_context()
    params = PretrainParams(**config["params"])
    target = Target(**config["target"])
    windows = load_windows(Path(config["windows_dir"]))
    train, validation = pretraining_split(windows)
    torch.manual_seed(params.seed)
    model = Predictor(
        [Feature(**feature) for feature in config["features"]],
        target,
        Architecture(horizon=config["horizon"], readout=params.readout, anchor=params.anchor),
    )
    trainer = Pretrainer(
        model,
        prepare_model(ScaledPrediction(model)),
        train,
        validation,
        params,
        rank=context.get_world_rank(),
        workers=context.get_world_size(),
    )
    if (found := ray.train.get_checkpoint()) is not None:
        with found.as_directory() as folder:
            trainer.resume(Path(folder))
        if trainer.rank == 0:
            report_progress(config, {"resumed_at_epoch": len(trainer.epochs) + 1})
    while len(trainer.epochs) < params.epochs:
        record = trainer.run_epoch()
        if trainer.rank != 0:
            ray.train.report(record)
            continue
        with tempfile.TemporaryDirectory() as folder:
            trainer.save(Path(folder))
            ray.train.report(record, checkpoint=ray.train.Checkpoint.from_directory(folder))
        report_progress(config, record)


class ScaledPrediction(nn.Module):
    """The predictor up to scaled target space: one module for the averaging of gradients to wrap."""

    def __init__(self, model: Predictor) -> None:
        super().__init__()
        self.model = model

    def forward(self, x_BWF: Tensor) -> Tensor:
        """Latencies (B, H) in scaled target space."""
        return self.model.scaled(x_BWF)


class Pretrainer:
    """One worker's share of pre-training; with one worker it needs no Ray at all."""

    def __init__(
        self,
        model: Predictor,
        forward: nn.Module,
        train: Examples,
        validation: Examples,
        params: PretrainParams,
        rank: int = 0,
        workers: int = 1,
    ) -> None:
        self.model, self.forward, self.params = model, forward, params
        self.train, self.validation = train, validation
        self.rank, self.workers = rank, workers
        self.optimizer = torch.optim.Adam(
            model.parameters(), betas=ADAM_BETAS, eps=ADAM_EPSILON, weight_decay=params.weight_decay
        )
        self.target_NH = model.target.apply(train.y_us_NH)
        self.weight_NH = example_weights(train.y_us_NH, train.sharp_NH, params.sharp_weight)
        self.best = copy.deepcopy(model.state_dict())
        self.step = 0
        self.epochs: list[dict[str, Any]] = []

    def resume(self, folder: Path) -> None:
        """Continue after the last epoch of a checkpoint."""
        self.best, progress = checkpoint.load_checkpoint(folder, self.model, self.optimizer)
        self.step, self.epochs = progress["step"], progress["epochs"]

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        progress = {"step": self.step, "epochs": self.epochs}
        checkpoint.save_checkpoint(folder, self.model, self.optimizer, self.best, progress)

    def run_epoch(self) -> dict[str, Any]:
        """Train one epoch, validate, remember the weights if they are the best so far.

        Raises:
            ValueError: the loss is no longer finite.
        """
        started, epoch, params = time.monotonic(), len(self.epochs) + 1, self.params
        dropout_seed = np.random.SeedSequence([params.seed, epoch, self.rank]).generate_state(1)
        torch.manual_seed(int(dropout_seed[0]))  # each epoch anew, so that a resumed one is the same
        self.forward.train()
        loss_sum = trained_on = 0.0
        for batch_N in epoch_batches(len(self.train), params.batch_size, params.seed, epoch):
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
        record: dict[str, Any] = {
            "epoch": epoch,
            "epochs": params.epochs,
            "loss": loss_sum / steps,
            **self.validate(),
            "learning_rate": rate,
            "windows": int(trained_on),
            "seconds": round(time.monotonic() - started, 2),
        }
        if not math.isfinite(record["loss"] + record["validation_log_mse"]):
            raise ValueError(
                f"pre-training diverged in epoch {epoch} (loss {record['loss']}); lower pretrain.noam_factor"
            )
        if all(record["validation_log_mse"] < earlier["validation_log_mse"] for earlier in self.epochs):
            self.best = copy.deepcopy(self.model.state_dict())
        self.epochs.append(record)
        return record

    def validate(self) -> dict[str, float]:
        """Mean squared error of log-latency and mean absolute error on the validation part.

        Checkpoints are chosen by the former: a few 1-second latencies would rule a raw error.
        """
        self.forward.eval()
        log_squared = absolute_us = count = 0.0
        own_N = owned(np.arange(len(self.validation)), self.rank, self.workers)
        for start in range(0, len(own_N), VALIDATION_BATCH):
            batch_N = own_N[start : start + VALIDATION_BATCH]
            with torch.inference_mode():
                predicted_us = self.model(torch.from_numpy(self.validation.gather(batch_N))).numpy()
            truth_us = self.validation.y_us_NH[batch_N]
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


def all_sum(values: list[float], workers: int) -> list[float]:
    """Sum figures over all workers."""
    if workers == 1:
        return values
    summed = torch.tensor(values, dtype=torch.float64)
    torch.distributed.all_reduce(summed)
    return [float(value) for value in summed]


def forget(storage: Path) -> None:
    """Remove the checkpoints of finished work, so that running it again trains again."""
    import shutil

    shutil.rmtree(storage, ignore_errors=True)


def epoch_line(record: Mapping[str, Any]) -> str:
    """One line about an epoch, or about where the job was resumed."""
    if "resumed_at_epoch" in record:
        return f"pretrain: resumed at epoch {record['resumed_at_epoch']} from the last checkpoint"
    speed = record["windows"] / max(record["seconds"], 1e-3)
    return (
        f"pretrain: epoch {record['epoch']}/{record['epochs']}  loss {record['loss']:.4f}  "
        f"validation log-MSE {record['validation_log_mse']:.4f}  MAE {record['validation_mae_ms']:.2f} ms  "
        f"{record['seconds']:.1f} s  {speed:,.0f} windows/s"
    )
