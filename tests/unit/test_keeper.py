"""The live loop's keeper, with small real processes for the parts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra import processes
from infra.live import keeper, plan
from infra.live.keeper import Keeper
from serving.ingest import forwarder
from serving.ingest.forwarder import Heartbeat

SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    yield tmp_path
    for name in plan.wanted():
        processes.stop(name)


class Loop:
    """Parts that can be lost, and what became of them. Also the keeper's clock, which no machine delays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, patience_s: float = keeper.PATIENCE_S) -> None:
        monkeypatch.setattr(keeper, "time", self)
        self.now_s = 1000.0
        self.broken: set[str] = set()
        self.mute: set[str] = set()
        self.started: list[str] = []
        answers = {name: lambda server: server.name not in self.mute for name in ("triton", "agent")}
        self.keeper = Keeper(self.start, answers, patience_s, self.started.append)
        for name in plan.wanted():
            self.start(name)

    def monotonic(self) -> float:
        return self.now_s

    def start(self, name: str) -> None:
        if name in self.broken:
            raise OSError(f"port of {name} is in use")
        if processes.running(name) is None:
            processes.start(name, SLEEPER, {}, {}, lambda: True, 10)

    def lose(self, name: str) -> None:
        process = psutil.Process(processes.running(name).pid)  # type: ignore[union-attr]
        process.kill()
        process.wait(10)

    def look_for(self, seconds: int) -> None:
        """As the keeper's program does, once a second."""
        for _ in range(seconds):
            self.keeper.look()
            self.now_s += keeper.LOOK_S

    def look_until(self, *started: str) -> None:
        for _ in range(200):
            if self.started == list(started):
                return
            self.look_for(1)
        raise AssertionError(self.started)


def test_what_is_gone_is_started_in_the_order_of_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(monkeypatch)
    loop.keeper.look()
    assert loop.started == []
    for name in ("agent", "mlflow", "forwarder"):
        loop.lose(name)
    loop.look_until("mlflow", "forwarder", "agent")
    assert None not in map(processes.running, plan.wanted())
    assert "agent is gone: starting it" in capsys.readouterr().out


def test_parts_on_a_dead_ray_follow_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    ingest, agent = processes.running("ingest"), processes.running("agent")
    loop.lose("ray")
    loop.look_until("ray", "ingest", "scheduler")
    assert processes.running("ingest") != ingest
    assert processes.running("agent") == agent


def test_what_cannot_be_started_holds_up_no_other_and_is_tried_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(monkeypatch)
    loop.broken = {"triton"}
    loop.lose("triton")
    loop.lose("agent")
    loop.look_for(30)
    assert loop.started == ["agent"]
    said = capsys.readouterr().out
    # after 0, 1, 3, 7 and 15 s
    assert said.count("triton cannot be started, and is tried again: port of triton is in use") == 5
    loop.broken = set()
    loop.look_until("agent", "triton")


def test_what_does_not_answer_is_ended_and_started(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    triton, agent = processes.running("triton"), processes.running("agent")
    loop.mute = {"triton"}
    loop.look_for(60)
    loop.mute = set()  # it answers at the last moment
    loop.look_for(60)
    assert processes.running("triton") == triton
    loop.mute = {"triton"}
    loop.look_for(60)
    assert loop.started == []
    loop.look_until("triton")
    assert processes.running("triton") != triton
    assert processes.running("agent") == agent


def test_what_cannot_be_started_hides_no_part_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried more often than the patience is long, and ever more seldom, up to the longest pause."""
    loop = Loop(monkeypatch, patience_s=90)
    loop.broken, loop.mute = {"triton"}, {"agent"}
    loop.lose("triton")
    loop.look_until("agent")
    assert loop.keeper._parts["triton"].pause_s == keeper.LONGEST_PAUSE_S


def test_a_part_that_up_started_meanwhile_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    loop.lose("agent")
    loop.start("agent")
    server = processes.running("agent")
    loop.keeper.look()
    assert loop.started == []
    assert processes.running("agent") == server


def test_a_forwarder_is_alive_while_its_heartbeat_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = processes.Server("forwarder", 1, 0.0, {}, "", 0)
    monkeypatch.setattr(plan, "telemetry_socket", lambda: tmp_path / "telemetry.sock")
    monkeypatch.setattr(keeper, "STILL_S", 0.05)
    monkeypatch.setattr(forwarder, "HEARTBEAT_S", 3600.0)
    heart, answers = Heartbeat(tmp_path / "telemetry.sock"), keeper._Beats()
    assert not answers(server)  # it has never beaten
    heart.beat()
    assert answers(server)
    heart.beat()  # too early: nothing is written
    time.sleep(0.1)
    assert not answers(server)
    monkeypatch.setattr(forwarder, "HEARTBEAT_S", 0.0)
    heart.beat()
    assert answers(server)
