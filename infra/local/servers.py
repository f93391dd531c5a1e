"""`swiftqueue up`, `down`, `status`: the local servers, on loopback only; those elsewhere are judged."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode
from urllib.request import Request

from swiftqueue.common import door
from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.common.redaction import redacted
from swiftqueue.common.section import read_all
from swiftqueue.common.settings import settings
from swiftqueue.common.state import private_dir, secret, state_dir
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.native_backend import with_native_backend
from swiftqueue.infra.local.pages import answers, page
from swiftqueue.infra.local.parts import MLFLOW, TRITON
from swiftqueue.infra.local.triton_environment import TritonEnvironment, check_front, find_environment
from swiftqueue.infra.local.triton_tls import tls_flags
from swiftqueue.models.registry.store import LIVE_ROUNDS, PASSWORD, TRAINING, USER, local_store, tracking_uri
from swiftqueue.serving.deploy import log as deploy_log
from swiftqueue.serving.triton.config import Backend
from swiftqueue.serving.triton.endpoint import (
    CONTROL_KEY,
    LOOPBACK,
    SERVERS,
    Triton,
    control_secret_file,
    elsewhere,
    grpc_addresses,
    port,
)
from swiftqueue.serving.triton.repository import LATENCY, MODELS, ModelRepository

# Calls that a sender does not need: loading (a request may bring files, and so code), shared memory of other
# programs, statistics, traces and the log. A sender asks for the model's configuration and for inferences.
RESTRICTED: Final = ("model-repository", "shared-memory", "statistics", "trace", "logging")
# gRPC's own default, which Triton sets to 2 GiB. 64 windows of 256 tokens are 1.6 MB.
MAX_MESSAGE_BYTES: Final = 4 << 20
# Most bytes of inputs that wait or are computed: 500 questions of two event windows.
MAX_WAITING_BYTES: Final = 32 << 20
TRITON_TIMEOUT_S: Final = 60.0
PAGE_TIMEOUT_S: Final = 30.0
NO_CHAMPION: Final = (
    "no champion in the registry yet; `dvc repro` makes a version, `swiftqueue deploy` serves it"
)
MLFLOW_TIMEOUT_S: Final = 180.0  # 41 s were seen on a busy machine


def start_stack(none_yet: str = NO_CHAMPION) -> None:
    """Start Triton, wait until it answers, and serve the champion.

    Args:
        none_yet: line to print if there is no champion.

    Raises:
        OSError: a port is in use, or Triton's environment is not set up.
        RuntimeError: the server ended, did not answer, or could not load the champion.
    """
    _start_triton()
    from swiftqueue.serving.deploy.deployment import (
        serve_champion,  # brings PyTorch and MLflow, which `down` does not need
    )
    from swiftqueue.serving.deploy.served_models import served_model

    version = serve_champion()
    if version is None:
        print(none_yet)
    else:
        print(f"champion version {version} is served by the {served_backend().label}")
    for kind in MODELS:
        described = served_model(kind)
        file = described.params_file
        # An older project has no such section.
        if kind == LATENCY or not file.is_file() or described.section.section not in read_all(file):
            continue
        try:
            if (version := serve_champion(kind)) is not None:
                print(f"version {version} of {MODELS[kind]} is served by the {served_backend(kind).label}")
        except (OSError, RuntimeError) as error:  # latencies are predicted without it
            print(f"no model of kind {kind}: {error}")


def start_triton_again() -> bool:
    """Start Triton with the version that it served last; return whether it serves that again.

    No registry is asked: importing PyTorch and MLflow takes a minute on a busy machine. The next round
    checks whether that version is still the champion.

    Raises:
        OSError, RuntimeError: as `start_stack`.
    """
    _start_triton(again=True)
    if elsewhere():
        return False
    served = {kind: last["version"] for kind in MODELS if (last := deploy_log.last_served(kind=kind))}
    with Triton(f"{LOOPBACK}:{port('grpc')}") as triton:
        return LATENCY in served and all(
            triton.served_version(MODELS[kind]) == version for kind, version in served.items()
        )


def say_who_runs_this() -> None:
    """Print a warning if this process runs as root, which nothing here needs."""
    if os.geteuid() == 0:
        print("running as root, which nothing here needs: a user of its own limits what a fault can reach")


def served_backend(kind: str = LATENCY) -> Backend:
    """Return the backend of the version of a model that the first Triton serves; all use the same one.

    Raises:
        OSError: no Triton answers, or it serves nothing.
    """
    with Triton() as triton:
        return Backend(triton.config(MODELS[kind]).backend)


def _start_triton(*, again: bool = False) -> None:
    """Start Triton with what it served last: with the native backend only, unless it is started `again`."""
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
    ports = {kind: port(kind) for kind in ("grpc", "metrics")}
    if len(set(ports.values())) < len(ports):
        raise ValueError(f"Triton's ports must differ: {ports}")
    for kind, number in ports.items():
        processes.check_port(number, f"triton_{kind}")
    environment = find_environment()
    try:
        environment = with_native_backend(environment, _backends_folder())
    except OSError as error:
        print(f"models are served by the {Backend.PYTHON.label}: {error}")
    private_dir(state_dir() / TRITON)
    repository = ModelRepository()
    repository.embedded.mkdir(parents=True, exist_ok=True)
    for kind in MODELS:
        ModelRepository(kind=kind).drop_candidate()
    command = triton_command(environment, repository.embedded, ports)
    # The last served version is loaded at once. After a `down`, one of the Python backend is pushed anew: the
    # native backend may take it now.
    for model in MODELS.values():
        configuration = repository.embedded / model / "config.pbtxt"
        if configuration.is_file() and (again or f'backend: "{Backend.NATIVE}"' in configuration.read_text()):
            command += [f"--load-model={model}", "--exit-on-error=false"]
    with Triton(f"{LOOPBACK}:{ports['grpc']}") as triton:
        server = processes.start(
            TRITON, command, ports, environment.variables, triton.live, TRITON_TIMEOUT_S, nice=processes.AHEAD
        )
    print(f"triton is up (pid {server.pid}, gRPC {LOOPBACK}:{ports['grpc']}, log {server.log})")


def _backends_folder() -> Path:
    return state_dir() / TRITON / "backends"


def _knows_native_backend(server: processes.ServerProcess) -> bool:
    """Return whether a running Triton was started with the backend directory that holds ours."""
    process = server.process()
    return process is not None and f"--backend-directory={_backends_folder()}" in process.cmdline()


def triton_command(environment: TritonEnvironment, repository: Path, ports: Mapping[str, int]) -> list[str]:
    """Return the command of a Triton on loopback that loads models only for the holder of the secret.

    `ports` has `grpc` and `metrics`. The flags after the model control are for serving/triton/front, which is
    preloaded before Triton: the file of the secret after `=@`, the bounds, and the ports open to other users.

    Raises:
        OSError: the secret cannot be made, others may read it, or the front is not built.
    """
    check_front()
    return [
        str(environment.server),
        f"--model-repository={repository}",
        f"--backend-directory={environment.backends}",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",  # ours are whole: a missing value is an error, not a guess
        # With the default of 8, a stream with hundreds of requests under way ends the server: its front end
        # uses a request's state after it was freed. Up to so many are kept (docs/explanation/serving.md).
        "--grpc-infer-allocation-pool-size=16384",
        "--allow-http=false",  # nobody needs HTTP, and a body of 6 MB ends the server there
        f"--grpc-max-message-bytes={MAX_MESSAGE_BYTES}",
        f"--max-waiting-bytes={MAX_WAITING_BYTES}",
        # With TLS a certificate says who may ask; otherwise only this user and root may.
        f"--open-ports={ports['grpc'] if tls_flags() else ''}",
        f"--grpc-restricted-protocol={','.join(RESTRICTED)}:{CONTROL_KEY}=@{control_secret_file()}",
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
        RuntimeError: the server ended or did not answer.
    """
    if settings().mlflow_tracking_uri:
        print(f"MLFLOW_TRACKING_URI is set, so no local MLflow server is started: {redacted(tracking_uri())}")
        return
    if server := processes.running(MLFLOW):
        url = f"http://{LOOPBACK}:{server.ports['http']}"
        print(f"mlflow is up already (pid {server.pid}, {url}, {how_to_log_in()})\n{pages_of(url)}")
        return
    number = settings().mlflow_port
    processes.check_port(number, "mlflow_port")
    private_dir(local_store()[1])
    command = [SWIFTQUEUE, "part", "mlflow", f"--port={number}"]
    print("starting the MLflow server (10-40 s)", flush=True)
    url = f"http://{LOOPBACK}:{number}"
    server = processes.start(
        MLFLOW,
        command,
        {"http": number},
        door.variables(number),
        lambda: answers(f"{url}/health"),
        MLFLOW_TIMEOUT_S,
    )
    print(f"mlflow is up (pid {server.pid}, {url}, {how_to_log_in()}, log {server.log})\n{pages_of(url)}")


def pages_of(url: str) -> str:
    """Return lines with the addresses of MLflow's pages: the runs of the stages and the versions.

    MLflow opens an experiment in its view of generative models, which shows no runs; the address avoids that.
    """
    shown = {TRAINING: "runs of the stages", LIVE_ROUNDS: "live rounds"}
    lines = [f"{what}: {url}/{where}" for name, what in shown.items() if (where := _runs_page(url, name))]
    if not lines:
        lines = ["there are no runs of the stages yet; `dvc repro` logs them"]
    return "\n".join([*lines, f"registered versions: {url}/#/models"])


def _runs_page(url: str, experiment: str) -> str:
    """Return the path of an experiment's page at an MLflow server; empty if there is no such experiment."""
    asking = f"{url}/api/2.0/mlflow/experiments/get-by-name?{urlencode({'experiment_name': experiment})}"
    try:
        found = json.loads(page(with_login(asking, USER, secret(PASSWORD)), PAGE_TIMEOUT_S) or "")
        number = quote(str(found["experiment"]["experiment_id"]), safe="")
        return f"#/experiments/{number}?workflowType=machine_learning"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def with_login(url: str, user: str, password: str) -> Request:
    """Return a request with a user's name and password."""
    request = Request(url)  # noqa: S310 - http(s)
    request.add_header("Authorization", f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}")
    return request


def how_to_log_in() -> str:
    """Return a line with the user and password for the page of MLflow's server."""
    return f"user {USER}, password in {state_dir() / 'secrets' / PASSWORD}"
