"""The live loop's keeper, with small real processes for the parts."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from prometheus_client import Counter
from waiting import LIMIT_S, wait_until

from swiftqueue.common import heartbeat
from swiftqueue.common.heartbeat import Heartbeat
from swiftqueue.common.state import drop_scratch, make_scratch
from swiftqueue.infra.local import keeper, live_options, parts, processes, status, under_way
from swiftqueue.infra.local import loop as loop_of_parts
from swiftqueue.infra.local.disk import Disk
from swiftqueue.infra.local.keeper import Keeper

SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    yield tmp_path
    for name in parts.wanted():
        processes.stop(name)
    drop_scratch()


class Ended:
    """A start that has ended; of one in `hangs` nobody knows yet."""

    def __init__(self, name: str, failure: str, hangs: set[str]) -> None:
        self.name, self.failure, self.hangs = name, failure, hangs

    def outcome(self) -> str | None:
        return None if self.name in self.hangs else self.failure

    def end(self) -> None:
        self.hangs.discard(self.name)


class AtOnce(Executor):
    """Asks before it returns: no machine delays what a part answers."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Loop:
    """Parts that can be lost, and what became of them. Also the keeper's clock, which no machine delays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, patience_s: float = keeper.PATIENCE_S) -> None:
        monkeypatch.setattr(keeper, "time", self)
        self.now_s = 1000.0
        self.broken: set[str] = set()
        self.mute: set[str] = set()
        self.idle: set[str] = set()  # answers, and has lost its work until it is started
        self.hangs: set[str] = set()  # their starts do not end
        self.started: list[str] = []
        self.failed: list[str] = []
        answers = {
            name: lambda server: server.name not in self.mute | self.idle for name in ("triton", "agent")
        }
        idle = {"triton": lambda server: server.name in self.idle}
        self.keeper = Keeper(self.heal, answers, patience_s, self.note, idle, AtOnce())
        for name in parts.wanted():
            self.start(name)

    def note(self, name: str, well: bool) -> None:
        (self.started if well else self.failed).append(name)

    def heal(self, name: str, idle: bool) -> Ended:
        """As swiftqueue.infra.local.heal does, at once."""
        try:
            if not idle:
                processes.stop(name)
            self.start(name)
        except OSError as error:
            return Ended(name, str(error), self.hangs)
        return Ended(name, "", self.hangs)

    def monotonic(self) -> float:
        return self.now_s

    def start(self, name: str) -> None:
        if name in self.broken:
            raise OSError(f"port of {name} is in use")
        self.idle.discard(name)
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
    assert loop.keeper.well("agent")
    assert None not in map(processes.running, parts.wanted())
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
    assert loop.failed == ["triton"] * 5  # counted, for an alert
    assert not loop.keeper.well("triton")
    loop.broken = set()
    loop.look_until("agent", "triton")


def test_a_start_that_does_not_end_delays_no_other_part(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray head that fails blocked the keeper for four minutes."""
    loop = Loop(monkeypatch)
    loop.hangs = {"ray"}
    loop.lose("ray")
    loop.look_for(3)
    for name in ("agent", "triton", "ingest"):
        loop.lose(name)
    loop.look_until("triton", "agent")  # not the ingest, which waits for its Ray
    with pytest.raises(OSError, match="another `up` or `down`"), under_way.starting(0):
        pass  # nobody starts parts meanwhile
    loop.hangs.clear()
    loop.look_until("triton", "agent", "ray", "ingest", "scheduler")
    loop.look_for(1)
    with under_way.starting(0):
        loop.lose("agent")
        loop.look_for(10)
        assert processes.running("agent") is None  # an `up` is under way: nothing is started
    loop.look_until("triton", "agent", "ray", "ingest", "scheduler", "agent")


def test_a_part_that_hangs_in_its_answer_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    answered, asked_again = threading.Event(), threading.Event()
    answers = {
        "triton": lambda server: answered.wait(60),
        "agent": lambda server: asked_again.set() or True,
    }
    one = Keeper(loop.heal, answers, 60, loop.note)
    one.look()
    assert asked_again.wait(60)
    asked_again.clear()
    loop.now_s += keeper.ASK_S
    one.look()
    assert asked_again.wait(60)
    answered.set()


@pytest.mark.slow
def test_what_heals_triton_leaves_the_keeper_small(project: Path) -> None:
    """It grew from 151 to 855 MB: serving the champion brings PyTorch and MLflow."""
    program = """
import sys, time, psutil
from swiftqueue.infra.local import keeper
from swiftqueue.infra.local.heal import Healing
healing = Healing("triton", idle=False)
while healing.outcome() is None:
    time.sleep(0.1)
heavy = {"torch", "mlflow", "polars", "pandas", "ray"}
print(healing._process.returncode, sorted(heavy & sys.modules.keys()))
print(psutil.Process().memory_info().rss)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=True
    )
    first, rss_bytes = done.stdout.splitlines()
    assert first == "1 []"  # there is no loop to keep here: it says so and ends
    assert int(rss_bytes) < 100e6


@pytest.mark.slow
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


def test_what_has_lost_its_work_gets_it_back_and_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    triton = processes.running("triton")
    loop.idle = {"triton"}
    loop.look_for(int(keeper.ASK_S) + 2)
    assert not loop.idle
    assert loop.started == []  # it never ended, so no alert says so
    assert processes.running("triton") == triton


def test_a_part_that_was_started_again_is_scraped(state: Path) -> None:
    """The list was written while it was gone, as by a Prometheus that was started then."""
    counts = Counter("starts", "", ["part"], registry=None), Counter("failures", "", ["part"], registry=None)
    targets = state / "prometheus" / "targets.json"
    processes.start("agent", SLEEPER, {"metrics": 9200}, {}, lambda: True, 10)
    keeper._ended(*counts, "agent", True)
    assert not targets.exists()  # no Prometheus runs
    processes.start("prometheus", SLEEPER, {"http": 1}, {}, lambda: True, 10)
    try:
        keeper._ended(*counts, "agent", False)
        assert not targets.exists()
        keeper._ended(*counts, "agent", True)
        assert "127.0.0.1:9200" in targets.read_text()
    finally:
        processes.stop("prometheus")
    assert [count.labels("agent")._value.get() for count in counts] == [2, 1]


@pytest.mark.slow
def test_what_does_not_get_its_work_back_is_ended_and_started_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop(monkeypatch, patience_s=30)
    triton = processes.running("triton")
    loop.idle, loop.broken = {"triton"}, {"triton"}  # as where the registry does not answer
    loop.look_for(25)
    assert processes.running("triton") == triton
    loop.look_for(15)
    assert processes.running("triton") is None
    loop.broken = set()
    loop.look_until("triton")


@pytest.mark.slow
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


@pytest.mark.parametrize("name", ["forwarder", "agent", "scheduler"])
def test_a_part_is_alive_while_its_heartbeat_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its page, which a stranger can keep busy, is not asked."""
    server = processes.ServerProcess(name, 1, 0.0, {"metrics": 1}, "", 0)
    monkeypatch.setattr(live_options, "heartbeat", lambda part: tmp_path / f"{part}.alive")
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 3600.0)
    now_s = 0.0
    monkeypatch.setattr(keeper, "time", SimpleNamespace(monotonic=lambda: now_s))
    heart, answers = Heartbeat(tmp_path / f"{name}.alive"), type(keeper.ANSWERS[name])()
    assert isinstance(answers, keeper._HeartbeatCheck)
    assert not answers(server)  # it has never beaten
    heart.beat()
    assert answers(server)
    heart.beat()  # too early: nothing is written
    now_s = keeper.STILL_S
    assert not answers(server)
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 0.0)
    wait_until(lambda: heart.beat() or answers(server))  # a clock of files ticks each few milliseconds


def test_a_heartbeat_goes_on_where_no_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: what is there can be touched."""
    heart = Heartbeat(tmp_path / "part.alive")
    heart.beat()
    os.utime(heart.file, (0, 0))
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(Path, "write_text", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    heart.beat()
    assert heart.file.stat().st_mtime > 0


@pytest.mark.slow
def test_what_strangers_hold_or_a_full_disk_silences_is_not_ended_but_what_is_paused_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(monkeypatch)
    triton = processes.running("triton")
    assert triton is not None
    loop.keeper._spared = lambda server: keeper._spared(replace(server, ports={"grpc": 1}))
    monkeypatch.setattr(keeper, "strangers_connected", lambda ports: keeper.STRANGERS)
    loop.mute = {"triton"}
    loop.look_for(int(keeper.PATIENCE_S) + 15)
    assert processes.running("triton") == triton
    said = capsys.readouterr().out
    assert said.count("triton does not answer, and is not ended: other users of this machine hold 16") == 1
    monkeypatch.setattr(keeper, "strangers_connected", lambda ports: keeper.STRANGERS - 1)
    monkeypatch.setattr(keeper, "disk", lambda: Disk(0, 10**9))
    loop.look_for(int(keeper.PATIENCE_S) + 15)
    assert processes.running("triton") == triton
    assert "not ended: the disk is full" in capsys.readouterr().out
    psutil.Process(triton.pid).suspend()
    loop.look_until("triton")
    assert processes.running("triton") != triton


# Who keeps the keeper.


def port_of_no_connection() -> int:
    """Return a free port below those that the kernel gives to connections.

    One of those may be held by another test's connection while no keeper listens, which costs a start.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.sample(range(lowest - 2_000, lowest), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


@pytest.fixture
def kept(state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A loop of which nothing is here but the keeper; its metrics' port."""
    elsewhere = {
        "SWIFTQUEUE_TRITON_SERVERS": "127.0.0.1:1",
        "MLFLOW_TRACKING_URI": "http://127.0.0.1:1",
        "RAY_ADDRESS": "127.0.0.1:1",
        "SWIFTQUEUE_INGEST": "http://127.0.0.1:1",
    }
    port = port_of_no_connection()
    for name, value in {**elsewhere, "SWIFTQUEUE_KEEPER_METRICS": str(port)}.items():
        monkeypatch.setenv(name, value)
    live_options.write(live_options.LiveOptions("x", 1, 60, 30, 8))
    for name in parts.wanted():
        if name != "keeper":
            processes.start(name, SLEEPER, {}, {}, lambda: True, 10)
    yield port
    processes.stop("keeper")
    drop_scratch()


def restarts_of_the_keeper(port: int) -> float | None:
    return status.number(f"http://127.0.0.1:{port}/metrics", 'swiftqueue_part_restarts_total{part="keeper"}')


@pytest.mark.slow
def test_a_supervisor_that_is_killed_before_its_keeper_is_up_is_replaced(kept: int, state: Path) -> None:
    loop_of_parts.start_part("keeper", live_options.LiveOptions("x", 1, 60, 30, 8))
    first = processes.running("keeper")
    assert first is not None
    supervisor = psutil.Process(first.pid)
    (keeper,) = supervisor.children()
    keeper.kill()
    wait_until(lambda: {*supervisor.children()} - {keeper}, "nobody started the keeper", seconds=60)
    supervisor.kill()  # the new keeper still imports
    wait_until(
        lambda: processes.running("keeper") not in (None, first), "no other supervisor came", seconds=60
    )


@pytest.mark.slow
def test_a_killed_keeper_is_started_again_and_so_is_its_supervisor(kept: int, state: Path) -> None:
    loop_of_parts.start_part("keeper", live_options.LiveOptions("x", 1, 60, 30, 8))
    first = processes.running("keeper")
    assert first is not None
    (child,) = psutil.Process(first.pid).children()
    child.kill()
    wait_until(lambda: restarts_of_the_keeper(kept) == 1, "nobody started the keeper")
    assert processes.running("keeper") == first
    psutil.Process(first.pid).kill()

    def another() -> bool:
        now = processes.running("keeper")
        return now is not None and now != first and restarts_of_the_keeper(kept) == 0

    wait_until(another, "no other supervisor came")
    said = processes.log_path("keeper").read_text()
    assert "the keeper was ended by signal 9: starting it again" in said
    assert "the supervisor of the keeper is gone: this process takes its place" in said
    now = processes.running("keeper")
    assert now is not None
    supervisor = psutil.Process(now.pid)
    wait_until(supervisor.children, "the other supervisor has no keeper")
    family = [supervisor, *supervisor.children()]
    under_way.end_what_is_under_way()  # as `down` does
    processes.stop("keeper")
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family)


@pytest.mark.slow
def test_a_supervisor_ends_where_nothing_is_to_be_kept(tmp_path: Path) -> None:
    """And it ends a keeper that is still."""
    wanted, alive = tmp_path / "up.json", tmp_path / "keeper.alive"
    wanted.touch()
    program = (
        "import sys; from swiftqueue.infra.local import supervisor; supervisor.STILL_S = 1.0; "
        "supervisor.supervise(sys.argv[1], sys.argv[2], sys.argv[3:])"
    )
    sleeper = [sys.executable, "-c", "import time; time.sleep(3600)", str(tmp_path)]
    command = [sys.executable, "-c", program, wanted, alive, *sleeper]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        assert "gave no sign of life for 1 s: starting it again" in supervisor.stdout.readline()
        wanted.unlink()
        assert supervisor.wait(LIMIT_S) == 0
        assert not [one for one in psutil.process_iter(["cmdline"]) if sleeper == one.info["cmdline"]]


@pytest.mark.slow
def test_what_systemd_starts_is_the_keeper_and_tells_that_it_lives(
    kept: int, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up --live --foreground`, with the socket that systemd gives to a unit of type `notify`."""
    told = make_scratch() / "notify.sock"
    program = (
        "import os, sys; from swiftqueue.infra.local import loop\n"
        "child = os.fork()\n"
        "if child: loop.stay_as_keeper(child)\n"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(told))
        manager.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        manager.settimeout(LIMIT_S)
        environment = os.environ | {"NOTIFY_SOCKET": str(told), "WATCHDOG_USEC": "90000000"}
        with subprocess.Popen([sys.executable, "-c", program], env=environment) as main:
            heard = set()
            while heard != {b"READY=1", b"WATCHDOG=1"}:
                state_told, credentials, _, _ = manager.recvmsg(100, 1000)
                heard.add(state_told)
                assert struct.unpack("iii", credentials[0][2])[0] == main.pid
            own = processes.running("keeper")
            assert own is not None
            assert own.pid == main.pid
            assert status.number(f"http://127.0.0.1:{kept}/metrics", "swiftqueue_disk_size_bytes")
            processes.stop("keeper")  # as `down` does
            assert main.wait(LIMIT_S) == 0  # which the unit does not take for a fault
