"""Servers that outlive the command that started them: started, recognised and stopped by their own record.

The record (`var/NAME/server.json`) holds the process id and its start time, so a reused id is never taken
for ours, and `stop` ends exactly what `start` started.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from models.state import state_dir

STOP_TIMEOUT_S: Final = 15.0  # Triton takes 3-6 s to unload its models
CHILDREN_TIMEOUT_S: Final = 3.0  # for what a server started and left, once it has ended itself
POLL_S: Final = 0.1


@dataclass(frozen=True)
class Server:
    """A server this project started: its process and where it listens."""

    name: str
    pid: int
    created: float  # start time of the process, seconds since the epoch, as psutil gives it
    ports: dict[str, int]

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return log_path(self.name)

    def process(self) -> psutil.Process | None:
        """The running process, or None when it has ended (or its id now belongs to another)."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if process.create_time() == self.created and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


def record_path(name: str) -> Path:
    """File that says which process serves as `name`."""
    return state_dir() / name / "server.json"


def log_path(name: str) -> Path:
    """Log of server `name`."""
    return state_dir() / name / "server.log"


def running(name: str) -> Server | None:
    """The server `name` if its process runs.

    Raises:
        ValueError: its record cannot be read.
    """
    server = _recorded(name)
    return server if server and server.process() else None


def check_port(port: int, variable: str) -> None:
    """Raise OSError with a clear line if a loopback port is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT leftovers do not count
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise OSError(
                f"port {port} is in use by another program; stop it, or choose another port with {variable}"
            ) from error


def chosen_port(variable: str, default: int) -> int:
    """Port that an environment variable names, or the default.

    Raises:
        ValueError: it is not a port number.
    """
    text = os.environ.get(variable) or str(default)
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise ValueError(f"{variable}={text!r} is not a port number")
    return int(text)


def start(
    name: str,
    command: Sequence[str],
    ports: Mapping[str, int],
    env: Mapping[str, str],
    ready: Callable[[], bool],
    timeout_s: float,
) -> Server:
    """Start a server in a session of its own and wait until `ready` says that it answers.

    Raises:
        RuntimeError: it ended or did not answer in time; it is stopped, its last log line is in the message.
    """
    stop(name)  # of one that was killed, children may have stayed
    log_path(name).parent.mkdir(parents=True, exist_ok=True)
    with log_path(name).open("wb") as log:
        child = subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server = Server(name, child.pid, psutil.Process(child.pid).create_time(), dict(ports))
    partial = record_path(name).with_suffix(".partial")
    partial.write_text(json.dumps(asdict(server)) + "\n")
    partial.replace(record_path(name))
    deadline = time.monotonic() + timeout_s
    try:
        while not ready():
            if (code := child.poll()) is not None:
                raise RuntimeError(f"{name} ended with code {code}: {_last_error(name)}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not answer within {timeout_s:.0f} s: {_last_error(name)}")
            time.sleep(POLL_S)
    except BaseException:
        stop(name)
        raise
    return server


def stop(name: str) -> Server | None:
    """Stop server `name` and what it started; return it, or None when none ran.

    Of a server that was killed, what it started and left is stopped.
    """
    server = _recorded(name)
    if server is None:
        return None
    process = server.process()
    family = _family(server, process)
    regions = _shared_memory(family)
    if process is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()  # a stopped (SIGSTOP) process would never see the request to end
            process.terminate()
        psutil.wait_procs([process], STOP_TIMEOUT_S)
        _, family = psutil.wait_procs(family, CHILDREN_TIMEOUT_S)
    for survivor in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            survivor.kill()
    psutil.wait_procs(family, STOP_TIMEOUT_S)
    for region in regions:
        region.unlink(missing_ok=True)
    record_path(name).unlink(missing_ok=True)
    return server if process else None


def _recorded(name: str) -> Server | None:
    """The server that was started last as `name` and not stopped since."""
    path = record_path(name)
    try:
        return Server(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: not a server record ({error}); remove it") from error


def _family(server: Server, process: psutil.Process | None) -> list[psutil.Process]:
    """The server's process, if it runs, and whatever it started.

    It leads a session, whose number the kernel gives to no other process while the session has members.
    """
    family = {process, *process.children(recursive=True)} if process else set()
    with contextlib.suppress(psutil.NoSuchProcess):
        if psutil.Process(server.pid).create_time() != server.created:
            return []  # the number belongs to somebody else by now
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(pid) == server.pid:
                family.add(psutil.Process(pid))
    return list(family)


def _shared_memory(family: Sequence[psutil.Process]) -> list[Path]:
    """Shared memory of Triton's Python backend, named in its stubs' arguments: a killed server leaves it."""
    regions = []
    for process in family:
        with contextlib.suppress(psutil.Error):
            names = [a for a in process.cmdline() if a.startswith("triton_python_backend_shm_region_")]
            regions += [Path("/dev/shm") / name for name in names]  # noqa: S108 - POSIX shared memory
    return regions


def _last_error(name: str) -> str:
    """Last log line that looks like an error, or the last line."""
    lines = [line for line in log_path(name).read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E") or "rror" in line]
    return f"{(errors or lines or ['it wrote nothing'])[-1].strip()[:300]} (log: {log_path(name)})"
