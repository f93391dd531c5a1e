"""The live loop with every real part: one command up, one down, and between them its faults.

In each fault the champion goes on serving, no acknowledged telemetry is lost, a later round ends well, and
metrics or logs say what happened (docs/LIVE.md, Faults).

Every process killed and paused at every step is 165 cases and takes an hour. `make test` tries SAMPLE of
them, chosen by the commit, and SOME of the other faults; all of them, and every part that stays paused, are
tried with

    SWIFTQUEUE_TEST_ALL=1 pytest tests/integration/test_live_faults.py
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest
from browser import CHROMIUM, browser, keep
from conftest import PROJECT
from event_rows import batch
from fault_loop import (
    HEAL_S,
    HERE,
    PORTS,
    FaultLoop,
    compile_clock,
    register_champion,
)
from loop_attacks import (
    Arguments,
    check_a_stranger_changes_nothing,
    check_every_part_listens_on_loopback_alone,
    check_no_process_was_called_with_a_secret,
    slow_clients_of_nobody,
)
from loop_checks import check_prometheus
from mutants import ALL
from of_state import processes_of
from page_world import view
from ray_stranger import check_strangers_are_refused
from sampled import some, tried
from toy_world import bottleneck_table, write_table
from waiting import wait_until

from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.common.state import PRIVATE, scratch
from swiftqueue.feature_store.telemetry.events import ACK, SEND
from swiftqueue.infra.local import live_page, parts, processes, status
from swiftqueue.infra.local.loop import stop_stack
from swiftqueue.infra.local.pages import answers
from swiftqueue.infra.local.parts import PARTS as EVERY_PART
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.infra.local.servers import start_mlflow
from swiftqueue.infra.local.status import print_status
from swiftqueue.models.registry.registry import Registry
from swiftqueue.serving.ingest.client import IngestClient
from swiftqueue.serving.ingest.log import LOG_NAME as REPLICAS_LOG

pytestmark = pytest.mark.slow

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
PARTS = ("triton", "mlflow", "ray", "worker", "ingest", "scheduler", "agent")
ON_WORKER = ("load", "encode", "train", "judge")
# Those of a round's record, and `alias`: Triton serves the new version, the registry does not name it yet.
STEPS = ("champion", "telemetry", "validate", "fetch", *ON_WORKER, "register", "push", "alias")
SAMPLE = 1
OTHERS = ("paused", "port", "disk", "telemetry", "artifact")
SOME = 1
HEALED_BY_THE_KEEPER = ("triton", "ray", "scheduler", "forwarder")
# The forwarder is only killed: what a paused one holds up is the agent's own test.
CASES = some([*product(PARTS, (KILL, STOP), STEPS), *product(("forwarder",), (KILL,), STEPS)], SAMPLE)
PAUSE_S = 2.0
PATIENCE_S = 6.0  # of the keeper, where a test waits for it
DISK = "640m"
# What a round says that failed by the fault of a part.
BLAMED = {
    "triton": r"Triton|127\.0\.0\.1:\d+ failed",
    "mlflow": r"registry",
    "ray": r"Ray",
    "worker": r"Ray's worker",
}


@pytest.fixture(scope="module")
def arguments() -> Iterator[Arguments]:
    watch = Arguments()
    watch.start()
    yield watch
    watch.ended.set()
    watch.join()


@pytest.fixture(scope="module")
def loop(make_artifact: Callable[..., Path], arguments: Arguments) -> Iterator[FaultLoop]:
    """The whole loop, started once; its state lies on a small file system of its own."""
    folder = Path(tempfile.mkdtemp(prefix="swiftqueue-faults-"))  # pytest's own lets no other user in
    folder.chmod(0o755)
    state, hold, clock, temporary = (folder / name for name in ("state", "hold", "clock", "tmp"))
    for made in (state, hold, temporary):
        made.mkdir(mode=0o755)  # the state as an earlier version made it
    clock.write_bytes(struct.pack("q", 0))
    write_table(folder / "packets", bottleneck_table("live", seconds=20))
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=755", "tmpfs", state]
        small_disk = subprocess.run(mount, check=False).returncode == 0
        if small_disk:
            stack.callback(subprocess.run, ["umount", "-l", state], check=True)
        patch.chdir(PROJECT)
        settings = {name: str(number) for name, number in ports.items()}
        settings |= {
            "SWIFTQUEUE_STATE": str(state),
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
            "TMPDIR": str(temporary),
        }
        for name, value in settings.items():
            patch.setenv(name, value)
        for name in (
            "MLFLOW_TRACKING_URI",
            "RAY_ADDRESS",
            "SWIFTQUEUE_TELEMETRY",
            "SWIFTQUEUE_TRITON_SERVERS",
            "RAY_AUTH_MODE",  # the loop asks for a token of its own
            "RAY_AUTH_TOKEN",
        ):
            patch.delenv(name, raising=False)
        patch.setenv("RAY_AUTH_TOKEN_PATH", "")  # so that what the loop sets is gone afterwards
        patch.delenv("RAY_AUTH_TOKEN_PATH")
        register_champion(make_artifact(1, onnx=True))
        with contextlib.ExitStack() as running:
            running.callback(stop_stack)
            running.callback(os.umask, os.umask(PRIVATE))  # as the command line has it
            start_mlflow()
            patch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{ports['SWIFTQUEUE_MLFLOW_PORT']}")
            patch.setenv("PYTHONPATH", str(HERE / "holding"))
            patch.setenv("SWIFTQUEUE_TEST_HOLD", str(hold))
            patch.setenv("LD_PRELOAD", str(compile_clock(folder)))
            patch.setenv("STEPPED_CLOCK", str(clock))
            loop = FaultLoop(state, folder / "packets", hold, clock, ports, small_disk, temporary)
            loop.start()
            loop.begin()
            running.callback(loop.end)
            yield loop


@pytest.mark.long
def test_without_a_champion_or_a_port_a_loop_does_not_start(
    loop: FaultLoop, make_artifact: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second loop, with an MLflow of its own, meets the first one's Ray."""
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    own = [name for name in PORTS if "TRITON" in name or "MLFLOW" in name]
    for name, number in zip(own, free_ports(len(own)), strict=True):
        monkeypatch.setenv(name, str(number))
    with pytest.raises(OSError, match="no champion; `make run` makes and serves the first one"):
        loop.start()
    assert not [name for name in EVERY_PART if processes.record_path(name).exists()]
    register_champion(make_artifact(1, onnx=True))
    try:
        with pytest.raises(OSError, match=r"ray: port .* in use .* with SWIFTQUEUE_RAY_PORT"):
            loop.start()
        assert processes.running("mlflow")  # what was started before goes on
        assert processes.running("triton")
    finally:
        stop_stack()
    assert not [name for name in EVERY_PART if processes.record_path(name).exists()]
    assert not scratch().exists()


def test_its_ray_refuses_a_stranger(loop: FaultLoop) -> None:
    check_strangers_are_refused(
        f"127.0.0.1:{loop.ports['SWIFTQUEUE_RAY_PORT']}", loop.state / "ray" / "token"
    )


def test_every_part_listens_on_loopback_alone(loop: FaultLoop) -> None:
    check_every_part_listens_on_loopback_alone(loop)


def test_no_process_is_called_with_a_secret(loop: FaultLoop, arguments: Arguments) -> None:
    check_no_process_was_called_with_a_secret(loop, arguments)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_changes_nothing(
    loop: FaultLoop, make_artifact: Callable[..., Path]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        check_a_stranger_changes_nothing(loop, make_artifact, folder)


def test_one_command_up(loop: FaultLoop, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = parts.wanted()
    servers = {name: processes.running(name) for name in wanted}
    assert None not in servers.values()
    agent = f"http://127.0.0.1:{loop.ports['SWIFTQUEUE_AGENT_METRICS']}/metrics"
    newest = max(one["version"] for one in loop.rounds() if one["outcome"] == "pushed")
    wait_until(
        lambda: (status.number(agent, "swiftqueue_agent_server_version") or 0) >= newest,
        "the new version did not reach the agent",
    )
    if "prometheus" in wanted:
        check_prometheus(f"http://127.0.0.1:{loop.ports['SWIFTQUEUE_PROMETHEUS_PORT']}")

    ran: list[subprocess.CompletedProcess[str]] = []

    def all_well() -> str:
        ran.append(subprocess.run(["make", "status"], capture_output=True, text=True, check=False))
        return ran[-1].stdout if ran[-1].returncode == 0 else ""

    said = wait_until(all_well, lambda: f"make status is not well:\n{ran[-1].stdout}{ran[-1].stderr}")
    for name in wanted:
        assert f"{name}: " in said
    assert "batches decided per second, by version" in said
    logs = subprocess.run(["make", "logs"], capture_output=True, text=True, check=True).stdout
    for name in wanted:
        assert f"{name}/server.log <==" in logs

    loop.start()  # harmless
    assert {name: processes.running(name) for name in wanted} == servers

    # A killed sender is started by the keeper, and nothing else is.
    begin = len(loop.said("keeper"))
    servers["agent"].process().kill()
    wait_until(lambda: "agent is up" in loop.said("keeper")[begin:], "the keeper did not start it")

    # A killed keeper is started by its supervisor, a killed supervisor by its keeper.
    (keeper,) = (one for one in servers["keeper"].process().children() if "keeper" in one.cmdline())
    keeper.kill()
    wait_until(lambda: loop.restarts("keeper") == 1, "nobody started the keeper")
    assert processes.running("keeper") == servers["keeper"]
    servers["keeper"].process().kill()
    wait_until(
        lambda: processes.running("keeper") not in (None, servers["keeper"]), "nobody started its supervisor"
    )
    loop.wait_until_kept()
    loop.start()  # harmless
    again = {name: processes.running(name) for name in wanted}
    assert {name for name in wanted if again[name] != servers[name]} == {"agent", "keeper"}
    wait_until(lambda: print_status() == 0, "not well again")


def test_the_live_page_shows_the_loop_and_what_it_lost(loop: FaultLoop) -> None:
    """What real parts tell it; it needs no restart to see the next of them."""
    loop.wait_until_kept()
    newest = loop.next_good_round(0)

    def whole() -> dict[str, Any] | None:
        found = view()
        figures = [found.get("latency", {}).get("median_ms"), found.get("judged"), found.get("senders")]
        rates = [found.get("rates", {}).get(name) for name in ("error_median_ms", "in_time", "moved")]
        return found if all(figures) and all(one and one[-1] is not None for one in rates) else None

    found = wait_until(whole, view)
    assert found["problems"] == []
    assert found["rounds"][0]["number"] >= newest["number"]
    assert found["served"]["version"] >= newest["version"]
    assert {one["name"] for one in found["parts"]} == set(parts.wanted())
    if CHROMIUM:
        with browser() as shown:
            shown.size(1280, 900)
            shown.open(live_page.address(loop.ports["SWIFTQUEUE_PAGE_PORT"]))
            wait_until(lambda: "ms" in shown.text("#now") and shown.text("#rounds"), shown.text)
            keep(shown, "loop")
            assert shown.complaints == []

    def scheduler() -> dict[str, Any]:
        (one,) = (one for one in view()["parts"] if one["name"] == "scheduler")
        return dict(one)

    restarts = scheduler()["restarts"]
    loop.process("scheduler").kill()
    wait_until(lambda: not scheduler()["up"], "its end is not seen")
    wait_until(lambda: scheduler()["up"] and scheduler()["restarts"] == restarts + 1, "its start is not seen")


def test_what_the_loop_writes_is_its_owners_alone(loop: FaultLoop) -> None:
    """Logs, the registry's database, the reservoir: whatever lies there, but what the tests put there."""
    loop.next_good_round(0)
    ours = (loop.state / "ballast", loop.state / "mlflow" / "artifacts")
    everything = [path for folder in (loop.state, scratch()) for path in folder.rglob("*")]
    seen = [path for path in everything if path.is_file() and not path.is_symlink()]  # links to the project
    found = {path: path.stat().st_mode & 0o077 for path in seen if not any(map(path.is_relative_to, ours))}
    assert {path.name for path in found} >= {"server.log", "mlflow.db", "server.json"}
    assert [f"{path}: {mode:o}" for path, mode in found.items() if mode] == []


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_slow_clients_of_another_user_end_no_part(loop: FaultLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of them ended the agent every minute: its page was taken for its life."""
    with impatient_keeper(loop, monkeypatch):
        loop.wait_until_kept()
        names = {"agent": "AGENT", "scheduler": "SCHEDULER", "keeper": "KEEPER"}
        ports = {name: loop.ports[f"SWIFTQUEUE_{setting}_METRICS"] for name, setting in names.items()}
        before = {name: processes.running(name) for name in ports}
        with slow_clients_of_nobody([*ports.values()], 300):
            decided = loop.batches("decided")
            time.sleep(4 * PATIENCE_S)  # of the keeper: what it takes to end a part several times
            loop.next_good_round(len(loop.rounds()))
            assert loop.batches("decided") > decided
            assert {name: loop.restarts(name) for name in ("agent", "scheduler")} == {
                "agent": 0,
                "scheduler": 0,
            }
        assert {name: processes.running(name) for name in ports} == before


@pytest.mark.parametrize(
    ("part", "number", "step"), CASES, ids=[f"{part}-{number.name}-{step}" for part, number, step in CASES]
)
def test_a_process_is_killed_or_paused_in_a_round(
    loop: FaultLoop, part: str, number: signal.Signals, step: str
) -> None:
    loop.wait_until_kept()
    before, restarts, failed = len(loop.rounds()), loop.restarts(part), loop.asking.failed
    shows = what_shows(loop, part, number, step)
    wait_until(lambda: loop.answers(part), f"{part} does not answer")
    begin = time.monotonic()
    with loop.held_at(step):
        victim = loop.process(part)
        victim.send_signal(number)
        fault_s = time.time()
    if number == STOP:
        paused_s = time.monotonic()
        wait_until(lambda: victim.status() == psutil.STATUS_STOPPED, "it is not paused")
        silent = not loop.answers(part)
        decided = loop.batches("decided") if part == "triton" else 0
        time.sleep(max(0.0, paused_s + PAUSE_S - time.monotonic()))
        if part == "triton":
            assert loop.batches("decided") == decided
        victim.send_signal(signal.SIGCONT)
        assert silent or part in ("ray", "worker"), "something else answers in its place"
    elif part == "mlflow":
        loop.heal_mlflow()
    if number == KILL and part in HEALED_BY_THE_KEEPER:
        wait_until(lambda: loop.restarts(part) > restarts, f"the keeper did not start {part}")
        own = processes.running("keeper")
        assert own is not None
        assert psutil.Process(own.pid).memory_info().rss < 100e6
    after = len(loop.rounds())
    # Not the held round: it has what it took from the others already.
    good = loop.next_good_round(before, begun_s=fault_s)
    loop.check_champion()
    loop.check_sender()
    loop.probe.check()
    for one in loop.rounds()[before:]:
        assert one["outcome"] != "failed" or re.search(BLAMED.get(part, "never"), one["reason"]), one
    if part != "triton":
        assert loop.asking.failed == failed, loop.asking.last_error
    wait_until(shows, "neither log nor metric says what happened")
    if number == STOP and part in parts.wanted():
        assert loop.restarts(part) == restarts
    outcomes = [one["outcome"] for one in loop.rounds()[before : after + 1]]
    print(
        f"{part} {number.name} {step}: {outcomes}, healed by round {good['number']}, "
        f"{time.monotonic() - begin:.1f} s"
    )


def what_shows(loop: FaultLoop, part: str, number: signal.Signals, step: str) -> Callable[[], bool]:
    """What is to show after a fault, beside the rounds log: a line that is new, or a count that has grown."""

    def line(part: str, text: str, name: str = "server.log") -> Callable[[], bool]:
        begin = len(loop.said(part, name))
        return lambda: text in loop.said(part, name)[begin:]

    def growth(count: Callable[[], float]) -> Callable[[], bool]:
        begin = count()
        return lambda: count() > begin

    if number == KILL and part in HEALED_BY_THE_KEEPER:
        return line("keeper", f"{part} is gone: starting it")
    if number == KILL and part == "agent":
        return line("agent", "ended with code -9")
    if number == KILL and part == "worker" and step in ON_WORKER:
        return line("scheduler", "Ray's worker died; another did its work again")
    if number == KILL and part == "ingest":
        return line("ingest", "ingest: a replica begins", REPLICAS_LOG)
    if number == STOP and part == "triton":
        return growth(lambda: loop.batches("late") + loop.batches("error"))
    return lambda: True  # a step that took longer, or a round that failed by its part's name: see BLAMED


@contextlib.contextmanager
def impatient_keeper(loop: FaultLoop, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A keeper that waits for seconds instead of a minute, in the place of the loop's own.

    It keeps the registry's server too, as where no MLFLOW_TRACKING_URI names one elsewhere.
    """
    processes.stop("keeper")
    port = loop.ports["SWIFTQUEUE_KEEPER_METRICS"]
    options = [f"--metrics-port={port}", f"--patience={PATIENCE_S}"]
    command = [SWIFTQUEUE, "part", "keeper", *options]
    url = f"http://127.0.0.1:{port}/metrics"
    with monkeypatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI")
        processes.start("keeper", command, {"metrics": port}, {}, lambda: answers(url), HEAL_S)
    try:
        yield
    finally:
        processes.stop("keeper")
        loop.start()


KEPT = ("triton", "mlflow", "ray", "ingest", "forwarder", "agent", "scheduler")


@tried("paused", OTHERS, SOME)
@pytest.mark.parametrize("part", KEPT if ALL else ["triton"])
def test_a_part_that_stays_paused_is_started_again(
    loop: FaultLoop, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with impatient_keeper(loop, monkeypatch):
        after = len(loop.rounds())
        loop.process(part).suspend()
        wait_until(lambda: loop.restarts(part) > 0, f"the keeper did not start {part}")
        assert f"{part} has not answered for {PATIENCE_S:g} s: starting it" in loop.said("keeper")
        loop.next_good_round(after, begun_s=time.time())
        loop.check_champion()
        loop.check_sender()
        loop.probe.check()
    wait_until(lambda: print_status() == 0, "not well again")


@pytest.mark.skipif(not ALL, reason="it waits two minutes: make test-all")
def test_a_worker_that_stays_paused_costs_the_round(loop: FaultLoop) -> None:
    with loop.held_at("train"):
        after = len(loop.rounds())  # the one before may have ended while this one began
        victim = loop.process("worker")
        victim.suspend()
    failed = wait_until(lambda: loop.rounds()[after:], "no round failed")[0]
    assert failed["outcome"] == "failed"
    assert "Ray's worker did not finish its work within 120 s" in failed["reason"]
    loop.next_good_round(after + 1)
    loop.check_champion()
    loop.probe.check()


@tried("port", OTHERS, SOME)
def test_a_stolen_port_is_named_and_taken_back(loop: FaultLoop) -> None:
    after, said = len(loop.rounds()), len(loop.said("keeper"))
    port = loop.ports["SWIFTQUEUE_TRITON_GRPC"]
    keeper = loop.process("keeper")
    keeper.suspend()
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        loop.process("triton").kill()
        stolen_s = time.time()
        wait_until(lambda: binds(thief, port), "the port is not free")
        thief.listen()
        keeper.resume()
        line = f"triton cannot be started, and is tried again: port {port} is in use by another program"
        wait_until(lambda: line in loop.said("keeper")[said:], "the keeper did not say it")
        hit = wait_until(
            lambda: [one for one in loop.rounds()[after:] if one["triggered"] > stolen_s], "no round"
        )
        assert {one["outcome"] for one in hit} == {"failed"}
    loop.next_good_round(after, begun_s=time.time())
    loop.check_champion()
    loop.probe.check()


def binds(probe: socket.socket, port: int) -> bool:
    with contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


@pytest.mark.long
@tried("disk", OTHERS, SOME)
def test_a_full_disk_declines_everything_and_heals(
    loop: FaultLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    if not loop.small_disk:
        pytest.skip("no small file system could be mounted here: mount needs root")
    loop.wait_until_kept()
    ballast, failed = loop.state / "ballast", loop.asking.failed
    rounds_failed, restarts = loop.rounds_ended("failed"), loop.restarts("scheduler")
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    retries = loop.probe.client.shipped.retries
    wait_until(lambda: loop.rounds_ended("failed") > rounds_failed, "no round failed")
    wait_until(lambda: loop.probe.client.shipped.retries > retries, "the ingest took telemetry")
    assert loop.served() is not None
    capsys.readouterr()
    assert print_status() == 1
    assert capsys.readouterr().out.startswith("first: the disk is full: ")
    after = len(loop.rounds())
    ballast.unlink()
    loop.next_good_round(after)
    loop.check_champion()
    loop.probe.check()
    assert loop.asking.failed == failed, loop.asking.last_error
    assert loop.restarts("scheduler") == restarts
    assert len(loop.rounds()) > after


@pytest.mark.skipif(not ALL, reason="with both cores busy the ingest is not back in time: make test-all")
@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_rounds_go_on_after_a_step_of_the_clock(
    loop: FaultLoop, seconds: float, capsys: pytest.CaptureFixture[str]
) -> None:
    loop.wait_until_kept()
    failed = loop.asking.failed
    restarts = {part: loop.restarts(part) for part in PARTS}
    after = len(loop.rounds())
    loop.set_clock(seconds)
    try:
        good = loop.next_good_round(after + 1)
        assert abs(good["triggered"] - time.time() - seconds) < 300  # else it was not the library's clock
        assert 0 < good["seconds"]["total"] < HEAL_S
        capsys.readouterr()
        wait_until(lambda: print_status() == 0, "not well")
        assert re.search(r"^scheduler: round \d+ \w+.*, ended \d+ s ago: ", capsys.readouterr().out, re.M)
        loop.probe.check()
        after = len(loop.rounds())
    finally:
        loop.set_clock(0)
    loop.next_good_round(after + 1)
    loop.check_champion()
    loop.probe.check()
    assert loop.asking.failed == failed, loop.asking.last_error
    assert {part: loop.restarts(part) for part in PARTS} == restarts


@tried("telemetry", OTHERS, SOME)
def test_bad_telemetry_and_a_second_sender_cost_rounds_until_they_end(loop: FaultLoop) -> None:
    """What is refused is counted; who takes the sender's id is believed, until the sender opens a session."""
    loop.process("agent").kill()  # a new pass of ten minutes: the next one would open a session meanwhile
    loop.next_good_round(len(loop.rounds()), begun_s=time.time())
    sender, failed, session = "live", loop.asking.failed, loop.newest_session("live")
    refused = {reason: loop.refused(reason) for reason in ("nan", "order", "schema", "two_senders")}
    at_ns = time.time_ns()
    sent = {"size_bytes": 1500, "flow_id": 0, "receiver_id": 0, "queue": 1, "ecn": 1}
    rows = [
        {"kind": SEND, "time_ns": at_ns, "packet": 0, **sent},
        {"kind": ACK, "time_ns": at_ns + 1000, "packet": 0, "latency_us": 1000.0},
    ]
    with IngestClient(
        loop.ingest_url, sender, token=loop.token
    ) as second:  # from now on the sender's own session has ended
        for change in (
            {},
            {"latency_us": float("nan")},
            {"time_ns": at_ns - 1000},
            {"size_bytes": 7},  # an ACK has none
            {},
        ):
            second.send(batch([rows[0], rows[1] | change]))
        assert second.flush(HEAL_S)
    assert (second.shipped.accepted, second.shipped.refused) == (2, 3)
    wait_until(lambda: loop.newest_session(sender) > session, "it is not in the store")
    after = len(loop.rounds())
    wait_until(lambda: loop.refused("two_senders") > refused["two_senders"], "the sender was not told")
    wait_until(lambda: len(loop.rounds()) > after + 1, "no round")
    assert {one["outcome"] for one in loop.rounds()[after + 1 :]} == {"declined"}
    for reason, before in refused.items():
        assert loop.refused(reason) > before, reason
    loop.process("agent").kill()  # it comes back, as after any restart, with a session of its own
    loop.next_good_round(len(loop.rounds()))
    loop.check_champion()
    loop.probe.check()
    assert loop.asking.failed == failed, loop.asking.last_error


@tried("artifact", OTHERS, SOME)
def test_a_corrupt_artifact_never_reaches_a_client(loop: FaultLoop) -> None:
    failed, after = loop.asking.failed, len(loop.rounds())
    with loop.held_at("deploy"):
        before = loop.served()
        version = max(Registry("swiftqueue").versions())
        source = mlflow.MlflowClient().get_model_version("swiftqueue", str(version)).source
        model = source.removeprefix("models:/")
        (weights,) = (loop.state / "mlflow" / "artifacts").rglob(f"{model}/artifacts/model.safetensors")
        weights.write_bytes(weights.read_bytes()[:-5000])

    def ended() -> list[int]:  # the one that ran when this began may end first
        return [i for i, one in enumerate(loop.rounds()) if i >= after and one["version"] == version]

    wait_until(lambda: bool(ended()), "the round did not end")
    spoiled = loop.rounds()[ended()[0]]
    assert spoiled["outcome"] == "failed"
    assert "model.safetensors is not the file that was registered (SHA-256 " in spoiled["reason"]
    assert before == spoiled["parent"]
    good = loop.next_good_round(ended()[0] + 1)
    assert good["parent"] == before
    loop.check_champion()
    assert loop.asking.failed == failed, loop.asking.last_error


def test_one_command_down_leaves_nothing(loop: FaultLoop, capsys: pytest.CaptureFixture[str]) -> None:
    """After all that was done to it. The last test of the file, as it ends the loop."""
    loop.end()
    stop_stack()
    wait_until(lambda: not processes_of(loop.state), "processes are left")
    for name, number in loop.ports.items():
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", number)) != 0, name
    assert not scratch().exists()
    assert not list(loop.temporary.iterdir())
    wait_until(lambda: not loop.leaked_shared_memory(), loop.leaked_shared_memory)  # other tests run beside
    assert not [name for name in EVERY_PART if processes.record_path(name).exists()]
    capsys.readouterr()
    stop_stack()
    assert "not running: keeper, page, prometheus, scheduler" in capsys.readouterr().out
