"""The C++ agent as a program, and a sender at its socket, for the tests that need the real ones."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from mutants import ALL
from waiting import LIMIT_S, wait_until

from swiftqueue.feature_store.events.event_window import EventWindow
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.agent.bindings.controller import CLASSIC, ControllerParams, QueueController
from swiftqueue.serving.agent.io import frames
from swiftqueue.serving.agent.predictors.reference_client import AgentDecision
from swiftqueue.serving.engine import Engine

needs_agent = pytest.mark.skipif(
    agent_process.why_not_built() is not None, reason=str(agent_process.why_not_built())
)
MODEL = Path(__file__).parents[2] / "docs" / "laboratory" / "models" / "figure8" / "rfc9332"
FLOWS = np.arange(8) % 3  # flow 0 is not L4S-capable
DEFAULTS = (FLOWS > 0).astype(np.uint8)
LATENCY_NS = 20_000_000
# Faults at their full length: a server away for a minute, memory over 10 million packets.
FULL = ALL
GONE_S = 60.0 if FULL else 5.0  # how long a server stays away


class AgentProgram:
    """`swiftqueue-agent`, started; its last words are read by `end`."""

    binary = agent_process.BINARY

    def __init__(self, *arguments: object, preload: Path | None = None) -> None:
        environment = os.environ | ({"LD_PRELOAD": str(preload)} if preload else {})
        self.process = subprocess.Popen(
            [str(self.binary), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.complaints: list[str] = []
        self.warnings: list[str] = []  # that it runs as root
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.complaints
        self.ready: dict[str, Any] = json.loads(line)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            (self.warnings if "runs as root" in line else self.complaints).append(line.rstrip())

    def complained(self, text: str) -> None:
        wait_until(lambda: any(text in line for line in self.complaints), f"no line about {text!r}")

    def metrics(self) -> dict[str, float]:
        url = f"http://127.0.0.1:{self.ready['metrics_port']}/metrics"
        text = urllib.request.urlopen(url, timeout=5).read().decode()
        return {
            name.removeprefix("swiftqueue_agent_"): float(value)
            for name, value in re.findall(r"^(swiftqueue_agent_\S+) (\S+)$", text, re.M)
        }

    def end(self, how: signal.Signals | None = signal.SIGTERM) -> dict[str, Any]:
        """Its summary; asked to end unless `how` is None."""
        if how is not None:
            self.process.send_signal(how)
        assert self.process.stdout is not None
        lines = self.process.stdout.readlines()
        assert self.process.wait(LIMIT_S) == 0, self.complaints
        summary = json.loads(lines[-1])
        self.check(summary)
        return dict(summary)

    def check(self, summary: dict[str, Any]) -> None:
        """Check that every batch has an outcome."""
        assert summary["batches"] == sum(summary[outcome] for outcome in frames.OUTCOMES)

    def __enter__(self) -> AgentProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


def local_model(folder: Path) -> Path:
    """Link a real artifact under a name that is a version, as `--local` wants it."""
    link = folder / "1"
    if not link.is_symlink():
        link.symlink_to(MODEL)
    return link


def memory_over(packets: int, options: list[object], *others: psutil.Process) -> list[list[int]]:
    """Memory that an agent, first, and other processes hold while it decides about `packets` packets.

    A list of bytes for each process, from after the first tenth of the packets: until then it may grow.
    """
    seconds = packets * 1500 * 8 / 1e9
    arguments = ("--synthetic-bps", 1e9, "--seconds", seconds, "--speed", 0, "--deadline-us", 1_000_000)
    held: list[list[int]] = []
    with AgentProgram(*arguments, *options) as agent:
        processes = (psutil.Process(agent.process.pid), *others)
        assert agent.process.stdout is not None
        for line in agent.process.stdout:
            said = json.loads(line)
            assert said["batches"] == sum(said[outcome] for outcome in frames.OUTCOMES)
            if said["event"] == "progress" and said["batches"] > packets // 8 // 10:
                held.append([process.memory_info().rss for process in processes])
        assert agent.process.wait(LIMIT_S) == 0
    assert said["batches"] == packets // 8
    assert said["decided"] > 0.99 * said["batches"]
    assert len(held) > 10
    return [list(each) for each in zip(*held, strict=True)]


def split_frames(data: bytes) -> list[np.void]:
    """The whole frames; a last one that is incomplete is left out."""
    out, at = [], 0
    while len(data) - at >= 16 and len(data) - at >= (size := int.from_bytes(data[at : at + 2], "little")):
        out.append(np.frombuffer(data, frames.TYPES[data[at + 2]], 1, at)[0])
        at += size
    return out


class LiveSender:
    """A program that sends: a packet every 0.25 ms of its own clock, its ACK 20 ms later.

    It does what docs/AGENT.md asks of a sender: it waits for a decision until it is due, and no longer.
    """

    def __init__(self, path: Path, name: str = "test", deadline_us: int = 30_000) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.deadline_ns = deadline_us * 1000
        self.packet = 0
        self.size_bytes = 1500  # of its packets
        self.now_ns = 10**9
        self.waits_us: list[float] = []  # from asking until the decision came
        self.lateness_us: list[float] = []  # from when it was due until it came; below 0: in time
        self.outcomes: list[str] = []
        self.buffer = b""
        self.alive = True
        self.send(frames.hello(name))
        assert self.receive(time.monotonic_ns() + 10 * 10**9)["type"] == 1

    def __enter__(self) -> LiveSender:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *parts: np.ndarray[Any, Any]) -> None:
        try:
            self.socket.sendall(b"".join(part.tobytes() for part in parts))
        except ConnectionError:
            self.alive = False

    def receive(self, until_ns: int) -> Any:
        """Return the next frame; None if there is none until then, or the connection has ended."""
        while True:
            if len(self.buffer) >= 16:
                size = int.from_bytes(self.buffer[:2], "little")
                if len(self.buffer) >= size:
                    frame, self.buffer = self.buffer[:size], self.buffer[size:]
                    return np.frombuffer(frame, frames.TYPES[frame[2]])[0]
            left_s = (until_ns - time.monotonic_ns()) / 1e9
            if left_s <= 0:
                return None
            self.socket.settimeout(left_s)
            try:
                more = self.socket.recv(1 << 16)
            except TimeoutError:
                return None
            except ConnectionError:
                more = b""
            if not more:
                self.alive = False
                return None
            self.buffer += more

    def ask(self, due_ns: int) -> None:
        """Ask about the next 8 packets, and wait for nothing."""
        batch = frames.blank(frames.BATCH)
        batch["first_packet"], batch["now_ns"], batch["due_ns"] = self.packet, self.now_ns, due_ns
        packets = batch["packets"]
        packets["size_bytes"], packets["flow_id"], packets["queue"] = self.size_bytes, FLOWS, DEFAULTS
        self.send(batch)

    def batch(self) -> Any:
        """Ask about the next 8 packets, wait until they are due, send them; None if they were not decided."""
        begin_ns = time.monotonic_ns()
        due_ns = begin_ns + self.deadline_ns
        decision = None
        if self.alive:
            self.ask(due_ns)
            # The agent says `late` when it is due; this sender waits a moment more to hear it said.
            while (decision := self.receive(due_ns + 10**9)) is not None:
                if decision["type"] == 5 and decision["first_packet"] == self.packet:
                    break
        came_ns = time.monotonic_ns()
        self.waits_us.append((came_ns - begin_ns) / 1e3)
        self.lateness_us.append((came_ns - due_ns) / 1e3)
        self.outcomes.append("gone" if decision is None else frames.OUTCOMES[decision["outcome"]])
        queues = DEFAULTS if decision is None else decision["queues"]
        if self.alive:
            self._send_packets(queues)
        self.packet += 8
        return decision

    def _send_packets(self, queues: Any) -> None:
        sent = frames.blank(frames.SENT, 8)
        sent["packet"] = np.arange(self.packet, self.packet + 8)
        sent["sent_ns"] = self.now_ns + np.arange(8) * 250_000
        sent["size_bytes"], sent["flow_id"], sent["queue"] = self.size_bytes, FLOWS, queues
        self.now_ns = int(sent["sent_ns"][-1]) + 250_000
        acked = frames.blank(frames.ACKED, 8)
        acked["packet"] = sent["packet"] - LATENCY_NS // 250_000
        acked["acked_ns"], acked["latency_us"] = self.now_ns, LATENCY_NS / 1e3
        self.send(sent, acked[acked["packet"] >= 0])

    def until_decided(self, version: int | None = None) -> Any:
        """Send batches until one is decided, by this version."""

        def decided() -> Any:
            decision = self.batch()
            well = self.outcomes[-1] == "decided" and version in (None, decision["version"])
            return decision if well else None

        return wait_until(decided, lambda: f"version {version} decides nothing: {self.outcomes[-20:]}")


class Sleeper:
    """A program that only sleeps until it is asked to wake up, and says so: what a machine's wake-ups cost.

    The reference of a sender's lateness: it is waited for exactly as an agent that answers when due.
    """

    PROGRAM = """
import struct, sys, time
while due := sys.stdin.buffer.read(8):
    time.sleep(max(0, struct.unpack("<q", due)[0] - time.monotonic_ns()) / 1e9)
    sys.stdout.buffer.write(due)
    sys.stdout.buffer.flush()
"""

    def __init__(self) -> None:
        self.lateness_us: list[float] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self.sleep(0)  # it runs
        self.lateness_us.clear()

    def sleep(self, for_us: int) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        due_ns = time.monotonic_ns() + for_us * 1000
        self._process.stdin.write(due_ns.to_bytes(8, "little"))
        assert self._process.stdout.read(8)
        self.lateness_us.append((time.monotonic_ns() - due_ns) / 1e3)

    def __enter__(self) -> Sleeper:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


class EngineSender:
    """The Python side of a decision: events, the engine's session and controller, without any deadline."""

    def __init__(self, artifact: Path, params: ControllerParams | None = None) -> None:
        self.engine = Engine(artifact)
        self.session = self.engine.open_session()
        self.window = EventWindow(self.engine.shape[0])
        self.controller = QueueController(params)
        self.events = 0

    def sent(self, *packet: int) -> None:
        self.window.sent(*packet)
        self.events += 1

    def acked(self, packet: int, acked_ns: int, latency_us: float | None) -> None:
        self.events += self.window.acked(packet, acked_ns, latency_us)
        self.controller.acked(packet)

    def decide(self, first: int, now_ns: int, *columns: np.ndarray) -> AgentDecision:
        *same, defaults = columns
        asked = [self.window.window(now_ns, *same, queues) for queues in ([CLASSIC] * 8, defaults)]
        (x_WF, in_flight), _ = asked
        new = min(self.events - self.session.next, self.engine.reach)
        if new < self.events - self.session.next:
            self.session.begin(self.events - new)
        assert self.engine.take(self.session, self.events - new, x_WF[-8 - new : -8])
        y_QL, _ = self.engine.answer(self.session, np.concatenate([x_WF[-8:] for x_WF, _ in asked]))
        y_2H = y_QL.reshape(2, 8)
        queues = self.controller.choose(first, now_ns, columns[1], defaults, y_2H, in_flight)
        return AgentDecision("decided", tuple(queues), y_2H)


class SteppingClock:
    """A library that makes the wall clock of a program step by an hour, back and forth, at each look."""

    def __init__(self, folder: Path) -> None:
        source, self.library = folder / "step.c", folder / "step.so"
        self._looks = folder / "looks"
        source.write_text(STEPPING_CLOCK)
        words = ["g++", "-x", "c", "-shared", "-fPIC", "-O1", f'-DLOOKS="{self._looks}"']
        subprocess.run([*words, "-o", self.library, source], check=True)

    def looks(self) -> tuple[int, int]:
        """How often the program, which has ended, looked at any clock and at the wall clock."""
        any_clock, wall = self._looks.read_text().split()
        return int(any_clock), int(wall)


STEPPING_CLOCK = """
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static int looks, wall_looks;
int clock_gettime(clockid_t clock, struct timespec* now) {
  int result = syscall(SYS_clock_gettime, clock, now);
  __sync_fetch_and_add(&looks, 1);
  if (clock == CLOCK_REALTIME) now->tv_sec += __sync_fetch_and_add(&wall_looks, 1) % 2 ? 3600 : -3600;
  return result;
}
__attribute__((destructor)) static void tell(void) {
  FILE* file = fopen(LOOKS, "w");
  fprintf(file, "%d %d", looks, wall_looks);
  fclose(file);
}
int gettimeofday(struct timeval* now, void* zone) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  now->tv_sec = at.tv_sec;
  now->tv_usec = at.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* out) {
  struct timespec at;
  clock_gettime(CLOCK_REALTIME, &at);
  if (out) *out = at.tv_sec;
  return at.tv_sec;
}
"""
