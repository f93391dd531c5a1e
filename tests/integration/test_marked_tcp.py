"""TCP through the bed: a kernel's packets are marked as the agent decides, and teach it their latencies."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agent_program import AgentProgram, needs_agent, split_frames
from overheard import Overheard
from waiting import wait_until

from swiftqueue.serving.agent.bindings.agent_link import ECT0, ECT1, NOT_ECT
from swiftqueue.testbed.host import router_log, tcp_traffic
from swiftqueue.testbed.host.checks import capability
from swiftqueue.testbed.host.hosts import ADDRESS_B, DEVICE, Bed
from swiftqueue.testbed.host.programs import MARK_OBJECT, MARKER
from swiftqueue.testbed.host.run import PROFILES

CANNOT = capability("tc_bpf").why_not or capability("router").why_not
pytestmark = [pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT)), pytest.mark.slow]
MODEL = Path(__file__).parents[2] / "docs" / "laboratory" / "models" / "figure8" / "uncoupled"
PORT = 5001
QUEUES = (0, 1, 1, 0, 1, 0, 0, 1)
RATE_MBPS, DELAY_MS = 6.0, 10.0


@dataclass
class Followed:
    """A bed with a marker on host a, and a follower there."""

    folder: Path
    bed: Bed
    follower: subprocess.Popen[str]
    host: str
    sender: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)

    def connection(self, seconds: float) -> subprocess.Popen[str]:
        """Start a connection that sends for so long."""
        command = self.bed.a(sys.executable, tcp_traffic.__file__, "send", self.host, PORT, seconds)
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def wait(self, connection: subprocess.Popen[str]) -> None:
        """Until it has ended, all of it acknowledged."""
        out, _ = connection.communicate()
        self.sender = json.loads(out.splitlines()[-1])
        assert self.sender["event"] == "summary"

    def marker(self, *arguments: object) -> dict[str, Any]:
        ran = subprocess.run(self.bed.a(MARKER, *arguments), capture_output=True, text=True, check=True)
        return dict(json.loads(ran.stdout))

    def said(self, kind: str) -> list[dict[str, int]]:
        """Lines of one kind in the follower's log."""
        rows = csv.DictReader((self.folder / "follow.csv").open())
        return [{k: int(v) for k, v in row.items() if k != "kind"} for row in rows if row["kind"] == kind]

    def wire(self) -> list[int]:
        """Codepoint of each data packet of TCP as it came to the router, in order."""
        records = router_log.read(self.folder / "router")
        headers = 52 if ":" not in self.host else 72  # with timestamps
        data = (records["protocol"] == 6) & (records["bytes"] > headers)
        came = records[data & (records["kind"] != router_log.BACK)]
        return [int(ecn) for ecn in came["ecn"][np.argsort(came["arrived_ns"], kind="stable")][1:]]  # SYN


@contextmanager
def followed(
    folder: Path, agent: Path | str, host: str = ADDRESS_B, *options: str, profile: str = "rfc9332"
) -> Iterator[Followed]:
    queue = PROFILES[profile]
    with Bed(rate_mbps=RATE_MBPS, delay_ms=DELAY_MS, log=folder / "router", queue=queue) as bed:
        subprocess.run(bed.a(MARKER, "attach", DEVICE, MARK_OBJECT), check=True, stdout=subprocess.DEVNULL)
        wanted = options or (f"--port={PORT}",)
        command = bed.a(MARKER, "follow", DEVICE, agent, f"--log={folder / 'follow.csv'}", *wanted)
        receiver = bed.b(sys.executable, tcp_traffic.__file__, "take", host, PORT)
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower,
            subprocess.Popen(receiver, stdout=subprocess.PIPE, text=True) as taker,
        ):
            try:
                assert follower.stdout is not None
                assert taker.stdout is not None
                assert json.loads(follower.stdout.readline())["event"] == "ready"
                assert json.loads(taker.stdout.readline())["event"] == "ready"
                out = Followed(folder, bed, follower, host)
                yield out
                follower.terminate()
                said = follower.communicate()[0]
                out.summary = json.loads(said) if said else {}
            finally:
                follower.kill()
                taker.kill()
    assert bed.summary


@pytest.mark.parametrize("host", [ADDRESS_B, "fd77::2"])
def test_each_packet_has_the_codepoint_decided_for_it(tmp_path: Path, host: str) -> None:
    path = tmp_path / "agent.sock"
    agent = Overheard(path, queues=QUEUES)
    with followed(tmp_path, path, host) as on:
        on.wait(on.connection(2))
        wait_until(lambda: not on.marker("status", DEVICE)["flows"], "the flow that ended is still followed")
    agent.join()
    sent = on.said("sent")
    assert [row["packet"] for row in sent] == list(range(len(sent)))
    wire = [row["a"] for row in sent]
    assert wire == on.wire()  # what the follower heard is what the router got
    used = {row["packet"] for row in sent if row["b"]}
    assert used <= agent.decided().keys()
    assert len(used) > 0.5 * len(sent) > 100
    again = {p for p, ecn in enumerate(wire) if ecn == NOT_ECT}  # the kernel's retransmissions
    expected = {p: (ECT0, ECT1)[QUEUES[p % 8]] if p in used else ECT1 for p in range(len(sent))}
    assert {p: wire[p] for p in expected.keys() - again} == {p: expected[p] for p in expected.keys() - again}
    assert len(again) < 0.1 * len(sent)
    assert agent.sent() == dict(enumerate(wire))  # what the agent was told
    assert set(agent.acked()) == set(range(len(sent)))
    assert on.summary["decided"] == len(used)


@needs_agent
def test_the_real_agent_learns_a_connections_latencies(tmp_path: Path) -> None:
    """Its telemetry has each packet once, and latencies that no packet can be below: the path's."""
    path, between, telemetry = tmp_path / "agent.sock", tmp_path / "between.sock", tmp_path / "telemetry"
    (tmp_path / "1").symlink_to(MODEL)
    options = ("--guard", "off", "--telemetry", telemetry)
    with AgentProgram("--listen", path, "--local", tmp_path / "1", *options) as agent:
        overheard = Overheard(between, path)
        with followed(tmp_path, between) as on:
            on.wait(on.connection(4))
            wait_until(lambda: not on.marker("status", DEVICE)["flows"], "the flow is still followed")
        overheard.join()
        agent.end()
    decided, sent = overheard.decided(), on.said("sent")
    used = [row for row in sent if row["b"]]
    assert len(used) > 100
    for row in used:
        assert row["a"] == (ECT0, ECT1)[decided[row["packet"]]]
    told = split_frames(telemetry.read_bytes())
    assert [int(f["packet"]) for f in told if f["type"] == 2] == list(range(len(sent)))
    latency_us = np.array([float(f["latency_us"]) for f in told if f["type"] == 3])
    assert len(latency_us) == len(sent)
    assert np.nanmin(latency_us) >= 2 * DELAY_MS * 1e3
    assert np.isnan(latency_us).mean() < 0.2  # Karn: what was sent twice


STAND_IN = Path(__file__).with_name("overheard.py")


@pytest.mark.parametrize("who", ["agent", "follower"])
def test_whoever_is_killed_packets_are_plain_ect1_at_once(tmp_path: Path, who: str) -> None:
    """Killed (-9): the agent's decisions end with its connection, the follower's after 8 ms."""
    path = tmp_path / "agent.sock"
    command = [sys.executable, str(STAND_IN), str(path), "00000000"]
    paths = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=paths) as agent:
        try:
            assert agent.stdout is not None
            assert agent.stdout.readline() == "ready\n"
            with followed(tmp_path, path) as on:
                connection = on.connection(3)
                wait_until(
                    lambda: sum(flow["ect0"] for flow in on.marker("status", DEVICE)["flows"]) > 200,
                    "nothing is decided",
                )
                victim = agent if who == "agent" else on.follower
                victim.send_signal(signal.SIGKILL)
                victim.wait()  # a busy machine takes its time to end a process
                dead_ns = time.monotonic_ns()
                time.sleep(0.2)
                before = on.marker("status", DEVICE)["flows"][0]
                on.wait(connection)
                after = on.marker("status", DEVICE)["flows"]
        finally:
            agent.kill()
    wire = on.wire()
    assert wire.count(ECT0) > 200
    assert set(wire[-200:]) <= {ECT1, NOT_ECT}
    assert ECT1 in wire[-200:]
    if who == "agent":  # the kernel's own times of each packet
        last = max(row["time_ns"] for row in on.said("sent") if row["a"] == ECT0)
        assert last < dead_ns + 10_000_000
    else:
        assert after[0]["ect0"] == before["ect0"]
        assert after[0]["ect1"] > before["ect1"]


def test_a_second_follower_and_a_device_without_a_marker_get_one_line(tmp_path: Path) -> None:
    def follow(bed: Bed, *options: str) -> str:
        command = bed.a(MARKER, "follow", DEVICE, tmp_path / "agent.sock", *options)
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode in (1, 2)
        assert len(ran.stderr.splitlines()) == 1
        return ran.stderr

    with Bed(rate_mbps=10) as bed:
        assert "no marker is attached" in follow(bed, "--port=1")
    with followed(tmp_path, tmp_path / "agent.sock") as on:
        assert "another `mark follow` is at work" in follow(on.bed, "--port=1")
        assert "say --port, --plain-port or --cookie" in follow(on.bed)
        assert "port 1 is a --port and a --plain-port" in follow(on.bed, "--port=1", "--plain-port=1")
        both = follow(on.bed, "--port=1", "--last-latency-ms=5")
        assert "an agent decides, or --last-latency-ms; say one of them" in both
        assert "--port 0: must be a number from 1" in follow(on.bed, "--port=0")
        # Without an agent a followed flow is plain ECT(1), which the kernel's own packets are not.
        on.wait(on.connection(0.5))
    assert set(on.wire()) <= {ECT1, NOT_ECT}
    assert on.summary["decided"] == on.summary["agent_connections"] == 0


def test_what_goes_to_a_plain_port_is_ect1_and_nobody_hears_of_it(tmp_path: Path) -> None:
    with followed(tmp_path, "/nobody", ADDRESS_B, f"--plain-port={PORT}") as on:
        on.wait(on.connection(0.5))
        said = on.marker("status", DEVICE)
        assert (said["flows"], said["plain_ports"]) == ([], [PORT])
    assert set(on.wire()) <= {ECT1, NOT_ECT}
    assert on.wire().count(ECT1) > 100
    assert on.said("sent") == []
    assert on.summary["flows"] == 0


def test_without_an_agent_a_flow_is_moved_while_its_last_latency_is_high(tmp_path: Path) -> None:
    """Cubic fills the queue to its step of 20 ms; each packet that was moved has a reason."""
    threshold_ms, stale_ms = 8, 60
    rule = (f"--last-latency-ms={threshold_ms}", f"--stale-ms={stale_ms}")
    with followed(tmp_path, "", ADDRESS_B, f"--port={PORT}", *rule, profile="uncoupled") as on:
        on.wait(on.connection(3))
    sent = {row["packet"]: row for row in on.said("sent")}
    least_ms, high_ns = np.inf, []
    for row in on.said("acked"):
        if row["a"]:
            continue  # sent twice
        latency_ms = (row["time_ns"] - sent[row["packet"]]["time_ns"]) / 1e6
        least_ms = min(least_ms, latency_ms)
        if sent[row["packet"]]["a"] == ECT1 and latency_ms > least_ms + threshold_ms:
            high_ns.append(row["time_ns"])
    moved_ns = np.array([row["time_ns"] for row in sent.values() if row["a"] == ECT0])
    assert 0.05 * len(sent) < len(moved_ns) < 0.99 * len(sent)
    before_ns = moved_ns - np.array(high_ns)[np.searchsorted(high_ns, moved_ns) - 1]
    assert (before_ns >= 0).all()
    assert before_ns.max() <= stale_ms * 1e6
