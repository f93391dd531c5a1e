"""Several real Triton servers on one repository: a version is served by all of them, or by none.

They are started with the arguments of the Kubernetes manifest, each on ports of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from agent_program import AgentProgram, LiveSender, needs_agent
from conftest import PROJECT
from registered import add_version
from test_deploy import Clients
from waiting import wait_until

from swiftqueue.common.state import secret_file, state_dir
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.native_backend import with_native_backend
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.infra.local.status import print_status
from swiftqueue.infra.local.triton_environment import TritonEnvironment, find_environment
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.deploy import log as deploy_log
from swiftqueue.serving.deploy.checks import DeployError, local_smoke
from swiftqueue.serving.deploy.deployment import deploy_version, rollback_champion, serve_champion
from swiftqueue.serving.deploy.push import push
from swiftqueue.serving.triton.endpoint import LOOPBACK, SERVERS, Triton, TritonError, grpc_addresses
from swiftqueue.serving.triton.repository import MODEL, ModelRepository
from swiftqueue.serving.triton.servers import connected, each

pytestmark = pytest.mark.slow
OTHER_LOOPBACK = "127.0.0.2"


@dataclass
class Replica:
    """One of the servers."""

    number: int
    command: list[str]
    ports: dict[str, int]
    environment: TritonEnvironment

    @property
    def name(self) -> str:
        return f"replica-{self.number}"

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.ports['grpc']}"

    def start(self, *, native: bool = True) -> None:
        """Start it unless it runs; without `native` the server knows Triton's own backends only."""
        if processes.running(self.name):
            return
        backends = self.environment.backends if native else find_environment().backends
        command = [*self.command, f"--backend-directory={backends}"]
        with Triton(self.address) as triton:
            variables = self.environment.variables
            processes.start(self.name, command, self.ports, variables, triton.live, 60)

    def process(self) -> psutil.Process:
        server = processes.running(self.name)
        assert server is not None
        process = server.process()
        assert process is not None
        return process

    def kill(self) -> None:
        process = self.process()
        process.kill()
        process.wait(10)

    def serves(self) -> int | None:
        with Triton(self.address) as triton:
            return triton.served_version()


@dataclass(frozen=True)
class Fleet:
    """Three servers, and two registered versions, of which the first is the champion."""

    replicas: list[Replica]
    registry: Any
    first: int
    second: int

    def serves(self) -> list[int | None]:
        return [replica.serves() for replica in self.replicas]

    @property
    def champion(self) -> int | None:
        version: int | None = self.registry.alias("champion")
        return version


def manifest_commands(state: Path) -> tuple[list[str], list[str]]:
    """How `infra/k8s/triton.yaml` makes the repository, and Triton's arguments, on another volume."""
    documents = yaml.safe_load_all((PROJECT / "infra" / "k8s" / "triton.yaml").read_text())
    [pod] = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "StatefulSet"]
    [first] = [c["command"] for c in pod["initContainers"] if c["name"] == "repository"]
    [server] = pod["containers"]
    # Senders' certificates have tests of their own (test_mtls.py); the secret is the test's own, and the
    # library before Triton's main is that of the local one.
    tls = ("--grpc-use-ssl", "--grpc-server", "--grpc-root")
    arguments = [word for word in server["args"] if not word.startswith(tls)]
    control = f"=@{secret_file('triton')}"
    here = [
        [word.replace("/state/", f"{state}/").replace("=@/control/triton", control) for word in words]
        for words in (first, arguments)
    ]
    return here[0], here[1]


@pytest.fixture(scope="module")
def replicas(serving_state: Path) -> Iterator[list[Replica]]:
    environment = with_native_backend(find_environment(), serving_state / "triton" / "replicas" / "backends")
    made = []
    prepare, arguments = manifest_commands(serving_state)
    subprocess.run(prepare, check=True)
    for number in range(3):
        ports = dict(zip(("http", "grpc", "metrics"), free_ports(3), strict=True))
        command = [str(environment.server), *arguments]
        command += [f"--{kind}-address={LOOPBACK}" for kind in ports]
        command += [f"--{kind}-port={port}" for kind, port in ports.items()]
        made.append(Replica(number, command, ports, environment))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWIFTQUEUE_TRITON_SECRET", str(serving_state / "secrets" / "triton"))
        patch.setenv(SERVERS, ",".join(replica.address for replica in made))
        patch.chdir(PROJECT)
        yield made
    for replica in made:
        if processes.running(replica.name):
            replica.kill()  # an orderly end takes seconds, and there is nothing to save
        processes.stop(replica.name)


@pytest.fixture(scope="module")
def registered(
    serving_state: Path, make_artifact: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, int, int]:
    """The registry, and two versions of its own in it."""
    from swiftqueue.models.registry.registry import Registry

    registry = Registry("swiftqueue")
    versions: list[int] = []
    for seed in (1, 2):
        folder = tmp_path_factory.mktemp("registered") / "artifact"
        shutil.copytree(make_artifact(seed, onnx=True), folder)
        described = json.loads((folder / "model.json").read_text())
        described["protocol"]["name"] = "several-servers"  # another content than other tests' versions
        (folder / "model.json").write_text(json.dumps(described))
        versions.append(add_version(folder))
    first, second = versions
    return registry, first, second


@pytest.fixture
def fleet(replicas: list[Replica], registered: tuple[Any, int, int]) -> Fleet:
    """Every server runs and serves the first version, whatever a test before this one left."""
    fleet = Fleet(replicas, *registered)
    for replica in replicas:
        replica.start()
    deploy_version(fleet.first)
    assert fleet.serves() == [fleet.first] * 3
    assert fleet.champion == fleet.first
    return fleet


@contextmanager
def asking(replicas: Sequence[Replica]) -> Iterator[list[set[int]]]:
    """Clients that ask each of these without pause: none fails; gives the versions that each saw."""
    clients = [Clients(replica.address) for replica in replicas]
    seen: list[set[int]] = []
    with ExitStack() as stack:
        for client in clients:
            stack.enter_context(client.asking())
        yield seen
    assert [client.errors for client in clients] == [[] for _ in clients]
    seen += [set(client.versions) for client in clients]


@contextmanager
def struck(version: int, strike: Callable[[], None]) -> Iterator[None]:
    """Strike a server once a push has tried a version everywhere and names it as the one to serve."""
    configuration = ModelRepository().embedded / MODEL / "config.pbtxt"
    over = threading.Event()
    before = configuration.stat().st_mtime_ns

    def watch() -> None:
        while not over.is_set():
            if configuration.stat().st_mtime_ns != before:
                assert f"versions: [ {version} ]" in configuration.read_text()
                strike()
                return
            time.sleep(0.0005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_versions_follow_at_all_servers_without_a_failed_request(
    replicas: list[Replica],
    registered: tuple[Any, int, int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    fleet = Fleet(replicas, *registered)
    for replica in replicas:
        replica.start()
    deploy_version(fleet.first)
    assert fleet.serves() == [fleet.first] * 3
    with asking(replicas) as seen:
        deploy_version(fleet.second)
        assert fleet.serves() == [fleet.second] * 3
        assert fleet.champion == fleet.second
        assert "by the native backend at all 3 servers and champion" in capsys.readouterr().out
        assert print_status() == 0
        said = capsys.readouterr().out
        rollback_champion()
        assert fleet.serves() == [fleet.first] * 3
        assert fleet.champion == fleet.first
    assert seen == [{fleet.first, fleet.second}] * 3
    lines = [line for line in said.splitlines() if line.startswith("triton: ")]
    for line, replica in zip(lines, replicas, strict=True):
        assert f"serves version {fleet.second} by the native backend at {replica.address}, " in line
        assert re.search(r", [\d.]+ (s|min) old, inference \d+ µs$", line), line
    last = next(deploy_log.newest_first())
    assert (last["action"], last["outcome"], last["previous"]) == ("rollback", "served", fleet.second)
    assert last["servers"] == {replica.address: fleet.second for replica in replicas}


def test_a_replica_is_ready_where_it_answers_a_real_inference(fleet: Fleet) -> None:
    """infra/k8s/ready.py at one that serves a version, one that serves none, and none at all."""
    ports = fleet.replicas[0].ports

    def says(what: str, number: int) -> tuple[int, str]:
        environment = {"PATH": os.environ["PATH"], "TRITON_HTTP_PORT": str(number)}
        probe = [sys.executable, "-I", str(PROJECT / "infra/k8s/ready.py"), what]
        done = subprocess.run(probe, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.strip()

    assert says("serving", ports["http"]) == (0, f"ready: version {fleet.first}")
    with Triton(fleet.replicas[0].address) as triton:
        triton.unload(MODEL)
        without = says("serving", ports["http"])
        assert says("live", ports["http"]) == (0, "")
        triton.load(MODEL)
    (nobody,) = free_ports(1)
    for code, line in (without, says("serving", nobody), says("live", nobody)):
        assert code == 1
        assert line.startswith("not ")


@pytest.mark.parametrize("body", [{}, {"parameters": {"config": "{}"}}])
def test_nobody_loads_by_http_without_the_secret(fleet: Fleet, body: dict[str, Any]) -> None:
    url = f"http://{LOOPBACK}:{fleet.replicas[0].ports['http']}/v2/repository/models/{MODEL}"
    for what in ("load", "unload"):
        request = urllib.request.Request(f"{url}/{what}", json.dumps(body).encode())  # noqa: S310 - loopback
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=10)  # noqa: S310
    assert fleet.serves() == [fleet.first] * 3


def test_a_message_of_megabytes_is_refused_and_no_argument_is_the_secret(fleet: Fleet) -> None:
    with Triton(fleet.replicas[0].address) as triton:
        x_BWF = np.zeros((1 << 10, *triton.config().input[0].dims), np.float32)
        assert x_BWF.nbytes > 5 << 20
        with pytest.raises(TritonError, match="larger than max"):
            triton.infer(x_BWF)
    assert fleet.serves() == [fleet.first] * 3
    called = " ".join(fleet.replicas[0].process().cmdline())
    assert "--grpc-restricted-protocol=" in called
    assert secret_file("triton").read_text().strip() not in called


def test_a_server_killed_in_a_push_leaves_the_others_with_the_champion(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    *others, dead = fleet.replicas
    line = (
        f"^version {fleet.second} is not deployed: .* at {dead.address} failed: .*"
        f"; version {fleet.first} goes on, but not at {dead.address}$"
    )
    with asking(others), struck(fleet.second, dead.kill), pytest.raises(RuntimeError, match=line):
        deploy_version(fleet.second)
    assert fleet.serves() == [fleet.first, fleet.first, None]
    assert fleet.champion == fleet.first
    last = next(deploy_log.newest_first())
    assert (last["version"], last["outcome"], last["previous"]) == (fleet.second, "failed", fleet.first)
    gone = f"no Triton server answers at {dead.address}; nothing is deployed while {SERVERS} names it"
    assert print_status() == 1
    assert f"triton: {gone}" in capsys.readouterr().out
    for command in (lambda: deploy_version(fleet.second), rollback_champion, serve_champion):
        with pytest.raises(OSError, match=gone):
            command()
    assert fleet.serves() == [fleet.first, fleet.first, None]

    dead.start()  # it loads by itself what the one configuration names
    wait_until(lambda: dead.serves() == fleet.first, "it did not load the champion at its start")
    assert print_status() == 0
    deploy_version(fleet.second)
    assert fleet.serves() == [fleet.second] * 3


def test_without_the_dead_server_in_the_list_deploys_go_on_and_it_catches_up(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    *others, dead = fleet.replicas
    dead.kill()
    with monkeypatch.context() as patch:
        patch.setenv(SERVERS, ",".join(replica.address for replica in others))
        deploy_version(fleet.second)
    assert fleet.serves() == [fleet.second, fleet.second, None]
    dead.start()
    wait_until(lambda: dead.serves() == fleet.second, "it did not load the champion at its start")


@pytest.mark.long
def test_a_server_paused_in_a_push_delays_it_and_heals(fleet: Fleet) -> None:
    first, paused, third = fleet.replicas
    line = f"at {paused.address} failed: .*; version {fleet.first} goes on, but not at {paused.address}$"
    with asking([first, third]):
        with struck(fleet.second, paused.process().suspend), pytest.raises(RuntimeError, match=line):
            deploy_version(fleet.second)
        assert [first.serves(), third.serves()] == [fleet.first] * 2
        assert fleet.champion == fleet.first
        paused.process().resume()
        wait_until(lambda: paused.serves() is not None, "it does not answer again")
        serve_champion()
    assert fleet.serves() == [fleet.first] * 3


def test_a_server_with_another_version_is_named_and_healed(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy_version(fleet.second)
    other, repository = fleet.replicas[1], ModelRepository()
    repository.serve(fleet.first)
    with Triton(other.address) as triton:
        triton.load(MODEL)
    repository.serve(fleet.second)
    capsys.readouterr()
    assert print_status() == 1
    line = (
        f"version {fleet.second} was deployed last, so {other.address} is not up to date: swiftqueue deploy"
    )
    assert [said for said in capsys.readouterr().out.splitlines() if "not up to date" in said] == [
        f"triton: {line}"
    ]
    with asking(fleet.replicas) as seen:
        deploy_version(None)
    assert fleet.serves() == [fleet.second] * 3
    assert seen[0] == seen[2] == {fleet.second}
    last = next(deploy_log.newest_first())
    assert (last["action"], last["outcome"], last["previous"]) == ("restore", "served", fleet.second)
    assert last["servers"][other.address] == fleet.first
    wait_until(lambda: print_status() == 0, "not well again")


def test_what_one_server_cannot_load_natively_all_serve_by_the_python_backend(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    native, other = fleet.replicas[:2]
    processes.stop(other.name)
    other.start(native=False)
    monkeypatch.setenv(SERVERS, f"{native.address},{other.address}")
    deploy_version(fleet.second)
    said = capsys.readouterr().out
    assert (
        len(re.findall("goes to the Python backend .*: the server runs without the native backend", said))
        == 1
    )
    assert (
        f"version {fleet.second} is served by the Python backend with ONNX Runtime at all 2 servers" in said
    )
    assert [native.serves(), other.serves()] == [fleet.second] * 2
    processes.stop(other.name)


def test_a_number_that_fails_with_new_content_leaves_the_old_content_served(
    fleet: Fleet, make_artifact: Callable[..., Path]
) -> None:
    """A registry made anew counts from 1 again: the push of its version N takes the place of the old N."""
    from swiftqueue.models.networks import artifact

    number, repository = 900, ModelRepository()
    kept, dead = fleet.replicas[:2]
    smoke = local_smoke(artifact.load(make_artifact(1)))
    with Triton(kept.address) as one, Triton(dead.address) as two:
        push(make_artifact(1), number, [one, two], repository, fleet.first)
        with (
            struck(number, dead.kill),
            pytest.raises(DeployError, match=f"version {number} goes on, but not at"),
        ):
            push(make_artifact(2), number, [one, two], repository, number)
        answer = one.infer(smoke.x_BWF)
        assert answer.version == number
        np.testing.assert_allclose(answer.y_BH, smoke.y_BH, rtol=1e-4)
    dead.start()
    wait_until(lambda: dead.serves() == number, "it does not serve the old content at its start")
    with Triton(dead.address) as two:
        np.testing.assert_allclose(two.infer(smoke.x_BWF).y_BH, smoke.y_BH, rtol=1e-4)
    serve_champion()
    repository.remove(number)


def test_a_number_that_cannot_be_served_leaves_the_old_content_at_the_only_server(
    fleet: Fleet, make_artifact: Callable[..., Path]
) -> None:
    """The new configuration cannot be written, as on a full disk."""
    number, repository = 901, ModelRepository()
    blocker = repository.embedded / MODEL / ".config.pbtxt.partial"
    with Triton(fleet.replicas[0].address) as triton:
        push(make_artifact(1), number, [triton], repository, fleet.first)
        before = triton.infer(np.zeros((1, *triton.config().input[0].dims), np.float32))
        blocker.mkdir()
        try:
            with pytest.raises(DeployError, match=r"version 901 is not deployed: .*config\.pbtxt"):
                push(make_artifact(2), number, [triton], repository, number)
        finally:
            blocker.rmdir()
        after = triton.infer(np.zeros((1, *triton.config().input[0].dims), np.float32))
        assert after.version == before.version == number
        np.testing.assert_array_equal(after.y_BH, before.y_BH)
    serve_champion()
    repository.remove(number)


def scraped(port: int) -> dict[str, str]:
    with urllib.request.urlopen(f"http://{OTHER_LOOPBACK}:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_the_scheduler_reports_each_server_where_it_is_to_be_scraped(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swiftqueue.pipelines.live.metrics import Metrics

    *others, dead = fleet.replicas
    dead.kill()
    monkeypatch.setenv("SWIFTQUEUE_METRICS_ADDRESS", OTHER_LOOPBACK)
    values = scraped(Metrics().serve(0))
    for replica in others:
        assert float(values[f'swiftqueue_served_version{{server="{replica.address}"}}']) == fleet.first
    assert float(values[f'swiftqueue_served_version{{server="{dead.address}"}}']) == 0


@needs_agent
def test_the_agent_asks_all_of_them_and_is_scraped_where_it_is_told(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    options = agent_process.server_options(grpc_addresses())
    options += ["--metrics-port=0", f"--metrics-address={OTHER_LOOPBACK}"]
    with (
        AgentProgram("--listen", path, *options) as agent,
        LiveSender(path, deadline_us=1_000_000) as sender,
    ):
        assert sender.until_decided()["version"] == fleet.first

        def all_known() -> bool:
            values = scraped(agent.ready["metrics_port"])
            name = "swiftqueue_agent_server_version"
            return all(
                float(values.get(f'{name}{{server="{replica.address}"}}', 0)) == fleet.first
                for replica in fleet.replicas
            )

        wait_until(all_known, "the agent does not know each server's version")
        sender.socket.close()
        agent.end()


def test_where_the_registry_does_not_take_the_name_the_servers_go_back(fleet: Fleet) -> None:
    """Its database takes no change of an alias any more."""
    refuse = "BEFORE {0} ON registered_model_aliases BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
    database = sqlite3.connect(state_dir() / "mlflow" / "mlflow.db")
    line = (
        f"^version {fleet.second} is not deployed: alias champion failed .*; version {fleet.first} goes on$"
    )
    for change in ("INSERT", "UPDATE"):
        database.execute(f"CREATE TRIGGER no_{change} {refuse.format(change)}")
    try:
        with asking(fleet.replicas), pytest.raises(RuntimeError, match=line):
            deploy_version(fleet.second)
    finally:
        for change in ("INSERT", "UPDATE"):
            database.execute(f"DROP TRIGGER no_{change}")
        database.close()
    assert fleet.serves() == [fleet.first] * 3
    assert fleet.champion == fleet.first
    assert next(deploy_log.newest_first())["outcome"] == "failed"


def test_servers_that_are_named_are_served_and_none_is_started(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from swiftqueue.infra.local.servers import start_stack

    for replica in fleet.replicas:
        with Triton(replica.address) as triton:
            triton.unload(MODEL)
    before = processes.running("triton")
    start_stack()
    assert processes.running("triton") == before
    said = capsys.readouterr().out
    assert f"{SERVERS} is set, so no local Triton is started" in said
    assert f"champion version {fleet.first} is served" in said
    with connected() as servers:
        assert each(servers, Triton.served_version) == [fleet.first] * 3
