"""The C++ agent against real Triton servers that die, hang, are slow, or serve another version.

In each fault: every batch is answered by the time it is due, the counts add up, and the agent finds the
server again by itself.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agent_program import AgentProgram, LiveSender, build_stepping_clock, wait_until
from conftest import free_ports
from triton_process import kill_server, server_process

from serving import agent_process
from serving.endpoint import Triton, grpc_address

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(agent_process.why_not_built() is not None, reason=str(agent_process.why_not_built())),
]
DEADLINE_US = 30_000
SLACK_US = 30_000  # what a busy machine may add to most timed waits
GONE_S = float(os.environ.get("SWIFTQUEUE_TEST_GONE_S", "5"))  # how long a server stays away


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


def in_time(sender: LiveSender) -> None:
    """No batch waited for the server; single ones may have met a pause of a busy machine."""
    waits_us = sorted(sender.waits_us)
    assert waits_us[len(waits_us) // 2] < DEADLINE_US + SLACK_US, waits_us
    assert waits_us[-1] < 1e6


def test_a_killed_server_is_found_again(champion: int, tmp_path: Path) -> None:
    from infra.stack import start_stack

    with agent_at(tmp_path, grpc_address()) as (agent, sender):
        assert sender.until("decided", 15)["version"] == champion
        kill_server()
        sender.waits_us.clear()
        killed_at = len(sender.outcomes)
        end = time.monotonic() + GONE_S
        while time.monotonic() < end:
            sender.batch()
            time.sleep(0.01)
        assert "decided" not in sender.outcomes[killed_at + 1 :]  # one answer may have been on its way
        in_time(sender)
        name = f'connected{{server="{grpc_address()}"}}'
        assert agent.metrics()[name] == 0
        start_stack(mlflow=False)
        assert sender.until("decided", 15)["version"] == champion
        assert agent.metrics()[name] == 1


def test_a_paused_server_costs_no_more_than_the_deadline(champion: int, tmp_path: Path) -> None:
    with agent_at(tmp_path, grpc_address()) as (_, sender):
        sender.until("decided", 15)
        process = server_process()
        sender.waits_us.clear()
        process.suspend()
        try:
            outcomes = [sender.batch()["outcome"] for _ in range(60)]
        finally:
            process.resume()
        assert 0 not in outcomes[1:]
        in_time(sender)
        sender.until("decided", 15)


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
            sender.until("decided", 15)
            sender.waits_us.clear()
            proxy.delay_s = 0.1
            outcomes = [sender.batch()["outcome"] for _ in range(15)]
            assert 0 not in outcomes
            in_time(sender)
            wait_until(lambda: agent.metrics()["stale_answers_total"] > 0, 10, "no answer came late")
            proxy.delay_s = 0.0
            sender.until("decided", 15)
    finally:
        proxy.close()


@pytest.fixture(scope="module")
def replica(champion: int, triton: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a second Triton, whose version is another number than the champion's."""
    from infra.native_backend import with_native_backend
    from infra.stack import triton_command
    from infra.triton_environment import find_environment

    folder = tmp_path_factory.mktemp("replica")
    repository = folder / "repository"
    shutil.copytree(triton / "triton" / "repository", repository)
    model = repository / "swiftqueue"
    (model / str(champion)).rename(model / str(champion + 100))
    config = (model / "config.pbtxt").read_text()
    policy = f"versions: [ {champion} ]"
    assert policy in config, config
    (model / "config.pbtxt").write_text(config.replace(policy, f"versions: [ {champion + 100} ]"))
    environment = with_native_backend(find_environment(), folder / "backends")
    grpc, http, metrics = free_ports(3)
    command = triton_command(environment, repository, {"http": http, "grpc": grpc, "metrics": metrics})
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--load-model=swiftqueue"],
            env=os.environ | environment.variables,
            stdout=log,
            stderr=log,
        )
    address = f"127.0.0.1:{grpc}"
    with Triton(address) as client:
        wait_until(client.live, 30, (folder / "log").read_text()[-2000:])
    yield address
    server.kill()
    server.wait()


def test_the_second_server_takes_over_and_each_ones_version_is_seen(
    champion: int, replica: str, tmp_path: Path
) -> None:
    proxy = SlowProxy(int(grpc_address().rpartition(":")[2]))
    with agent_at(tmp_path, proxy.address, replica) as (agent, sender):
        versions = {proxy.address: champion, replica: champion + 100}
        while sender.until("decided", 15)["version"] != champion:
            pass
        wait_until(
            lambda: all(
                agent.metrics().get(f'server_version{{server="{server}"}}') == version
                for server, version in versions.items()
            ),
            15,
            "the versions of both servers are not in the metrics",
        )
        proxy.close()
        end = time.monotonic() + 15
        while sender.until("decided", 15)["version"] != champion + 100:
            assert time.monotonic() < end, "the second server does not take over"
        assert agent.metrics()[f'connected{{server="{replica}"}}'] == 1


def test_steps_of_the_wall_clock_change_nothing(champion: int, tmp_path: Path) -> None:
    shim = build_stepping_clock(tmp_path)
    with agent_at(tmp_path, grpc_address(), deadline_us=500_000, preload=shim) as (_, sender):
        sender.until("decided", 15)
        assert sum(sender.batch()["outcome"] == 0 for _ in range(50)) >= 45


def test_the_command_keeps_the_local_champion_fresh(
    champion: int, serving_state: Path, tmp_path: Path, make_artifact: Callable[..., Path]
) -> None:
    import sys

    from models.lineage import content_hash
    from models.registry import CHAMPION, Registry

    path = tmp_path / "agent.sock"
    command = [sys.executable, "-c", "from infra.cli import main; main()", "agent"]
    command += ["--listen", str(path), "--local"]
    registry = Registry("swiftqueue")
    folder = make_artifact(21, onnx=True)
    version = registry.find(content_hash(folder))
    if version is None:
        tags = {"content_sha256": content_hash(folder), "gate": "passed", "gate_reason": "set by a test"}
        version = registry.add(folder, tags=tags, params={}, metrics={})
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            wait_until(path.exists, 200, "the agent does not listen")
            with LiveSender(path, deadline_us=1_000_000) as sender:
                assert sender.until("decided", 15)["version"] == champion
                registry.set_alias(CHAMPION, version)
                end = time.monotonic() + 30
                while sender.until("decided", 15)["version"] != version:
                    assert time.monotonic() < end, "the new champion is not taken up"
        finally:
            registry.set_alias(CHAMPION, champion)
            program.terminate()
        said = program.communicate(timeout=20)[0]
    assert program.returncode == 0
    assert f"champion is version {version}" in said
    assert '"summary"' in said
