"""Servers that outlive the command that started them, recognised and stopped by their own record.

The record (`var/NAME/server.json`) holds the process id, the boot and the start time. So a reused id is never
taken for ours, whatever the clock is set to, and `stop` ends exactly the process that `start` started.
Where a record is damaged, for example by a power cut, the process is known by its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Final

import psutil

from swiftqueue.common.atomic import write_durably
from swiftqueue.common.json_file import read_object
from swiftqueue.common.process_start import state_and_start
from swiftqueue.common.redaction import redacted
from swiftqueue.common.settings import variable
from swiftqueue.common.state import PRIVATE, private_dir, private_file, state_dir
from swiftqueue.infra.local import triton_leftovers
from swiftqueue.infra.local.ports import MOST_PORT
from swiftqueue.serving.triton.endpoint import LOOPBACK

STOP_TIMEOUT_S: Final = 15.0  # Triton takes 3-6 s to unload its models
CHILDREN_TIMEOUT_S: Final = 3.0  # for the children that a server left, once the server has ended
POLL_S: Final = 0.1
SAY_S: Final = 60.0  # seconds between two lines about a start that is waited for
ENDED_POLL_S: Final = 0.02
AHEAD: Final = -10  # niceness of a session whose part must answer within milliseconds
BEHIND: Final = 5  # niceness of a session whose part can wait
FORMAT: Final = 2  # version of a record's format; the first had neither `boot` nor `ticks`
MARK: Final = variable("part")  # variable in a part's environment: state folder, name and ports
# Variables that systemd sets for the process that it started, and for no other.
NOTIFY: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
SAME_S: Final = 2.0  # largest difference of two readings of a start; that of the boot is in whole seconds
LOG_BYTES: Final = 8 << 20  # a log that is longer when its server starts again becomes `server.log.1`


@dataclass(frozen=True)
class ServerProcess:
    """A server that this project started: its process and the ports where it listens."""

    name: str
    pid: int
    created: float  # start in seconds since the epoch: the first format's records are known by it
    ports: dict[str, int]
    boot: str  # the kernel's id of the boot
    ticks: int  # start time in the kernel's ticks since that boot

    def __post_init__(self) -> None:
        """Raise ValueError where a value cannot be that of a process."""
        numbers = {"pid": (self.pid, 0, 2**22), "ticks": (self.ticks, -(2**63), 2**63)}
        numbers |= {f"port {kind}": (number, 0, MOST_PORT) for kind, number in self.ports.items()}
        for what, (number, least, most) in numbers.items():
            if type(number) is not int or not least <= number <= most:
                raise ValueError(f"{what} is {number!r}")

    @property
    def log(self) -> Path:
        """Return the file of its output."""
        return log_path(self.name)

    @property
    def age_s(self) -> float:
        """Return the seconds since it was started, whatever the wall clock was set to."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.ticks / os.sysconf("SC_CLK_TCK")

    def process(self) -> psutil.Process | None:
        """Return the running process, or None when it has ended (or its id now belongs to another)."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            if _start_of(self.pid) == (self.boot, self.ticks) and _runs(process):
                return process
        return None


def record_path(name: str) -> Path:
    """Return the file that records which process serves as `name`."""
    return state_dir() / name / "server.json"


def log_path(name: str) -> Path:
    """Return the log file of server `name`."""
    return state_dir() / name / "server.log"


def running(name: str) -> ServerProcess | None:
    """Return the server `name` if its process runs."""
    server = _recorded(name)
    return server if server and server.process() else None


def check_port(port: int, setting: str) -> None:
    """Raise OSError with a clear line if a loopback port, which a setting chooses, is taken."""
    if not is_free(port):
        raise OSError(
            f"port {port} is in use by another program; stop it, or choose another port with "
            f"{variable(setting)}"
        )


def is_free(port: int) -> bool:
    """Return whether a loopback port is free to listen at."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT leftovers do not count
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def listens(name: str, port: int) -> bool:
    """Return whether a process of the session that server `name` leads listens at a port."""
    server = running(name)
    with contextlib.suppress(ProcessLookupError):  # the process ended meanwhile
        return server is not None and any(
            os.getsid(one.pid) == server.pid
            for one in psutil.net_connections("tcp")
            if one.pid and one.status == psutil.CONN_LISTEN and one.laddr[1:] == (port,)
        )
    return False


def free_ports(count: int) -> list[int]:
    """Return loopback ports at which nobody listens now."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind((LOOPBACK, 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def start(
    name: str,
    command: Sequence[str],
    ports: Mapping[str, int],
    env: Mapping[str, str],
    ready: Callable[[], bool],
    timeout_s: float,
    *,
    nice: int = 0,
) -> ServerProcess:
    """Start a server in a session of its own and wait until `ready` says that it answers.

    `nice` is the niceness of its session among the others (AHEAD, BEHIND), where kernel and our rights allow
    it. A positive one is set once the server answers, because somebody waits for its start.

    Raises:
        RuntimeError: it ended or did not answer in time; it is stopped, its last log line is in the message.
    """
    stop(name)  # a killed server may have left children
    inherited = {name: value for name, value in os.environ.items() if name not in NOTIFY}
    private_dir(log_path(name).parent)
    if log_path(name).is_file() and log_path(name).stat().st_size > LOG_BYTES:
        log_path(name).replace(log_path(name).with_name("server.log.1"))
    with private_file(log_path(name)).open("ab") as log:  # the log before it is kept, which says why it ended
        log.write(f"--- {name} started {time.strftime('%F %T %z')}\n".encode())
        log.flush()
        begin = log.tell()
        child = subprocess.Popen(
            command,
            env={**inherited, **env, **marked(name, ports)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=PRIVATE,
        )
    with contextlib.suppress(OSError):  # the process has ended
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (most, most))  # many strangers may connect
    try:
        server = record(name, child.pid, ports)
    except BaseException:  # for example a full disk: without its record nobody would ever stop it
        child.kill()
        raise
    begun_s = time.monotonic()
    deadline, say_s = begun_s + timeout_s, begun_s + SAY_S
    try:
        if nice < 0:
            set_niceness(child.pid, nice)
        while not ready():
            if (code := child.poll()) is not None:
                raise RuntimeError(f"{name} ended with code {code}: {_last_error(name, begin)}")
            if time.monotonic() > deadline:
                late = f"{name} did not answer within {timeout_s:.0f} s"
                raise RuntimeError(f"{late}: {_last_error(name, begin)}")
            if time.monotonic() > say_s:
                say_s += SAY_S
                waited = f"no answer after {time.monotonic() - begun_s:.0f} of {timeout_s:.0f} s"
                print(f"{name}: {waited}, load average {os.getloadavg()[0]:.1f}", flush=True)
            time.sleep(POLL_S)
    except BaseException:
        stop(name)
        raise
    if nice > 0:
        set_niceness(child.pid, nice)
    return server


def record(name: str, pid: int, ports: Mapping[str, int]) -> ServerProcess:
    """Record which process serves as `name`, so that `stop` ends it.

    Raises:
        OSError: the disk is full.
        psutil.NoSuchProcess: the process has ended.
    """
    server = ServerProcess(name, pid, time.time(), dict(ports), *_start_of(pid))
    private_dir(record_path(name).parent)
    content = json.dumps({"format": FORMAT, **asdict(server)}) + "\n"
    write_durably(record_path(name), content.encode(), mode=0o600)
    return server


def forget(server: ServerProcess) -> None:
    """Remove a server's record, unless another server has replaced it."""
    if _recorded(server.name) == server:
        record_path(server.name).unlink(missing_ok=True)


def set_niceness(pid: int, nice: int) -> None:
    """Set the niceness of a process' session among all sessions, where allowed: below 0 needs CAP_SYS_NICE.

    The kernel shares the cores among sessions first (sched(7), autogroup). A `nice` in one says nothing to
    another: however low the priority of a push in its session, Triton's threads in theirs waited for it.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def stop(name: str) -> ServerProcess | None:
    """Stop server `name` and its children; return it, or None when none ran.

    The children and files that a killed server left are removed, too.
    """
    server = _recorded(name)
    if server is None:
        record_path(name).unlink(missing_ok=True)  # a damaged record
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
    """Wait until the processes have ended and return those that have not.

    A zombie has ended. `psutil.wait_procs` waits on until its parent has taken note, and the first process of
    some containers, the parent of what outlived its own, does so every two seconds only.
    """
    deadline = time.monotonic() + timeout_s
    while (left := [one for one in processes if _runs(one)]) and time.monotonic() < deadline:
        time.sleep(ENDED_POLL_S)
    psutil.wait_procs(processes, 0)  # takes note of the processes that this one started
    return left


def _runs(process: psutil.Process) -> bool:
    """Return whether a process runs. A zombie with live threads still runs: it holds its ports."""
    with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return process.status() != psutil.STATUS_ZOMBIE or len(os.listdir(f"/proc/{process.pid}/task")) > 1
    return False


def _recorded(name: str) -> ServerProcess | None:
    """Return the server that was last started as `name` and not stopped since."""
    try:
        return read_record(record_path(name))
    except FileNotFoundError:
        return None
    except ValueError:
        return _marked(name)


def read_record(path: Path) -> ServerProcess:
    """Return the server of a record; fields that another version wrote are left out.

    Raises:
        FileNotFoundError: there is no record.
        ValueError: the file is no record.
    """
    found = read_object(path)
    known = {field.name: found[field.name] for field in fields(ServerProcess) if field.name in found}
    try:
        if "ticks" in known:
            return ServerProcess(**known)
        server = ServerProcess(**known, boot="", ticks=0)  # the first format knew the wall clock alone
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: not a server record ({error})") from error
    with contextlib.suppress(psutil.NoSuchProcess, TypeError):
        if abs(psutil.Process(server.pid).create_time() - server.created) < SAME_S:
            boot, ticks = _start_of(server.pid)
            return replace(server, boot=boot, ticks=ticks)
    return server


def marked(name: str, ports: Mapping[str, int]) -> dict[str, str]:
    """Return the environment by which a server is known where its record is damaged."""
    return {MARK: _mark(name) + json.dumps(dict(ports))}


def _mark(name: str) -> str:
    """Return the beginning of the mark of server `name`; its ports follow."""
    return f"{state_dir()} {name} "


def _marked(name: str) -> ServerProcess | None:
    """Return the oldest session leader that was started as `name` here, by its environment."""
    mark, found = f"{MARK}={_mark(name)}".encode(), []
    for folder in Path("/proc").glob("[1-9]*"):
        with contextlib.suppress(OSError, psutil.Error, ValueError, StopIteration):
            said = next(one for one in (folder / "environ").read_bytes().split(b"\0") if one.startswith(mark))
            pid = int(folder.name)
            if os.getsid(pid) == pid:
                ports = json.loads(said.removeprefix(mark))
                found.append(ServerProcess(name, pid, time.time(), ports, *_start_of(pid)))
    return min(found, key=lambda server: server.ticks, default=None)


def _family(server: ServerProcess, process: psutil.Process | None) -> list[psutil.Process]:
    """Return the server's process, if it runs, and all its descendants.

    The server leads a session, whose number the kernel gives to no other process while it has members.
    """
    family = {process, *_children(process, _leaders() - {server.pid})} if process else set()
    with contextlib.suppress(psutil.NoSuchProcess):
        if _start_of(server.pid) != (server.boot, server.ticks):
            return []  # the number belongs to another process by now
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(pid) == server.pid:
                family.add(psutil.Process(pid))
    return list(family)


def _leaders() -> set[int]:
    """Return the ids of processes that were started as servers; one server may have started another."""
    names = [path.parent.name for path in state_dir().glob("*/server.json")]
    return {server.pid for name in names if (server := running(name))}


def _children(process: psutil.Process, others: set[int]) -> Iterator[psutil.Process]:
    """Yield the descendants of a process, without `others` and their descendants."""
    for child in process.children():
        if child.pid not in others:
            yield child
            with contextlib.suppress(psutil.NoSuchProcess):
                yield from _children(child, others)


def _began(server: ServerProcess) -> float:
    """Return when a server was started, in seconds since the epoch as the kernel dates files."""
    return psutil.boot_time() + server.ticks / os.sysconf("SC_CLK_TCK")


def _start_of(pid: int) -> tuple[str, int]:
    """Return when a process was started: the boot's id, and the kernel's ticks since then.

    Raises:
        psutil.NoSuchProcess: there is no such process.
    """
    try:
        _, ticks = state_and_start(pid)
    except ProcessLookupError as error:
        raise psutil.NoSuchProcess(pid) from error
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip(), ticks


def _last_error(name: str, begin: int) -> str:
    """Return the last line of the log from byte `begin` on that looks like an error, or the last line.

    Lines of level INFO are none.
    """
    said = log_path(name).read_bytes()[begin:].decode(errors="replace")
    lines = [line for line in said.splitlines() if line.strip() and not re.search(r"\bINFO\b", line)]
    errors = [line for line in lines if line.startswith("E") or "rror" in line]
    nothing = "it wrote no error" if said.strip() else "it wrote nothing"
    return f"{redacted((errors or lines or [nothing])[-1].strip())[:300]} (log: {log_path(name)})"
