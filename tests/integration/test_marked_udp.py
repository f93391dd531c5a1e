"""UDP packets that are really marked: what the agent decides, and what the receiver's kernel sees."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
import struct
import subprocess
import textwrap
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from agent_program import AgentProgram, needs_agent
from overheard import Overheard
from waiting import wait_until

from swiftqueue.serving.agent.bindings import marked_udp
from swiftqueue.serving.agent.bindings.marked_udp import BINARY, ECT0, ECT1, NOT_ECT, MarkedUdp

pytestmark = pytest.mark.skipif(
    marked_udp.why_not_built() is not None, reason=str(marked_udp.why_not_built())
)
MODEL = Path(__file__).parents[2] / "docs" / "laboratory" / "models" / "figure8" / "rfc9332"
LOOPBACK = ["127.0.0.1", *(["::1"] if socket.has_ipv6 else [])]


class Echo:
    """`swiftqueue udp echo`, and what it logged."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self.log = folder / f"echo-{time.monotonic_ns()}.csv"
        self.process = subprocess.Popen(
            [str(BINARY), "echo", "--host", host, "--port", "0", "--log", str(self.log)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())["port"])

    def end(self) -> dict[int, int]:
        """Codepoint that each packet arrived with, by its number."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate()
        self.summary = json.loads(out)
        return {int(row["packet"]): int(row["codepoint"]) for row in csv.DictReader(self.log.open())}


@contextmanager
def echoing(folder: Path, host: str = "127.0.0.1") -> Iterator[Echo]:
    echo = Echo(folder, host)
    try:
        yield echo
    finally:
        echo.process.kill()
        echo.process.wait()


def send(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BINARY), "send", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def local_model(tmp_path: Path) -> Path:
    """A real artifact in a folder whose name is a version, as `--local` wants it."""
    link = tmp_path / "1"
    link.symlink_to(MODEL)
    return link


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
def test_packets_arrive_with_the_codepoints_of_the_real_agent(
    tmp_path: Path, local_model: Path, host: str
) -> None:
    """The decisions are overheard at the agent's socket, the codepoints are the receiving kernel's."""
    path, between, log = tmp_path / "agent.sock", tmp_path / "between.sock", tmp_path / "sent.csv"
    with AgentProgram("--listen", path, "--local", local_model) as agent, echoing(tmp_path, host) as echo:
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
def test_a_dead_agent_means_plain_ect1_with_the_next_packet(tmp_path: Path, local_model: Path) -> None:
    path = tmp_path / "agent.sock"
    with echoing(tmp_path) as echo, MarkedUdp(path, "test") as udp:
        flow = udp.add_flow("127.0.0.1", echo.port)

        def batch(wait_s: float = 0.1) -> list[marked_udp.SendResult]:
            """Ask, wait until it may be decided, send."""
            udp.plan([flow] * 8, [1000] * 8, time.monotonic_ns() + int(wait_s * 1e9))
            listen(wait_s)
            return [udp.send(flow, bytes(1000)) for _ in range(8)]

        def listen(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                udp.poll(0.01)

        assert "No such file" in udp.problem or not udp.problem
        assert {sent.codepoint for sent in batch(0.0)} == {ECT1}
        with AgentProgram("--listen", path, "--local", local_model) as agent:
            wait_until(lambda: udp.poll(0.01) or udp.connected, "the agent was not found again")
            wait_until(lambda: all(sent.decided for sent in batch()), "nothing is decided")
            # Decided, and then the agent is killed before the packets go.
            udp.plan([flow] * 8, [1000] * 8, time.monotonic_ns() + 300_000_000)
            listen(0.5)
            agent.process.kill()
            agent.process.wait()
            after = [udp.send(flow, bytes(1000)) for _ in range(8)]
        assert {(sent.codepoint, sent.decided, sent.delivered) for sent in after} == {(ECT1, False, True)}
        assert not udp.connected
        assert str(path) in udp.problem
        last = {sent.packet for sent in after}
        arrived = echo.end()
        assert {arrived[packet] for packet in last} == {ECT1}


@needs_agent
@pytest.mark.slow
def test_a_stopped_agent_makes_no_packet_wait(tmp_path: Path, local_model: Path) -> None:
    path = tmp_path / "agent.sock"
    with AgentProgram("--listen", path, "--local", local_model) as agent, echoing(tmp_path) as echo:
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


def test_the_library_names_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a socket.s path has at most 107 bytes"):
        MarkedUdp(tmp_path / ("x" * 200), "test")
    with MarkedUdp(None, "test") as udp:
        with pytest.raises(ValueError, match="address 'nowhere' is not a numeric"):
            udp.add_flow("nowhere", 1)
        with pytest.raises(ValueError, match="port -1: must be"):
            udp.add_flow("127.0.0.1", -1)
        flow = udp.add_flow("127.0.0.1", 9, l4s=False)
        with pytest.raises(ValueError, match="flow 7: there is none"):
            udp.plan([7] * 8, [100] * 8, 0)
        with pytest.raises(ValueError, match="a batch is 8 packets"):
            udp.plan([flow] * 7, [100] * 7, 0)
        with pytest.raises(ValueError, match="a datagram of 3 bytes"):
            udp.send(flow, b"abc")
        assert udp.send(flow, bytes(100)).codepoint == NOT_ECT
    with pytest.raises(ValueError, match="this sender is closed"):
        udp.poll()


def decided_by(run: Callable[[], str], folder: Path) -> int:
    """How many of 800 packets a program says were decided, by an agent that answers at once."""
    (path := folder / "var" / "agent.sock").unlink(missing_ok=True)
    agent = Overheard(path, queues=(0, 1) * 4)
    said = run()
    agent.join()
    return int(said.partition(" of 800 packets")[0])


@pytest.mark.long
def test_the_examples_are_right_as_they_stand(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python's is run and C++'s compiled literally, but for the port; one that polls once decides a few."""
    python = textwrap.dedent(str(marked_udp.__doc__).partition("\n\n")[2].partition("\n\nThe receiver")[0])
    cpp = (
        (project / "docs" / "how-to" / "mark-packets.md")
        .read_text()
        .partition("```cpp\n")[2]
        .partition("```")[0]
    )
    hasty = re.sub(r"while .* > 0:", "if (left_ns := due_ns - time.monotonic_ns()) > 0:", python)
    assert hasty != python
    monkeypatch.chdir(tmp_path)
    (tmp_path / "var").mkdir()
    with echoing(tmp_path) as echo:
        python, hasty, cpp = (one.replace("4433", str(echo.port)) for one in (python, hasty, cpp))
        (tmp_path / "sender.cc").write_text(cpp)
        found = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "swiftqueue-udp"],
            env={**os.environ, "PKG_CONFIG_PATH": str(project / "serving" / "agent" / "bindings")},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        warnings = ["-Wall", "-Wextra", "-Werror"]
        subprocess.run(["g++", *warnings, "sender.cc", *found.stdout.split(), "-o", "sender"], check=True)

        def run(program: str) -> str:
            exec(program, {})  # noqa: S102 - our own docstring
            return capsys.readouterr().out

        def run_cpp() -> str:
            return subprocess.run([tmp_path / "sender"], capture_output=True, text=True, check=True).stdout

        # A busy machine may let an answer come late: the same programs again.
        wait_until(lambda: decided_by(lambda: run(python), tmp_path) > 600, "Python's example decides few")
        wait_until(lambda: decided_by(run_cpp, tmp_path) > 600, "C++'s example decides few")
        wait_until(
            lambda: decided_by(lambda: run(hasty), tmp_path) < 400, "polling once is no fault any more"
        )


def test_the_version_of_the_package_is_the_projects(project: Path) -> None:
    described = (project / "serving" / "agent" / "bindings" / "swiftqueue-udp.pc").read_text()
    version = tomllib.loads((project / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nVersion: {version}\n" in described


def test_strangers_datagrams_are_counted_and_not_answered(tmp_path: Path) -> None:
    with echoing(tmp_path) as echo, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for data in (b"", b"x", bytes(16), bytes(1000)):
            stranger.sendto(data, ("127.0.0.1", echo.port))
        stranger.settimeout(0.3)
        with pytest.raises(TimeoutError):
            stranger.recv(100)
        assert echo.end() == {}
    assert echo.summary["not_ours"] == 4


def test_a_receiver_acknowledges_nobody_elses_packets() -> None:
    own, other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    with own, other, MarkedUdp(None, "test") as udp:
        addresses = []
        for receiver in (own, other):
            receiver.bind(("127.0.0.1", 0))
            receiver.settimeout(20)
            flow = udp.add_flow("127.0.0.1", receiver.getsockname()[1])
            udp.send(flow, bytes(100))
            data, address = receiver.recvfrom(200)
            addresses.append(address)
            assert struct.unpack_from("=IIq", data)[1:] == (flow, flow)  # packet 0 of flow 0, 1 of flow 1
        acknowledged = struct.pack("=IIq4Q", int.from_bytes(b"SQA1", "little"), ECT1, 0, 0, 1, 0, 0)
        other.sendto(acknowledged, addresses[1])
        assert udp.poll(wait_s=0.3) == []
        own.sendto(acknowledged, addresses[0])
        assert [ack.packet for ack in udp.poll(wait_s=20)] == [0]


def test_acks_without_end_hold_up_no_sender() -> None:
    """While one is taken another comes; the sender gets its turn all the same, and then the rest."""
    packets, took = 1_500, 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver, MarkedUdp(None, "test") as udp:
        receiver.bind(("127.0.0.1", 0))
        flow = udp.add_flow("127.0.0.1", receiver.getsockname()[1])
        for _ in range(packets):
            udp.send(flow, bytes(16))
        address = receiver.recvfrom(200)[1]

        def acknowledge(packet: int) -> None:
            receiver.sendto(struct.pack("=4sIq", b"SQA1", ECT1, packet), address)

        def on_ack(_: Any) -> None:
            nonlocal took
            took += 1
            if took < packets:
                acknowledge(took)

        acknowledge(0)
        for expected in (1_000, packets):
            udp._abi.sq_udp_poll(udp._open(), time.monotonic_ns() + 10**9, marked_udp._ON_ACK(on_ack))
            assert took == expected


def test_the_library_is_as_new_as_what_it_is_made_of(project: Path) -> None:
    """A header that it includes and SOURCES does not name could change unnoticed."""
    command = ["g++", "-std=c++20", "-MM", "-I.", "serving/agent/bindings/marked_udp_capi.cc"]
    rule = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True).stdout
    included = {project / word for word in rule.partition(":")[2].split() if word != "\\"}
    assert included == set(marked_udp.SOURCES)
