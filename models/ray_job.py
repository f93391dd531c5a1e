"""Runs a training loop as a Ray Train job: on a local cluster by default, on `RAY_ADDRESS` otherwise."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from models.state import state_dir

if TYPE_CHECKING:
    from ray.train import Result

LOOPBACK: Final = "127.0.0.1"
OBJECT_STORE_BYTES: Final = 128 * 1024 * 1024  # windows are memory-mapped from disk, not shipped through Ray
START_WAIT_S: Final = "180"  # Ray's own 30 s are too few on a machine that is busy with something else
WORKERS_START_WAIT_S: Final = "600"
# The controller looks at its workers this often, and an epoch's checkpoint waits for it; Ray's own 2 s are
# more than such an epoch takes.
CONTROLLER_POLL_S: Final = "0.2"
WORKER_RESTARTS: Final = 1
PROGRESS_FILE: Final = "progress.jsonl"
POLL_S: Final = 0.3


@contextlib.contextmanager
def ray_cluster(workers: int) -> Iterator[None]:
    """Connect to Ray for the block: the cluster in use, or `RAY_ADDRESS`, or a local one of its own.

    A cluster that was there before stays. Ray's head listens on every interface, whatever address it is
    given, so a local one asks for a token, which lies in the state folder (mode 600) unless RAY_AUTH_TOKEN is
    set.

    Raises:
        ConnectionError: `RAY_ADDRESS` names a cluster that does not answer.
        TimeoutError: the local cluster did not start.
    """
    address = os.environ.get("RAY_ADDRESS")
    use_token()  # before the import: Ray reads it then
    os.environ.setdefault("RAY_raylet_start_wait_time_s", START_WAIT_S)
    import ray

    if ray.is_initialized():
        yield
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address:
        try:
            ray.init(address=address, **quiet)
        except ConnectionError as error:
            raise ConnectionError(f"RAY_ADDRESS={address}: no Ray cluster answers there") from error
    else:
        try:
            ray.init(
                address="local",
                num_cpus=max(workers, os.cpu_count() or 1),
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _node_ip_address=LOOPBACK,
                **quiet,
            )
        except Exception as error:  # Ray has no class of its own for a start that takes too long
            reason = str(error).splitlines()[0]
            raise TimeoutError(f"the local Ray cluster did not start ({reason}); run it again") from error
    try:
        yield
    finally:
        ray.shutdown()


def use_token() -> None:
    """Have Ray ask for, and give, the token of this state folder; one set in the environment stays."""
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token")
    if mode != "token" or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        return
    path = state_dir() / "ray" / "token"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".token-")  # mode 600
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)  # of two processes, one wins
        os.unlink(partial)
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)


def run_job(
    loop: Callable[[dict[str, Any]], None],
    config: Mapping[str, Any],
    *,
    workers: int,
    storage: Path,
    say: Callable[[dict[str, Any]], None],
    restarts: int = WORKER_RESTARTS,
) -> Result:
    """Run `loop(config)` in `workers` processes and return Ray's result.

    A worker that dies is started again from the last checkpoint, `restarts` times (-1: always).

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
        from ray.train.torch import TorchConfig, TorchTrainer

        storage = storage.absolute()
        storage.mkdir(parents=True, exist_ok=True)
        trainer = TorchTrainer(
            loop,
            train_loop_config={**config, "progress": str(storage / PROGRESS_FILE)},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ray.train.ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
            run_config=ray.train.RunConfig(
                name=storage.name,
                storage_path=str(storage.parent),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1),
                failure_config=ray.train.FailureConfig(max_failures=restarts),
                logging_config=ray.train.LoggingConfig(log_level="ERROR"),
                worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
            ),
        )
        with _following(storage / PROGRESS_FILE, say):
            try:
                return trainer.fit()
            except ray.train.TrainingFailedError as error:
                raise ValueError(_cause(error)) from error


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
