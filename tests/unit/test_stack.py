"""Server records and ports, with small real processes instead of servers."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from toy_world import bottleneck_table, write_table
from waiting import wait_until

from swiftqueue.common.state import drop_scratch
from swiftqueue.infra.local import (
    live_options,
    loop,
    parts,
    processes,
    prometheus,
    servers,
    status,
    under_way,
)
from swiftqueue.infra.local.disk import Disk
from swiftqueue.infra.local.judgement import Judgement
from swiftqueue.infra.local.loop import start_loop, stop_stack
from swiftqueue.infra.local.parts import PARTS
from swiftqueue.infra.local.sender import laps, laps_of_a_pass
from swiftqueue.infra.local.triton_environment import find_environment
from swiftqueue.serving.agent.io.frames import ACKED, BATCH, SENT, replay_frames
from swiftqueue.serving.agent.io.packet_log import open_log
from swiftqueue.serving.ingest import server as ingest
from swiftqueue.serving.triton.endpoint import elsewhere, grpc_addresses, port

SLEEPER = [sys.executable, "-S", "-c", "import time; print('ready', flush=True); time.sleep(60)"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    yield tmp_path
    drop_scratch()


def says_ready() -> bool:
    return "ready" in processes.log_path("sleeper").read_text()


def start_sleeper() -> processes.ServerProcess:
    return processes.start("sleeper", SLEEPER, {"http": 1}, {}, says_ready, 10)


def test_stop_ends_exactly_what_start_started() -> None:
    server = start_sleeper()
    assert processes.running("sleeper") == server
    assert processes.stop("sleeper") == server
    assert not psutil.pid_exists(server.pid)
    assert processes.running("sleeper") is None
    assert processes.stop("sleeper") is None


@pytest.mark.parametrize("change", [{"ticks": -1}, {"boot": "another"}])
def test_a_reused_process_id_is_not_taken_for_the_server(change: dict[str, object]) -> None:
    server = start_sleeper()
    file = processes.record_path("sleeper")
    record = file.read_text()
    file.write_text(json.dumps(json.loads(record) | change))
    assert processes.stop("sleeper") is None
    assert psutil.pid_exists(server.pid)
    file.write_text(record)
    assert processes.stop("sleeper") == server


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"name": "sleeper"}'])
def test_a_damaged_record_hides_no_server_and_stops_no_down(
    damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server, gone = start_sleeper(), processes.record_path("ingest")
    processes.record_path("sleeper").write_text(damage)
    gone.parent.mkdir()
    gone.write_text(damage)  # of a part that does not run
    found = processes.running("sleeper")
    assert found is not None
    assert (found.pid, found.ports, found.ticks) == (server.pid, server.ports, server.ticks)
    assert processes.running("ingest") is None
    stop_stack()
    assert "ingest" in capsys.readouterr().out
    assert not gone.exists()
    assert processes.stop("sleeper") is not None
    assert not psutil.pid_exists(server.pid)


def test_what_another_version_of_the_program_started_is_stopped() -> None:
    """The first records knew the start by the wall clock alone; a later one may say more."""
    for older in (True, False):
        server = start_sleeper()
        record = json.loads(processes.record_path("sleeper").read_text())
        assert record["format"] == processes.FORMAT
        if older:
            record = {name: record[name] for name in ("name", "pid", "created", "ports")}
        else:
            record |= {"format": processes.FORMAT + 1, "something": ["new"]}
        processes.record_path("sleeper").write_text(json.dumps(record))
        assert processes.stop("sleeper") is not None
        assert not psutil.pid_exists(server.pid)


@pytest.mark.slow
def test_a_clock_that_was_set_hides_no_server(state: Path) -> None:
    """The kernel's time of the boot moves with the wall clock, and psutil's times of processes with it."""
    server = start_sleeper()
    stat = re.sub(
        r"btime (\d+)", lambda found: f"btime {int(found[1]) + 3600}", Path("/proc/stat").read_text()
    )
    (state / "stat").write_text(stat)
    look = (
        "import psutil; from swiftqueue.infra.local import processes as p; "
        "print(psutil.boot_time(), p.running('sleeper').pid)"
    )
    script = f'mount --bind {state}/stat /proc/stat && exec {sys.executable} -c "{look}"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, check=False
    )
    assert processes.stop("sleeper") == server
    if "ermitted" in done.stderr or "denied" in done.stderr:
        pytest.skip(f"another clock needs a mount namespace: {done.stderr.strip()}")
    boot, pid = done.stdout.split()
    assert abs(float(boot) - psutil.boot_time() - 3600) < 2
    assert int(pid) == server.pid


def test_a_log_keeps_what_was_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-S", "-c", "import sys; sys.exit('error: the first')"]
    with pytest.raises(RuntimeError, match="the first"):
        processes.start("sleeper", command, {}, {}, lambda: False, 10)
    command[-1] = "import sys; sys.exit(3)"
    with pytest.raises(RuntimeError, match="ended with code 3: it wrote nothing"):
        processes.start("sleeper", command, {}, {}, lambda: False, 10)
    assert "error: the first" in processes.log_path("sleeper").read_text()
    monkeypatch.setattr(processes, "LOG_BYTES", 5)
    start_sleeper()
    processes.stop("sleeper")
    marked = r"--- sleeper started 2\d{3}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}\n"
    assert re.fullmatch(f"{marked}ready\n", processes.log_path("sleeper").read_text())
    before = processes.log_path("sleeper").with_name("server.log.1").read_text()
    assert re.fullmatch(f"{marked}error: the first\n{marked}", before)  # what docs/OPERATIONS.md greps for


def test_a_server_that_another_started_outlives_it() -> None:
    start = (
        "from swiftqueue.infra.local import processes as p; import time; "
        f"p.start('sleeper', {SLEEPER!r}, {{}}, {{}}, lambda: True, 10); "
        "print('ready', flush=True); time.sleep(60)"
    )
    log = processes.log_path("keeper")
    processes.start("keeper", [sys.executable, "-c", start], {}, {}, lambda: "ready" in log.read_text(), 30)
    server = processes.running("sleeper")
    assert server is not None
    processes.stop("keeper")
    assert processes.stop("sleeper") == server


def test_a_session_gets_the_weight_that_it_was_started_with() -> None:
    server = processes.start("sleeper", SLEEPER, {}, {}, says_ready, 10, nice=processes.BEHIND)
    group = Path(f"/proc/{server.pid}/autogroup")
    try:
        if not group.exists():
            pytest.skip("this kernel does not group processes by session (CONFIG_SCHED_AUTOGROUP)")
        assert group.read_text().split()[-1] == str(processes.BEHIND)
    finally:
        processes.stop("sleeper")


def test_a_suspended_server_is_stopped() -> None:
    server = start_sleeper()
    psutil.Process(server.pid).suspend()
    assert processes.stop("sleeper") == server
    assert not psutil.pid_exists(server.pid)


def test_what_a_killed_server_started_is_stopped() -> None:
    parent = f"import subprocess; subprocess.Popen({SLEEPER!r}).wait()"
    server = processes.start("sleeper", [sys.executable, "-S", "-c", parent], {}, {}, says_ready, 10)
    [child] = psutil.Process(server.pid).children()
    leader = psutil.Process(server.pid)
    leader.kill()
    leader.wait(10)
    assert child.is_running()
    assert processes.stop("sleeper") is None
    assert not psutil.pid_exists(child.pid) or child.status() == psutil.STATUS_ZOMBIE
    assert not processes.record_path("sleeper").exists()


def test_a_killed_server_has_ended_when_its_port_is_free() -> None:
    """Its first thread is a zombie at once; the last one gives back 256 MiB before it closes the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listen = (
        "import socket, threading, time; "
        f"listener = socket.create_server(('127.0.0.1', {port})); held = b'x' * (256 << 20); "
        "threading.Thread(target=time.sleep, args=(60,)).start(); print('ready', flush=True)"
    )
    server = processes.start("sleeper", [sys.executable, "-c", listen], {"http": port}, {}, says_ready, 30)
    psutil.Process(server.pid).kill()
    while processes.running("sleeper"):
        time.sleep(0.001)
    processes.check_port(port, "ray_port")


def test_a_server_that_ends_at_once_is_reported_with_its_last_error(state: Path) -> None:
    command = [sys.executable, "-S", "-c", "import sys; sys.exit('error: no model there')"]
    with pytest.raises(RuntimeError, match="sleeper ended with code 1: error: no model there"):
        processes.start("sleeper", command, {}, {}, lambda: False, 10)
    assert not processes.record_path("sleeper").exists()


def test_a_server_that_does_not_answer_in_time_is_stopped() -> None:
    with pytest.raises(RuntimeError, match="did not answer within 0 s"):
        processes.start("sleeper", SLEEPER, {}, {}, lambda: False, 0.2)
    assert processes.running("sleeper") is None


def test_a_start_that_takes_long_says_so_and_quotes_no_line_of_level_info(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "SAY_S", 0.3)
    says = "import time; print('INFO 2026 serve 23430 -- an Error?', flush=True); time.sleep(60)"
    with pytest.raises(RuntimeError, match="did not answer within 1 s: it wrote no error"):
        processes.start("sleeper", [sys.executable, "-S", "-c", says], {}, {}, lambda: False, 1.0)
    said = capsys.readouterr().out.splitlines()
    assert 2 <= len(said) <= 3
    assert all(
        re.fullmatch(r"sleeper: no answer after \d of 1 s, load average [\d.]+", line) for line in said
    )


def test_a_port_in_use_is_named_with_its_setting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"port {number} is in use .* with SWIFTQUEUE_RAY_PORT"):
            processes.check_port(number, "ray_port")
    processes.check_port(number, "ray_port")


def test_ports_come_from_the_environment_the_running_server_or_the_default(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SWIFTQUEUE_TRITON_GRPC", raising=False)
    assert port("grpc") == 8001
    (state / "triton").mkdir()
    (state / "triton" / "server.json").write_text('{"ports": {"grpc": 9001}}')
    assert port("grpc") == 9001
    monkeypatch.setenv("SWIFTQUEUE_TRITON_GRPC", "9101")
    assert port("grpc") == 9101


def test_servers_elsewhere_are_a_list_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIFTQUEUE_TRITON_GRPC", "9101")
    monkeypatch.delenv("SWIFTQUEUE_TRITON_SERVERS", raising=False)
    assert grpc_addresses() == ["127.0.0.1:9101"]
    assert not elsewhere()
    monkeypatch.setenv("SWIFTQUEUE_TRITON_SERVERS", "triton-0.triton:8001, 10.0.0.7:8001,[fd00::1]:8001")
    assert grpc_addresses() == ["triton-0.triton:8001", "10.0.0.7:8001", "[fd00::1]:8001"]
    assert elsewhere()
    assert "triton" not in parts.wanted()
    for text, line in (
        ("triton-0.triton", "'triton-0.triton' is not HOST:PORT"),
        ("a:8001,", "'' is not HOST:PORT"),
        ("a:80010000", "'a:80010000' is not HOST:PORT"),
        ("a:0", "'a:0' is not HOST:PORT"),
        ("http://a:8001", "'http://a:8001' is not HOST:PORT"),
        ("a:8001,b:8001,a:8001", "names a:8001 twice"),
    ):
        monkeypatch.setenv("SWIFTQUEUE_TRITON_SERVERS", text)
        with pytest.raises(ValueError, match=f"SWIFTQUEUE_TRITON_SERVERS.*{line}"):
            grpc_addresses()


def test_an_ingest_elsewhere_is_an_address(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWIFTQUEUE_INGEST", raising=False)
    assert ingest.address() == "http://127.0.0.1:8010"
    assert "ingest" in parts.wanted()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("SWIFTQUEUE_INGEST", f"http://127.0.0.1:{nobody.getsockname()[1]}/")
        assert ingest.address() == f"http://127.0.0.1:{nobody.getsockname()[1]}"
        assert "ingest" not in parts.wanted()
        with pytest.raises(OSError, match=r"SWIFTQUEUE_INGEST: no ingest answers at http://127\.0\.0\.1"):
            start_loop("t", speed=1, every_s=60, learn_s=30, judge_s=8)
    assert not [name for name in PARTS if processes.record_path(name).exists()]
    monkeypatch.setenv("SWIFTQUEUE_INGEST", "ingest:8010")
    with pytest.raises(ValueError, match=r"ingest address 'ingest:8010': must be http://HOST:PORT"):
        ingest.address()


def test_a_missing_or_incomplete_triton_environment_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no Triton environment; run `make setup`"):
        find_environment(tmp_path / "none")
    python = tmp_path / "empty" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: numpy' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(OSError, match=r"incomplete \(ModuleNotFoundError: numpy\); run `make setup`"):
        find_environment(tmp_path / "empty")


def test_triton_takes_no_packages_that_the_users_pythonpath_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(np.__file__).parents[1]))  # of this environment: NumPy 2
    assert find_environment().variables["PYTHONPATH"] == ""


def test_a_python_without_its_shared_library_names_the_package(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nprintf '3.77\\n/nowhere\\n/nowhere/pytriton\\n1.26.4\\n'\n")
    python.chmod(0o755)
    with pytest.raises(OSError, match=r"libpython3\.77\.so\.1\.0 is needed .*apt-get install libpython3\.77"):
        find_environment(tmp_path)


# The live loop ----------------------------------------------------------------------------------------


def test_what_the_loop_was_asked_for_is_checked_and_remembered(state: Path) -> None:
    assert live_options.read() is None
    for number in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"--every .*must be above 0"):
            live_options.LiveOptions("x", 1, number, 60, 10)
    live_options.file().parent.mkdir()
    live_options.file().write_text('{"trace": "x", "speed": 2, "every_s": 60, "learn_s": 30, "judge_s": 8}')
    assert live_options.read() == live_options.LiveOptions("x", 2, 60, 30, 8)
    live_options.file().write_text("{}")
    with pytest.raises(ValueError, match=r"up\.json: not the options .* remove it"):
        live_options.read()
    live_options.write(live_options.LiveOptions("y", 1, 60, 30, 8))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))  # ten bytes are left on the disk
    try:
        with pytest.raises(OSError, match="too large"):
            live_options.write(live_options.LiveOptions("z", 1, 60, 30, 8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert live_options.read() == live_options.LiveOptions("y", 1, 60, 30, 8)  # as before


def test_a_prometheus_that_does_not_start_keeps_nothing_from_starting(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Debian's package starts a server of its own at the same port."""
    started = []

    def start(name: str, live: live_options.LiveOptions) -> None:
        if name == broken:
            raise OSError("port 9090 is in use")
        started.append(name)

    monkeypatch.setattr(loop, "start_part", start)
    monkeypatch.setattr(loop, "_check_what_it_needs", lambda *_: None)
    broken = "prometheus"
    start_loop("t", speed=1, every_s=60, learn_s=30, judge_s=8)
    assert started == [name for name in PARTS if name != broken]
    said = capsys.readouterr().out
    assert "prometheus does not run, the loop does: port 9090 is in use" in said
    count = len(PARTS)
    for number, name in enumerate(PARTS, 1):  # each as it comes up, with its seconds
        assert f"[{number}/{count}] {name}: starting\n" in said
        up = rf"^\[{number}/{count}\] {name}: up after \d+\.\d s$"
        assert bool(re.search(up, said, re.M)) == (name != broken)
    assert re.search(r"^the loop is up after \d+ s$", said, re.M)
    assert "the live page does not run" in said
    broken = ""
    monkeypatch.setattr(loop, "_has_prometheus", lambda: False)
    start_loop("t", speed=1, every_s=60, learn_s=30, judge_s=8)
    assert "prometheus: up" not in capsys.readouterr().out  # it is not installed
    broken = "agent"
    with pytest.raises(OSError, match="port 9090"):
        start_loop("t", speed=1, every_s=60, learn_s=30, judge_s=8)
    assert capsys.readouterr().out.endswith("what is up stays; to go on, give the same command again\n")
    loop.clean_up()


def test_another_loops_ingest_is_not_taken_for_ours(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second loop on a machine said that its ingest was up, and told the first one's what came."""
    program = (
        "import http.server, sys\n"
        "class Checked(http.server.BaseHTTPRequestHandler):\n"
        "    def do_POST(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Checked).serve_forever()\n"
    )
    (port,) = processes.free_ports(1)
    monkeypatch.setattr(loop, "PORT_WAIT_S", 0.0)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("SWIFTQUEUE_INGEST_PORT", str(port))
    started: list[str] = []
    monkeypatch.setattr(loop, "_start_process", lambda name, *_, **__: started.append(name))
    serve = [sys.executable, "-S", "-c", program, str(port)]
    processes.start("ray", serve, {"gcs": 1}, {}, lambda: status.ingest_check(f"http://127.0.0.1:{port}"), 20)
    try:
        loop._start_ingest()  # Serve goes on without the program that started it
        with monkeypatch.context() as another:
            another.setenv("SWIFTQUEUE_STATE", str(state / "another"))
            with pytest.raises(OSError, match=r"in use by another program; .*SWIFTQUEUE_INGEST_PORT"):
                loop._start_ingest()
    finally:
        processes.stop("ray")
    assert started == ["ingest"]


def test_the_loops_scheduler_answers_on_loopback_wherever_one_by_itself_does(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = state / "swiftqueue"
    program.write_text(
        f"#!{sys.executable}\n"
        "import http.server, sys\n"
        "from swiftqueue.common.settings import settings\n"
        "class Page(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        self.send_response(200)\n"
        "        self.end_headers()\n"
        "address = str(settings().metrics_address), int(sys.argv[-1].rpartition('=')[2])\n"
        "http.server.HTTPServer(address, Page).serve_forever()\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(loop, "SWIFTQUEUE", str(program))
    monkeypatch.setattr(loop, "TIMEOUT_S", 20.0)
    monkeypatch.setenv("SWIFTQUEUE_METRICS_ADDRESS", "127.0.0.2")
    monkeypatch.setenv("SWIFTQUEUE_SCHEDULER_METRICS", str(processes.free_ports(1)[0]))
    loop.start_part("scheduler", live_options.LiveOptions("x", 1, 60, 30, 8, bed=True))
    processes.stop("scheduler")
    loop.clean_up()


def test_a_part_that_was_started_and_is_gone_is_named(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (idle,) = status.judge_parts()
    assert (idle.well, idle.part) == (True, "not started")
    assert idle.line.startswith("ray, ingest, forwarder, agent, scheduler")
    live_options.file().parent.mkdir()
    live_options.file().write_text('{"trace": "x", "speed": 2, "every_s": 60, "learn_s": 30, "judge_s": 8}')
    record = processes.record_path("scheduler")
    record.parent.mkdir()
    gone = {"name": "scheduler", "pid": 1, "created": 0, "ports": {}, "boot": "", "ticks": 1}
    record.write_text(json.dumps(gone))
    judged = {one.part: one for one in status.judge_parts()}
    assert not any(one.well for one in judged.values())
    assert judged["scheduler"].line.startswith("was started and is gone")
    assert judged["agent"].line.startswith("was never started, or did not start")
    processes.record(under_way.NAME, os.getpid(), {})
    assert {one.line for one in status.judge_parts() if one.part == "agent"} == {"not started yet"}
    assert status.print_status(as_json=True) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["well"] is False
    assert {"part": "agent", "well": False, "line": "not started yet"} in said["parts"]


def test_one_that_does_not_answer_holds_up_no_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 s while Ray was away: each part was asked after the one before."""
    for name in ("ray", "scheduler", "keeper"):
        processes.start(name, SLEEPER, {"gcs": 1, "metrics": 1}, {}, lambda: True, 10)
    never = threading.Event()
    monkeypatch.setattr(status, "BOUND_S", 0.3)
    monkeypatch.setitem(status.LONGER_S, "ray", 0.2)
    for name in ("ray", "scheduler"):
        monkeypatch.setitem(status._JUDGES, name, lambda server: never.wait(60) and Judgement(True, ""))
    monkeypatch.setitem(status._JUDGES, "keeper", lambda server: Judgement(True, "well"))
    judged = {one.part: one for one in status.judge_parts()}
    assert judged["scheduler"] == Judgement(False, "no answer within 0.3 s", "scheduler")
    assert judged["ray"] == Judgement(False, "no answer within 0.5 s", "ray")
    assert judged["keeper"] == Judgement(True, "well", "keeper")
    never.set()
    for name in ("ray", "scheduler", "keeper"):
        processes.stop(name)


def test_a_part_that_is_gone_is_scraped_still_until_it_is_up_again() -> None:
    """So its end is seen; the keeper tells Prometheus of each part that is up again, at a port of its own."""
    file = processes.record_path("prometheus").with_name("targets.json")
    for name, number in (("scheduler", 1), ("prometheus", 2)):
        processes.start(name, SLEEPER, {"metrics": number}, {}, lambda: True, 10)
    prometheus.write_targets()
    processes.stop("scheduler")
    processes.start("agent", SLEEPER, {"metrics": 3}, {}, lambda: True, 10)
    for _ in range(2):
        prometheus.update_targets()
        assert {one["labels"]["job"] for one in json.loads(file.read_text())} == {"agent", "scheduler"}
    processes.stop("agent")
    processes.start("agent", SLEEPER, {"metrics": 4}, {}, lambda: True, 10)
    prometheus.update_targets()
    ports = {one["labels"]["job"]: one["targets"] for one in json.loads(file.read_text())}
    assert ports == {"agent": ["127.0.0.1:4"], "scheduler": ["127.0.0.1:1"]}
    processes.start(
        "keeper", SLEEPER, {"metrics": 1}, {}, lambda: True, 10
    )  # at the port of the one that is gone
    prometheus.update_targets()
    assert {one["labels"]["job"] for one in json.loads(file.read_text())} == {"agent", "keeper"}
    processes.stop("keeper")
    (agent,) = prometheus.write_targets()
    assert agent == {"targets": ["127.0.0.1:4"], "labels": {"job": "agent", "__part": "agent"}}
    for name in ("agent", "prometheus"):
        processes.stop(name)


def test_a_ray_that_takes_connections_and_says_nothing_gets_no_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status, "BOUND_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        processes.start("ray", SLEEPER, {"gcs": port}, {}, lambda: True, 10)
        (judged,) = (one for one in status.judge_parts() if one.part == "ray")
        processes.stop("ray")
    assert judged == Judgement(False, f"no answer at 127.0.0.1:{port}", "ray")


def test_without_ray_nobody_waits_for_events_to_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """While Ray was away the forwarder was watched for eight seconds more, though nothing can be stored."""
    for name in ("ray", "forwarder"):
        processes.start(name, SLEEPER, {"gcs": 1}, {}, lambda: True, 10)
    never = threading.Event()
    monkeypatch.setattr(status, "BOUND_S", 0.3)
    monkeypatch.setitem(status.LONGER_S, "forwarder", 3600.0)
    monkeypatch.setattr(status, "_judge_flow", lambda *_: never.wait(60) and Judgement(True, "grew"))
    monkeypatch.setitem(status._JUDGES, "ray", lambda server: Judgement(False, "no answer"))
    judged = {one.part: one for one in status.judge_parts()}
    never.set()
    stuck = Judgement(False, "cannot be judged while ray does not answer", "forwarder")
    assert judged["forwarder"] == stuck
    monkeypatch.setitem(status._JUDGES, "ray", lambda server: Judgement(True, "well"))
    assert {one.line for one in status.judge_parts() if one.part == "forwarder"} == {"grew"}
    for name in ("ray", "forwarder"):
        processes.stop(name)


def test_no_silence_of_one_adds_to_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits until all have been asked: asked one after the other they would wait for ever."""
    all_asked = threading.Barrier(3, timeout=30)

    def silent(*_: object) -> list[Judgement]:
        all_asked.wait()
        return []

    for name in ("judge_tritons", "judge_mlflow", "judge_parts"):
        monkeypatch.setattr(status, name, silent)
    assert status.print_status() == 0


def test_a_stolen_port_is_named(state: Path) -> None:
    live_options.file().parent.mkdir()
    live_options.file().write_text('{"trace": "x", "speed": 2, "every_s": 60, "learn_s": 30, "judge_s": 8}')
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", 0))
        port = thief.getsockname()[1]
        ended = [sys.executable, "-S", "-c", "import time; time.sleep(2)"]
        processes.start("scheduler", ended, {"metrics": port}, {}, lambda: True, 10)
        thief.listen()
        wait_until(lambda: processes.running("scheduler") is None, "it does not end")
        judged = {one.part: one.line for one in status.judge_parts()}
    assert f"is gone, and another program has its port {port} (log" in judged["scheduler"]


def test_a_port_that_another_part_of_ours_has_is_not_stolen(state: Path) -> None:
    """As Ray, which goes on serving the ingest's port; or the process that the keeper starts meanwhile."""
    (port,) = processes.free_ports(1)
    listen = f"import socket, time; held = socket.create_server(('127.0.0.1', {port}))"
    processes.start(
        "ray",
        [sys.executable, "-S", "-c", f"{listen}; time.sleep(60)"],
        {},
        {},
        lambda: not processes.is_free(port),
        30,
    )
    record = processes.record_path("ingest")
    record.parent.mkdir()
    gone = {"name": "ingest", "pid": 1, "created": 0, "ports": {"http": port}, "boot": "", "ticks": 1}
    record.write_text(json.dumps(gone))
    assert status._stolen("ingest") == ""
    processes.stop("ray")


def test_a_server_takes_many_connections_and_what_it_writes_is_its_owners_alone(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where `up` was given few files, a umask that lets others read, and a log of an earlier version."""
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/of-systemd")
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes.log_path("sleeper").parent.mkdir()
    processes.log_path("sleeper").touch(mode=0o644)
    writes = (
        "import os, resource, time; open('made', 'w').close()\n"
        "time.sleep(0.5); files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "print(files, os.environ.get('NOTIFY_SOCKET'))\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    before = os.umask(0o022)
    monkeypatch.chdir(state)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
    try:
        processes.start("sleeper", [sys.executable, "-S", "-c", writes], {}, {}, says_ready, 60)
        log = processes.log_path("sleeper")
        assert f"{most} None\n" in log.read_text()
        assert {path.stat().st_mode & 0o777 for path in (log, state / "made")} == {0o600}
    finally:
        processes.stop("sleeper")
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
        os.umask(before)


def test_a_full_disk_is_the_first_thing_that_status_says(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    live_options.write(live_options.LiveOptions("x", 1, 60, 30, 8))
    assert status.print_status() == 1
    assert "disk" not in capsys.readouterr().out.splitlines()[0]
    monkeypatch.setattr(status, "disk", lambda: Disk(free=0, size=640_000_000))
    assert status.print_status() == 1
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(f"first: the disk is full: 0 bytes free of 640 MB on the disk of {state}: ")
    assert any(line.startswith("ingest: ") for line in rest)
    assert status.print_status(as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["parts"][0]["part"] == "first"


@pytest.mark.parametrize(
    ("unwell", "said"),
    [
        (["ray", "ingest", "forwarder"], "ray, below; what rests on it is mended with it: forwarder, ingest"),
        (
            ["scheduler", "triton", "agent"],
            "triton, below; what rests on it is mended with it: agent, scheduler",
        ),
        (["forwarder", "ingest"], "ingest, below; what rests on it is mended with it: forwarder"),
        (["keeper"], ""),
        ([], ""),
    ],
)
def test_status_begins_with_the_part_that_others_rest_on(state: Path, unwell: list[str], said: str) -> None:
    judged = [Judgement(name not in unwell, "", name) for name in PARTS]
    assert [(one.part, one.line) for one in status.explain(judged)] == ([("first", said)] if said else [])


def test_alerts_are_named_the_worst_first(monkeypatch: pytest.MonkeyPatch) -> None:
    fires = [
        ("AppendSlow", "ticket"),
        ("DiskFull", "ticket"),
        ("AgentWithoutServer", "page"),
        ("TritonDown", "page"),
    ]
    found = [
        {"state": "firing", "labels": {"alertname": name, "severity": severity}, "annotations": {}}
        for name, severity in fires
    ]
    monkeypatch.setattr(status, "ask", lambda *_, **__: {"alerts": found})
    processes.start("prometheus", SLEEPER, {"http": 1}, {}, lambda: True, 10)
    try:
        named = [one.line.split(" ")[0] for one in status.firing()]
    finally:
        processes.stop("prometheus")
    assert named == ["TritonDown", "AgentWithoutServer", "DiskFull", "AppendSlow"]


def test_a_prometheus_that_has_scraped_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "ask", lambda *_, **__: {"result": []})
    server = processes.start("prometheus", SLEEPER, {"http": 1}, {}, lambda: True, 10)
    young = status._prometheus(server)
    assert young.well
    assert "has scraped nothing yet" in young.line
    monkeypatch.setattr(status, "SCRAPED_S", 0.0)
    assert not status._prometheus(server).well
    processes.stop("prometheus")


def test_laps_of_a_trace_are_one_sender_that_goes_on(tmp_path: Path) -> None:
    write_table(tmp_path, bottleneck_table("short", seconds=0.5))
    log = open_log(str(tmp_path), 0, None)
    begin_ns = 10**18
    three = laps(log, 3, begin_ns)
    packets = len(log.sent_ns)
    assert three.sent_ns[0] == begin_ns
    assert len(three.sent_ns) == len(three.latency_us) == 3 * packets
    assert (np.diff(three.sent_ns) >= 0).all()
    assert (np.diff(three.acked_ns) >= 0).all()
    # The same packets at the same distances, under flows of their own.
    for lap in range(3):
        part = slice(lap * packets, (lap + 1) * packets)
        assert (np.diff(three.sent_ns[part]) == np.diff(log.sent_ns)).all()
        assert (three.size_bytes[part] == log.size_bytes).all()
        assert set(three.flow_id[part]) == {flow + 4 * lap for flow in log.flow_id}
    # Each ACK still belongs to its packet: latency and times agree where the latency is known.
    sent_ns, latency_us = three.sent_ns[three.ack_packet], three.latency_us[three.ack_packet]
    known = ~np.isnan(latency_us)
    assert np.allclose((three.acked_ns - sent_ns)[known] / 1e3, latency_us[known], atol=2)
    frames = b"".join(replay_frames(three))
    bodies = SENT.itemsize * 3 * packets + ACKED.itemsize * len(three.acked_ns)
    assert len(frames) == 80 + bodies + BATCH.itemsize * (3 * packets // 8)
    assert laps_of_a_pass(log, 600) == np.ceil(600e9 / (log.sent_ns.max() - log.sent_ns[0]))


def test_the_main_job_says_that_its_next_step_serves_a_version(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After "version 1 passed the gate" a line told the reader to make a version and to deploy it."""
    monkeypatch.setattr(servers, "_start_triton", lambda: None)
    servers.start_stack()  # this state has no registry
    assert "`swiftqueue deploy` serves it" in capsys.readouterr().out
    servers.start_stack(none_yet="the next step serves one")
    assert capsys.readouterr().out == "the next step serves one\n"
