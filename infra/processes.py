"""Servers that outlive the command that started them: started, recognised and stopped by their own record.

The record (`var/NAME/server.json`) holds the process id and when, since which boot, it was started, so a
reused id is never taken for ours, whatever the clock is set to, and `stop` ends exactly what `start` started.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from infra import triton_leftovers
from models.state import state_dir
from serving.endpoint import LOOPBACK

STOP_TIMEOUT_S: Final = 15.0  # Triton takes 3-6 s to unload its models
CHILDREN_TIMEOUT_S: Final = 3.0  # for what a server started and left, once it has ended itself
POLL_S: Final = 0.1
ENDED_POLL_S: Final = 0.02
# Niceness of a session among the others: of what is waited for within milliseconds, and of what can wait.
AHEAD: Final = -10
BEHIND: Final = 5
LOG_BYTES: Final = 8 << 20  # a log that is longer when its server is started again becomes `server.log.1`


@dataclass(frozen=True)
class Server:
    """A server this project started: its process and where it listens."""

    name: str
    pid: int
    created: float  # when it was started, in seconds since the epoch; for people, since clocks are set
    ports: dict[str, int]
    boot: str  # the kernel's id of the boot
    ticks: int  # when the process was started, in the kernel's ticks since then

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return log_path(self.name)

    @property
    def age_s(self) -> float:
        """Seconds since it was started, whatever the wall clock was set to."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.ticks / os.sysconf("SC_CLK_TCK")

    def process(self) -> psutil.Process | None:
        """The running process, or None when it has ended (or its id now belongs to another)."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if _start_of(self.pid) == (self.boot, self.ticks) and _runs(process):
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
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise OSError(
                f"port {port} is in use by another program; stop it, or choose another port with {variable}"
            ) from error


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind((LOOPBACK, 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


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
    *,
    nice: int = 0,
) -> Server:
    """Start a server in a session of its own and wait until `ready` says that it answers.

    `nice` is that of its session among the others (AHEAD, BEHIND), where the kernel has it so and we may ask;
    what comes behind others does so once it answers, because somebody waits for its start.

    Raises:
        RuntimeError: it ended or did not answer in time; it is stopped, its last log line is in the message.
    """
    stop(name)  # of one that was killed, children may have stayed
    log_path(name).parent.mkdir(parents=True, exist_ok=True)
    if log_path(name).is_file() and log_path(name).stat().st_size > LOG_BYTES:
        log_path(name).replace(log_path(name).with_name("server.log.1"))
    with log_path(name).open("ab") as log:  # what the one before it said is kept: why it ended
        begin = log.tell()
        child = subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    if nice < 0:
        set_niceness(child.pid, nice)
    server = Server(name, child.pid, time.time(), dict(ports), *_start_of(child.pid))
    try:
        partial = record_path(name).with_suffix(".partial")
        partial.write_text(json.dumps(asdict(server)) + "\n")
        partial.replace(record_path(name))
    except BaseException:  # as on a full disk: without its record nobody would ever stop it
        child.kill()
        raise
    deadline = time.monotonic() + timeout_s
    try:
        while not ready():
            if (code := child.poll()) is not None:
                raise RuntimeError(f"{name} ended with code {code}: {_last_error(name, begin)}")
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{name} did not answer within {timeout_s:.0f} s: {_last_error(name, begin)}"
                )
            time.sleep(POLL_S)
    except BaseException:
        stop(name)
        raise
    if nice > 0:
        set_niceness(child.pid, nice)
    return server


def set_niceness(pid: int, nice: int) -> None:
    """Give a process' session another weight than others have, where it may: below 0 needs CAP_SYS_NICE.

    The kernel shares the cores among sessions first (sched(7), autogroup). A `nice` in one says nothing to
    another: however low the priority of a push in its session, Triton's threads in theirs waited for it.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def stop(name: str) -> Server | None:
    """Stop server `name` and what it started; return it, or None when none ran.

    Of a server that was killed, what it started and left is stopped, and what it made is removed.
    """
    server = _recorded(name)
    if server is None:
        return None
    process = server.process()
    family = _family(server, process)
    regions = triton_leftovers.shared_memory(family)
    if process is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()  # a stopped (SIGSTOP) process would never see the request to end
            process.terminate()
        wait_ended([process], STOP_TIMEOUT_S)
        family = wait_ended(family, CHILDREN_TIMEOUT_S)
    for survivor in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            survivor.kill()
    wait_ended(family, STOP_TIMEOUT_S)
    for region in regions:
        region.unlink(missing_ok=True)
    if name.startswith("triton"):
        triton_leftovers.remove_folders(_began(server))
    record_path(name).unlink(missing_ok=True)
    return server if process else None


def wait_ended(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until they have ended and return those that have not.

    A zombie has ended. `psutil.wait_procs` waits on until its parent has taken note, and the first process of
    some containers, the parent of what outlived its own, does so every two seconds only.
    """
    deadline = time.monotonic() + timeout_s
    while (left := [one for one in processes if _runs(one)]) and time.monotonic() < deadline:
        time.sleep(ENDED_POLL_S)
    psutil.wait_procs(processes, 0)  # takes note of those that this process started
    return left


def _runs(process: psutil.Process) -> bool:
    """Whether it has not ended. A zombie has when its last thread is gone: until then its ports are taken."""
    with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return process.status() != psutil.STATUS_ZOMBIE or len(os.listdir(f"/proc/{process.pid}/task")) > 1
    return False


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
    family = {process, *_children(process, _leaders() - {server.pid})} if process else set()
    with contextlib.suppress(psutil.NoSuchProcess):
        if _start_of(server.pid) != (server.boot, server.ticks):
            return []  # the number belongs to somebody else by now
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(pid) == server.pid:
                family.add(psutil.Process(pid))
    return list(family)


def _leaders() -> set[int]:
    """Processes that were started as servers: one may have been started by another."""
    names = [path.parent.name for path in state_dir().glob("*/server.json")]
    return {server.pid for name in names if (server := running(name))}


def _children(process: psutil.Process, others: set[int]) -> Iterator[psutil.Process]:
    """What a process started, and these, and so on; but not `others` and what they started."""
    for child in process.children():
        if child.pid not in others:
            yield child
            with contextlib.suppress(psutil.NoSuchProcess):
                yield from _children(child, others)


def _began(server: Server) -> float:
    """When a server was started, in seconds since the epoch as the kernel dates files."""
    return psutil.boot_time() + server.ticks / os.sysconf("SC_CLK_TCK")


def _start_of(pid: int) -> tuple[str, int]:
    """When a process was started: the boot, and ticks since then.

    Not psutil's `create_time`: that is a time of the wall clock, reckoned from where the clock stands when it
    is asked. After the clock was set each process would have another.

    Raises:
        psutil.NoSuchProcess: there is no such process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return boot, int(stat.rpartition(")")[2].split()[19])  # field 22, starttime: proc_pid_stat(5)


def _last_error(name: str, begin: int) -> str:
    """Last line of the log, from byte `begin` on, that looks like an error, or the last line."""
    said = log_path(name).read_bytes()[begin:].decode(errors="replace")
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("E") or "rror" in line]
    return f"{(errors or lines or ['it wrote nothing'])[-1].strip()[:300]} (log: {log_path(name)})"
