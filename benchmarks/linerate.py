"""Measure decisions in time at line rate: agent and server together on two cores, packets of 1,500 bytes.

The C++ agent makes up packets at an even pace, asks about each batch of 8, for both queues, some time before
its first packet is due, and counts the answers that came by then. Each row's name says how long before.
A real Triton serves the default network by the native backend. Every setting is measured twice: through
Triton, and by the agent's local mode, the engine without a server, which is the reference. Then the highest
rate at which 99 % are still in time is searched in short stretches and measured in a whole one, both ways
too. The load comes from the agent's own process: how late it was itself stands beside each row.

The usual form takes some three minutes: it asks 2 ms ahead, in stretches of 2 s a round. The long one takes
half an hour: it asks 5 ms ahead as well, as `swiftqueue replay` does, in stretches of 12 s a round, and
searches with one and with 16 flows too. Each stretch that ends is a line on the standard error.

Packets decided in a second, in local mode on one core, have no schedule to keep; their reference is the way
through Triton. Rows `bf16` are of the engine's other arithmetic (docs/ENGINE.md), where the processor has it.
What a sender pays for the agent has its own row: the frames, the socket and the answer of a packet through
`swiftqueue.h`, beside the send() of its datagram.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from swiftqueue.benchmarks.inference import ROUNDED, multiplies_bfloat16
from swiftqueue.benchmarks.inference_references import save
from swiftqueue.benchmarks.rows import Row, interleaved_medians
from swiftqueue.benchmarks.served_models import build, served, write_model
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.infra.local import processes
from swiftqueue.serving.agent.process import running_agent
from swiftqueue.serving.triton.config import Backend
from swiftqueue.serving.triton.repository import MODEL

CORES: Final = 2
UNHURRIED_S: Final = 24.0  # seconds of packets at the lowest rate, decided as fast as answers come
RATE_BPS: Final = 200e6  # the paper's highest rate
FLOWS: Final = (1, 4, 16)
USUAL_FLOWS: Final = 4  # flows where only one number of them is measured
WANTED_SHARE: Final = 0.99
LEAST_SHARE: Final = 1e-4  # share that a reference counts as at least, so that 0 has a ratio
LOWEST_BPS, HIGHEST_BPS = 25e6, 6.4e9  # bounds of the search
STEP: Final = 1.05  # factor to which rates are told apart
SENDER_BATCHES: Final = 4_000  # batches that a sender's costs are taken over, in two seconds
LOCAL: Final = "local mode"
PER_S: Final = f"packets decided in a second, {LOCAL}, one core"
PER_S_REFERENCE: Final = "through Triton, two cores, one batch at a time"


@dataclass(frozen=True)
class Form:
    """The lengths and the settings of a measurement."""

    seconds: float  # seconds of a stretch per round
    probe_s: float  # seconds of a stretch of the search
    ahead_us: tuple[int, ...]  # microseconds from asking about a batch until its first packet is due
    searched_flows: tuple[int, ...]  # numbers of flows whose highest rate is searched


USUAL: Final = Form(2.0, 2.0, (2_000,), (USUAL_FLOWS,))
LONG: Final = Form(12.0, 3.0, (2_000, 5_000), FLOWS)


@dataclass(frozen=True)
class Stretch:
    """The result of a stretch."""

    rate_bps: float
    share: float  # share of batches decided in time
    lateness_us: float  # microseconds that the load was late with a question, p99


@dataclass(frozen=True)
class Agent:
    """A C++ agent and the source of its predictions."""

    program: Path
    source: tuple[str, ...]

    def stretch(self, rate_bps: float, flows: int, seconds: float, ahead_us: int) -> Stretch:
        """Measure one stretch.

        Raises:
            RuntimeError: the agent ended with an error.
        """
        summary = self._run(rate_bps, flows, seconds, ahead_us, 1)
        found = Stretch(rate_bps, float(summary["in_time_share"]), summary["lateness_p99_ns"] / 1e3)
        way = "local" if self.source[0].startswith("--local") else "Triton"
        what = f"{rate_bps / 1e6:.0f} Mbit/s, {_flows(flows)}, {ahead_us / 1000:g} ms ahead, {seconds:g} s"
        said = f"{way}, {what}: {found.share:.2%} in time, the load {found.lateness_us:.0f} us late (p99)"
        print(said, file=sys.stderr, flush=True)
        return found

    def highest(self, flows: int, ahead_us: int, seconds: float, probe_s: float) -> Stretch:
        """Return a whole stretch at the highest rate at which enough batches are in time; at 0 if none is."""

        def probe(rate_bps: float) -> float:
            return self.stretch(rate_bps, flows, probe_s, ahead_us).share

        highest_bps = searched_bps(probe)
        # A rate that holds for a moment may not hold for a minute.
        for less in (1.0, STEP, STEP**2, STEP**4, STEP**8):
            found = self.stretch(highest_bps / less, flows, seconds, ahead_us)
            if found.share >= WANTED_SHARE:
                return found
        return Stretch(0.0, found.share, found.lateness_us)

    def packets_per_s(self, flows: int, seconds: float) -> float:
        """Return the packets decided in a second, each batch as soon as the last one was answered.

        Raises:
            RuntimeError: the agent ended with an error.
        """
        summary = self._run(LOWEST_BPS, flows, seconds, max(LONG.ahead_us), 0)
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
    """The load of a row: flows, and microseconds ahead."""

    flows: int
    ahead_us: int

    @property
    def name(self) -> str:
        """Return the load as rows name it."""
        return f"asked {self.ahead_us / 1000:g} ms ahead, {_flows(self.flows)}"


def measure(rounds: int, long: bool = False) -> list[Row]:
    """Measure every setting in stretches of `rounds` times the seconds of the form.

    Raises:
        OSError: the native backend or the agent is not built.
        RuntimeError: Triton does not start, or the agent or the sender ends with an error.
    """
    form = LONG if long else USUAL
    programs = build("swiftqueue-agent", "sender_cost")
    with tempfile.TemporaryDirectory() as temporary, _cores(CORES):
        root = Path(temporary)
        artifact = save(root / "artifact")
        local = Agent(programs / "swiftqueue-agent", (f"--local={artifact}",))
        agents = [local]
        if multiplies_bfloat16(artifact):
            agents.append(Agent(local.program, (*local.source, f"--arithmetic={ROUNDED}")))
        rows = _sender_rows(programs / "sender_cost", artifact, root, rounds)
        with _cores(1):
            unhurried = (USUAL_FLOWS, UNHURRIED_S)
            local_per_s, *rounded_per_s = interleaved_medians(
                rounds, *(partial(agent.packets_per_s, *unhurried) for agent in agents)
            )
        loads = [LineLoad(flows, ahead_us) for ahead_us in form.ahead_us for flows in FLOWS]
        searched = [each for each in loads if each.flows in form.searched_flows]
        seconds = form.seconds * rounds

        def measured(agent: Agent) -> list[Stretch]:
            shares = [agent.stretch(RATE_BPS, each.flows, seconds, each.ahead_us) for each in loads]
            found = [agent.highest(each.flows, each.ahead_us, seconds, form.probe_s) for each in searched]
            return shares + found

        reference = measured(local)
        usual = LineLoad(USUAL_FLOWS, min(form.ahead_us))
        fastest = [one.highest(usual.flows, usual.ahead_us, seconds, form.probe_s) for one in agents[1:]]
        with _serving(root / "native", artifact) as address:
            triton = Agent(local.program, (f"--server={address}",))
            ours = measured(triton)
            (per_s,) = interleaved_medians(rounds, partial(triton.packets_per_s, *unhurried))
    pairs = list(zip(ours, reference, strict=True))
    for load, pair in zip(loads, pairs[: len(loads)], strict=True):
        rows += _in_time(load, *pair, rounds)
    for load, pair in zip(searched, pairs[len(loads) :], strict=True):
        rows += _highest(load, *pair, rounds)
    rows.append(Row(PER_S, local_per_s, per_s, PER_S_REFERENCE, local_per_s / per_s, "packets/s", rounds))
    fp32 = reference[len(loads) + searched.index(usual)].rate_bps / 1e6
    name = f"{_highest_name(usual)}, {LOCAL}, {ROUNDED}"
    for stretch, decided_per_s in zip(fastest, rounded_per_s, strict=True):
        bf16, ratio = stretch.rate_bps / 1e6, decided_per_s / local_per_s
        rows += [
            Row(name, bf16, fp32, "fp32", bf16 / max(fp32, LOWEST_BPS / 1e6), "Mbit/s", rounds),
            Row(f"{PER_S}, {ROUNDED}", decided_per_s, local_per_s, "fp32", ratio, "packets/s", rounds),
        ]
    return rows


def _in_time(load: LineLoad, ours: Stretch, reference: Stretch, rounds: int) -> list[Row]:
    what = f"at {RATE_BPS / 1e6:.0f} Mbit/s, {load.name}"
    ratio = ours.share / max(reference.share, LEAST_SHARE)
    name = f"decided in time {what}"
    return [
        Row(name, ours.share, reference.share, LOCAL, ratio, "share", rounds),
        _lateness(what, ours, reference, rounds),
    ]


def _highest(load: LineLoad, ours: Stretch, reference: Stretch, rounds: int) -> list[Row]:
    ratio = ours.rate_bps / max(reference.rate_bps, LOWEST_BPS)
    return [
        Row(
            _highest_name(load), ours.rate_bps / 1e6, reference.rate_bps / 1e6, LOCAL, ratio, "Mbit/s", rounds
        ),
        _lateness(f"at that rate, {load.name}", ours, reference, rounds),
    ]


def _highest_name(load: LineLoad) -> str:
    return f"highest rate with {WANTED_SHARE:.0%} in time, {load.name}"


def _lateness(what: str, ours: Stretch, reference: Stretch, rounds: int) -> Row:
    name = f"lateness of the load itself {what}, p99"
    ratio = reference.lateness_us / ours.lateness_us
    return Row(name, ours.lateness_us, reference.lateness_us, LOCAL, ratio, "us", rounds)


def _sender_rows(program: Path, artifact: Path, root: Path, rounds: int) -> list[Row]:
    """Return what the calls of a packet cost a sender, and their parts."""
    samples = []
    with running_agent([f"--listen={root / 'agent.sock'}", f"--local={artifact}"]) as said:
        next(said)  # it is ready
        for _ in range(rounds):
            command = [str(program), str(root / "agent.sock"), str(SENDER_BATCHES)]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode:
                raise RuntimeError(f"bench linerate: {ran.stderr.strip()}")
            samples.append(json.loads(ran.stdout))
    ns = {key: statistics.median(each[key] for each in samples) for key in samples[0]}
    if not all(each["decided"] for each in samples):
        raise RuntimeError("bench linerate: the agent decided nothing of what a sender asked")
    datagram = "send() of its datagram over loopback"
    parts = {
        "all": "all calls",
        "frames": "SENT and ACKED",
        "question": "the question",
        "answer": "the answer",
    }
    return [
        Row(
            f"a sender pays for a packet, {name}",
            ns[key],
            ns["datagram"],
            datagram,
            ns["datagram"] / ns[key],
            "ns",
            rounds,
        )
        for key, name in parts.items()
    ]


def searched_bps(share: Callable[[float], float]) -> float:
    """Return the highest rate at which enough batches are in time, to a factor of STEP."""
    low_bps, high_bps = LOWEST_BPS, HIGHEST_BPS
    while high_bps / low_bps > STEP:
        middle_bps = (low_bps * high_bps) ** 0.5
        if share(middle_bps) >= WANTED_SHARE:
            low_bps = middle_bps
        else:
            high_bps = middle_bps
    return low_bps


def _flows(count: int) -> str:
    return f"{count} flow" if count == 1 else f"{count} flows"


@contextmanager
def _serving(root: Path, source: Path) -> Iterator[str]:
    """Serve an artifact as the served model by the native backend."""
    write_model(root / "repository", MODEL, source, Backend.NATIVE)
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
