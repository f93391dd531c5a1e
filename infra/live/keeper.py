"""`python -m infra.live.keeper`: starts again what the live loop has lost, until SIGTERM.

A part whose process is gone is started as `swiftqueue up --live` does; one that answers nothing for
PATIENCE_S, as when it is stopped (SIGSTOP), is ended first. Parts on a Ray head that died are started on the
next one. What cannot be started is tried again, ever more seldom. `up` starts the keeper last, `down` stops
it first.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry, Counter, start_http_server

from feature_store import telemetry_off
from infra import pages, processes
from infra.live import health, loop, plan, ray_head
from infra.live.log import say
from infra.stack import KEEPER, MLFLOW, TRITON
from serving.endpoint import LOOPBACK, Triton, TritonError
from serving.ingest.forwarder import Heartbeat

LOOK_S: Final = 1.0
ASK_S: Final = 10.0  # between two requests to a part
PATIENCE_S: Final = 60.0  # longer than any part is busy with something else
STILL_S: Final = 5.0  # of the forwarder's heartbeat, which is touched every second
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
CALM_S: Final = 10.0  # a part that ran so long is not one that ends at its start


@dataclass
class Part:
    """What the keeper remembers of a part, in seconds of the monotonic clock."""

    silent_since_s: float | None = None  # the first request that was not answered, and none since was
    failed: bool = False  # it was not started whole
    started_s: float = 0.0
    pause_s: float = 0.0  # before the next start
    due_s: float = 0.0


class Keeper:
    """Looks at the parts and starts what is lost, one part at each look, in the order of their start."""

    def __init__(
        self,
        start: Callable[[str], None],
        answers: Mapping[str, Callable[[processes.Server], bool]],
        patience_s: float,
        started: Callable[[str], None],
    ) -> None:
        """Keep a loop.

        Args:
            start: starts a part, or raises OSError, ValueError or RuntimeError.
            answers: whether a running part answers, for those that can be asked.
            patience_s: a part that answered nothing for so long is ended and started.
            started: is told of each part that was started again.
        """
        self._start, self._answers, self._patience_s, self._started = start, answers, patience_s, started
        self._parts: dict[str, Part] = {}
        self._asked_s = -ASK_S

    def look(self) -> None:
        """Look once, and start a part if one is lost and due."""
        if time.monotonic() - self._asked_s >= ASK_S:
            self._ask()
            self._asked_s = time.monotonic()
        for name in plan.wanted():
            part = self._parts.setdefault(name, Part())
            if name == KEEPER or time.monotonic() < part.due_s or not self._lost(name, part):
                continue
            with plan.starting():
                if why := self._lost(name, part):  # `up` may have started it meanwhile
                    self._heal(name, part, why)
            return

    def _lost(self, name: str, part: Part) -> str:
        """Why a part is to be started; empty if it is not."""
        server = processes.running(name)
        if server is None:
            return "is gone"
        if loop.outlived(name):
            return "ran on a Ray head that is gone"
        answers = self._answers.get(name)
        if part.failed and answers is not None and not answers(server):
            return "was not started whole"
        silent_since_s = part.silent_since_s
        if silent_since_s is not None and time.monotonic() - silent_since_s > self._patience_s:
            return f"has not answered for {self._patience_s:g} s"
        return ""

    def _heal(self, name: str, part: Part, why: str) -> None:
        begin_s = time.monotonic()
        say(f"{name} {why}: starting it")
        if not part.failed and begin_s - part.started_s > CALM_S:
            part.pause_s = 0.0
        try:
            processes.stop(name)  # with what it left
            self._start(name)
        except (OSError, ValueError, RuntimeError) as error:
            part.failed, outcome = True, f"cannot be started, and is tried again: {error}"
        else:
            part.failed, outcome = False, f"is up after {time.monotonic() - begin_s:.1f} s"
            self._started(name)
            for other in self._parts.values():  # they may have waited for this one
                other.silent_since_s = None
        part.started_s = time.monotonic()
        part.pause_s = min(max(FIRST_PAUSE_S, 2 * part.pause_s), LONGEST_PAUSE_S)
        part.due_s = part.started_s + part.pause_s
        part.silent_since_s = None
        say(f"{name} {outcome}")

    def _ask(self) -> None:
        for name, answers in self._answers.items():
            if (server := processes.running(name)) is None:
                continue
            begin_s, part = time.monotonic(), self._parts.setdefault(name, Part())
            if answers(server):
                part.silent_since_s = None
            elif part.silent_since_s is None:
                part.silent_since_s = begin_s


def _serves(server: processes.Server) -> bool:
    """Whether Triton answers an inference, by whichever version."""
    with Triton(f"{LOOPBACK}:{server.ports['grpc']}") as triton:
        try:
            tokens, features = triton.config().input[0].dims
            triton.infer(np.zeros((1, tokens, features), dtype=np.float32))
        except TritonError:
            return False
    return True


def _page(path: str, port: str) -> Callable[[processes.Server], bool]:
    return lambda server: pages.answers(f"http://{LOOPBACK}:{server.ports[port]}{path}")


def _ingest(server: processes.Server) -> bool:
    return health.ingest_check(f"http://{LOOPBACK}:{server.ports['http']}")


def _ray(server: processes.Server) -> bool:
    return ray_head.alive(f"{LOOPBACK}:{server.ports['gcs']}")


class _Beats:
    """Whether the forwarder's heartbeat goes on: nobody can ask it anything."""

    def __init__(self) -> None:
        self._seen_ns, self._since_s = 0, -math.inf

    def __call__(self, server: processes.Server) -> bool:
        with contextlib.suppress(FileNotFoundError):
            seen_ns = Heartbeat(plan.telemetry_socket()).file.stat().st_mtime_ns
            if seen_ns != self._seen_ns:
                self._seen_ns, self._since_s = seen_ns, time.monotonic()
        return time.monotonic() - self._since_s < STILL_S


ANSWERS: Final[dict[str, Callable[[processes.Server], bool]]] = {
    MLFLOW: _page("/health", "http"),
    TRITON: _serves,
    ray_head.NAME: _ray,
    "ingest": _ingest,
    "forwarder": _Beats(),
    "agent": _page("/metrics", "metrics"),
    "scheduler": _page("/metrics", "metrics"),
    "prometheus": _page("/-/ready", "http"),
}


def main() -> None:
    """Keep the loop until SIGTERM."""
    parser = argparse.ArgumentParser(description="Start again what the live loop has lost.")
    parser.add_argument("--metrics-port", type=int, required=True, help="on loopback")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds without an answer")
    arguments = parser.parse_args()
    telemetry_off.switch_off()

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    registry = CollectorRegistry()
    starts = Counter(
        "swiftqueue_part_restarts", "parts that the keeper started again", ["part"], registry=registry
    )
    live = plan.asked()
    if live is None:
        sys.exit("keeper: there is no loop to keep: swiftqueue up --live")
    for name in plan.wanted():
        starts.labels(name)
    start_http_server(arguments.metrics_port, addr=LOOPBACK, registry=registry)
    keeper = Keeper(
        start=lambda name: loop.start_part(name, live),
        answers=ANSWERS,
        patience_s=arguments.patience,
        started=lambda name: starts.labels(name).inc(),
    )
    while True:
        time.sleep(LOOK_S)
        try:
            keeper.look()
        except (OSError, ValueError) as error:  # a full disk, a record that somebody changed
            say(f"cannot look: {error}")


if __name__ == "__main__":
    main()
