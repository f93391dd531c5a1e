"""`swiftqueue up`, `down`, `status`: the local servers, on loopback only; those elsewhere are judged."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from infra import processes
from infra.native_backend import with_native_backend
from infra.pages import answers
from infra.triton_environment import TritonEnvironment, find_environment
from infra.triton_tls import tls_flags
from models.registry import local_store, tracking_uri
from models.state import state_dir
from serving.deploy_log import age_s, last_served
from serving.endpoint import LOOPBACK, SERVERS, Triton, TritonError, elsewhere, grpc_addresses, port
from serving.servers import connected, each
from serving.triton_config import Backend
from serving.triton_repository import MODEL, ModelRepository

TRITON: Final = "triton"
MLFLOW: Final = "mlflow"
KEEPER: Final = "keeper"  # starts what is gone; stopped first
MLFLOW_PORT_VARIABLE: Final = "SWIFTQUEUE_MLFLOW_PORT"
MLFLOW_PORT: Final = 5000
# Everything that may run on this machine, in the order of its start; the names of `var/NAME/server.json`.
PARTS: Final = (MLFLOW, TRITON, "ray", "ingest", "forwarder", "agent", "scheduler", "prometheus", KEEPER)
TRITON_TIMEOUT_S: Final = 60.0
MLFLOW_TIMEOUT_S: Final = 180.0  # 41 s were seen on a busy machine


def start_stack(*, mlflow: bool = False) -> None:
    """Start Triton (and the MLflow server), wait until they answer, and serve the champion.

    Raises:
        OSError: a port is in use, or Triton's environment is not set up.
        RuntimeError: a server ended, did not answer, or could not load the champion.
    """
    if mlflow:
        start_mlflow()
    _start_triton()
    from serving.deploy import serve_champion  # brings PyTorch and MLflow, which `down` does not need

    version = serve_champion()
    if version is None:
        print("no champion in the registry yet; `dvc repro` makes a version, `swiftqueue deploy` serves it")
    else:
        print(f"champion version {version} is served by the {served_backend().label}")


def served_backend() -> Backend:
    """Backend of the version that Triton serves, by its first server: all of them serve it alike.

    Raises:
        OSError: no Triton answers, or it serves nothing.
    """
    with Triton() as triton:
        return Backend(triton.config().backend)


def stop_stack() -> None:
    """Stop whatever `up` started, the newest part first, and nothing else."""
    from infra.live import loop

    idle = []
    for name in reversed(PARTS):
        if server := processes.stop(name):
            print(f"{name}: stopped (pid {server.pid})", flush=True)
        else:
            idle.append(name)
    loop.clean_up()
    if idle:
        print(f"not running: {', '.join(idle)}")


def print_status() -> int:
    """Print what each part answers to a real request; 0: all that run are well and a version is served."""
    from infra.live.health import print_parts

    served = _print_triton()
    well = _print_mlflow()
    return 0 if print_parts() and well and served else 1


def _start_triton() -> None:
    if elsewhere():
        print(f"{SERVERS} is set, so no local Triton is started: {', '.join(grpc_addresses())}")
        return
    if server := processes.running(TRITON):
        with Triton(f"{LOOPBACK}:{server.ports['grpc']}") as triton:
            if not triton.live():
                raise RuntimeError(
                    f"Triton (pid {server.pid}) runs but does not answer; "
                    "stop it with `swiftqueue down`, then start it again"
                )
        print(f"triton is up already (pid {server.pid}, gRPC {LOOPBACK}:{server.ports['grpc']})")
        if not _knows_native_backend(server):
            print("it was started without the native backend; `swiftqueue down` and `up` start it with it")
        return
    ports = {kind: port(kind) for kind in ("http", "grpc", "metrics")}
    if len(set(ports.values())) < len(ports):
        raise ValueError(f"Triton's ports must differ: {ports}")
    for kind, number in ports.items():
        processes.check_port(number, f"SWIFTQUEUE_TRITON_{kind.upper()}")
    environment = find_environment()
    try:
        environment = with_native_backend(environment, _backends_folder())
    except OSError as error:
        print(f"models are served by the {Backend.PYTHON.label}: {error}")
    repository = ModelRepository()
    repository.embedded.mkdir(parents=True, exist_ok=True)
    repository.drop_candidate()
    command = triton_command(environment, repository.embedded, ports)
    # What was served last, at once; one of the Python backend is pushed anew: the native one may take it now.
    configuration = repository.embedded / MODEL / "config.pbtxt"
    if configuration.is_file() and f'backend: "{Backend.NATIVE}"' in configuration.read_text():
        command += [f"--load-model={MODEL}", "--exit-on-error=false"]
    with Triton(f"{LOOPBACK}:{ports['grpc']}") as triton:
        server = processes.start(
            TRITON, command, ports, environment.variables, triton.live, TRITON_TIMEOUT_S, nice=processes.AHEAD
        )
    print(f"triton is up (pid {server.pid}, gRPC {LOOPBACK}:{ports['grpc']}, log {server.log})")


def _backends_folder() -> Path:
    return state_dir() / TRITON / "backends"


def _knows_native_backend(server: processes.Server) -> bool:
    """Whether a running Triton was started with the backend directory that holds ours."""
    process = server.process()
    return process is not None and f"--backend-directory={_backends_folder()}" in process.cmdline()


def triton_command(environment: TritonEnvironment, repository: Path, ports: Mapping[str, int]) -> list[str]:
    """Return the command of a Triton on loopback that loads only what it is told to.

    `ports` has `http`, `grpc` and `metrics`.
    """
    return [
        str(environment.server),
        f"--model-repository={repository}",
        f"--backend-directory={environment.backends}",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",  # ours are whole: what is missing is an error, not a guess
        # With the default of 8, a stream with hundreds of requests under way ends the server: its front end
        # uses a request's state after it was freed (docs/SERVING.md). Up to so many are kept instead.
        "--grpc-infer-allocation-pool-size=16384",
        *(f"--{kind}-address={LOOPBACK}" for kind in ports),
        *(f"--{kind}-port={number}" for kind, number in ports.items()),
        *tls_flags(),
        "--allow-gpu-metrics=false",
        "--exit-timeout-secs=5",
    ]


def start_mlflow() -> None:
    """Start the MLflow server, unless it is up or MLFLOW_TRACKING_URI names another.

    Raises:
        OSError: its port is in use.
        RuntimeError: it ended or did not answer.
    """
    if os.environ.get("MLFLOW_TRACKING_URI"):
        print(f"MLFLOW_TRACKING_URI is set, so no local MLflow server is started: {tracking_uri()}")
        return
    if server := processes.running(MLFLOW):
        print(f"mlflow is up already (pid {server.pid}, http://{LOOPBACK}:{server.ports['http']})")
        return
    number = processes.chosen_port(MLFLOW_PORT_VARIABLE, MLFLOW_PORT)
    processes.check_port(number, MLFLOW_PORT_VARIABLE)
    store, artifacts = local_store()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", LOOPBACK, "--port", str(number)),
        # Artifacts by path, not through the server: versions registered either way can be read either way.
        *(
            "--backend-store-uri",
            store,
            "--no-serve-artifacts",
            "--default-artifact-root",
            artifacts.as_uri(),
        ),
        *("--workers", "1"),
    ]
    print("starting the MLflow server (10-40 s)", flush=True)
    url = f"http://{LOOPBACK}:{number}"
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # we start no jobs in it
    server = processes.start(
        MLFLOW, command, {"http": number}, environment, lambda: answers(f"{url}/health"), MLFLOW_TIMEOUT_S
    )
    print(f"mlflow is up (pid {server.pid}, {url}, log {server.log})")


def _print_triton() -> bool:
    """Print what each Triton answers; whether all of them answer, with one version."""
    with connected() as servers:
        judged = each(servers, _judge_triton)
    last = last_served()
    newest = last["version"] if last else max((version or 0 for version, _ in judged), default=0)
    for server, (version, line) in zip(servers, judged, strict=True):
        print(f"triton: {line}")
        if version is not None and version != newest:
            print(
                f"triton: version {newest} was deployed last, so {server.address} is not up to date: "
                "swiftqueue deploy"
            )
    versions = {version for version, _ in judged}
    return len(versions) == 1 and None not in versions


def _judge_triton(triton: Triton) -> tuple[int | None, str]:
    """Version that answers a real inference, if one does, and a line about the server."""
    try:
        triton.require_live()
    except TritonError as error:
        return None, str(error)
    try:
        config = triton.config()
        tokens, features = config.input[0].dims
        begin = time.perf_counter()
        answer = triton.infer(np.zeros((1, tokens, features), dtype=np.float32))
        took_us = (time.perf_counter() - begin) * 1e6
    except TritonError as error:
        return None, f"answers at {triton.address}, but serves no version ({error}): swiftqueue deploy"
    age = age_s(answer.version)
    old = "not deployed from here" if age is None else f"{duration(age)} old"
    return answer.version, (
        f"serves version {answer.version} by the {Backend(config.backend).label} "
        f"at {triton.address}, {old}, inference {took_us:.0f} µs"
    )


def _print_mlflow() -> bool:
    """Judge the MLflow server, if there is one, by a read of the registry; False when it does not answer."""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        url = tracking_uri().rstrip("/")
        if not url.startswith("http"):
            return True
    elif server := processes.running(MLFLOW):
        url = f"http://{LOOPBACK}:{server.ports['http']}"
    else:
        print(f"mlflow: no server (the registry is read from {state_dir() / 'mlflow'})")
        return True
    begin = time.perf_counter()
    well = answers(f"{url}/api/2.0/mlflow/registered-models/search?max_results=1")
    took_ms = (time.perf_counter() - begin) * 1e3
    print(f"mlflow: {f'a registry read in {took_ms:.0f} ms' if well else 'no answer'} at {url}")
    return well


def duration(seconds: float) -> str:
    """Seconds in words."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
