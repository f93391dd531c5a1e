"""TCP through a bed, marked as an agent decides: marker and follower on host a, its receiver on host b.

Shapes: N data packets of the connection, D batches that were decided.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.serving.agent.process import end
from swiftqueue.testbed.host import router_log, tcp_traffic
from swiftqueue.testbed.host.checks import capability
from swiftqueue.testbed.host.hosts import ADDRESS_B, DEVICE, TRAFFIC_PRIORITY, Bed
from swiftqueue.testbed.host.programs import MARK_OBJECT, MARKER

PORT: Final = 5001
HEADERS: Final = 20 + 32  # bytes of IPv4 and TCP with timestamps; longer packets have data or a SYN
STOP_S: Final = 10.0


@dataclass(frozen=True)
class MarkedBed:
    """A bed whose host a marks its connections to PORT as an agent decides."""

    bed: Bed
    follower: subprocess.Popen[str]
    taker: subprocess.Popen[str]
    agent: bool  # whether the agent has greeted

    def connection(self, seconds: float, control: str = "cubic") -> subprocess.Popen[str]:
        """Start a connection from a to b that sends for `seconds`; its last line is its summary."""
        words = urgent(sys.executable, tcp_traffic.__file__, "send", ADDRESS_B, PORT, seconds, control)
        return subprocess.Popen(self.bed.a(*words), stdout=subprocess.PIPE, text=True)

    def broken(self) -> str | None:
        """Return which of its programs has ended, in a line; None while all run."""
        for name, process in (
            ("router", self.bed.process),
            ("follower", self.follower),
            ("receiver", self.taker),
        ):
            if process.poll() is not None:
                return f"the {name} ended with {process.returncode}"
        return None


@dataclass(frozen=True)
class Rule:
    """A rule: a flow moves while its L4S latency is above its least by more than a threshold."""

    threshold_ms: float
    stale_ms: float  # ms that a latency counts


def why_not() -> str | None:
    """Return a line if this machine cannot mark TCP, else None."""
    return capability("router").why_not or capability("tc_bpf").why_not


@contextmanager
def following(
    bed: Bed,
    agent: Path | None,
    *,
    ports: Sequence[int] = (PORT,),
    plain_ports: Sequence[int] = (),
    rule: Rule | None = None,
    name: str = "tcp",
    log: Path | None = None,
) -> Iterator[tuple[subprocess.Popen[str], bool]]:
    """Attach the marker to host a's device and follow its flows to some ports.

    Args:
        bed: the running bed.
        agent: path of its socket; None: the rule decides, or nobody.
        ports: ports of the flows that are decided about.
        plain_ports: ports of flows that are ECT(1) without a question.
        rule: rule that decides in an agent's place.
        name: name of the senders at the agent: NAME-0, NAME-1, ...
        log: CSV file that gets every packet, ACK and decision.

    Yields:
        The follower, and whether the agent has greeted.

    Raises:
        RuntimeError: one of the programs did not start; the message is its own line.

    """
    attached = subprocess.run(
        bed.a(MARKER, "attach", DEVICE, MARK_OBJECT), capture_output=True, text=True, check=False
    )
    if attached.returncode != 0:
        raise RuntimeError(attached.stderr.strip())
    nobody = "" if rule or not ports else "/nobody"
    socket = agent.resolve() if agent else nobody
    follow = [MARKER, "follow", DEVICE, socket, *(f"--port={port}" for port in ports), f"--name={name}"]
    follow += [f"--plain-port={port}" for port in plain_ports] + ([f"--log={log}"] if log else [])
    follow += [f"--last-latency-ms={rule.threshold_ms}", f"--stale-ms={rule.stale_ms}"] if rule else []
    with running(bed.a(*urgent(*follow)), "the follower", quiet=socket == "/nobody") as (follower, said):
        yield follower, bool(said["agent"])


@contextmanager
def marked(
    bed: Bed, agent: Path | None, *, name: str = "tcp", log: Path | None = None
) -> Iterator[MarkedBed]:
    """Attach the marker to host a's device, follow its flows, and take connections on host b.

    Args:
        bed: the running bed.
        agent: path of its socket; None, or while nobody is there: all packets are plain ECT(1).
        name: name of the senders at the agent: NAME-0, NAME-1, ...
        log: CSV file that gets every packet, ACK and decision.

    Raises:
        RuntimeError: one of the programs did not start; the message is its own line.

    """
    take = [sys.executable, tcp_traffic.__file__, "take", ADDRESS_B, PORT]
    with (
        following(bed, agent, name=name, log=log) as (follower, greeted),
        running(bed.b(*urgent(*take)), "the receiver") as (taker, _),
    ):
        yield MarkedBed(bed, follower, taker, greeted)


@contextmanager
def running(
    command: list[str], what: str, *, quiet: bool = False
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Run a program that prints an object when it is ready; it is told to end with the block.

    Args:
        command: the program and its arguments.
        what: name of the program in an error.
        quiet: whether its complaints are dropped.

    Raises:
        RuntimeError: it ended before it was ready.

    """
    complaints = subprocess.DEVNULL if quiet else None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise RuntimeError(f"{what} ended with {process.wait()}")
            yield process, json.loads(line)
        finally:
            end(process, STOP_S)


def urgent(*command: object) -> list[object]:
    """Return a command with a real-time priority where it is given: else a busy machine's bursts show."""
    return [*(("chrt", "-f", TRAFFIC_PRIORITY) if capability("real_time").can else ()), *command]


def summary(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a program's end; return the last object that it printed.

    Raises:
        RuntimeError: it failed.

    """
    out, _ = process.communicate()
    lines = out.splitlines()
    if process.returncode != 0 or not lines:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
    said: dict[str, Any] = json.loads(lines[-1])
    return said


def data_packets(records: NDArray[Any]) -> NDArray[Any]:
    """Return the connection's data packets as they came to the router, in the order sent, (N,)."""
    data = (records["protocol"] == 6) & (records["destination_port"] == PORT)
    data &= (records["bytes"] > HEADERS) & (records["kind"] != router_log.BACK)
    ours = records[data]
    in_order: NDArray[Any] = ours[np.argsort(ours["arrived_ns"], kind="stable")]
    _ports, syns = np.unique(in_order["source_port"], return_index=True)
    return np.delete(in_order, syns)


@dataclass(frozen=True)
class Delays:
    """The times from a decision to the wire, in microseconds."""

    answer_to_map_us_D: NDArray[np.float64]  # from reading the agent's answer to the marker's map
    marked_to_router_us_N: NDArray[np.float64]  # from the tc program to the router
    answer_to_wire_us_D: NDArray[np.float64]  # from the answer to its first packet at the router
    decided_share: float  # share of the packets that were decided
    wrong: int  # packets whose codepoint at the router differs from the marker's


def latencies_ms(follow_log: Path) -> NDArray[np.float64]:
    """Return the latency of each packet that was sent once, from the marker to its first cumulative ACK."""
    sent_ns: dict[tuple[str, str], int] = {}
    out = []
    with follow_log.open() as file:
        for row in csv.DictReader(file):
            packet = row["flow"], row["packet"]
            if row["kind"] == "sent":
                sent_ns[packet] = int(row["time_ns"])
            elif row["kind"] == "acked" and row["a"] == "0":
                out.append((int(row["time_ns"]) - sent_ns[packet]) / 1e6)
    return np.array(out)


def delays(follow_log: Path, records: NDArray[Any]) -> Delays:
    """Measure one connection's delays from the follower's log and the router's.

    Raises:
        RuntimeError: the two logs have different packets.

    """
    rows = list(csv.DictReader(follow_log.open()))
    sent = [row for row in rows if row["kind"] == "sent"]
    came = data_packets(records)
    if len(sent) != len(came) or not sent:
        raise RuntimeError(f"the marker says {len(sent)} packets, the router {len(came)}")
    sent_ns = np.array([int(row["time_ns"]) for row in sent])
    codepoint = np.array([int(row["a"]) for row in sent])
    decided = np.array([row["b"] == "1" for row in sent])
    to_map, to_wire = [], []
    for row in rows:
        if row["kind"] != "decided":
            continue
        first, written_ns, answered_ns = int(row["packet"]), int(row["time_ns"]), int(row["a"])
        to_map.append((written_ns - answered_ns) / 1e3)
        used = np.flatnonzero(decided[first : first + 8])
        if len(used):
            to_wire.append((int(came["arrived_ns"][first + used[0]]) - answered_ns) / 1e3)
    return Delays(
        np.array(to_map),
        (came["arrived_ns"] - sent_ns) / 1e3,
        np.array(to_wire),
        float(decided.mean()),
        int((came["ecn"] != codepoint).sum()),
    )
