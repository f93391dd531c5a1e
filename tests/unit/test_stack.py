"""Server records and ports, with small real processes instead of servers."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from infra import processes
from infra.triton_environment import find_environment
from serving.endpoint import port

SLEEPER = [sys.executable, "-S", "-c", "import time; print('ready', flush=True); time.sleep(60)"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    return tmp_path


def says_ready() -> bool:
    return "ready" in processes.log_path("sleeper").read_text()


def start_sleeper() -> processes.Server:
    return processes.start("sleeper", SLEEPER, {"http": 1}, {}, says_ready, 10)


def test_stop_ends_exactly_what_start_started() -> None:
    server = start_sleeper()
    assert processes.running("sleeper") == server
    assert processes.stop("sleeper") == server
    assert not psutil.pid_exists(server.pid)
    assert processes.running("sleeper") is None
    assert processes.stop("sleeper") is None


def test_a_reused_process_id_is_not_taken_for_the_server(state: Path) -> None:
    me = psutil.Process()
    processes.record_path("sleeper").parent.mkdir()
    record = {"name": "sleeper", "pid": me.pid, "created": me.create_time() - 1, "ports": {}}
    processes.record_path("sleeper").write_text(json.dumps(record))
    assert processes.stop("sleeper") is None
    assert me.is_running()


def test_a_suspended_server_is_stopped() -> None:
    server = start_sleeper()
    psutil.Process(server.pid).suspend()
    assert processes.stop("sleeper") == server
    assert not psutil.pid_exists(server.pid)


def test_a_server_that_ends_at_once_is_reported_with_its_last_error(state: Path) -> None:
    command = [sys.executable, "-S", "-c", "import sys; sys.exit('error: no model there')"]
    with pytest.raises(RuntimeError, match="sleeper ended with code 1: error: no model there"):
        processes.start("sleeper", command, {}, {}, lambda: False, 10)
    assert not processes.record_path("sleeper").exists()


def test_a_server_that_does_not_answer_in_time_is_stopped() -> None:
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="did not answer within 0 s"):
        processes.start("sleeper", SLEEPER, {}, {}, lambda: False, 0.2)
    assert time.monotonic() - begin < 5
    assert processes.running("sleeper") is None


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"port {number} is in use .* with SOME_VARIABLE"):
            processes.check_port(number, "SOME_VARIABLE")
    processes.check_port(number, "SOME_VARIABLE")


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
    monkeypatch.setenv("SWIFTQUEUE_TRITON_GRPC", "eighty")
    with pytest.raises(ValueError, match="SWIFTQUEUE_TRITON_GRPC='eighty' is not a port number"):
        port("grpc")


def test_a_missing_or_incomplete_triton_environment_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no Triton environment; run `make setup`"):
        find_environment(tmp_path / "none")
    python = tmp_path / "empty" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: numpy' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(OSError, match=r"incomplete \(ModuleNotFoundError: numpy\); run `make setup`"):
        find_environment(tmp_path / "empty")


def test_a_python_without_its_shared_library_names_the_package(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nprintf '3.77\\n/nowhere\\n/nowhere/pytriton\\n1.26.4\\n'\n")
    python.chmod(0o755)
    with pytest.raises(OSError, match=r"libpython3\.77\.so\.1\.0 is needed .*apt-get install libpython3\.77"):
        find_environment(tmp_path)
