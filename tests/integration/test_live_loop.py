"""`swiftqueue up --live` and `down` with every real part."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from infra import processes
from infra.live import health, plan
from infra.live.loop import start_loop
from infra.stack import PARTS, print_status, stop_stack

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from bottleneck_tables import bottleneck_table, write_table
from conftest import PROJECT, free_ports

pytestmark = pytest.mark.slow

PORTS = (
    "SWIFTQUEUE_TRITON_GRPC",
    "SWIFTQUEUE_TRITON_HTTP",
    "SWIFTQUEUE_TRITON_METRICS",
    "SWIFTQUEUE_MLFLOW_PORT",
    "SWIFTQUEUE_RAY_PORT",
    "SWIFTQUEUE_INGEST_PORT",
    "SWIFTQUEUE_AGENT_METRICS",
    "SWIFTQUEUE_SCHEDULER_METRICS",
    "SWIFTQUEUE_KEEPER_METRICS",
    "SWIFTQUEUE_PROMETHEUS_PORT",
)
ROUNDS_WAIT_S = 300.0  # the first round, which starts the workers, took 100 s beside another training


@dataclass
class Loop:
    """A state folder, free ports and a packet table of its own."""

    state: Path
    packets: Path
    ports: list[int]

    def start(self) -> None:
        start_loop(str(self.packets), speed=1, every_s=5, learn_s=4, judge_s=2)

    def processes(self) -> list[psutil.Process]:
        """Every process that was started for this state folder."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SWIFTQUEUE_STATE") == str(self.state):
                    found.append(process)
        return found


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    write_table(tmp_path / "packets", bottleneck_table("live", seconds=20))
    loop = Loop(tmp_path / "state", tmp_path / "packets", free_ports(len(PORTS)))
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(loop.state))
    for name, number in zip(PORTS, loop.ports, strict=True):
        monkeypatch.setenv(name, str(number))
    for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS", "SWIFTQUEUE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)
    yield loop
    stop_stack()
    shutil.rmtree(loop.state, ignore_errors=True)


def leaked_shared_memory(before: set[str]) -> set[str]:
    """What lies in shared memory since then and no process uses."""
    new = {path.name for path in Path("/dev/shm").iterdir()} - before  # noqa: S108
    maps = []
    for process in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            maps.append(process.read_text())
    used = "\n".join(maps)
    return {name for name in new if f"/dev/shm/{name}" not in used}  # noqa: S108


def wait_until(what: str, true: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.5)


def register_champion(folder: Path) -> int:
    from models.lineage import content_hash
    from models.registry import CHAMPION, Registry

    registry = Registry("swiftqueue")
    tags = {"content_sha256": content_hash(folder), "gate": "passed", "gate_reason": "set by a test"}
    version = registry.add(folder, tags=tags, params={}, metrics={})
    registry.set_alias(CHAMPION, version)
    return version


def test_one_command_up_and_one_down(
    loop: Loop, make_artifact: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OSError, match="no champion; `make run` makes and serves the first one"):
        loop.start()
    assert loop.processes() == []
    shared_memory = {path.name for path in Path("/dev/shm").iterdir()}  # noqa: S108
    champion = register_champion(make_artifact(1, onnx=True))

    # A port is taken: one line, and what was started before goes on.
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", loop.ports[PORTS.index("SWIFTQUEUE_RAY_PORT")]))
        stranger.listen()
        with pytest.raises(OSError, match=r"ray: port .* in use .* with SWIFTQUEUE_RAY_PORT"):
            loop.start()
    assert processes.running("triton")
    loop.start()
    wanted = plan.wanted()
    servers = {name: processes.running(name) for name in wanted}
    assert None not in servers.values()
    agent = f"http://127.0.0.1:{loop.ports[PORTS.index('SWIFTQUEUE_AGENT_METRICS')]}/metrics"

    def rounds_ended() -> bool:
        log = loop.state / "live" / "rounds.jsonl"
        rounds = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        version = health.number(agent, "swiftqueue_agent_server_version") or 0
        return sum(one["outcome"] in ("pushed", "kept") for one in rounds) >= 2 and version > champion

    wait_until("no new version reached the agent", rounds_ended, ROUNDS_WAIT_S)
    capsys.readouterr()
    status = print_status()
    said = capsys.readouterr().out
    assert status == 0, said
    for name in wanted:
        assert f"{name}: " in said
    assert "batches decided per second, by version" in said

    loop.start()  # harmless
    assert {name: processes.running(name) for name in wanted} == servers

    # A killed sender is started by the keeper, and nothing else is; a killed keeper is named: `up` starts it.
    servers["agent"].process().kill()
    wait_until(
        "the keeper did not start it", lambda: processes.running("agent") not in (None, servers["agent"]), 60
    )
    servers["keeper"].process().kill()
    capsys.readouterr()
    assert print_status() == 1
    assert "keeper: was started and is gone" in capsys.readouterr().out
    loop.start()
    again = {name: processes.running(name) for name in wanted}
    assert {name for name in wanted if again[name] != servers[name]} == {"agent", "keeper"}
    wait_until("not well again", lambda: print_status() == 0, 30)

    stop_stack()
    wait_until("processes are left", lambda: not loop.processes(), 10)
    for number in loop.ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", number)) != 0, number
    assert not plan.scratch().exists()
    assert leaked_shared_memory(shared_memory) == set()
    assert not [name for name in PARTS if processes.record_path(name).exists()]
    capsys.readouterr()
    stop_stack()
    assert "not running: keeper, prometheus, scheduler" in capsys.readouterr().out
