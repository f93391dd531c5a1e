"""`swiftqueue part keeper`: restarts parts of the live loop that died or hang, until SIGTERM.

systemd keeps the keeper itself where it started the loop (units.py); elsewhere supervisor.py does.

A part whose process is gone is started as `swiftqueue up --live` does. A part that answers nothing for
PATIENCE_S, for example because it is stopped (SIGSTOP), is ended first. The keeper judges a part by its
heartbeat, which no stranger reaches, or by an answer at its port. A missing answer counts for nothing while
other users hold connections there, or while the disk is full. A Triton that answers but serves nothing keeps
running, and the champion is loaded into it. Parts on a dead Ray head are started on the next. A start that
fails is tried again, ever more seldom. Each start is a process of its own (heal.py) and each request has its
own thread, so no part waits for another. `up` starts the keeper last; `down` stops it first.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final, Protocol

import psutil
import typer
from prometheus_client import CollectorRegistry, Counter, Gauge

from swiftqueue.common import metrics_page
from swiftqueue.common.heartbeat import Heartbeat
from swiftqueue.common.lock import LockHeldError
from swiftqueue.common.say import say
from swiftqueue.common.settings import settings
from swiftqueue.common.state import strangers_connected
from swiftqueue.infra.local import (
    live_options,
    loop,
    pages,
    parts,
    processes,
    prometheus,
    ray_head,
    status,
    under_way,
)
from swiftqueue.infra.local.disk import disk
from swiftqueue.infra.local.heal import Healing
from swiftqueue.infra.local.parts import KEEPER, MLFLOW, PAGE, PARTS, TRITON, end_when_told
from swiftqueue.infra.local.ports import LoopbackPort
from swiftqueue.infra.local.tidy import Housekeeping
from swiftqueue.infra.local.units import notify
from swiftqueue.serving.triton.endpoint import LOOPBACK, Triton

LOOK_S: Final = 1.0
ASK_S: Final = 10.0  # seconds between two requests to a part
PATIENCE_S: Final = 60.0  # longer than any part is busy with something else
STILL_S: Final = 5.0  # age of a heartbeat, which is touched every second, at which its part counts as silent
STRANGERS: Final = 16  # connections of other users with which a part's silence says nothing about it
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
LOCK_WAIT_S: Final = 0.0  # no wait for an `up` or `down`; the next look tries again
CALM_S: Final = 10.0  # a part that ran so long is not one that ends at its start


@dataclass
class PartState:
    """The keeper's memory of a part; times are seconds of the monotonic clock."""

    silent_since_s: float | None = None  # time of the first request in an unbroken row without an answer
    idle: bool = False  # whether the part answers and does not do its work: its start only restores the work
    failed: bool = False  # whether its last start failed half-way
    started_s: float = 0.0
    pause_s: float = 0.0  # pause before the next start
    due_s: float = 0.0


class Start(Protocol):
    """The interface of a start that is under way (heal.py)."""

    def outcome(self) -> str | None:
        """Return why the start failed, in one line; empty if the part is up; None while it is under way."""

    def end(self) -> None:
        """End it."""


@dataclass
class PartAnswer:
    """The answer of a part to one request."""

    asked_s: float
    well: bool
    idle: bool


class Keeper:
    """The loop that looks at the parts and starts each lost part at the first look that finds it lost."""

    def __init__(
        self,
        start: Callable[[str, bool], Start],
        answers: Mapping[str, Callable[[processes.ServerProcess], bool]],
        patience_s: float,
        ended: Callable[[str, bool], None],
        idle: Mapping[str, Callable[[processes.ServerProcess], bool]] | None = None,
        pool: Executor | None = None,
        spared: Callable[[processes.ServerProcess], str] = lambda server: "",
    ) -> None:
        """Keep a loop.

        Args:
            start: begins to start a part; the second argument says that it has only lost its work.
            answers: by part, a function that returns whether the running part answers.
            patience_s: seconds without an answer after which a part is ended and started.
            ended: called for each failed start, and for each part that is up again after it had ended.
            idle: by part, a function that returns whether the part is well and has only lost its work.
            pool: the executor that runs the requests to the parts.
            spared: returns why a silent part is not to be ended, in words; empty if it may be.
        """
        self._spared, self._said_spared = spared, dict[str, str]()
        self._idle = idle or {}
        self._start, self._answers, self._patience_s, self._ended = start, answers, patience_s, ended
        self._parts: dict[str, PartState] = {}
        self._asked_s = -ASK_S
        self._pool = pool or ThreadPoolExecutor(len(PARTS), "ask")
        self._asking: dict[str, Future[PartAnswer]] = {}
        self._healing: dict[str, tuple[Start, bool]] = {}  # each start, and whether its part is idle
        self._lock: contextlib.ExitStack | None = None  # held while something is being started

    def look(self) -> None:
        """Look once, and begin the starts that are due.

        Raises:
            OSError, ValueError: a file cannot be read; the next look tries again.
        """
        for name, (start, _) in list(self._healing.items()):
            if (failure := start.outcome()) is not None:
                self._healed(name, failure)
        self._hear()
        if time.monotonic() - self._asked_s >= ASK_S:
            self._ask()
            self._asked_s = time.monotonic()
        for name in parts.wanted():
            part = self._parts.setdefault(name, PartState())
            if name == KEEPER or name in self._healing or time.monotonic() < part.due_s:
                continue
            if self._lost(name, part):
                if not self._may_start():
                    break
                if why := self._lost(name, part):  # `up` may have started it meanwhile
                    self._heal(name, part, why)
        if not self._healing and self._lock is not None:
            self._lock.close()
            self._lock = None

    def well(self, name: str) -> bool:
        """Return whether a part runs, is not being started, and answered the last request."""
        part = self._parts.get(name)
        silent = part is not None and part.silent_since_s is not None
        return name not in self._healing and not silent and processes.running(name) is not None

    def close(self) -> None:
        """End the starts that are under way."""
        for start, _ in self._healing.values():
            start.end()

    def _may_start(self) -> bool:
        """Return whether nobody else starts or stops parts; the lock stays held until the starts end."""
        if self._lock is None:
            lock = contextlib.ExitStack()
            try:
                lock.enter_context(under_way.starting(LOCK_WAIT_S))
            except LockHeldError:
                return False
            self._lock = lock
        return True

    def _lost(self, name: str, part: PartState) -> str:
        """Return why a part is to be started; empty if it is well or not due yet."""
        if name in loop.ON_RAY and not loop.ray_elsewhere() and not self._ray_runs():
            return ""  # the start waits for the next Ray
        server = processes.running(name)
        if server is None:
            return "is gone"
        if loop.outlived(name):
            return "ran on a Ray head that is gone"
        silent_since_s = part.silent_since_s
        if silent_since_s is None:
            return ""
        if time.monotonic() - silent_since_s > self._patience_s:
            why = self._spared(server)
            if why != self._said_spared.get(name, ""):
                spared = f"does not answer, and is not ended: {why}" if why else "may be ended again"
                say(f"{name} {spared}")
            self._said_spared[name] = why
            if why:
                return ""
            part.idle = False
            return f"has not answered for {self._patience_s:g} s"
        if part.idle:
            return "answers and serves nothing"
        return "was not started whole" if part.failed else ""

    def _ray_runs(self) -> bool:
        return ray_head.NAME not in self._healing and processes.running(ray_head.NAME) is not None

    def _heal(self, name: str, part: PartState, why: str) -> None:
        say(f"{name} {why}: {'loading it again' if part.idle else 'starting it'}")
        if not part.failed and time.monotonic() - part.started_s > CALM_S:
            part.pause_s = 0.0
        self._healing[name] = self._start(name, part.idle), part.idle
        part.started_s = time.monotonic()

    def _healed(self, name: str, failure: str) -> None:
        part, (_, idle) = self._parts[name], self._healing.pop(name)
        took_s = time.monotonic() - part.started_s
        part.failed, part.idle = bool(failure), idle and bool(failure)
        if not failure:
            for other in self._parts.values():  # the other parts may have waited for this one
                other.silent_since_s = None
        elif not idle:  # otherwise its patience runs on, and in the end the whole part is started
            part.silent_since_s = None
        part.started_s = time.monotonic()
        part.pause_s = min(max(FIRST_PAUSE_S, 2 * part.pause_s), LONGEST_PAUSE_S)
        part.due_s = part.started_s + part.pause_s
        if failure or not idle:  # a part that only got its work back had not ended
            self._ended(name, not failure)
        up = f"is up after {took_s:.1f} s"
        say(f"{name} {f'cannot be started, and is tried again: {failure}' if failure else up}")

    def _ask(self) -> None:
        for name in self._answers.keys() - self._asking.keys() - self._healing.keys():
            if (server := processes.running(name)) is not None:
                self._asking[name] = self._pool.submit(self._answer, name, server, time.monotonic())

    def _answer(self, name: str, server: processes.ServerProcess, now_s: float) -> PartAnswer:
        well = self._answers[name](server)
        return PartAnswer(now_s, well, not well and name in self._idle and self._idle[name](server))

    def _hear(self) -> None:
        for name in [name for name, future in self._asking.items() if future.done()]:
            answer, part = self._asking.pop(name).result(), self._parts.setdefault(name, PartState())
            part.idle = answer.idle
            if answer.well:
                part.silent_since_s = None
            elif part.silent_since_s is None and answer.asked_s > part.started_s:
                part.silent_since_s = answer.asked_s


def _serves(server: processes.ServerProcess) -> bool:
    """Return whether Triton answers an inference, by whichever version."""
    with Triton(f"{LOOPBACK}:{server.ports['grpc']}") as triton:
        return triton.served_version() is not None


def _serves_nothing(server: processes.ServerProcess) -> bool:
    """Return whether a Triton that answers no inference is alive; its model was unloaded or never loaded."""
    with Triton(f"{LOOPBACK}:{server.ports['grpc']}") as triton:
        return triton.live() and triton.served_version() is None


def _page(path: str, port: str) -> Callable[[processes.ServerProcess], bool]:
    return lambda server: pages.answers(f"http://{LOOPBACK}:{server.ports[port]}{path}")


def _ingest(server: processes.ServerProcess) -> bool:
    return status.ingest_check(f"http://{LOOPBACK}:{server.ports['http']}")


def _ray(server: processes.ServerProcess) -> bool:
    return ray_head.alive(f"{LOOPBACK}:{server.ports['gcs']}")


class _HeartbeatCheck:
    """A check whether a part's heartbeat goes on, which no stranger can stop."""

    def __init__(self) -> None:
        self._seen_ns, self._since_s = 0, -math.inf

    def __call__(self, server: processes.ServerProcess) -> bool:
        with contextlib.suppress(FileNotFoundError):
            seen_ns = live_options.heartbeat(server.name).stat().st_mtime_ns
            if seen_ns != self._seen_ns:
                self._seen_ns, self._since_s = seen_ns, time.monotonic()
        return time.monotonic() - self._since_s < STILL_S


ANSWERS: Final[dict[str, Callable[[processes.ServerProcess], bool]]] = {
    MLFLOW: _page("/health", "http"),
    TRITON: _serves,
    ray_head.NAME: _ray,
    "ingest": _ingest,
    "forwarder": _HeartbeatCheck(),
    "agent": _HeartbeatCheck(),
    "scheduler": _HeartbeatCheck(),
    PAGE: _HeartbeatCheck(),
    "prometheus": lambda server: prometheus.is_ready(f"http://{LOOPBACK}:{server.ports['http']}"),
}


def _spared(server: processes.ServerProcess) -> str:
    """Return why a silent part is not to be ended; a paused part is never spared."""
    process = server.process()
    if process is not None and process.status() == psutil.STATUS_STOPPED:
        return ""
    if disk().full:
        return "the disk is full"
    if server.ports and (count := strangers_connected(set(server.ports.values()))) >= STRANGERS:
        return f"other users of this machine hold {count} connections to it"
    return ""


def _ended(starts: Counter, failures: Counter, name: str, well: bool) -> None:
    """Count a start, and update the scrape targets when a part is up again."""
    (starts if well else failures).labels(name).inc()
    if well:
        prometheus.update_targets()


def lost_supervisor(supervisor: int, down: str) -> bool:
    """Return whether the supervisor, this process's parent, was killed and no `down` came since."""
    if os.getppid() == supervisor:
        return False
    own = processes.running(KEEPER)
    return under_way.last_down() == down and live_options.file().exists() and own is None


def become_supervisor(metrics_port: int) -> None:
    """Become the supervisor of another keeper, in place of the killed one."""
    say("the supervisor of the keeper is gone: this process takes its place")
    with contextlib.suppress(PermissionError):  # this process leads a session already
        os.setsid()
    processes.record(KEEPER, os.getpid(), {"metrics": metrics_port})
    words = loop.keeper_command(metrics_port)
    os.execv(words[0], words)  # noqa: S606 - our own program


def main(
    metrics_port: LoopbackPort,
    patience: Annotated[float, typer.Option(help="seconds without an answer before a restart")] = PATIENCE_S,
    restarts: Annotated[
        int, typer.Option(min=0, help="how often the supervisor has restarted the keeper")
    ] = 0,
    supervisor: Annotated[
        int | None, typer.Option(help="process id of the supervisor (default: there is none)")
    ] = None,
) -> None:
    """Restart parts of the live loop that died or hang, until SIGTERM.

    Example: swiftqueue part keeper --metrics-port 9103
    """
    end_when_told()
    down = under_way.last_down()
    page = CollectorRegistry()
    starts = Counter(
        "swiftqueue_part_restarts", "parts that the keeper started again", ["part"], registry=page
    )
    failures = Counter("swiftqueue_part_start_failures", "failed starts of a part", ["part"], registry=page)
    up = Gauge("swiftqueue_part_up", "1 while a part runs and answers the keeper", ["part"], registry=page)
    free = Gauge("swiftqueue_disk_free_bytes", "free bytes of the disk of the state folder", registry=page)
    free.set_function(lambda: disk().free)
    size = Gauge("swiftqueue_disk_size_bytes", "bytes of the disk of the state folder", registry=page)
    size.set_function(lambda: disk().size)
    if live_options.read() is None:
        raise ValueError("there is no loop to keep: swiftqueue up --live")
    keeper = Keeper(
        start=lambda name, idle: Healing(name, idle=idle),
        answers=ANSWERS,
        patience_s=patience,
        ended=partial(_ended, starts, failures),
        idle={TRITON: _serves_nothing},
        spared=_spared,
    )
    for name in parts.wanted():
        starts.labels(name)
        failures.labels(name)
        up.labels(name).set_function(partial(keeper.well, name))
    starts.labels(KEEPER).inc(restarts)
    metrics_page.serve(page, LOOPBACK, metrics_port)
    tidy, heart = Housekeeping(), Heartbeat(settings().heartbeat or live_options.heartbeat(KEEPER))
    notify("READY=1")
    try:
        while True:
            time.sleep(LOOK_S)
            heart.beat()
            notify("WATCHDOG=1")
            if supervisor is not None and lost_supervisor(supervisor, down):
                keeper.close()
                become_supervisor(metrics_port)
            try:
                keeper.look()
                tidy.look()
            except (OSError, ValueError) as error:  # a full disk, or a record that somebody changed
                say(f"cannot look: {error}")
    finally:
        keeper.close()
