"""The library for programs that send (`swiftqueue.h`) and its Python binding, against the real agent."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from agent_program import AgentProgram, local_model, needs_agent
from echoing import echoing
from overheard import Overheard
from waiting import LIMIT_S, wait_until

from swiftqueue.serving.agent.bindings import agent_link
from swiftqueue.serving.agent.bindings.agent_link import (
    CLASSIC,
    ECT0,
    ECT1,
    L4S,
    AgentLink,
    LinkDecision,
    LinkPacket,
)
from swiftqueue.serving.agent.io import frames
from swiftqueue.serving.agent.marking import udp_command

pytestmark = pytest.mark.skipif(
    udp_command.why_not_built() is not None, reason=str(udp_command.why_not_built())
)
BATCH = [LinkPacket(1500)] * 8


def soon_ns(seconds: float = 60.0) -> int:
    """A due time that no busy machine reaches before the answer."""
    return time.monotonic_ns() + int(seconds * 1e9)


def answer(link: AgentLink) -> LinkDecision:
    decision = link.next(wait_s=LIMIT_S)
    assert decision is not None
    return decision


def connected(link: AgentLink) -> bool:
    link.next()
    return not link.problem


@needs_agent
@pytest.mark.slow
def test_a_sender_asks_and_says_what_it_sent(tmp_path: Path) -> None:
    path, between = tmp_path / "agent.sock", tmp_path / "between.sock"
    with AgentProgram("--listen", path, "--local", local_model(tmp_path)) as agent:
        overheard = Overheard(between, path)
        with AgentLink(between, "test") as link:
            wait_until(lambda: connected(link), "it was not greeted")
            for first in (0, 8):
                assert link.ask(first, BATCH, soon_ns())
                decision = answer(link)
                assert (decision.first_packet, decision.outcome, decision.version) == (first, "decided", 0)
                assert decision.queues == tuple(overheard.decided()[first + i] for i in range(8))
                assert all(math.isfinite(us) and us >= 0 for us in decision.classic_us + decision.default_us)
                for packet, queue in enumerate(decision.queues, first):
                    ecn = ECT1 if queue == L4S else ECT0
                    link.sent(packet, time.monotonic_ns(), LinkPacket(1500, queue=queue, ecn=ecn))
                link.acked(first, time.monotonic_ns(), 20_000.0)
            link.acked(9, time.monotonic_ns(), math.nan)
            assert link.next() is None
        overheard.join()
        summary = agent.end()
    assert (summary["batches"], summary["decided"]) == (2, 2)
    decided = overheard.decided()
    assert overheard.sent() == {p: (ECT0, ECT1)[decided[p]] for p in range(16)}
    assert overheard.acked() == [0, 8, 9]


@needs_agent
@pytest.mark.slow
def test_an_agent_that_is_away_comes_and_goes_is_one_line_each_time(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    first = count(0, 8)
    with AgentLink(path, "test") as link:
        assert link.problem == f"agent socket {path}: No such file or directory"
        assert not link.ask(next(first), BATCH, soon_ns())
        assert link.next() is None
        descriptor = link.fileno()
        for _ in range(2):
            with AgentProgram("--listen", path, "--local", local_model(tmp_path)) as agent:
                wait_until(lambda: connected(link), "it was not found")
                assert link.fileno() == descriptor
                assert link.ask(asked := next(first), BATCH, soon_ns())
                decision = answer(link)
                assert (decision.first_packet, decision.outcome) == (asked, "decided")
                assert link.ask(next(first), BATCH, soon_ns())
                agent.process.kill()
                agent.process.wait()
            # What it had been asked is void, and nothing is decided any more.
            wait_until(lambda: link.next() or link.problem, "its end was not seen")
            assert link.problem.startswith(f"agent socket {path}: ")
            assert len(link.problem.splitlines()) == 1
            assert not link.ask(next(first), BATCH, soon_ns())


@needs_agent
@pytest.mark.slow
def test_a_full_socket_is_one_line_and_makes_nobody_wait(tmp_path: Path) -> None:
    """The agent is stopped, so it reads nothing: whoever waited for it would never return."""
    path = tmp_path / "agent.sock"
    with (
        AgentProgram("--listen", path, "--local", local_model(tmp_path)) as agent,
        AgentLink(path, "test") as link,
    ):
        wait_until(lambda: connected(link), "it was not greeted")
        agent.process.send_signal(signal.SIGSTOP)
        try:
            packets = 0
            for first in range(0, 10**6, 8):
                if not link.ask(first, BATCH, soon_ns()):
                    break
                for packet in range(first, first + 8):
                    link.sent(packet, time.monotonic_ns(), BATCH[0])
                    packets += 1
            assert link.problem == f"agent socket {path}: it takes nothing any more"
            assert packets * frames.SENT.itemsize > 0.5 * 2**20  # so much may wait first
        finally:
            agent.process.send_signal(signal.SIGCONT)
        wait_until(lambda: connected(link), "it did not connect again")


def test_a_wrong_order_is_one_line_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    agent = Overheard(path, queues=(0, 1) * 4)
    with AgentLink(path, "tést" + 100 * "x") as link:
        wait_until(lambda: connected(link), "it was not greeted")
        assert link.ask(8, BATCH, soon_ns())
        for wrong, line in (
            (lambda: link.ask(8, BATCH, soon_ns()), "packet 8: batches are asked about once, in send order"),
            (lambda: link.ask(9, BATCH, soon_ns()), "packet 9: its first packet is not a multiple of 8"),
            (lambda: link.ask(16, BATCH[:7], soon_ns()), "7 packets: a batch is 8"),
            (lambda: link.ask(16, [LinkPacket(0)] * 8, soon_ns()), "packet 16: a packet's size is not 1"),
            (lambda: link.ask(16, [LinkPacket(9, queue=2)] * 8, soon_ns()), "packet 16: a packet's queue is"),
            (lambda: link.ask(16, BATCH, -1), "packet 16: a time is negative"),
            (lambda: link.acked(8, 1, 1.0), "packet 8: it is acknowledged and was not sent"),
            (lambda: link.sent(8, -1, BATCH[0]), "packet 8: its time is negative"),
            (lambda: link.sent(8, 1, LinkPacket(1, ecn=4)), "packet 8: its ECN codepoint is above 3"),
            (lambda: link.sent(8, 1, LinkPacket(1, queue=257)), "queue 257: does not fit"),
        ):
            with pytest.raises(ValueError, match=f"^{line}") as refused:
                wrong()
            assert len(str(refused.value).splitlines()) == 1
        link.sent(8, 1, BATCH[0])
        assert link.problem == ""  # of the last call alone
        for wrong, line in (
            (
                lambda: link.sent(8, 1, BATCH[0]),
                "packet 8: packets are numbered in send order, and 9",
            ),
            (lambda: link.ask(0, BATCH, soon_ns()), "packet 0: a batch is asked about before it is sent"),
            (lambda: link.acked(8, 1, -1.0), "packet 8: its latency is negative"),
            (lambda: link.acked(8, 1, math.inf), "packet 8: its latency is negative or above"),
        ):
            with pytest.raises(ValueError, match=f"^{line}"):
                wrong()
        decision = answer(link)
        assert (decision.first_packet, decision.queues) == (8, (CLASSIC, L4S) * 4)
        link.acked(8, 2, 1.0)
    agent.join()
    assert agent.frames()[0]["name"] == b"t??st".ljust(55, b"x")  # all that a HELLO can hold of it
    asked = [int(f["first_packet"]) for f in agent.frames() if f["type"] == 4]
    assert (asked, agent.sent(), agent.acked()) == ([8], {8: ECT1}, [8])


def test_the_field_of_a_packet_has_its_alternatives_dscp_and_its_codepoint(tmp_path: Path) -> None:
    with AgentLink(tmp_path / "a", "test") as link:
        assert [link.ds_field(queue, ecn) for queue, ecn in ((L4S, ECT1), (CLASSIC, ECT0))] == [1, 2]
        link.set_dscp(63, 46)
        marks = ((L4S, ECT1), (CLASSIC, ECT0), (CLASSIC, 0), (L4S, 0))
        fields = [link.ds_field(queue, ecn) for queue, ecn in marks]
        assert fields == [46 << 2 | 1, 63 << 2 | 2, 63 << 2, 46 << 2]
        for pair, line in (
            ((46, 46), "dscp: both alternatives have DSCP 46"),
            ((0, 64), "dscp: DSCP 64 is not 0 to 63"),
            ((-1, 0), "dscp: DSCP -1 is not 0 to 63"),
        ):
            with pytest.raises(ValueError, match=f"^{line}") as refused:
                link.set_dscp(*pair)
            assert len(str(refused.value).splitlines()) == 1
        assert link.ds_field(L4S, ECT1) == 46 << 2 | 1  # a refused pair changes nothing


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    for path, name, line in (
        (tmp_path / ("x" * 200), "test", "a socket's path has at most 107 bytes"),
        ("", "test", "a socket's path must not be empty"),
        (tmp_path / "a", "", "a sender's name must not be empty"),
    ):
        with pytest.raises(ValueError, match=line):
            AgentLink(path, name)
    with AgentLink(tmp_path / "a", "test") as link:
        pass
    with pytest.raises(ValueError, match="this connection is closed"):
        link.next()


def test_frames_of_packets_are_written_together_and_before_the_question(tmp_path: Path) -> None:
    """A write for each is 17 system calls a batch instead of one; in time for the question is in time."""
    path = tmp_path / "agent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with AgentLink(path, "test") as link:
            agent, _ = listener.accept()
            with agent:
                assert len(agent.recv(1000)) == frames.HELLO.itemsize
                agent.sendall(frames.hello("agent").tobytes())
                wait_until(lambda: connected(link), "it was not greeted")
                for packet in range(8):
                    link.sent(packet, 1, BATCH[0])
                agent.setblocking(False)
                with pytest.raises(BlockingIOError):
                    agent.recv(1)
                assert link.ask(8, BATCH, soon_ns())
                assert len(agent.recv(10_000)) == 8 * frames.SENT.itemsize + frames.BATCH.itemsize
                link.acked(0, 2, 1.0)
                link.next()
                assert len(agent.recv(10_000)) == frames.ACKED.itemsize
                for packet in range(8, 108):  # more than may wait
                    link.sent(packet, 1, BATCH[0])
                assert len(agent.recv(10_000)) > 4_000


def compiled(project: Path, folder: Path) -> list[str]:
    """The command of the C example, compiled as its users do."""
    found = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "swiftqueue"],
        env={**os.environ, "PKG_CONFIG_PATH": str(project / "serving" / "agent" / "bindings")},
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    source, program = project / "serving" / "agent" / "examples" / "sender.c", folder / "sender"
    warnings = ["-std=gnu99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run(["cc", *warnings, source, *found, "-o", program], check=True)
    return [str(program)]


def interpreted(project: Path, _: Path) -> list[str]:
    return [sys.executable, str(project / "serving" / "agent" / "examples" / "sender.py")]


EXAMPLES = pytest.mark.parametrize("command_of", [compiled, interpreted])
Commands = Callable[[Path, Path], list[str]]


def example(
    project: Path, folder: Path, command: list[str], path: Path
) -> tuple[dict[int, tuple[int, int]], str]:
    """Run an example with a receiver; return each packet's queue and version as printed, and what else was.

    The receiver must have seen each packet with the codepoint of the queue that was printed.
    """
    with echoing(folder) as echo:
        ran = subprocess.run(
            [*command, str(path), str(echo.port)],
            capture_output=True, text=True, check=True, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(project)},
        )  # fmt: skip
        arrived = echo.end()
    assert ran.stderr == ""
    line = re.compile(r"packet (\d+): queue ([01]) by version (-?\d+)\n")
    printed = {int(p): (int(queue), int(version)) for p, queue, version in line.findall(ran.stdout)}
    assert sorted(printed) == list(range(800))
    assert arrived == {packet: (ECT0, ECT1)[queue] for packet, (queue, _) in printed.items()}
    return printed, line.sub("", ran.stdout)


@needs_agent
@pytest.mark.slow
@EXAMPLES
def test_the_examples_ask_the_real_agent_and_mark_as_it_decides(
    project: Path, tmp_path: Path, command_of: Commands
) -> None:
    path, command = tmp_path / "agent.sock", command_of(project, tmp_path)
    with AgentProgram("--listen", path, "--local", local_model(tmp_path)) as agent:

        def decided() -> bool:  # a busy machine may let answers come late: the same program again
            printed, _ = example(project, tmp_path, command, path)
            return sum(version == 0 for _, version in printed.values()) > 400

        wait_until(decided, "the example decides few")
        assert agent.end()["decided"] > 50


@pytest.mark.long
@EXAMPLES
def test_the_examples_mark_for_both_queues(project: Path, tmp_path: Path, command_of: Commands) -> None:
    queues, command, number = (0, 1, 1, 0, 1, 0, 0, 1), command_of(project, tmp_path), count()

    def mixed() -> bool:
        path = tmp_path / f"agent-{next(number)}.sock"
        agent = Overheard(path, queues=queues)
        printed, _ = example(project, tmp_path, command, path)
        agent.join()
        told = agent.sent()  # all but what went before the greeting
        assert told == {packet: (ECT0, ECT1)[printed[packet][0]] for packet in told}
        assert len(told) > 700
        assert len(agent.acked()) > 400
        return sum(queue == queues[p % 8] == CLASSIC for p, (queue, _) in printed.items()) > 200

    wait_until(mixed, "the example moves few")


@pytest.mark.long
@EXAMPLES
def test_the_examples_send_plain_packets_without_an_agent(
    project: Path, tmp_path: Path, command_of: Commands
) -> None:
    path = tmp_path / "agent.sock"
    printed, said = example(project, tmp_path, command_of(project, tmp_path), path)
    assert set(printed.values()) == {(L4S, -1)}
    assert set(said.splitlines()) == {f"agent socket {path}: No such file or directory"}


def test_the_examples_are_short(project: Path) -> None:
    files = sorted((project / "serving" / "agent" / "examples").iterdir())
    assert [file.name for file in files if file.is_file()] == ["sender.c", "sender.py"]
    assert all(len(file.read_text().splitlines()) <= 40 for file in files)


def test_the_header_is_plain_c_and_all_that_the_library_has(project: Path, tmp_path: Path) -> None:
    header = project / "serving" / "agent" / "bindings" / "swiftqueue.h"
    for language in (["-x", "c", "-std=c99"], ["-x", "c++", "-std=c++11"]):
        command = ["g++", *language, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", header]
        subprocess.run(command, check=True)
    declared = set(
        re.findall(r"\b(swiftqueue_\w+)\(", re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S))
    )
    agent_link._load()
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", agent_link.LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    assert set(re.findall(r" T (\w+)$", symbols, re.M)) == declared
    assert len(declared) == 12


def test_one_version_is_said_everywhere(project: Path) -> None:
    bindings = project / "serving" / "agent" / "bindings"
    version = tomllib.loads((project / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nVersion: {version}\n" in (bindings / "swiftqueue.pc").read_text()
    assert f'SWIFTQUEUE_VERSION "{version}"' in (bindings / "swiftqueue.h").read_text()
    assert agent_link.version() == version


def test_the_library_is_as_new_as_what_it_is_made_of(project: Path) -> None:
    """A header that it includes and SOURCES does not name could change unnoticed."""
    command = ["g++", "-std=c++20", "-MM", "-I.", "serving/agent/bindings/swiftqueue.cc"]
    rule = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True).stdout
    included = {project / word for word in rule.partition(":")[2].split() if word != "\\"}
    assert included == set(agent_link.SOURCES)
