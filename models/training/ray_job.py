"""Runs a training loop as a Ray Train job: on a local cluster by default, on `RAY_ADDRESS` otherwise."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feature_store.local_ray import LOOPBACK, ray_cluster
from feature_store.state import private_dir

if TYPE_CHECKING:
    from ray.train import Result

WORKERS_START_WAIT_S: Final = "600"
# The controller looks at its workers this often, and an epoch's checkpoint waits for it; Ray's own 2 s are
# more than such an epoch takes.
CONTROLLER_POLL_S: Final = "0.2"
WORKER_RESTARTS: Final = 1
PROGRESS_FILE: Final = "progress.jsonl"
POLL_S: Final = 0.3


def run_job(
    loop: Callable[[dict[str, Any]], None],
    config: Mapping[str, Any],
    *,
    workers: int,
    storage: Path,
    say: Callable[[dict[str, Any]], None],
) -> Result:
    """Run `loop(config)` in `workers` processes and return Ray's result.

    A worker that dies is started again from the last checkpoint, `WORKER_RESTARTS` times.

    `storage` keeps the job's last checkpoint: a job that was killed and is run again with the same folder
    finds it by `ray.train.get_checkpoint()`. On a cluster it must be a folder every node sees. `say` gets
    each record that the loop gives to `report_progress`, while the job runs.

    Raises:
        ValueError: the loop failed; the message is that of its own exception.
    """
    # Ray's 60 s run out on a busy machine, and it then starts the workers anew for ever.
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", WORKERS_START_WAIT_S)
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", CONTROLLER_POLL_S)
    with ray_cluster(workers):
        import ray.train
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        storage = storage.absolute()
        private_dir(storage)
        trainer = DataParallelTrainer(
            _in_group,
            train_loop_config={**config, "loop": loop, "progress": str(storage / PROGRESS_FILE)},
            scaling_config=ray.train.ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
            run_config=ray.train.RunConfig(
                name=storage.name,
                storage_path=str(storage.parent),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1),
                failure_config=ray.train.FailureConfig(max_failures=WORKER_RESTARTS),
                logging_config=ray.train.LoggingConfig(log_level="ERROR"),
                worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
            ),
        )
        with _following(storage / PROGRESS_FILE, say):
            try:
                return trainer.fit()
            except ray.train.TrainingFailedError as error:
                raise ValueError(_cause(error)) from error


def _in_group(config: dict[str, Any]) -> None:
    """Run the loop of one worker, joined with the others by PyTorch's gloo.

    As in Ray's TorchTrainer, where PyTorch's store listens on every interface, and even for one worker. Store
    and gloo ask for nothing: here they listen at the node's own address, loopback on a cluster of our own.
    """
    import ray.train

    loop: Callable[[dict[str, Any]], None] = config.pop("loop")
    context = ray.train.get_context()
    workers, rank = context.get_world_size(), context.get_world_rank()
    if workers == 1:
        loop(config)
        return
    import ray.util
    import torch.distributed
    from ray.train.collective import broadcast_from_rank_zero

    here = ray.util.get_node_ip_address()
    if here == LOOPBACK:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    listener = socket.create_server((here, 0)) if rank == 0 else None
    host, port = broadcast_from_rank_zero(listener.getsockname() if listener else None)
    store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
        host, port, workers, is_master=rank == 0, master_listen_fd=listener.detach() if listener else None
    )
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=workers)
    loop(config)


def report_progress(config: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Hand one record to the driver's `say`; called by the worker of rank 0."""
    with Path(config["progress"]).open("a") as lines:
        lines.write(json.dumps(record) + "\n")


@contextlib.contextmanager
def _following(path: Path, say: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Call `say` for every line that is appended to `path` during the block."""
    path.touch()
    finished = threading.Event()
    with path.open() as lines:
        lines.seek(0, os.SEEK_END)

        def follow() -> None:
            last_look, pending = False, ""
            while not last_look:
                last_look = finished.wait(POLL_S)
                for line in lines:
                    pending += line
                    if pending.endswith("\n"):
                        say(json.loads(pending))
                        pending = ""

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()


def _cause(error: BaseException) -> str:
    """One line for a failed job: the first worker's own exception rather than Ray's wrapping."""
    failures = getattr(error, "worker_failures", None) or {}
    inner: BaseException = next(iter(failures.values()), error)
    while getattr(inner, "cause", None) is not None:
        inner = inner.cause  # type: ignore[attr-defined]
    lines = [line for line in str(inner).splitlines() if line.strip()]
    return f"the training job failed: {lines[-1].strip() if lines else type(inner).__name__}"
