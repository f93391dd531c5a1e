"""UDP packets that are really marked: what the agent decides, and what the receiver's kernel sees."""

from __future__ import annotations

import csv
import json
import signal
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from agent_program import AgentProgram, local_model, needs_agent
from echoing import echoing
from overheard import Overheard
from waiting import wait_until

from swiftqueue.serving.agent.bindings.agent_link import ECT0, ECT1
from swiftqueue.serving.agent.marking.udp_command import BINARY, why_not_built

pytestmark = pytest.mark.skipif(why_not_built() is not None, reason=str(why_not_built()))
LOOPBACK = ["127.0.0.1", *(["::1"] if socket.has_ipv6 else [])]


def send(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BINARY), "send", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_each_packet_arrives_with_the_codepoint_decided_for_it(tmp_path: Path) -> None:
    path, log = tmp_path / "agent.sock", tmp_path / "sent.csv"
    queues = (0, 1, 1, 0, 1, 0, 0, 1)
    agent = Overheard(path, queues=queues)
    with echoing(tmp_path) as echo:
        # Asked long before, so that a busy machine's agent is in time too.
        options = ("--agent", path, "--log", log, "--rate-mbps", 4, "--seconds", 1, "--ahead-ms", 200)
        ran = send("--port", echo.port, *options)
        arrived = echo.end()
    agent.join()
    assert ran.returncode == 0, ran.stderr
    sent = {int(row["packet"]): row for row in csv.DictReader(log.open())}
    used = {packet for packet, row in sent.items() if row["decided"] == "1"}
    assert used <= agent.decided().keys()
    assert len(used) > 0.5 * len(sent) > 100
    expected = {p: (ECT0, ECT1)[queues[p % 8]] if p in used else ECT1 for p in sent}
    assert arrived == expected
    assert agent.sent() == expected  # what the agent was told
    assert sorted(agent.acked()) == sorted(sent)


@pytest.mark.parametrize("host", LOOPBACK)
def test_each_packet_arrives_with_the_dscp_of_its_alternative(tmp_path: Path, host: str) -> None:
    """Its codepoint is what it would be without a DSCP; a flow that nothing moves is of alternative 0."""
    path, log = tmp_path / "agent.sock", tmp_path / "sent.csv"
    queues = (0, 1, 1, 0, 1, 0, 0, 1)
    agent = Overheard(path, queues=queues)
    to = ("--host", host, "--dscp", "63,46")
    with echoing(tmp_path, host) as echo:
        options = ("--agent", path, "--log", log, "--rate-mbps", 4, "--seconds", 1, "--ahead-ms", 200)
        ran = send(*to, "--port", echo.port, *options)
        arrived = echo.end()
    agent.join()
    assert ran.returncode == 0, ran.stderr
    used = {int(row["packet"]) for row in csv.DictReader(log.open()) if row["decided"] == "1"}
    alternative = {p: queues[p % 8] if p in used else 1 for p in arrived}
    assert len(used) > 0.5 * len(arrived) > 100
    assert echo.dscps == {p: (63, 46)[queue] for p, queue in alternative.items()}
    assert arrived == {p: (ECT0, ECT1)[queue] for p, queue in alternative.items()}
    with echoing(tmp_path, host) as echo:
        send(*to, "--port", echo.port, "--seconds", 0.1, "--classic")
        assert set(echo.end().values()) == {0}
    assert set(echo.dscps.values()) == {63}


@pytest.mark.parametrize("host", LOOPBACK)
def test_an_answer_has_the_dscp_of_its_question(tmp_path: Path, host: str) -> None:
    """So a gateway at the receiver's sends it back by the uplink that the packet came by."""
    v4 = host == "127.0.0.1"
    level, field = (socket.IPPROTO_IP, socket.IP_TOS) if v4 else (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
    receive = socket.IP_RECVTOS if v4 else socket.IPV6_RECVTCLASS
    family = socket.AF_INET if v4 else socket.AF_INET6
    with echoing(tmp_path, host) as echo, socket.socket(family, socket.SOCK_DGRAM) as asker:
        asker.settimeout(20)
        asker.setsockopt(level, receive, 1)
        for dscp in (0, 46):
            asker.setsockopt(level, field, dscp << 2 | ECT1)
            asker.sendto(struct.pack("=4sIq", b"SQU1", 0, dscp).ljust(48), (host, echo.port))
            answer, control, _, _ = asker.recvmsg(100, 100)
            assert struct.unpack_from("=4sIq", answer) == (b"SQA1", ECT1, dscp)
            assert [data[0] for _, _, data in control] == [dscp << 2]


def test_a_frames_packets_leave_together_and_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "sent.csv"
    with echoing(tmp_path) as echo:
        options = ("--rate-mbps", 4, "--seconds", 0.5, "--frame-packets", 5, "--log", log)
        said = json.loads(send("--port", echo.port, *options).stdout)
        echo.end()
    assert said["packets"] == 5 * said["frames"] > 100
    assert said["frames_acked"] == said["frames"]  # loopback loses nothing at this rate
    assert said["frame_p99_us"] >= said["latency_p50_us"] > 0
    sent_ns = [int(row["sent_ns"]) for row in csv.DictReader(log.open())]
    within = sum(b - a for at, (a, b) in enumerate(pairwise(sent_ns), 1) if at % 5)
    assert within < (sent_ns[-1] - sent_ns[0]) / 2  # evenly spaced ones would take 4/5


@pytest.mark.parametrize("size", [15, 16, 47, 48, 1200])
def test_an_answer_is_never_longer_than_its_question(tmp_path: Path, size: int) -> None:
    """Whoever sends in another's name gets no more bytes to them than it sends; senders take both answers."""
    with echoing(tmp_path) as echo, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.connect(("127.0.0.1", echo.port))
        asker.settimeout(20)
        question = struct.pack("=4sIq", b"SQU1", 0, 7).ljust(size, b"x")[:size]
        asker.send(question)
        asker.send(question[:15])  # not a packet of ours: no answer
        asker.send(struct.pack("=4sIq", b"SQU1", 0, 8))
        answers = [asker.recv(100) for _ in range(2 if size >= 16 else 1)]
        assert [len(answer) for answer in answers] == [16 if size < 48 else 48, 16][-len(answers) :]
        assert [struct.unpack_from("=4sIq", answer)[2] for answer in answers] == [7, 8][-len(answers) :]
        if size >= 16:
            options = ("--rate-mbps", 1, "--seconds", 0.2, "--bytes", size)
            said = json.loads(send("--port", echo.port, *options).stdout)
            assert said["acked"] == said["packets"] > 10


@pytest.mark.parametrize("host", LOOPBACK)
def test_without_an_agent_each_packet_arrives_as_plain_ect1(tmp_path: Path, host: str) -> None:
    with echoing(tmp_path, host) as echo:
        options = ("--host", host, "--port", echo.port, "--rate-mbps", 5, "--seconds", 0.5)
        ran = send(*options)
        classic = send(*options, "--classic")
        echo.end()
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    assert said["packets"] > 100
    assert said["ect1"] == said["packets"]
    assert said["decided"] == said["arrived_changed"] == said["arrived_ce"] == 0
    assert said["acked"] == said["packets"]  # loopback loses nothing at this rate
    assert json.loads(classic.stdout)["not_ect"] > 100
    assert echo.summary["ect1"] == said["packets"]
    assert echo.summary["ect0"] == echo.summary["ce"] == 0
    assert set(echo.summary["by_dscp"]) == {"0"}


@pytest.mark.parametrize(("host", "headers"), zip(LOOPBACK, (28, 48), strict=False))
def test_the_rate_is_that_of_ip_packets(tmp_path: Path, host: str, headers: int) -> None:
    with echoing(tmp_path, host) as echo:
        options = ("--rate-mbps", 1, "--seconds", 0.4, "--bytes", 100)
        said = json.loads(send("--host", host, "--port", echo.port, *options).stdout)
    assert said["packets"] == pytest.approx(1e6 * 0.4 / 8 / (100 + headers), abs=2)


@pytest.mark.skipif(not socket.has_ipv6, reason="a kernel without IPv6")
@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_ipv4_through_an_ipv6_socket_keeps_its_codepoints(tmp_path: Path, host: str) -> None:
    """A receiver at `::` reads IPv4's field too, and a mapped address is marked there."""
    with echoing(tmp_path, "::") as echo:
        ran = send("--host", host, "--port", echo.port, "--seconds", 0.2)
        echo.end()
    said = json.loads(ran.stdout)
    assert echo.summary["ect1"] == said["ect1"] == said["packets"] > 50
    assert said["arrived_changed"] == 0


def test_a_receiver_under_a_flood_ends_in_time(tmp_path: Path) -> None:
    with echoing(tmp_path) as echo, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect(("127.0.0.1", echo.port))
        ended = threading.Event()

        def flood() -> None:
            with suppress(ConnectionRefusedError):
                while not ended.is_set():
                    stranger.send(bytes(1000))

        floods = [threading.Thread(target=flood) for _ in range(2)]
        for each in floods:
            each.start()
        time.sleep(0.3)
        echo.process.send_signal(signal.SIGTERM)
        try:
            echo.process.communicate(timeout=20)
        finally:
            ended.set()
            for each in floods:
                each.join()
    assert echo.process.returncode == 0


@needs_agent
@pytest.mark.slow
@pytest.mark.parametrize("host", LOOPBACK)
def test_packets_arrive_with_the_codepoints_of_the_real_agent(tmp_path: Path, host: str) -> None:
    """The decisions are overheard at the agent's socket, the codepoints are the receiving kernel's."""
    path, between, log = tmp_path / "agent.sock", tmp_path / "between.sock", tmp_path / "sent.csv"
    with (
        AgentProgram("--listen", path, "--local", local_model(tmp_path)) as agent,
        echoing(tmp_path, host) as echo,
    ):
        overheard = Overheard(between, path)
        options = ("--host", host, "--port", echo.port, "--agent", between, "--log", log, "--flows", 3)
        ran = send(*options, "--rate-mbps", 4, "--seconds", 2, "--ahead-ms", 60)
        arrived = echo.end()
        overheard.join()
        agent.end()
    assert ran.returncode == 0, ran.stderr
    sent = {int(row["packet"]): row for row in csv.DictReader(log.open())}
    used = {packet for packet, row in sent.items() if row["decided"] == "1"}
    decided = overheard.decided()
    assert len(used) > 100
    assert used <= decided.keys()
    assert arrived == {p: (ECT0, ECT1)[decided[p]] if p in used else ECT1 for p in sent}
    assert json.loads(ran.stdout)["arrived_changed"] == 0


@needs_agent
@pytest.mark.slow
def test_a_dead_agent_means_plain_ect1_with_the_next_packet(tmp_path: Path) -> None:
    """What it decided before about packets that had not gone yet is void."""
    path, log = tmp_path / "agent.sock", tmp_path / "sent.csv"
    with echoing(tmp_path) as echo:
        options = ("--port", echo.port, "--agent", path, "--log", log, "--rate-mbps", 2, "--seconds", 600)
        command = [str(BINARY), "send", *map(str, options), "--ahead-ms", "300"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sender:
            arguments = ("--listen", path, "--local", local_model(tmp_path), "--metrics-port", 0)
            decided = 'batches_total{outcome="decided"}'
            with AgentProgram(*arguments) as agent:
                wait_until(lambda: agent.metrics().get(decided, 0) > 50, "nothing is decided")
                agent.process.kill()
                agent.process.wait()
                dead_ns = time.monotonic_ns()
            time.sleep(0.3)  # packets that go then, all of them asked about before
            sender.terminate()
            said, problems = sender.communicate()
        arrived = echo.end()
    sent = {int(row["packet"]): row for row in csv.DictReader(log.open())}
    assert any(row["decided"] == "1" for row in sent.values())
    # A packet on its way through the program when the agent died may have been decided.
    after = sorted(packet for packet, row in sent.items() if int(row["sent_ns"]) > dead_ns)[1:]
    assert len(after) > 10
    assert {(sent[packet]["decided"], int(sent[packet]["codepoint"])) for packet in after} == {("0", ECT1)}
    assert {arrived[packet] for packet in after if packet in arrived} == {ECT1}
    assert json.loads(said)["agent_lost"] == 1
    assert f"agent socket {path}: " in problems.splitlines()[-1]


@needs_agent
@pytest.mark.slow
def test_a_stopped_agent_makes_no_packet_wait(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with AgentProgram("--listen", path, "--local", local_model(tmp_path)) as agent, echoing(tmp_path) as echo:
        agent.process.send_signal(signal.SIGSTOP)
        try:
            ran = send("--port", echo.port, "--agent", path, "--rate-mbps", 5, "--seconds", 1)
        finally:
            agent.process.send_signal(signal.SIGCONT)
    said = json.loads(ran.stdout)
    assert said["acked"] == said["packets"] == said["ect1"]
    assert said["decided"] == said["agent_connections"] == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--host", "example.org", "--port", 1), "address 'example.org' is not a numeric"),
        (("--host", "300.1.1.1", "--port", 1), "address '300.1.1.1' is not a numeric"),
        (("--port", 0), "port 0: a flow needs a receiver's port"),
        (("--port", 70000), "--port 70000: must be a number from 0 to 65535"),
        (("--port", 9, "--rate-mbps", "nan"), "--rate-mbps nan: must be a number"),
        (("--port", 9, "--bytes", 3), "--bytes 3: must be a number from 16"),
        (("--port", 9, "--agent", "x" * 200), "a socket's path has at most 107 bytes"),
        (("--port", 9, "--log", "/nowhere/log"), "/nowhere/log: No such file"),
        (("--port", 9, "--unknown"), "--unknown: not an option"),
        (("--port", 9, "more"), "more: not understood"),
        (("--port", 9, "--dscp", "46,46"), "--dscp: both alternatives have DSCP 46, so no gateway can tell"),
        (("--port", 9, "--dscp", "0,64"), "--dscp: DSCP 64 is not 0 to 63"),
        (("--port", 9, "--dscp", "46"), "--dscp 46: must be two numbers from 0 to 63"),
        (("--port", 9, "--dscp", "0,46,1"), "--dscp 0,46,1: must be two numbers"),
        (("--port", 9, "--dscp", "EF,0"), "--dscp EF,0: must be two numbers"),
        (("--port", 9, "--dscp", "0,"), "--dscp 0,: must be two numbers"),
        (("--port", 9, "--dscp", "-1,3"), "--dscp: DSCP -1 is not 0 to 63"),
        (("--port", 9, "--frame-packets", 0), "--frame-packets 0: must be a number from 1"),
    ],
)
def test_bad_arguments_get_one_line(arguments: tuple[Any, ...], line: str) -> None:
    ran = send(*arguments)
    assert ran.returncode in (1, 2)
    assert line in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert ran.stdout == ""


@pytest.mark.parametrize("what", [("echo",), ("send", "--port", "9")])
def test_a_log_that_cannot_be_written_is_an_error(what: tuple[str, ...]) -> None:
    command = [str(BINARY), *what, "--seconds", "0.1", "--log", "/dev/full"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "/dev/full: could not be written\n")


def test_strangers_datagrams_are_counted_and_not_answered(tmp_path: Path) -> None:
    with echoing(tmp_path) as echo, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for data in (b"", b"x", bytes(16), bytes(1000)):
            stranger.sendto(data, ("127.0.0.1", echo.port))
        stranger.settimeout(0.3)
        with pytest.raises(TimeoutError):
            stranger.recv(100)
        assert echo.end() == {}
    assert echo.summary["not_ours"] == 4


@pytest.mark.parametrize("own", [True, False])
def test_a_receiver_acknowledges_nobody_elses_packets(own: bool) -> None:
    """A packet's ACK counts at the socket of its flow; at another flow's it is a stranger's word."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        arguments = ("--port", receiver.getsockname()[1], "--flows", 2, "--bytes", 100)
        options = [*map(str, arguments), "--rate-mbps", "0.5", "--seconds", "1"]
        with subprocess.Popen([str(BINARY), "send", *options], stdout=subprocess.PIPE, text=True) as sender:
            addresses: dict[int, Any] = {}
            waiting: list[tuple[int, int]] = []
            receiver.settimeout(0.2)
            while sender.poll() is None:
                with suppress(TimeoutError):
                    data, address = receiver.recvfrom(200)
                    _, flow, packet = struct.unpack_from("=4sIq", data)
                    assert flow == packet % 2
                    addresses[flow] = address
                    waiting.append((flow, packet))
                while len(addresses) == 2 and waiting:
                    flow, packet = waiting.pop()
                    answer = struct.pack("=4sIq4Q", b"SQA1", ECT1, packet, 0, 1, 0, 0)
                    receiver.sendto(answer, addresses[flow if own else 1 - flow])
            assert sender.stdout is not None
            said = json.loads(sender.stdout.read())
    assert said["packets"] > 100
    assert said["acked"] == (said["packets"] if own else 0)
