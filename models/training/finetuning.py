"""Fine-tuning of the head: the two last linear layers, on outputs of the frozen encoder computed once.

In eval mode the encoder gives a window the same output in every epoch, so computing it once and training on
the cached outputs gives what training through the encoder would, an order of magnitude sooner.

Shapes: N examples, B batch, D model width, H horizon (8 packets).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from models.import_closure import code_hash
from models.networks import artifact
from models.networks.artifact import Artifact
from models.networks.prediction import Encoded, Headed, encode
from models.networks.window_network import WindowNetwork
from models.section import Above0, Count, Section
from models.sharp import Change
from models.training.epochs import all_sum
from models.training.examples import Chosen, Examples, epoch_batches, finetuning_examples, owned
from models.training.loss import example_weights, weighted_error
from models.training.pretraining import ADAM_BETAS, ADAM_EPSILON
from models.training.ray_job import report_progress, run_job
from models.training.windows import Floats, Ints, TraceWindows, fingerprint, load_windows

ENCODE_BATCH: Final = 256  # windows; larger ones fall out of the cache


class FinetuneParams(Section):
    """How the head is fine-tuned before each test slice."""

    section: ClassVar = "finetune"
    seed: Annotated[int, Field(ge=0)]
    """Of the batches."""
    workers: Count
    """Ray Train workers, one core each."""
    epochs: Count
    """Passes over the slice."""
    batch_size: Count
    """Windows of a step, over all workers."""
    learning_rate: Above0
    """Of Adam."""
    sharp_weight: Above0
    """Alpha of the loss, on sharp changes."""


@dataclass(frozen=True)
class Share:
    """A worker's part of the work: the examples that it owns. Gradients are averaged over all workers."""

    rank: int = 0
    workers: int = 1
    prepare: Callable[[nn.Module], nn.Module] = lambda head: head  # what averages: Ray's `prepare_model`


ALONE: Final = Share()
M = TypeVar("M", bound=Headed)


@dataclass(frozen=True)
class Finetuned:
    """A model with a new head, and what the round was like."""

    model: WindowNetwork
    loss: tuple[float, ...]  # before the first epoch, then of each epoch
    encode_s: float  # 0 where the caller encoded
    train_s: float


def encode_examples(model: WindowNetwork, examples: Examples, indices_N: Ints) -> Encoded:
    """Encode some examples."""
    parts = list(encode(model, Chosen(examples, indices_N), ENCODE_BATCH))
    return Encoded(torch.cat([p.read_BRD for p in parts]), torch.cat([p.anchor_BH for p in parts]))


def finetune_head(
    model: WindowNetwork,
    examples: Examples,
    params: FinetuneParams,
    share: Share = ALONE,
) -> Finetuned:
    """Encode the examples that this worker owns, then fine-tune a copy of the model's head on them.

    Raises:
        ValueError: the loss is no longer finite.
    """
    started = time.monotonic()
    own_N = owned(np.arange(len(examples)), share.rank, share.workers)
    encoded = encode_examples(model, examples, own_N)
    encode_s = time.monotonic() - started
    tuned = train_head(model, encoded, examples.y_us_NH, examples.sharp_NH, params, share)
    return replace(tuned, encode_s=encode_s)


def train_head(
    model: WindowNetwork,
    encoded: Encoded,
    y_us_NH: Floats,
    sharp_NH: NDArray[np.bool_],
    params: FinetuneParams,
    share: Share = ALONE,
) -> Finetuned:
    """Fine-tune a copy of the model's head; the encoder of the copy is the model's, bit for bit.

    Labels are those of all examples (NaN: not known), `encoded` are those that this caller owns. The batches
    are the same for any number of workers.

    Raises:
        ValueError: the loss is no longer finite.
    """
    started = time.monotonic()
    tuned, loss = with_trained_head(model, encoded, y_us_NH, sharp_NH, params, share)
    return Finetuned(tuned, loss, encode_s=0.0, train_s=time.monotonic() - started)


def with_trained_head(
    model: M,
    encoded: Encoded,
    y_us_NH: Floats,
    sharp_NH: NDArray[np.bool_],
    params: FinetuneParams,
    share: Share = ALONE,
) -> tuple[M, tuple[float, ...]]:
    """As `train_head`, of any network that has a head: the copy, and the loss before and after each epoch."""
    count = len(y_us_NH)
    rank, workers = share.rank, share.workers
    own_N = owned(np.arange(count), rank, workers)
    tuned = copy.deepcopy(model)
    # The head is to give what the anchor lacks; (head + anchor) - target is head - (target - anchor).
    missing_NH = torch.from_numpy(model.target.apply(y_us_NH)[own_N]) - encoded.anchor_BH
    weight_NH = torch.from_numpy(example_weights(y_us_NH, sharp_NH, params.sharp_weight))
    head = share.prepare(tuned.head)
    optimizer = torch.optim.Adam(
        tuned.head.parameters(), lr=params.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON
    )
    known_all = int((weight_NH > 0).sum())
    with torch.no_grad():
        before = weighted_error(tuned.head(encoded.read_BRD), missing_NH, weight_NH[own_N], model.quantiles)
    losses = [all_sum([float(before) / max(1, known_all)], workers)[0]]
    for epoch in range(params.epochs):
        total = torch.zeros(())
        for batch_N in epoch_batches(count, params.batch_size, params.seed, epoch):
            known = max(1, int((weight_NH[batch_N] > 0).sum()))
            mine_N = owned(batch_N, rank, workers)
            optimizer.zero_grad(set_to_none=True)
            cached_N = mine_N // workers  # example i is the (i // workers)-th that its owner encoded
            error = weighted_error(
                head(encoded.read_BRD[cached_N]), missing_NH[cached_N], weight_NH[mine_N], model.quantiles
            )
            (error * (workers / known)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += error.detach()
        losses.append(all_sum([float(total) / max(1, known_all)], workers)[0])
    if not np.isfinite(losses).all():
        raise ValueError(f"fine-tuning diverged (loss {losses[-1]}); lower finetune.learning_rate")
    tuned.eval()
    return tuned, tuple(losses)


def finetune(
    windows_dir: Path,
    split: Path,
    pretrained: Path,
    params: FinetuneParams,
    change: Change,
    state_dir: Path,
    say: Callable[[dict[str, Any]], None],
) -> Path:
    """Walk all rounds of all traces in one Ray Train job, so that its start-up is paid once.

    Returns the folder that holds NAME/round-K for all traces and rounds. Rounds that a killed run has
    finished are kept: the folder's name is a hash of windows, parameters, parent weights and code.

    Raises:
        ValueError: model and windows do not belong together, or training diverged.
    """
    windows = load_windows(windows_dir, split)
    model = artifact.load(pretrained, windows.schema_hash).model  # refuse before anything is started
    work = params.model_dump(), change.model_dump(), code_hash(__name__, type(model).__module__)
    parent = [content.hex() for content in artifact.read_files(pretrained).values()]
    storage = state_dir / "ray" / f"finetune-{fingerprint(windows_dir, split, work, parent)[:16]}"
    rounds_dir = storage / "rounds"
    todo = {name: _first_missing(rounds_dir / name, trace) for name, trace in windows.traces.items()}
    if kept := sum(todo.values()):
        say({"kept": kept, "rounds": sum(len(trace.rounds) for trace in windows.traces.values())})
    if any(todo[name] < len(trace.rounds) for name, trace in windows.traces.items()):
        config = {
            "windows_dir": str(windows_dir.absolute()),
            "split": str(split.absolute()),
            "pretrained": str(pretrained.absolute()),
            "rounds_dir": str(rounds_dir.absolute()),
            "params": params.model_dump(),
            "change": change.model_dump(),
            "todo": todo,
        }
        run_job(
            *(finetune_worker, config),
            workers=params.workers,
            storage=storage,
            say=say,
            takes=("windows_dir", "split", "pretrained"),
            makes="rounds_dir",
        )
    return rounds_dir


def finetune_worker(config: dict[str, Any]) -> None:
    """Walk the rounds in one Ray Train worker; rank 0 writes the artifact of each."""
    import ray.train
    from ray.train.torch import prepare_model

    torch.set_num_threads(1)  # one core per worker
    context = ray.train.get_context()
    share = Share(context.get_world_rank(), context.get_world_size(), prepare_model)
    windows = load_windows(
        Path(config["windows_dir"]), Path(config["split"]), change=Change(**config["change"])
    )
    params = FinetuneParams(**config["params"])
    rounds_dir = Path(config["rounds_dir"])
    for name, first in config["todo"].items():
        trace = windows.trace(name)
        before = rounds_dir / name / f"round-{first - 1}" if first else Path(config["pretrained"])
        current = artifact.load(before, windows.schema_hash)
        for index in range(first, len(trace.rounds)):
            current, record = _run_round(trace, index, current, params, share)
            if share.rank == 0:
                made = f"{name}/round-{index}"
                artifact.save(rounds_dir / made, current.model, current.description)
                report_progress(config, record, made)


def _run_round(
    trace: TraceWindows,
    index: int,
    current: Artifact,
    params: FinetuneParams,
    share: Share,
) -> tuple[Artifact, dict[str, Any]]:
    """Fine-tune one round's head, starting from the previous round's."""
    record: dict[str, Any] = {"trace": trace.name, "round": index, "rounds": len(trace.rounds)}
    examples = finetuning_examples(trace, index)
    if examples is None:  # a silent minute teaches nothing: the head stays
        return current, {**record, "windows": 0}
    tuned = finetune_head(current.model, examples, params, share)
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


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """What a record says of its round, without what it says of the walk."""
    return {name: value for name, value in record.items() if name not in ("trace", "round", "rounds")}


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
