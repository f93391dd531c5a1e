"""Fine-tuning of the head: the two last linear layers, on outputs of the frozen encoder computed once.

In eval mode the encoder gives a window the same output in every epoch, so computing it once and training on
the cached outputs gives what training through the encoder would, an order of magnitude sooner.

Shapes: N examples, B batch, D model width, H horizon (8 packets).
"""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models import artifact
from models.artifact import Artifact
from models.examples import Examples, epoch_batches, finetuning_examples, owned
from models.loss import example_weights, weighted_squared_error
from models.predictor import Predictor
from models.ray_job import report_progress, run_job
from models.training import ADAM_BETAS, ADAM_EPSILON, all_sum, check_positive, check_whole
from models.windows_data import Floats, Ints, TraceWindows, fingerprint, load_windows

ENCODE_BATCH: Final = 256  # windows; larger ones fall out of the cache
CODE: Final = ("predictor.py", "finetuning.py", "examples.py", "loss.py", "artifact.py")


@dataclass(frozen=True)
class FinetuneParams:
    """Section `finetune` of params.yaml."""

    seed: int
    workers: int
    epochs: int
    batch_size: int  # over all workers
    learning_rate: float
    sharp_weight: float

    def __post_init__(self) -> None:
        names = ("workers", "epochs", "batch_size", "learning_rate", "sharp_weight")
        check_positive("finetune", self, names)
        check_whole("finetune", self, ("seed", "workers", "epochs", "batch_size"))


@dataclass(frozen=True)
class Finetuned:
    """A model with a new head, and what the round was like."""

    model: Predictor
    loss: tuple[float, ...]  # before the first epoch, then of each epoch
    encode_s: float  # 0 where the caller encoded
    train_s: float


def encode_examples(model: Predictor, examples: Examples, indices_N: Ints) -> tuple[Tensor, Tensor]:
    """Encode some examples, in eval mode: dropout would spoil the cache.

    Returns:
        The encoder's outputs (N, R, D) and the anchors (N, H) that the head's output is added to.
    """
    model.eval()
    features, anchors = [], []
    with torch.no_grad():
        for start in range(0, len(indices_N), ENCODE_BATCH):
            x_BWF = torch.from_numpy(examples.gather(indices_N[start : start + ENCODE_BATCH]))
            features.append(model.encode(x_BWF))
            anchors.append(model.anchor(x_BWF))
    return torch.cat(features), torch.cat(anchors)


@dataclass(frozen=True)
class Encoded:
    """Examples as the head sees them: features and anchors of those a worker owns, labels of all."""

    features_NRD: Tensor
    anchor_NH: Tensor  # in scaled target space
    y_us_NH: Floats  # NaN: not known
    sharp_NH: NDArray[np.bool_]


def finetune_head(
    model: Predictor,
    examples: Examples,
    params: FinetuneParams,
    *,
    prepare: Callable[[nn.Module], nn.Module] = lambda head: head,
    rank: int = 0,
    workers: int = 1,
) -> Finetuned:
    """Encode the examples that this worker owns, then fine-tune a copy of the model's head on them.

    Raises:
        ValueError: the loss is no longer finite.
    """
    started = time.monotonic()
    own_N = owned(np.arange(len(examples)), rank, workers)
    features_NRD, anchor_NH = encode_examples(model, examples, own_N)
    encoded = Encoded(features_NRD, anchor_NH, examples.y_us_NH, examples.sharp_NH)
    encode_s = time.monotonic() - started
    tuned = train_head(model, encoded, params, prepare=prepare, rank=rank, workers=workers)
    return replace(tuned, encode_s=encode_s)


def train_head(
    model: Predictor,
    encoded: Encoded,
    params: FinetuneParams,
    *,
    prepare: Callable[[nn.Module], nn.Module] = lambda head: head,
    rank: int = 0,
    workers: int = 1,
) -> Finetuned:
    """Fine-tune a copy of the model's head; the encoder of the copy is the model's, bit for bit.

    Each of `workers` callers trains on the examples it owns; `prepare` wraps the head so that gradients are
    averaged over them (Ray's `prepare_model`). The batches are the same for any number.

    Raises:
        ValueError: the loss is no longer finite.
    """
    started = time.monotonic()
    count = len(encoded.y_us_NH)
    own_N = owned(np.arange(count), rank, workers)
    tuned = copy.deepcopy(model)
    # The head is to give what the anchor lacks; (head + anchor) - target is head - (target - anchor).
    missing_NH = torch.from_numpy(model.target.apply(encoded.y_us_NH)[own_N]) - encoded.anchor_NH
    weight_NH = torch.from_numpy(example_weights(encoded.y_us_NH, encoded.sharp_NH, params.sharp_weight))
    head = prepare(tuned.head)
    optimizer = torch.optim.Adam(
        tuned.head.parameters(), lr=params.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON
    )
    known_all = int((weight_NH > 0).sum())
    with torch.no_grad():
        before = weighted_squared_error(tuned.head(encoded.features_NRD), missing_NH, weight_NH[own_N])
    losses = [all_sum([float(before) / max(1, known_all)], workers)[0]]
    for epoch in range(params.epochs):
        total = torch.zeros(())
        for batch_N in epoch_batches(count, params.batch_size, params.seed, epoch):
            known = max(1, int((weight_NH[batch_N] > 0).sum()))
            mine_N = owned(batch_N, rank, workers)
            optimizer.zero_grad(set_to_none=True)
            cached_N = mine_N // workers  # example i is the (i // workers)-th that its owner encoded
            squared = weighted_squared_error(
                head(encoded.features_NRD[cached_N]), missing_NH[cached_N], weight_NH[mine_N]
            )
            (squared * (workers / known)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += squared.detach()
        losses.append(all_sum([float(total) / max(1, known_all)], workers)[0])
    if not np.isfinite(losses).all():
        raise ValueError(f"fine-tuning diverged (loss {losses[-1]}); lower finetune.learning_rate")
    tuned.eval()
    return Finetuned(tuned, tuple(losses), encode_s=0.0, train_s=time.monotonic() - started)


def finetune(
    windows_dir: Path,
    pretrained: Path,
    params: FinetuneParams,
    state_dir: Path,
    say: Callable[[dict[str, Any]], None],
) -> Path:
    """Walk all rounds of all traces in one Ray Train job, so that its start-up is paid once.

    Returns the folder that holds NAME/round-K for all traces and rounds. Rounds that a killed run has
    finished are kept: the folder's name is a hash of windows, parameters, parent weights and code.

    Raises:
        ValueError: model and windows do not belong together, or training diverged.
    """
    windows = load_windows(windows_dir)
    artifact.load(pretrained, windows.schema_hash)  # refuse before anything is started
    storage = storage_of(windows_dir, pretrained, params, state_dir)
    rounds_dir = storage / "rounds"
    todo = {name: _first_missing(rounds_dir / name, trace) for name, trace in windows.traces.items()}
    if kept := sum(todo.values()):
        say({"kept": kept, "rounds": sum(len(trace.rounds) for trace in windows.traces.values())})
    if any(todo[name] < len(trace.rounds) for name, trace in windows.traces.items()):
        config = {
            "windows_dir": str(windows_dir.absolute()),
            "pretrained": str(pretrained.absolute()),
            "rounds_dir": str(rounds_dir.absolute()),
            "params": asdict(params),
            "todo": todo,
        }
        run_job(finetune_worker, config, workers=params.workers, storage=storage, say=say)
    return rounds_dir


def storage_of(windows_dir: Path, pretrained: Path, params: FinetuneParams, state_dir: Path) -> Path:
    """Folder of the finished rounds of exactly this work."""
    here = Path(__file__).parent
    code = [(here / name).read_text() for name in CODE]
    parent = [
        (pretrained / name).read_bytes().hex() for name in (artifact.WEIGHTS_FILE, artifact.DESCRIPTION_FILE)
    ]
    return state_dir / "ray" / f"finetune-{fingerprint(windows_dir, asdict(params), code, parent)[:16]}"


def finetune_worker(config: dict[str, Any]) -> None:
    """Walk the rounds in one Ray Train worker; rank 0 writes the artifact of each."""
    import ray.train
    from ray.train.torch import prepare_model

    torch.set_num_threads(1)  # one core per worker
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    windows = load_windows(Path(config["windows_dir"]))
    params = FinetuneParams(**config["params"])
    rounds_dir = Path(config["rounds_dir"])
    for name, first in config["todo"].items():
        trace = windows.trace(name)
        before = rounds_dir / name / f"round-{first - 1}" if first else Path(config["pretrained"])
        current = artifact.load(before, windows.schema_hash)
        for index in range(first, len(trace.rounds)):
            current, record = _run_round(trace, index, current, params, prepare_model, rank, workers)
            if rank == 0:
                artifact.save(rounds_dir / name / f"round-{index}", current.model, current.description)
                report_progress(config, record)


def _run_round(
    trace: TraceWindows,
    index: int,
    current: Artifact,
    params: FinetuneParams,
    prepare: Callable[[nn.Module], nn.Module],
    rank: int,
    workers: int,
) -> tuple[Artifact, dict[str, Any]]:
    """Fine-tune one round's head, starting from the previous round's."""
    record: dict[str, Any] = {"trace": trace.name, "round": index, "rounds": len(trace.rounds)}
    examples = finetuning_examples(trace, index)
    if examples is None:  # a silent minute teaches nothing: the head stays
        return current, {**record, "windows": 0}
    tuned = finetune_head(current.model, examples, params, prepare=prepare, rank=rank, workers=workers)
    record |= {
        "windows": len(examples),
        "loss_before": tuned.loss[0],
        "loss_after": tuned.loss[-1],
        "encode_s": tuned.encode_s,
        "train_s": tuned.train_s,
    }
    return Artifact(tuned.model, current.description), record


def _first_missing(folder: Path, trace: TraceWindows) -> int:
    """Index of the first round of a trace that no earlier run has finished."""
    for index in range(len(trace.rounds)):
        if not (folder / f"round-{index}").is_dir():
            return index
    return len(trace.rounds)


def publish(rounds_dir: Path, target: Path) -> None:
    """Copy the finished rounds into a folder."""
    for trace in sorted(rounds_dir.iterdir()):
        shutil.copytree(trace, target / trace.name)


def round_line(record: Mapping[str, Any]) -> str:
    """One line about a round."""
    if "kept" in record:
        return f"finetune: {record['kept']} of {record['rounds']} rounds kept from the run that was stopped"
    what = f"finetune: {record['trace']} round {record['round'] + 1}/{record['rounds']}"
    if record["windows"] == 0:
        return f"{what}  no latency known in its slice: the head is kept"
    losses = f"loss {record['loss_before']:.4f} -> {record['loss_after']:.4f}"
    times = f"encoder {record['encode_s']:.2f} s  head {record['train_s']:.2f} s"
    return f"{what}  {record['windows']} windows  {losses}  {times}"
