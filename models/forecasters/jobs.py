"""Train and tune in Ray Train jobs; each resumes where it was killed, with the same result.

A training sums gradients over the workers. In a tuning, the workers share the traces.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftqueue.common.import_closure import code_hash
from swiftqueue.models.forecasters import forecaster as door
from swiftqueue.models.forecasters.forecaster import Forecaster, Variant, kind_named
from swiftqueue.models.forecasters.network import NetworkForecaster
from swiftqueue.models.forecasters.traces import Trace, about, fingerprint, lessons, read_traces
from swiftqueue.models.forecasters.walk import tune_heads
from swiftqueue.models.sharp import Change
from swiftqueue.models.training.epochs import TimeLeft, WorkerShare, best_of, resumed_line
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.training.query_training import epoch_line, run_in_job
from swiftqueue.models.training.ray_job import report_progress, run_job

READ: Final = ("packets", "split")  # folders that a worker reads
OnRecord = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class StageData:
    """Outputs of the stages `extract` and `split`, and the folder of unfinished work."""

    packets: Path
    split: Path
    state: Path
    change: Change  # least change of latency that the loss weights

    def traces(self) -> dict[str, Trace]:
        """Read the traces; raises as `read_traces`."""
        return read_traces(self.packets, self.split, self.change)

    def paths(self) -> dict[str, str]:
        """Return the paths and change as a worker gets them: absolute, plain JSON."""
        read = {name: str(getattr(self, name).absolute()) for name in READ}
        return read | {"change": json.dumps(self.change.model_dump())}

    @classmethod
    def from_paths(cls, config: Mapping[str, Any]) -> StageData:
        """Return the data at a worker's paths."""
        change = Change(**json.loads(config["change"]))
        return cls(Path(config["packets"]), Path(config["split"]), Path(), change)


@dataclass(frozen=True)
class TrainingResult:
    """A trained forecaster and the record of every epoch."""

    forecaster: Forecaster
    epochs: list[dict[str, Any]]
    checkpoints: Path | None = None  # folder of a Ray Train job, removed once the model is saved


def pretrain(
    data: StageData, variant: Variant, say: Callable[[str], None], epoch: OnRecord = lambda _: None
) -> TrainingResult:
    """Train on the pre-training slices of all traces; forecasters without a course train in this process.

    The job's checkpoints lie in a folder named after a hash of packets, slices, parameters and code, so only
    the same work is ever resumed. The caller removes the folder once the result is saved.

    Args:
        data: traces to learn from.
        variant: kind and parameters, with the seed and the number of workers.
        say: called with a line of progress.
        epoch: called with the record of each epoch.

    Raises:
        ValueError: there are no training data, or training diverged.
    """
    traces = data.traces()
    parts = lessons(list(traces.values()))
    params: Any = variant.params
    seed = int(getattr(params, "seed", 0))
    kind: Any = variant.kind
    if kind.course() is None:
        fitted = variant.fit(parts, seed, say)
        if isinstance(fitted, NetworkForecaster):
            fitted = fitted.taught_by(about(traces))
        return TrainingResult(fitted, [])

    left = TimeLeft(params.epochs)
    say(f"pretrain: the data are read; {params.epochs} epochs follow, once Ray Train has started")

    def told(record: dict[str, Any]) -> None:
        if "epoch" not in record:
            say(resumed_line(record))
            return
        say(f"pretrain: {epoch_line(record, params.epochs)}{left.words(record['epoch'])}")
        epoch(record)

    work = [variant.kind_name, params.model_dump(), code_hash(__name__, kind.__module__)]
    storage = data.state / "ray" / f"pretrain-{_name(fingerprint(parts), work)}"
    config = {**data.paths(), "kind": variant.kind_name, "params": params.model_dump()}
    result = run_job(
        *(pretrain_worker, config), workers=params.workers, storage=storage, say=told, takes=READ
    )
    best, epochs = best_of(result, storage)
    course = kind.course()(parts, params, seed)
    course.model.load_state_dict(best)
    course.model.eval()
    return TrainingResult(kind.of_course(course, params).taught_by(about(traces)), epochs, storage)


def pretrain_worker(config: dict[str, Any]) -> None:
    """Train in one Ray Train worker, which reads the traces itself."""
    import ray.train
    import torch

    torch.set_num_threads(1)  # one core per worker; more would slow a model this small
    context = ray.train.get_context()
    kind: Any = kind_named(config["kind"])
    params = kind.Params(**config["params"])
    parts = lessons(list(StageData.from_paths(config).traces().values()))
    share = WorkerShare(context.get_world_rank(), context.get_world_size())
    run_in_job(config, kind.course()(parts, params, params.seed, share).trainer)


def finetune(data: StageData, pretrained: Path, params: FinetuneParams, say: OnRecord) -> Path:
    """Walk all rounds of all traces in one job, which starts only once.

    Return the folder that holds NAME/round-K for all traces and rounds. Its name is a hash of packets,
    slices, parameters, parent and code, so the rounds that a killed run has finished are kept.

    Raises:
        ValueError: the forecaster cannot be loaded, or tuning diverged.
    """
    traces = data.traces()
    base = door.load(pretrained)  # refuse before anything is started
    parent = (pretrained / door.DESCRIPTION_FILE).read_text()
    code = code_hash(__name__, type(base).__module__)
    parts = [trace.to_predict(trace.slices.pretrain) for trace in traces.values()]
    divided = data.split.read_text()
    work = [params.model_dump(), data.change.model_dump(), code, parent, divided]
    storage = data.state / "ray" / f"finetune-{_name(fingerprint(parts), work)}"
    rounds_dir = storage / "rounds"
    todo = {name: _first_missing(rounds_dir / name, trace) for name, trace in traces.items()}
    if kept := sum(todo.values()):
        say({"kept": kept, "rounds": sum(len(trace.slices.rounds) for trace in traces.values())})
    if any(todo[name] < len(trace.slices.rounds) for name, trace in traces.items()):
        config = {
            **data.paths(),
            "pretrained": str(pretrained.absolute()),
            "rounds_dir": str(rounds_dir.absolute()),
            "params": params.model_dump(),
            "todo": todo,
        }
        run_job(
            *(finetune_worker, config),
            workers=params.workers,
            storage=storage,
            say=say,
            takes=(*READ, "pretrained"),
            makes="rounds_dir",
        )
    return rounds_dir


def finetune_worker(config: dict[str, Any]) -> None:
    """Walk the rounds of a share of the traces in one Ray Train worker."""
    import ray.train
    import torch

    torch.set_num_threads(1)  # one core per worker
    context = ray.train.get_context()
    traces = StageData.from_paths(config).traces()
    how = FinetuneParams(**config["params"])
    rounds_dir, base = Path(config["rounds_dir"]), door.load(Path(config["pretrained"]))
    todo: Mapping[str, int] = config["todo"]
    own = sorted(todo)[context.get_world_rank() :: context.get_world_size()]
    for name in own:
        trace, first = traces[name], todo[name]
        before = door.load(rounds_dir / name / f"round-{first - 1}") if first else base

        def keep(
            k: int, former: Forecaster, head: Forecaster, name: str = name, trace: Trace = trace
        ) -> None:
            made = f"{name}/round-{k}"
            door.save(rounds_dir / made, head)
            report_progress(config, round_record(trace, k, former, head), made)

        tune_heads(before, trace, how, keep, first)


def round_record(trace: Trace, k: int, before: Forecaster, head: Forecaster) -> dict[str, Any]:
    """Return the record of a round: of the tuning of its head, or of why the head before it stays."""
    rounds = trace.slices.rounds
    record: dict[str, Any] = {"trace": trace.name, "round": k, "rounds": len(rounds), "decisions": 0}
    if head is before or (tuning := head.tuning) is None:
        part = rounds[k].finetune
        known = np.isfinite(trace.to_learn(part).latencies_us()).sum() if len(part) else 0
        return record | {"latencies": int(known)}
    return record | {
        "decisions": tuning.decisions,
        "loss_before": tuning.loss[0],
        "loss_after": tuning.loss[-1],
        "train_s": tuning.seconds,
        "changed": tuning.changed,
    }


def _name(lesson: str, work: list[Any]) -> str:
    return hashlib.sha256(json.dumps([lesson, work], sort_keys=True, default=str).encode()).hexdigest()[:16]


def _first_missing(folder: Path, trace: Trace) -> int:
    """Return the first round of a trace that no earlier run has finished."""
    for index in range(len(trace.slices.rounds)):
        if not (folder / f"round-{index}").is_dir():
            return index
    return len(trace.slices.rounds)


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a round's record, without its trace, numbers and words."""
    others = ("trace", "round", "rounds", "changed")
    return {name: value for name, value in record.items() if name not in others}


def round_line(record: Mapping[str, Any]) -> str:
    """Return one line about a round."""
    if "kept" in record:
        return f"finetune: {record['kept']} of {record['rounds']} rounds kept from the run that was stopped"
    what = f"finetune: {record['trace']} round {record['round'] + 1}/{record['rounds']}"
    if record["decisions"] == 0:
        kept = "it has nothing to tune" if record["latencies"] else "no latency is known in its slice"
        return f"{what}  {kept}, so it stays as it is"
    losses = f"loss {record['loss_before']:.4f} -> {record['loss_after']:.4f}"
    return f"{what}  {record['decisions']} decisions  {losses}  {record['changed']} {record['train_s']:.2f} s"
