"""Pre-training of networks over queries for the loop: as a Ray Train job, in the form that is served.

Gradients are summed over the workers. A job that was killed and is run again ends with the weights it would
have had.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from feature_store.events.definition import EVENTS
from feature_store.packets.schema import HORIZON, scan_packets
from models.architecture import EventStreamLoop, MlpLoop
from models.forecasters.forecaster import Part, Trace
from models.import_closure import code_hash
from models.networks.loop_network import Data, Pretrained
from models.sharp import Change
from models.training.epochs import best_of, run_in_job
from models.training.ray_job import run_job
from models.training.windows import fingerprint, load_windows

READ: Final = ("packets", "windows", "split")  # what a worker reads, as `Data` names it
Params = EventStreamLoop | MlpLoop


def pretrain(
    data: Data, params: Params, course: type[Any], say: Callable[[dict[str, Any]], None]
) -> Pretrained:
    """Train on the pre-training slices of all traces.

    The job's checkpoints lie in a folder named after a hash of windows, parameters and code: only the same
    work is ever resumed. The caller removes it once the result is saved.

    Args:
        data: of the stages; windows of the definition `event-stream`.
        params: sizes, and how.
        course: `Course` of the forecaster's file.
        say: told the record of each epoch, and where a stopped job goes on (`resumed_at_epoch`).

    Raises:
        ValueError: the windows are of another definition or size, or cannot be trained on.
    """
    parts = parts_of(data, params)
    work = {**params.model_dump(), "change": data.change.model_dump()}
    name = fingerprint(data.windows, data.split, work, code_hash(__name__, course.__module__))[:16]
    storage = data.state / "ray" / f"pretrain-{name}"
    paths = {name: str(getattr(data, name).absolute()) for name in READ}
    result = run_job(
        *(worker, {**paths, "change": data.change.model_dump(), "params": params, "course": course}),
        workers=params.workers,
        storage=storage,
        say=say,
        takes=READ,
    )
    best, epochs = best_of(result, storage)
    trained = course(parts, params, params.seed)
    trained.model.load_state_dict(best)
    return Pretrained(trained.served(params.served_level), epochs, storage)


def worker(config: dict[str, Any]) -> None:
    """Train in one Ray Train worker, which reads the traces itself."""
    import ray.train

    torch.set_num_threads(1)  # one core per worker; a model this small only loses by more
    context = ray.train.get_context()
    params: Params = config["params"]
    packets, windows, split = (Path(config[name]) for name in READ)
    data = Data(packets, windows, split, state=Path(), change=Change(**config["change"]))
    share = context.get_world_rank(), context.get_world_size()
    course = config["course"](parts_of(data, params), params, params.seed, *share)
    run_in_job(config, course.trainer)


def parts_of(data: Data, params: Params) -> list[Part]:
    """The pre-training slices of all traces.

    Raises:
        ValueError: the windows are of another definition or size, or a slice holds no decision.
    """
    windows = load_windows(data.windows, data.split, change=data.change)
    tokens = params.reach + HORIZON
    if (windows.schema_hash, windows.tokens) != (EVENTS.schema_hash, tokens):
        raise ValueError(
            f"architecture.name is {params.section}, and the windows are not of its {tokens} rows; "
            "run the stages `windows` and `split` again"
        )
    parts = []
    for name, trace in windows.traces.items():
        table = scan_packets(data.packets, name).collect()
        parts.append(Trace(name, table, trace.slices, change=trace.change).to_learn(trace.pretrain))
        if len(parts[-1]) == 0:
            raise ValueError(f"trace {name}: its training slice holds no decision; use a longer protocol")
    return parts
