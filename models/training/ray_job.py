"""Run a training loop as a Ray Train job: on a local cluster by default, on `RAY_ADDRESS` otherwise."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swiftqueue.common.local_ray import LOOPBACK, ray_cluster
from swiftqueue.common.state import private_dir
from swiftqueue.common.storage import Storage
from swiftqueue.common.storage import storage as storage_in_use

if TYPE_CHECKING:
    from ray.train import Result

WORKERS_START_WAIT_S: Final = "600"
# Interval at which the controller looks at its workers. An epoch's checkpoint waits for it, and Ray's own 2 s
# are longer than an epoch.
CONTROLLER_POLL_S: Final = "0.2"
WORKER_RESTARTS: Final = 1
PROGRESS: Final = "progress"  # folder with a file for each record
MADE: Final = "made"  # key of a record: the loop's output, below a folder of its config
POLL_S: Final = 0.3


def run_job(
    loop: Callable[[dict[str, Any]], None],
    config: Mapping[str, Any],
    *,
    workers: int,
    storage: Path,
    say: Callable[[dict[str, Any]], None],
    takes: Sequence[str] = (),
    makes: str | None = None,
) -> Result:
    """Run `loop(config)` in `workers` processes and return Ray's result.

    A worker that dies is restarted from the last checkpoint, `WORKER_RESTARTS` times.

    `storage` keeps the job's last checkpoint: a job that was killed and is run again with the same folder
    finds it by `ray.train.get_checkpoint()`. `say` gets each record that the loop gives to `report_progress`,
    while the job runs.

    On a cluster every node sees that folder and the paths in `config`, or there is SWIFTQUEUE_STORAGE. Then
    each worker gets copies of the files at the paths named in `takes`, checkpoints lie in the storage, and
    outputs of the loop in folder `makes` come back as they are reported.

    Raises:
        ValueError: the loop failed; the message is that of its own exception.
        ConnectionError: the storage does not answer.
    """
    # Ray's 60 s run out on a busy machine, and it would then start the workers anew for ever.
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", WORKERS_START_WAIT_S)
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", CONTROLLER_POLL_S)
    storage = storage.absolute()
    private_dir(storage)
    shared = _shared(storage)
    place = shared.uri if shared else str(storage)
    paths = [name for name in (*takes, makes) if name]
    if shared:
        for name in paths:
            if (path := Path(config[name])).exists():
                shared.at(name).put(path)
    with ray_cluster(workers):
        import ray.train
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        trainer = DataParallelTrainer(
            _in_group,
            train_loop_config={
                **config,
                **{"loop": loop, "place": place, "makes": makes, "paths": paths if shared else []},
            },
            scaling_config=ray.train.ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
            run_config=ray.train.RunConfig(
                name=storage.name,
                storage_path=place.rpartition("/")[0],
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1),
                failure_config=ray.train.FailureConfig(max_failures=WORKER_RESTARTS),
                logging_config=ray.train.LoggingConfig(log_level="ERROR"),
                worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}},
            ),
        )

        def heard(record: dict[str, Any]) -> None:
            if (made := record.pop(MADE, None)) and shared and makes:
                shared.at(f"{makes}/{made}").get(Path(config[makes], made))
            say(record)

        with _following(place, heard):
            try:
                return trainer.fit()
            except ray.train.TrainingFailedError as error:
                raise ValueError(_cause(error)) from error


def discard(storage: Path) -> None:
    """Remove a job's files in its folder and in SWIFTQUEUE_STORAGE, so that it begins anew."""
    shutil.rmtree(storage, ignore_errors=True)
    if shared := _shared(storage):
        shared.remove()


def _shared(storage: Path) -> Storage | None:
    """Return the place in SWIFTQUEUE_STORAGE where a job's nodes exchange files; None without the setting."""
    found = storage_in_use()
    return found.at(f"training/{storage.name}") if found else None


def _in_group(config: dict[str, Any]) -> None:
    """Run the loop of one worker, joined with the others by PyTorch's gloo.

    Ray's TorchTrainer does the same, but its PyTorch store listens on every interface, even for one worker.
    Store and gloo have no authentication: here they listen at the node's own address, loopback on our
    cluster.
    """
    with tempfile.TemporaryDirectory(prefix="swiftqueue-") as folder:
        for name in config["paths"]:
            config[name] = str(Path(folder, name))
            with contextlib.suppress(FileNotFoundError):  # nothing made so far
                Storage(config["place"]).at(name).get(Path(folder, name))
        _in_process_group(config.pop("loop"), config)


def _in_process_group(loop: Callable[[dict[str, Any]], None], config: dict[str, Any]) -> None:
    import ray.train

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


def report_progress(config: Mapping[str, Any], record: Mapping[str, Any], made: str | None = None) -> None:
    """Hand one record to the driver's `say`; called by the worker of rank 0.

    Args:
        config: the loop's config.
        record: figures, as plain JSON.
        made: path of the loop's output below folder `makes`, if there is one.
    """
    from pyarrow.fs import FileSystem

    place = config["place"]
    if made:
        record = {**record, MADE: made}
        if config["paths"]:
            Storage(place).at(f"{config['makes']}/{made}").put(Path(config[config["makes"]], made))
    files, root = FileSystem.from_uri(f"{place}/{PROGRESS}")
    files.create_dir(root)
    with files.open_output_stream(f"{root}/{time.time_ns():020d}.json") as file:
        file.write(json.dumps(record).encode())


@contextlib.contextmanager
def _following(place: str, hear: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Call `hear` for every record reported during the block; its error ends the block."""
    from pyarrow.fs import FileSelector, FileSystem

    files, root = FileSystem.from_uri(f"{place}/{PROGRESS}")

    def there() -> list[str]:
        found = files.get_file_info(FileSelector(root, allow_not_found=True))
        return sorted(one.path for one in found if one.path.endswith(".json"))

    finished, known = threading.Event(), set(there())

    def follow() -> None:
        last_look = False
        while not last_look:
            last_look = finished.wait(POLL_S)
            for path in there():
                if path not in known and (record := read(path)):
                    hear(record)
                    known.add(path)

    def read(path: str) -> dict[str, Any] | None:
        with files.open_input_stream(path) as file, contextlib.suppress(ValueError):  # half written
            record: dict[str, Any] = json.loads(file.read())
            return record
        return None

    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(follow)
        try:
            yield
        finally:
            finished.set()
        following.result()


def _cause(error: BaseException) -> str:
    """Return one line for a failed job, from the first worker's own exception without Ray's wrapping."""
    failures = getattr(error, "worker_failures", None) or {}
    inner: BaseException = next(iter(failures.values()), error)
    while getattr(inner, "cause", None) is not None:
        inner = inner.cause  # type: ignore[attr-defined]
    lines = [line for line in str(inner).splitlines() if line.strip()]
    return f"the training job failed: {lines[-1].strip() if lines else type(inner).__name__}"
