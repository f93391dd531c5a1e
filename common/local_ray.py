"""Start Ray, here and nowhere else: join the cluster of `RAY_ADDRESS`, or start a local one with a token."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from swiftqueue.common import door
from swiftqueue.common.settings import settings, surrounded_by
from swiftqueue.common.state import make_scratch, private_dir, state_dir

LOOPBACK: Final = "127.0.0.1"
# Ray replaces a loopback address by the machine's and then listens on every interface. This variable says
# that no other machine will join; despite its name it works on every system.
ALONE: Final = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
OBJECT_STORE_BYTES: Final = 128 * 1024 * 1024  # windows are memory-mapped from disk, not shipped through Ray
# Ray waits 60 s for a worker, too little on a busy machine. The 30 s that it waits for the node itself cannot
# be changed: hence START_TRIES.
PATIENCE: Final = {"RAY_raylet_start_wait_time_s": "180", "RAY_worker_register_timeout_seconds": "180"}

START_TRIES: Final = 3


@contextlib.contextmanager
def ray_cluster(workers: int) -> Iterator[None]:
    """Connect to Ray for the block: to the cluster in use, to `RAY_ADDRESS`, or to a new local cluster.

    A cluster that existed before is left running. A local one listens on loopback, admits only this user and
    root (except at the ingest's port), and requires a token, which lies in the state folder (mode 600) unless
    RAY_AUTH_TOKEN is set.

    Raises:
        ConnectionError: `RAY_ADDRESS` names a cluster that does not answer.
        TimeoutError: the local cluster did not start.
    """
    address = settings().ray_address
    use_token()  # before the import below: Ray reads it then
    for name, seconds in PATIENCE.items():
        os.environ.setdefault(name, seconds)
    if not address:
        os.environ.update(ALONE)
    import ray

    if ray.is_initialized():
        yield
        return
    own: Path | None = None
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address:
        try:
            ray.init(address=address, **quiet)
        except ConnectionError as error:
            raise ConnectionError(f"RAY_ADDRESS={address}: no Ray cluster answers there") from error
    else:
        # Ray's own `/tmp/ray` will not do: its first owner keeps all other users' Rays from starting.
        if not os.environ.get("RAY_TMPDIR"):
            own = make_scratch() / f"ray-{os.getpid()}"
        folder = {"_temp_dir": str(own)} if own else {}
        with surrounded_by(door.variables(settings().ingest_port)):
            _start_local(num_cpus=max(workers, os.cpu_count() or 1), **quiet, **folder)
    try:
        yield
    finally:
        ray.shutdown()
        if own:
            shutil.rmtree(own, ignore_errors=True)


def _start_local(**options: Any) -> None:
    """Start a local cluster; on a busy machine Ray's 30 s for a node may need further tries.

    Raises:
        TimeoutError: it did not start.
    """
    import ray

    for tries_left in reversed(range(START_TRIES)):
        try:
            ray.init(
                address="local", include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **options
            )
            return
        except Exception as error:  # Ray has no class of its own for a start that takes too long
            ray.shutdown()
            if not tries_left:
                reason = str(error).splitlines()[0]
                raise TimeoutError(
                    f"the local Ray cluster did not start ({reason}); run it again on a less busy machine"
                ) from error


def use_token() -> None:
    """Have Ray require and send the token of this state folder; one set in the environment stays."""
    mode = os.environ.setdefault("RAY_AUTH_MODE", "token")
    if mode != "token" or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        return
    path = state_dir() / "ray" / "token"
    if not path.is_file():
        private_dir(path.parent)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".token-")  # mode 600
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)  # one of two processes wins
        os.unlink(partial)
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)
