"""`swiftqueue part keeper`: starts again what the live loop has lost, until SIGTERM.

Somebody keeps the keeper, too: systemd where it started the loop (units.py), else supervisor.py.

A part whose process is gone is started as `swiftqueue up --live` does; one that answers nothing for
PATIENCE_S, as when it is stopped (SIGSTOP), is ended first. It is judged by what no stranger reaches, its
heartbeat, or by an answer at its port. No answer counts for nothing while other users hold connections there,
or the disk is full. A Triton that answers and serves nothing goes on, and the champion is loaded into it.
Parts on a Ray head that died are started on the next one. What cannot be started is tried again, ever more
seldom. Each start is a process of its own (heal.py), and each request to a part has a thread, so that no part
waits for another. `up` starts the keeper last, `down` stops it first.
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

from common import metrics_page
from common.heartbeat import Heartbeat
from common.lock import LockHeldError
from common.say import say
from common.settings import settings
from common.state import strangers_connected
from infra.local import asked, loop, pages, parts, processes, prometheus, ray_head, status, under_way
from infra.local.disk import disk
from infra.local.heal import Healing
from infra.local.notify import notify
from infra.local.parts import KEEPER, MLFLOW, PARTS, TRITON, end_when_told
from infra.local.ports import LoopbackPort
from infra.local.tidy import Tidy
from serving.triton.endpoint import LOOPBACK, Triton

LOOK_S: Final = 1.0
ASK_S: Final = 10.0  # between two requests to a part
PATIENCE_S: Final = 60.0  # longer than any part is busy with something else
STILL_S: Final = 5.0  # of a heartbeat, which is touched every second
STRANGERS: Final = 16  # connections of other users with which a part's silence says nothing about it
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
LOCK_WAIT_S: Final = 0.0  # for an `up` or `down`: at the next look it is tried again
CALM_S: Final = 10.0  # a part that ran so long is not one that ends at its start


@dataclass
class Part:
    """What the keeper remembers of a part, in seconds of the monotonic clock."""

    silent_since_s: float | None = None  # the first request that was not answered, and none since was
    idle: bool = False  # it runs and answers, and does not do its work: its start does the rest
    failed: bool = False  # it was not started whole
    started_s: float = 0.0
    pause_s: float = 0.0  # before the next start
    due_s: float = 0.0


class Start(Protocol):
    """A start that is under way."""

    def outcome(self) -> str | None:
        """Why it failed, in one line; empty if the part is up; None while nobody knows."""

    def end(self) -> None:
        """End it."""


@dataclass
class Answer:
    """What came of a request."""

    asked_s: float
    well: bool
    idle: bool


class Keeper:
    """Looks at the parts and starts what is lost, each at the first look that finds it so."""

    def __init__(
        self,
        start: Callable[[str, bool], Start],
        answers: Mapping[str, Callable[[processes.Server], bool]],
        patience_s: float,
        ended: Callable[[str, bool], None],
        idle: Mapping[str, Callable[[processes.Server], bool]] | None = None,
        pool: Executor | None = None,
        spared: Callable[[processes.Server], str] = lambda server: "",
    ) -> None:
        """Keep a loop.

        Args:
            start: begins to start a part; the second argument says that it has only lost its work.
            answers: whether a running part answers, for those that can be asked.
            patience_s: a part that answered nothing for so long is ended and started.
            ended: is told of each start that failed, and of each part that is up again and had ended.
            idle: whether a part that does not answer is well and has only lost what `start` brings it.
            pool: asks the parts.
            spared: why a part that answers nothing is not to be ended, in words; empty if it is.
        """
        self._spared, self._said_spared = spared, dict[str, str]()
        self._idle = idle or {}
        self._start, self._answers, self._patience_s, self._ended = start, answers, patience_s, ended
        self._parts: dict[str, Part] = {}
        self._asked_s = -ASK_S
        self._pool = pool or ThreadPoolExecutor(len(PARTS), "ask")
        self._asking: dict[str, Future[Answer]] = {}
        self._healing: dict[str, tuple[Start, bool]] = {}  # and whether the part is idle
        self._lock: contextlib.ExitStack | None = None  # held while something is being started

    def look(self) -> None:
        """Look once, and begin to start what is lost and due.

        Raises:
            OSError, ValueError: something cannot be read; the next look tries again.
        """
        for name, (start, _) in list(self._healing.items()):
            if (failure := start.outcome()) is not None:
                self._healed(name, failure)
        self._hear()
        if time.monotonic() - self._asked_s >= ASK_S:
            self._ask()
            self._asked_s = time.monotonic()
        for name in parts.wanted():
            part = self._parts.setdefault(name, Part())
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
        """Whether a part runs, is not being started, and answered the last request."""
        part = self._parts.get(name)
        silent = part is not None and part.silent_since_s is not None
        return name not in self._healing and not silent and processes.running(name) is not None

    def close(self) -> None:
        """End what is being started."""
        for start, _ in self._healing.values():
            start.end()

    def _may_start(self) -> bool:
        """Whether nobody else starts or stops parts now; nobody else does until the starts have ended."""
        if self._lock is None:
            lock = contextlib.ExitStack()
            try:
                lock.enter_context(under_way.starting(LOCK_WAIT_S))
            except LockHeldError:
                return False
            self._lock = lock
        return True

    def _lost(self, name: str, part: Part) -> str:
        """Why a part is to be started; empty if it is not, or not yet."""
        if name in loop.ON_RAY and not loop.ray_elsewhere() and not self._ray_runs():
            return ""  # it is started on the next Ray
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
                say(
                    f"{name} does not answer, and is not ended: {why}" if why else f"{name} is not spared now"
                )
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

    def _heal(self, name: str, part: Part, why: str) -> None:
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
            for other in self._parts.values():  # they may have waited for this one
                other.silent_since_s = None
        elif not idle:  # else its patience runs on: it is started whole in the end
            part.silent_since_s = None
        part.started_s = time.monotonic()
        part.pause_s = min(max(FIRST_PAUSE_S, 2 * part.pause_s), LONGEST_PAUSE_S)
        part.due_s = part.started_s + part.pause_s
        if failure or not idle:  # what only got its work back had not ended
            self._ended(name, not failure)
        up = f"is up after {took_s:.1f} s"
        say(f"{name} {f'cannot be started, and is tried again: {failure}' if failure else up}")

    def _ask(self) -> None:
        for name in self._answers.keys() - self._asking.keys() - self._healing.keys():
            if (server := processes.running(name)) is not None:
                self._asking[name] = self._pool.submit(self._answer, name, server, time.monotonic())

    def _answer(self, name: str, server: processes.Server, now_s: float) -> Answer:
        well = self._answers[name](server)
        return Answer(now_s, well, not well and name in self._idle and self._idle[name](server))

    def _hear(self) -> None:
        for name in [name for name, future in self._asking.items() if future.done()]:
            answer, part = self._asking.pop(name).result(), self._parts.setdefault(name, Part())
            part.idle = answer.idle
            if answer.well:
                part.silent_since_s = None
            elif part.silent_since_s is None and answer.asked_s > part.started_s:
                part.silent_since_s = answer.asked_s


def _serves(server: processes.Server) -> bool:
    """Whether Triton answers an inference, by whichever version."""
    with Triton(f"{LOOPBACK}:{server.ports['grpc']}") as triton:
        return triton.served_version() is not None


def _serves_nothing(server: processes.Server) -> bool:
    """Whether a Triton that does not answer an inference is alive: its model was unloaded, or never came."""
    with Triton(f"{LOOPBACK}:{server.ports['grpc']}") as triton:
        return triton.live() and triton.served_version() is None


def _page(path: str, port: str) -> Callable[[processes.Server], bool]:
    return lambda server: pages.answers(f"http://{LOOPBACK}:{server.ports[port]}{path}")


def _ingest(server: processes.Server) -> bool:
    return status.ingest_check(f"http://{LOOPBACK}:{server.ports['http']}")


def _ray(server: processes.Server) -> bool:
    return ray_head.alive(f"{LOOPBACK}:{server.ports['gcs']}")


class _Beats:
    """Whether a part's heartbeat goes on, which no stranger can stop."""

    def __init__(self) -> None:
        self._seen_ns, self._since_s = 0, -math.inf

    def __call__(self, server: processes.Server) -> bool:
        with contextlib.suppress(FileNotFoundError):
            seen_ns = asked.heartbeat(server.name).stat().st_mtime_ns
            if seen_ns != self._seen_ns:
                self._seen_ns, self._since_s = seen_ns, time.monotonic()
        return time.monotonic() - self._since_s < STILL_S


ANSWERS: Final[dict[str, Callable[[processes.Server], bool]]] = {
    MLFLOW: _page("/health", "http"),
    TRITON: _serves,
    ray_head.NAME: _ray,
    "ingest": _ingest,
    "forwarder": _Beats(),
    "agent": _Beats(),
    "scheduler": _Beats(),
    "prometheus": lambda server: prometheus.is_ready(f"http://{LOOPBACK}:{server.ports['http']}"),
}


def _spared(server: processes.Server) -> str:
    """Why a part is not to be ended for its silence; a paused one is ended whatever else there is."""
    process = server.process()
    if process is not None and process.status() == psutil.STATUS_STOPPED:
        return ""
    if disk().full:
        return "the disk is full"
    if server.ports and (count := strangers_connected(set(server.ports.values()))) >= STRANGERS:
        return f"other users of this machine hold {count} connections to it"
    return ""


def _ended(starts: Counter, failures: Counter, name: str, well: bool) -> None:
    """Count a start; a part that is up again is to be scraped again."""
    (starts if well else failures).labels(name).inc()
    if well:
        prometheus.update_targets()


def lost_supervisor(parent: int, down: str) -> bool:
    """Whether the supervisor that started this process was killed, and no `down` came since."""
    if os.getppid() == parent:
        return False
    own = processes.running(KEEPER)
    return under_way.last_down() == down and asked.asked_file().exists() and own is None


def become_supervisor(metrics_port: int) -> None:
    """Be the supervisor of another keeper, in the place of the one that was killed."""
    say("the supervisor of the keeper is gone: this process takes its place")
    with contextlib.suppress(PermissionError):  # it leads a session already
        os.setsid()
    processes.record(KEEPER, os.getpid(), {"metrics": metrics_port})
    words = loop.keeper_command(metrics_port)
    os.execv(words[0], words)  # noqa: S606 - our own program


def main(
    metrics_port: LoopbackPort,
    patience: Annotated[float, typer.Option(help="seconds without an answer")] = PATIENCE_S,
    restarts: Annotated[
        int | None, typer.Option(min=0, help="of its supervisor: how often it was started again before")
    ] = None,
) -> None:
    """Start again what the live loop has lost, until SIGTERM.

    Example: swiftqueue part keeper --metrics-port 9103
    """
    end_when_told()
    registry = CollectorRegistry()
    starts = Counter(
        "swiftqueue_part_restarts", "parts that the keeper started again", ["part"], registry=registry
    )
    failures = Counter(
        "swiftqueue_part_start_failures", "starts of a part that failed", ["part"], registry=registry
    )
    up = Gauge(
        "swiftqueue_part_up", "1 while a part runs and answers the keeper", ["part"], registry=registry
    )
    free = Gauge("swiftqueue_disk_free_bytes", "free on the disk of the state folder", registry=registry)
    free.set_function(lambda: disk().free)
    size = Gauge("swiftqueue_disk_size_bytes", "size of the disk of the state folder", registry=registry)
    size.set_function(lambda: disk().size)
    if asked.asked() is None:
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
    starts.labels(KEEPER).inc(restarts or 0)
    metrics_page.serve(registry, LOOPBACK, metrics_port)
    tidy, heart = Tidy(), Heartbeat(settings().heartbeat or asked.heartbeat(KEEPER))
    parent, down = os.getppid(), under_way.last_down()
    notify("READY=1")
    try:
        while True:
            time.sleep(LOOK_S)
            heart.beat()
            notify("WATCHDOG=1")
            if restarts is not None and lost_supervisor(parent, down):
                keeper.close()
                become_supervisor(metrics_port)
            try:
                keeper.look()
                tidy.look()
            except (OSError, ValueError) as error:  # a full disk, a record that somebody changed
                say(f"cannot look: {error}")
    finally:
        keeper.close()
