"""Measure decisions in time at line rate: agent and server together on two cores, packets of 1,500 bytes.

The C++ agent makes up packets at an even pace, asks about each batch of 8, for both queues, some time before
its first packet is due, and counts the answers that came by then. Each row's name says how long before: 2 ms,
or the 5 ms of `swiftqueue replay`. A real Triton serves the default network by the native backend. A setting
is measured in one stretch of 12 s a round: five rounds are a minute. Then the highest rate at which 99 % are
still in time is searched in short stretches and measured in a whole one. The usual 5 rounds take half an
hour; each stretch that ends is a line on the standard error. Packets decided in a second, in local mode on
one core, have no schedule to keep.

References: the Python-backend ONNX model with the Python client, paced the same way, for 12 s; for the
highest rates the agent's local mode, the engine without a server; for the packets in a second the way
through Triton.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from swiftqueue.benchmarks.inference_references import save
from swiftqueue.benchmarks.rows import Row
from swiftqueue.benchmarks.served_models import build, served, write_model
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.infra.local import processes
from swiftqueue.serving.agent.predictors.reference_client import SenderAgent
from swiftqueue.serving.triton.config import Backend
from swiftqueue.serving.triton.repository import MODEL

CORES: Final = 2
SECONDS: Final = 12.0  # seconds of a stretch per round
UNHURRIED_S: Final = 24.0  # seconds of packets at the lowest rate, decided as fast as answers come
RATE_BPS: Final = 200e6  # the paper's highest rate
FLOWS: Final = (1, 4, 16)
SEARCH_FLOWS: Final = 4  # flows in the rows that compare forms of serving
AHEAD_US: Final = (2_000, 5_000)  # microseconds from asking about a batch until its first packet is due
PACKET_BYTES: Final = 1_500  # the agent makes up packets of this size
WANTED_SHARE: Final = 0.99
LOWEST_BPS, HIGHEST_BPS = 25e6, 3.2e9  # bounds of the search
STEP: Final = 1.05  # factor to which rates are told apart

Share = Callable[[float, float], float]  # arguments: bit/s, seconds; result: share of batches decided in time


@dataclass(frozen=True)
class Agent:
    """A C++ agent and the source of its predictions."""

    program: Path
    source: tuple[str, ...]

    def share(self, rate_bps: float, flows: int, seconds: float, ahead_us: int) -> float:
        """Return the share of batches decided in time.

        Raises:
            RuntimeError: the agent ended with an error.
        """
        share = float(self._run(rate_bps, flows, seconds, ahead_us, 1)["in_time_share"])
        what = f"{rate_bps / 1e6:.0f} Mbit/s, {flows} flows, {ahead_us / 1000:g} ms ahead, {seconds:g} s"
        print(
            f"{self.source[0].partition('=')[0].strip('-')}, {what}: {share:.2%} in time",
            file=sys.stderr,
            flush=True,
        )
        return share

    def highest_bps(self, flows: int, seconds: float, ahead_us: int) -> float:
        """Return the highest rate at which enough batches are in time over a whole stretch; 0 if none is."""
        return _highest_bps(
            lambda rate_bps, length_s: self.share(rate_bps, flows, length_s, ahead_us), seconds
        )

    def packets_per_s(self, flows: int, seconds: float) -> float:
        """Return the packets decided in a second, each batch as soon as the last one was answered.

        Raises:
            RuntimeError: the agent ended with an error.
        """
        summary = self._run(LOWEST_BPS, flows, seconds, max(AHEAD_US), 0)
        return HORIZON * float(summary["decided"]) / float(summary["seconds"])

    def _run(self, rate_bps: float, flows: int, seconds: float, ahead_us: int, speed: int) -> dict[str, Any]:
        options = {
            "synthetic-bps": rate_bps,
            "flows": flows,
            "seconds": seconds,
            "deadline-us": ahead_us,
            "speed": speed,
        }
        command = [str(self.program), *self.source, *(f"--{name}={value}" for name, value in options.items())]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as agent:
            processes.set_niceness(agent.pid, processes.AHEAD)  # as in `swiftqueue up --live`
            try:
                said, problem = agent.communicate(timeout=60 + 4 * seconds)
            finally:
                agent.kill()
        if agent.returncode:
            raise RuntimeError(f"bench linerate: {problem.strip()}")
        summary: dict[str, Any] = json.loads(said.splitlines()[-1])
        return summary


@dataclass(frozen=True)
class LineLoad:
    """The load of a row: flows, microseconds ahead, and seconds."""

    flows: int
    ahead_us: int
    seconds: float

    @property
    def name(self) -> str:
        """Return the load as rows name it."""
        return f"asked {self.ahead_us / 1000:g} ms ahead, {self.flows} flows"


def measure(rounds: int) -> list[Row]:
    """Measure every setting in stretches of `rounds` x 12 s.

    Raises:
        OSError: the native backend or the agent is not built.
        RuntimeError: Triton does not start, or the agent ends with an error.
    """
    program = build("swiftqueue-agent") / "swiftqueue-agent"
    seconds = SECONDS * rounds
    with tempfile.TemporaryDirectory() as temporary, _cores(CORES):
        root = Path(temporary)
        artifact = save(root / "artifact")
        with _serving(root / "python", artifact, Backend.PYTHON) as address:
            python = {
                ahead_us: _python_share(address, RATE_BPS, SEARCH_FLOWS, SECONDS, ahead_us)
                for ahead_us in AHEAD_US
            }
        local = Agent(program, (f"--local={artifact}",))
        local_bps = {ahead_us: local.highest_bps(SEARCH_FLOWS, seconds, ahead_us) for ahead_us in AHEAD_US}
        with _cores(1):
            local_per_s = local.packets_per_s(SEARCH_FLOWS, UNHURRIED_S)
        settings = [LineLoad(flows, ahead_us, seconds) for ahead_us in AHEAD_US for flows in FLOWS]
        with _serving(root / "native", artifact, Backend.NATIVE) as address:
            agent = Agent(program, (f"--server={address}",))
            rows = [_per_s(local_per_s, agent.packets_per_s(SEARCH_FLOWS, UNHURRIED_S), rounds)]
            rows += [_in_time(agent, each, python[each.ahead_us], rounds) for each in settings]
            rows += [_highest(agent, each, local_bps[each.ahead_us], rounds) for each in settings]
    return rows


def _in_time(agent: Agent, setting: LineLoad, python: float, rounds: int) -> Row:
    share = agent.share(RATE_BPS, setting.flows, setting.seconds, setting.ahead_us)
    name = f"decided in time at {RATE_BPS / 1e6:.0f} Mbit/s, {setting.name}"
    # The reference counts at least one batch, so that 0 has a ratio.
    least = PACKET_BYTES * 8 * HORIZON / RATE_BPS / SECONDS
    reference = f"ONNX in the Python backend, Python client, {SEARCH_FLOWS} flows, as long ahead"
    return Row(name, share, python, reference, share / max(python, least), "share", rounds)


def _per_s(per_s: float, served_per_s: float, rounds: int) -> Row:
    name = "packets decided in a second, local mode, one core"
    reference = "through Triton, two cores, one batch at a time"
    return Row(name, per_s, served_per_s, reference, per_s / served_per_s, "packets/s", rounds)


def _highest(agent: Agent, setting: LineLoad, local_bps: float, rounds: int) -> Row:
    rate_bps = agent.highest_bps(setting.flows, setting.seconds, setting.ahead_us)
    name = f"highest rate with {WANTED_SHARE:.0%} in time, {setting.name}"
    reference = f"local mode, no server, {SEARCH_FLOWS} flows, as long ahead"
    ratio = rate_bps / max(local_bps, LOWEST_BPS)
    return Row(name, rate_bps / 1e6, local_bps / 1e6, reference, ratio, "Mbit/s", rounds)


def _highest_bps(share: Share, seconds: float) -> float:
    low_bps, high_bps = LOWEST_BPS, HIGHEST_BPS
    while high_bps / low_bps > STEP:
        middle_bps = (low_bps * high_bps) ** 0.5
        if share(middle_bps, SECONDS / 4) >= WANTED_SHARE:
            low_bps = middle_bps
        else:
            high_bps = middle_bps
    # A rate that holds for 3 s may not hold for a minute.
    for less in (1.0, STEP, STEP**2, STEP**4, STEP**8):
        if share(low_bps / less, seconds) >= WANTED_SHARE:
            return low_bps / less
    return 0.0


@contextmanager
def _serving(root: Path, source: Path, backend: Backend) -> Iterator[str]:
    """Serve an artifact as the served model."""
    from swiftqueue.models.networks import artifact

    if backend is Backend.PYTHON:
        artifact.export_onnx(source)
    write_model(root / "repository", MODEL, source, backend)
    with served(root, (MODEL,)) as address:
        yield address


@contextmanager
def _cores(count: int) -> Iterator[None]:
    """Run everything started in the block on the same cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _python_share(address: str, rate_bps: float, flows: int, seconds: float, ahead_us: int) -> float:
    """Return the share of batches that the Python client, paced like the agent, decides in time."""
    batch_s = PACKET_BYTES * 8 * HORIZON / rate_bps
    lead_s = ahead_us / 1e6
    batches, in_time = int(seconds / batch_s), 0
    flow_ids = [i % flows for i in range(HORIZON)]
    sizes, receivers, queues = [PACKET_BYTES] * HORIZON, [0] * HORIZON, [1] * HORIZON
    with SenderAgent(deadline_us=ahead_us, address=address) as agent:
        if not agent.wait_for_model(10):
            raise RuntimeError(f"bench linerate: {agent.problem}")
        start_s = time.perf_counter() + lead_s
        for k in range(batches):
            due_s = start_s + k * batch_s
            time.sleep(max(0.0, due_s - lead_s - time.perf_counter()))
            now_ns = round(k * batch_s * 1e9)
            if time.perf_counter() < due_s:  # no wait for a batch that is late already
                decision = agent.decide(k * HORIZON, now_ns, sizes, flow_ids, receivers, queues)
                in_time += decision.outcome == "decided" and time.perf_counter() <= due_s
            for i in range(HORIZON):
                agent.sent(k * HORIZON + i, now_ns, PACKET_BYTES, flow_ids[i], 0, 1)
    return in_time / batches
