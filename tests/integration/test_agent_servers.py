"""The C++ agent against real Triton servers that die, hang, are slow, or serve another version.

In each fault: every batch is answered by the time it is due, the counts add up, and the agent finds the
server again by itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc
from agent_program import (
    DEFAULTS,
    FULL,
    GONE_S,
    AgentProgram,
    LiveSender,
    Sleeper,
    SteppingClock,
    memory_over,
    needs_agent,
)
from registered import add_version
from test_agent import change_head
from triton_process import kill_server, paused_server
from waiting import wait_until

from swiftqueue.benchmarks.served_models import served, write_model
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.native_backend import with_native_backend
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.infra.local.servers import start_stack, triton_command
from swiftqueue.infra.local.triton_environment import find_environment
from swiftqueue.models.networks import onnx_head
from swiftqueue.models.registry.registry import CHAMPION, Registry
from swiftqueue.serving.agent.io import frames
from swiftqueue.serving.deploy.deployment import deploy_version
from swiftqueue.serving.triton.config import Backend
from swiftqueue.serving.triton.endpoint import Triton, control_headers, grpc_address
from swiftqueue.serving.triton.repository import MODEL

pytestmark = [pytest.mark.slow, needs_agent]
DEADLINE_US = 30_000
SLACK_US = 5_000  # what answering takes beyond waking up, for nine batches of ten
PAUSE_US = 200_000  # longest pause of a busy machine
MEMORY_PACKETS = 10_000_000 if FULL else 400_000


@contextmanager
def agent_at(
    tmp_path: Path, *servers: str, deadline_us: int = DEADLINE_US, preload: Path | None = None
) -> Iterator[tuple[AgentProgram, LiveSender]]:
    path = tmp_path / "agent.sock"
    arguments = ["--listen", path, "--metrics-port", 0]
    for server in servers:
        arguments += ["--server", server]
    with AgentProgram(*arguments, preload=preload) as agent, LiveSender(path, "s", deadline_us) as sender:
        yield agent, sender
        sender.socket.close()
        assert agent.end()["batches"] == len(sender.outcomes)


@contextmanager
def in_time(sender: LiveSender) -> Iterator[Callable[[], int]]:
    """No batch waited for the server, though single ones meet a busy machine's pauses.

    Yields what asks about a batch and returns its outcome. After each, a program that only sleeps for as
    long is waited for: waking up on this machine at this time is what lateness is judged by.
    """
    sender.lateness_us.clear()
    with Sleeper() as sleeper:

        def batch() -> int:
            outcome = sender.batch()["outcome"]
            sleeper.sleep(sender.deadline_ns // 1000)
            return int(outcome)

        yield batch
        ours_us, asleep_us = sorted(sender.lateness_us), sorted(sleeper.lateness_us)
    most = len(ours_us) * 9 // 10
    assert ours_us[most] <= SLACK_US + 2 * asleep_us[most], (ours_us, asleep_us)
    assert ours_us[-1] <= PAUSE_US + 2 * asleep_us[-1], (ours_us, asleep_us)


def test_a_killed_server_is_found_again(champion: int, tmp_path: Path) -> None:
    with agent_at(tmp_path, grpc_address()) as (agent, sender):
        assert sender.until_decided()["version"] == champion
        kill_server()
        try:
            killed_at = len(sender.outcomes)
            end = time.monotonic() + GONE_S
            with in_time(sender) as batch:
                while time.monotonic() < end:
                    batch()
            assert "decided" not in sender.outcomes[killed_at + 1 :]  # one answer may have been on its way
            name = f'connected{{server="{grpc_address()}"}}'
            assert agent.metrics()[name] == 0
        finally:
            start_stack()  # the other tests' too
        assert sender.until_decided()["version"] == champion
        assert agent.metrics()[name] == 1


def test_a_paused_server_costs_no_more_than_the_deadline(champion: int, tmp_path: Path) -> None:
    with agent_at(tmp_path, grpc_address()) as (_, sender):
        sender.until_decided()
        with paused_server(), in_time(sender) as batch:
            outcomes = [batch() for _ in range(60)]
        assert 0 not in outcomes
        sender.until_decided()


class SlowProxy:
    """A TCP proxy that holds what the server says for `delay_s` before it passes it on."""

    def __init__(self, port: int) -> None:
        self.delay_s = 0.0
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                return
            self._sockets += [client, server]
            threading.Thread(target=self._pass_on, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, delayed: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if delayed:
                    time.sleep(self.delay_s)
                sink.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        for each in self._sockets:
            each.close()


def test_a_slow_server_makes_batches_late_and_its_answers_stale(champion: int, tmp_path: Path) -> None:
    proxy = SlowProxy(int(grpc_address().rpartition(":")[2]))
    try:
        with agent_at(tmp_path, proxy.address) as (agent, sender):
            sender.until_decided()
            proxy.delay_s = 0.1
            with in_time(sender) as batch:
                outcomes = [batch() for _ in range(50)]
            assert 0 not in outcomes
            wait_until(lambda: agent.metrics()["stale_answers_total"] > 0, "no answer came late")
            proxy.delay_s = 0.0
            sender.until_decided()
    finally:
        proxy.close()


@pytest.fixture(scope="module")
def replica(champion: int, triton: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a second Triton, which goes on serving the champion, whatever is deployed to the first."""
    folder = tmp_path_factory.mktemp("replica")
    repository = folder / "repository"
    shutil.copytree(triton / "triton" / "repository", repository)
    environment = with_native_backend(find_environment(), folder / "backends")
    grpc, metrics = free_ports(2)
    command = triton_command(environment, repository, {"grpc": grpc, "metrics": metrics})
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--load-model=swiftqueue"],
            env=os.environ | environment.variables,
            stdout=log,
            stderr=log,
        )
    address = f"127.0.0.1:{grpc}"
    with Triton(address) as client:
        wait_until(client.live, (folder / "log").read_text()[-2000:])
    yield address
    server.kill()
    server.wait()


@pytest.fixture
def newer(champion: int, replica: str, tmp_path: Path, make_artifact: Callable[..., Path]) -> Iterator[int]:
    """A version with another head, deployed to the local stack alone: the replica serves an older one."""
    folder = tmp_path / "other_head"
    shutil.copytree(make_artifact(1, onnx=True), folder)
    (folder / "model.onnx").unlink()
    change_head(folder)
    onnx_head.export_onnx(folder, make_artifact(1, onnx=True))
    version = add_version(folder)
    deploy_version(version)
    yield version
    deploy_version(champion)


def test_the_second_server_takes_over_with_an_older_version_and_each_ones_is_seen(
    champion: int, newer: int, replica: str, tmp_path: Path
) -> None:
    assert champion < newer
    proxy = SlowProxy(int(grpc_address().rpartition(":")[2]))
    with agent_at(tmp_path, proxy.address, replica) as (agent, sender):
        versions = {proxy.address: newer, replica: champion}
        sender.until_decided(newer)
        wait_until(
            lambda: all(
                agent.metrics().get(f'server_version{{server="{server}"}}') == version
                for server, version in versions.items()
            ),
            "the versions of both servers are not in the metrics",
        )
        proxy.close()
        sender.until_decided(champion)
        metrics = agent.metrics()
        assert metrics[f'connected{{server="{replica}"}}'] == 1
        assert metrics[f'server_version{{server="{replica}"}}'] == champion
        gone = f'connected{{server="{proxy.address}"}}'
        wait_until(lambda: agent.metrics()[gone] == 0, "a server that is gone counts as connected")


@pytest.mark.parametrize("patient", [1, 3])
def test_patient_questions_hide_no_stall_from_others(
    champion: int, replica: str, tmp_path: Path, patient: int
) -> None:
    """Some questions that are due in 10 s are under way on a server that hangs; three leave no room."""
    proxy = SlowProxy(int(grpc_address().rpartition(":")[2]))
    try:
        with agent_at(tmp_path, proxy.address, replica) as (agent, hasty), ExitStack() as stack:
            wait_until(
                lambda: all(
                    agent.metrics().get(f'connected{{server="{server}"}}') == 1
                    for server in (proxy.address, replica)
                ),
                "not connected to both",
            )
            hasty.until_decided()
            proxy.delay_s = 60.0
            others = [
                stack.enter_context(LiveSender(tmp_path / "agent.sock", f"p{i}")) for i in range(patient)
            ]
            due_ns = time.monotonic_ns() + 10 * 10**9
            for other in others:
                other.ask(due_ns)
                time.sleep(0.02)  # so that each is a request of its own
            hasty.until_decided()
            assert time.monotonic_ns() < due_ns, "it waited for the patient ones"
            # Given up in time, the server's questions were asked of the next one.
            for other in others:
                decision = other.receive(due_ns + 10**9)
                assert decision["type"] == 5
                assert frames.OUTCOMES[decision["outcome"]] == "decided"
                other.outcomes.append("decided")
                other.socket.close()
            hasty.outcomes += ["decided"] * patient  # counted with its own, when the agent ends
    finally:
        proxy.close()


def test_steps_of_the_wall_clock_change_nothing(champion: int, tmp_path: Path) -> None:
    clock = SteppingClock(tmp_path)
    with agent_at(tmp_path, grpc_address(), deadline_us=500_000, preload=clock.library) as (_, sender):
        sender.until_decided()
        assert sum(sender.batch()["outcome"] == 0 for _ in range(50)) >= 45
    looks, of_the_wall = clock.looks()
    assert looks > 50  # else it was not the library's clock
    assert of_the_wall > 0


def test_a_backend_that_throws_costs_the_batches_it_throws_at(
    serving_state: Path, tmp_path: Path, make_artifact: Callable[..., Path]
) -> None:
    """A valid artifact whose scaling overflows on packets of a megabyte: the engine throws."""
    source = tmp_path / "overflows"
    shutil.copytree(make_artifact(1), source)
    described = json.loads((source / "model.json").read_text())
    for feature in (*described["features"], *described["queries"]):
        if feature["name"] == "size_bytes":
            feature |= {"transform": "identity", "shift": 0.0, "scale": 1e-33}
    (source / "model.json").write_text(json.dumps(described))
    write_model(tmp_path / "repository", MODEL, source, Backend.NATIVE)
    path = tmp_path / "agent.sock"
    with (
        served(tmp_path, [MODEL], name="triton-throws") as address,
        agent_at(tmp_path, address, deadline_us=1_000_000) as (agent, good),
        LiveSender(path, "large", 1_000_000) as large,
    ):
        large.size_bytes = 10**6
        good.until_decided()
        refused = [large.batch() for _ in range(10)]
        assert set(large.outcomes) == {"error"}
        agent.complained(f"{address} refused a batch: ")
        assert all(np.array_equal(decision["queues"], DEFAULTS) for decision in refused)
        assert good.batch()["outcome"] == 0
        assert agent.metrics()['batches_total{outcome="error"}'] == 10
        with grpc.InferenceServerClient(address) as client:
            statistics = client.get_inference_statistics(MODEL, headers=control_headers()).model_stats[0]
        assert statistics.inference_stats.fail.count == 10
        large.socket.close()
        good.outcomes += large.outcomes  # counted with its own, when the agent ends


def test_a_model_that_cannot_be_asked_is_named_once(
    serving_state: Path, tmp_path: Path, make_artifact: Callable[..., Path]
) -> None:
    write_model(tmp_path / "repository", MODEL, make_artifact(1), Backend.NATIVE)
    config = tmp_path / "repository" / MODEL / "config.pbtxt"
    config.write_text(re.sub(r"max_batch_size: \d+", "max_batch_size: 1", config.read_text()))
    with (
        served(tmp_path, [MODEL], name="triton-others") as address,
        AgentProgram("--listen", tmp_path / "agent.sock", "--metrics-port", 0, "--server", address) as agent,
    ):
        agent.complained(f"{address}: the served model takes fewer than 2 windows in a request")
        refused = f'model_refused{{server="{address}"}}'
        wait_until(lambda: agent.metrics()[refused] == 1)
        agent.end()
        assert len(agent.complaints) == 1  # though it looks every second


@pytest.mark.long
def test_memory_is_flat_over_many_packets_of_agent_and_server(
    serving_state: Path, tmp_path: Path, make_artifact: Callable[..., Path]
) -> None:
    write_model(tmp_path / "repository", MODEL, make_artifact(1, layers=1), Backend.NATIVE)
    with served(tmp_path, [MODEL], name="triton-memory") as address:
        running = processes.running("triton-memory")
        server = running.process() if running else None
        assert server is not None
        agent_held, server_held = memory_over(MEMORY_PACKETS, ["--server", address], server)
    for name, held in (("agent", agent_held), ("server", server_held)):
        print(f"{name}: {held[0]} to {max(held)} bytes over {MEMORY_PACKETS:,} packets")
        assert max(held) - held[0] < 2 << 20, f"{name}: {held[0]} to {max(held)} bytes"


def test_the_command_keeps_the_local_champion_fresh(
    champion: int, serving_state: Path, tmp_path: Path, make_artifact: Callable[..., Path]
) -> None:
    path = tmp_path / "agent.sock"
    command = [sys.executable, "-c", "from swiftqueue.cli.app import main; main()", "agent"]
    command += ["--listen", str(path), "--local"]
    registry = Registry("swiftqueue")
    version = add_version(make_artifact(21, onnx=True))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            wait_until(path.exists, "the agent does not listen")
            with LiveSender(path, deadline_us=1_000_000) as sender:
                assert sender.until_decided()["version"] == champion
                registry.set_alias(CHAMPION, version)
                sender.until_decided(version)
        finally:
            registry.set_alias(CHAMPION, champion)
            program.terminate()
        said = program.communicate(timeout=20)[0]
    assert program.returncode == 0
    assert f"champion is version {version}" in said
    assert '"summary"' in said
