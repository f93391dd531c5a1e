"""A Triton of its own for the benchmarks of serving: models by backend, all with the same window.

`swiftqueue_identity` computes nothing: its round trip is what gRPC and Triton cost.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.native_backend import with_native_backend
from swiftqueue.infra.local.servers import triton_command
from swiftqueue.infra.local.triton_environment import TritonEnvironment, find_environment
from swiftqueue.models.networks.scaling import ScaledFeature
from swiftqueue.serving.triton.config import CONTENT_FILE, MODEL_SCRIPT, Backend, config_text
from swiftqueue.serving.triton.endpoint import LOOPBACK, Triton
from swiftqueue.serving.triton.limits import limits_of

PROJECT: Final = Path(__file__).resolve().parents[1]
IDENTITY: Final = "swiftqueue_identity"
SERVER: Final = "bench-triton"  # in the servers' record
START_S: Final = 60.0


def write_model(
    repository: Path,
    name: str,
    source: Path,
    backend: str,
    version: int = 1,
    features: Sequence[ScaledFeature] | None = None,
) -> None:
    """Put artifact `source` into a repository as the served version of model `name`.

    `backend` is one of `Backend`, or IDENTITY, which takes only the shapes from the artifact.
    `features` are the inputs of the network; None: `source` predicts latencies from event windows.
    """
    folder = repository / name / str(version)
    folder.mkdir(parents=True)
    python = backend == Backend.PYTHON
    for file in ("model.json", "model.onnx" if python else "model.safetensors"):
        shutil.copyfile(source / file, folder / file)
    if python:
        shutil.copyfile(PROJECT / "serving" / "triton" / MODEL_SCRIPT, folder / MODEL_SCRIPT)
    limits = limits_of(EVENTS.features if features is None else features)
    (folder / "limits.json").write_text(json.dumps(limits))
    (folder / CONTENT_FILE).write_text("0" * 64 + "\n")
    text = config_text(name, version, folder)
    if backend == IDENTITY:
        text = text.replace(f'backend: "{Backend.NATIVE}"', f'backend: "{IDENTITY}"')
    (repository / name / "config.pbtxt").write_text(text)


def backends(folder: Path) -> TritonEnvironment:
    """Yield Triton's environment with the native and the identity backend, linked in `folder`.

    Raises:
        OSError: a backend is not built, or Triton's environment is not set up.
    """
    environment = with_native_backend(find_environment(), folder)
    name = f"libtriton_{IDENTITY}.so"
    library = build(name, room="triton/identity") / name
    (folder / IDENTITY).mkdir(exist_ok=True)
    link = folder / IDENTITY / library.name
    if not link.is_symlink():
        link.symlink_to(library)
    return replace(environment, backends=folder)


@contextmanager
def served(
    root: Path, models: Sequence[str], *, name: str = SERVER, socket_path: Path | None = None
) -> Iterator[str]:
    """Serve `models` of `root/repository`, on loopback or on a Unix socket; yield the clients' address.

    Raises:
        OSError: something is not built.
        RuntimeError: Triton did not start.
        TritonError: a model cannot be loaded.
    """
    environment = backends(root / f"backends-{name}")
    ports = dict(zip(("grpc", "metrics"), processes.free_ports(2), strict=True))
    command = triton_command(environment, root / "repository", ports)
    address = f"{LOOPBACK}:{ports['grpc']}"
    if socket_path is not None:
        # Triton adds the port to whatever address it is given: here, to the file's name.
        address = f"unix:{socket_path}:{ports['grpc']}"
        command[command.index(f"--grpc-address={LOOPBACK}")] = f"--grpc-address=unix:{socket_path}"
    with Triton(address) as triton:
        nice = processes.AHEAD
        processes.start(name, command, ports, environment.variables, triton.live, START_S, nice=nice)
        try:
            for model in models:
                triton.load(model)
            yield address
        finally:
            processes.stop(name)


def build(*targets: str, room: str = "agent") -> Path:
    """Build `targets` of a serving room, if they are not up to date, and return the programs' folder.

    Raises:
        OSError: a package is missing, or it does not compile.
    """
    folder = PROJECT / "serving" / room
    made = subprocess.run(
        ["make", "-s", "-C", str(folder), *(f"_build/{target}" for target in targets)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        lines = made.stderr.strip().splitlines() or ["no reason given"]
        raise OSError(f"serving/{room} cannot be built ({lines[0]}); `make setup` says what is missing")
    return folder / "_build"
