"""What a hostile or broken sender can do to the agent and its other senders: nothing."""

from __future__ import annotations

import multiprocessing
import os
import pwd
import socket
import stat
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import mutants
import numpy as np
import psutil
import pytest
from agent_program import AgentProgram, LiveSender, needs_agent
from crowd import DEAF, IDLE, MANY, SLOW, check_a_crowd_costs_only_its_places, crowd
from waiting import wait_until

from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.agent.io import frames

pytestmark = [pytest.mark.slow, needs_agent]
FROZEN_PACKETS = 10_000_000 if mutants.ALL else 2_000_000
MAX_REMEMBERED = 1 << 17
ALL_REMEMBERED = 1 << 20
MAX_SENDERS = 256


@pytest.fixture
def agent(make_artifact: Callable[..., Path], tmp_path: Path) -> Iterator[tuple[AgentProgram, Path]]:
    path = tmp_path / "agent.sock"
    arguments = ("--listen", path, "--local", make_artifact(1, layers=1), "--metrics-port", 0)
    with AgentProgram(*arguments) as program:
        yield program, path


def sent_frames(first: int, count: int, sent_ns: int = 10**9) -> np.ndarray:
    sent = frames.blank(frames.SENT, count)
    sent["packet"], sent["sent_ns"], sent["size_bytes"] = first + np.arange(count), sent_ns, 1500
    return sent


def batch_frames(first: int, count: int, due_ns: int) -> np.ndarray:
    batch = frames.blank(frames.BATCH, count)
    batch["first_packet"], batch["now_ns"] = first + 8 * np.arange(count), 10**9
    batch["due_ns"] = due_ns
    batch["packets"]["size_bytes"], batch["packets"]["queue"] = 1500, 1
    return batch


def heard(sender: LiveSender) -> None:
    """Wait until the agent has taken all that was sent: it answers what came after it."""
    sender.send(batch_frames(8 * 10**9 + 8 * int(time.monotonic_ns() % 10**8), 1, 1))
    while (frame := sender.receive(time.monotonic_ns() + 60 * 10**9)) is not None:
        if frame["type"] == 5 and frame["first_packet"] >= 8 * 10**9:
            return
    raise AssertionError("the agent took what was sent, and answered nothing")


def test_memory_is_flat_while_a_senders_clock_stands_still(agent: tuple[AgentProgram, Path]) -> None:
    """2 (in full: 10) million packets of one instant, of which none is ever acknowledged."""
    program, path = agent
    process = psutil.Process(program.process.pid)
    step = 250_000
    with LiveSender(path, "frozen") as sender:
        held = 0
        for first in range(0, FROZEN_PACKETS, step):
            sender.send(sent_frames(first, step))
            if first == step:
                wait_until(lambda: program.metrics()["remembered_packets"] == MAX_REMEMBERED, "not all came")
                held = process.memory_info().rss
        gone = FROZEN_PACKETS - MAX_REMEMBERED
        wait_until(lambda: program.metrics()["overflowed_packets_total"] == gone, "not all are counted")
        assert program.metrics()["remembered_packets"] == MAX_REMEMBERED
        grown = process.memory_info().rss - held
        print(f"agent: {held:,} bytes, {grown:,} more after {FROZEN_PACKETS:,} packets of one instant")
        assert grown < 2 << 20
        program.complained("(frozen): more packets wait for an ACK than are remembered")
        assert sum("(frozen)" in line for line in program.complaints) == 1
    wait_until(lambda: program.metrics()["remembered_packets"] == 0, "who went is still remembered")


def test_all_senders_together_are_bounded_and_the_largest_pays(agent: tuple[AgentProgram, Path]) -> None:
    program, path = agent
    hostile = [LiveSender(path, f"hostile {i}") for i in range(9)]
    with LiveSender(path, "good", deadline_us=5_000_000) as good:
        good.until_decided()
        for sender in hostile:
            sender.send(sent_frames(0, MAX_REMEMBERED))
        together = 9 * MAX_REMEMBERED + 8

        def count() -> float:
            now = program.metrics()
            return now["remembered_packets"] + now["overflowed_packets_total"]

        wait_until(lambda: count() >= together, "not all came")
        assert ALL_REMEMBERED - 64 <= program.metrics()["remembered_packets"] <= ALL_REMEMBERED
        good.until_decided()
        assert not any("(good)" in line for line in program.complaints)
    for sender in hostile:
        sender.socket.close()


def flood(path: str, stop: object, due_s: float) -> None:
    """Send packets and batches, as fast as they are taken, and read no answer; for a child process."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(path)
        raw.sendall(frames.hello("flood").tobytes())
        first = 0
        while not stop.is_set():  # type: ignore[attr-defined]
            due_ns = time.monotonic_ns() + int(due_s * 1e9)
            batches = batch_frames(first, 500, due_ns).tobytes()
            first += 4_000
            raw.sendall(batches + sent_frames(first - 4_000, 4_000).tobytes())


@pytest.mark.parametrize("due_s", [5.0, 0.01])
def test_one_senders_flood_delays_no_other(
    make_artifact: Callable[..., Path], tmp_path: Path, due_s: float
) -> None:
    """An honest sender's answers come as early beside a flood, but for 10 ms, as before it in the same run.

    The flood wants many times what the engine can compute; its batches are due much later, or sooner, than
    the honest ones.
    """
    path = tmp_path / "agent.sock"
    context = multiprocessing.get_context("spawn")
    took_us = {}
    with (
        AgentProgram("--listen", path, "--local", make_artifact(1), "--metrics-port", 0) as program,
        LiveSender(path, "honest", deadline_us=100_000) as honest,
    ):
        for name in ("alone", "flooded"):
            stop = context.Event()
            flooding = None
            if name == "flooded":
                flooding = context.Process(target=flood, args=(str(path), stop, due_s))
                flooding.start()
                wait_until(lambda: program.metrics()["senders"] == 2, "the flood did not come")
                time.sleep(0.5)
            before = program.metrics()['batches_total{outcome="decided"}']
            honest.waits_us.clear()
            honest.outcomes.clear()
            for _ in range(100):
                honest.batch()
                time.sleep(0.002)
            took_us[name] = statistics.median(honest.waits_us)
            assert honest.outcomes.count("decided") >= 95, honest.outcomes
            decided = program.metrics()['batches_total{outcome="decided"}'] - before - 100
            if flooding is not None:
                assert decided > 100, "that was no flood"
                stop.set()
                flooding.terminate()
                flooding.join()
    print(f"honest: {took_us['alone']:.0f} us alone, {took_us['flooded']:.0f} us beside a flood")
    assert took_us["flooded"] < took_us["alone"] + 10_000


def test_the_socket_is_its_owners_alone_whatever_the_umask(
    make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    for umask in (0o000, 0o022, 0o777):
        path = tmp_path / f"{umask:o}.sock"
        before = os.umask(umask)
        try:
            with AgentProgram("--listen", path, "--local", make_artifact(1, layers=1)):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
        finally:
            os.umask(before)


def test_what_is_not_its_own_socket_stays(make_artifact: Callable[..., Path], open_folder: Path) -> None:
    local = ("--local", make_artifact(1, layers=1))
    path = open_folder / "agent.sock"

    def refused(line: str) -> None:
        before = path.lstat()
        command = [str(word) for word in (agent_process.BINARY, "--listen", path, *local)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert ran.returncode != 0
        assert line in ran.stderr
        assert os.path.samestat(path.lstat(), before)

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:  # of a program of another kind
        other.bind(str(path))
        refused("wrong type for socket")
    path.unlink()
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(path))
        busy.listen(0)
        first.connect(str(path))  # and nobody else has a place in its queue
        refused("another program listens there")
    if os.geteuid() == 0:
        os.chown(path, pwd.getpwnam("nobody").pw_uid, -1)
        refused("is no socket of this user")
        os.chown(path, 0, -1)
    with AgentProgram("--listen", path, *local) as program:  # a stale one of its own is replaced
        with LiveSender(path) as sender:
            sender.until_decided()
        path.unlink()
        path.write_text("of somebody else")
        program.process.terminate()
        program.process.wait(30)
        assert path.read_text() == "of somebody else"


def nobody() -> int:
    """Return the user `nobody`; skips where this one may not become another."""
    if os.geteuid() != 0:
        pytest.skip(f"runs as user {os.geteuid()}: only root can try it as another user")
    return pwd.getpwnam("nobody").pw_uid


def says_hello_as(user: int, path: Path) -> str:
    """What another user hears who connects and says HELLO, from a child process."""
    program = (
        "import os, socket, sys; os.setgroups([]); os.setgid(65534); os.setuid(int(sys.argv[1]))\n"
        "s = socket.socket(socket.AF_UNIX); s.settimeout(20)\n"
        "try:\n  s.connect(sys.argv[2]); s.sendall(sys.stdin.buffer.read())\n"
        "except OSError as error: print(type(error).__name__)\n"
        "try:\n  data = s.recv(200)\n  print(data[2:3], data[16:128].rstrip(bytes(1)).decode())\n"
        "except OSError as error: print(type(error).__name__)\n"
    )
    command = ["/usr/bin/python3", "-c", program, str(user), str(path)]
    said = subprocess.run(
        command, input=frames.hello("x").tobytes(), capture_output=True, check=False, cwd="/"
    )
    return said.stdout.decode() + said.stderr.decode()


@pytest.fixture
def open_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that any user may enter."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_another_user_is_refused(make_artifact: Callable[..., Path], open_folder: Path) -> None:
    user, path = nobody(), open_folder / "agent.sock"
    local = ("--local", make_artifact(1, layers=1))
    with AgentProgram("--listen", path, *local) as program:
        assert "PermissionError" in says_hello_as(user, path)
        path.chmod(0o666)  # as a careless operator may do
        said = says_hello_as(user, path)
        assert f"user {user} may not connect" in said
        program.complained(f"a connection refused: user {user} may not connect")
        with LiveSender(path) as own:
            own.until_decided()
    with AgentProgram("--listen", path, *local, "--allow-uid", user):
        assert "swiftqueue-agent" in says_hello_as(user, path).splitlines()[0] or "b'\\x01'" in says_hello_as(
            user, path
        )
        with LiveSender(path) as own:
            own.until_decided()


def test_root_is_said_to_be_needless(agent: tuple[AgentProgram, Path]) -> None:
    program, path = agent
    with LiveSender(path) as sender:
        sender.until_decided()
    assert len(program.warnings) == (1 if os.geteuid() == 0 else 0)


def test_connections_are_bounded_and_the_silent_go(agent: tuple[AgentProgram, Path]) -> None:
    program, path = agent
    with LiveSender(path, "good") as good:
        named = [LiveSender(path, f"named {number}") for number in range(MAX_SENDERS - 1)]
        with socket.socket(socket.AF_UNIX) as more:
            more.connect(
                str(path)
            )  # before the time-out: with one it would not wait for its place in the queue
            more.settimeout(60)
            assert b"256 senders are connected" in b"".join(iter(lambda: more.recv(200), b""))
        good.until_decided()
        for each in named:
            each.socket.close()
        wait_until(lambda: program.metrics()["senders"] == 1, "they stay")
        with crowd(path, MAX_SENDERS) as silent:
            silent[0].settimeout(60)
            why = silent[0].recv(200) + silent[0].recv(200)
            assert b"no HELLO frame came within 5 s" in why or b"its place was needed" in why
            wait_until(lambda: program.metrics()["refused_senders_total"] >= MAX_SENDERS, "they stay")
        with LiveSender(path, "later") as later:
            later.until_decided()
        assert len(program.complaints) <= 60  # 256 lines would fill the log


def test_flows_are_bounded(agent: tuple[AgentProgram, Path]) -> None:
    _, path = agent
    with LiveSender(path, "good") as good, LiveSender(path, "flows") as sender:
        for first in range(0, (1 << 20) + 1, 1 << 18):
            sent = sent_frames(first, (1 << 18) if first < 1 << 20 else 1)
            sent["flow_id"] = sent["packet"]
            sent["sent_ns"] = 10**9 + sent["packet"] * 100_000
            sender.send(sent)
        answer = sender.receive(time.monotonic_ns() + 60 * 10**9)
        assert b"more than 1048576 flows" in answer["line"]
        good.until_decided()


def test_receivers_are_bounded(make_artifact: Callable[..., Path], tmp_path: Path) -> None:
    """The least latency of each is remembered."""
    path, step = tmp_path / "agent.sock", 1 << 16
    with (
        AgentProgram("--listen", path, "--local", make_artifact(1)),
        LiveSender(path, "receivers") as sender,
    ):
        for first in range(0, (1 << 20) + 1, step):
            sent = sent_frames(first, step if first < 1 << 20 else 1, 10**9 + first)
            sent["receiver_id"] = sent["packet"]
            acked = frames.blank(frames.ACKED, len(sent))
            acked["packet"], acked["acked_ns"], acked["latency_us"] = sent["packet"], 10**9 + first, 1.0
            sender.send(sent, acked)
        answer = sender.receive(time.monotonic_ns() + 60 * 10**9)
        assert b"more than 1048576 receivers" in answer["line"]


def streams() -> list[bytes]:
    """Good streams of frames as a sender would send them."""
    out = []
    for batches, acked in ((1, 0), (3, 8), (6, 40)):
        parts = [frames.hello("mutant")]
        for number in range(batches):
            parts += [batch_frames(8 * number, 1, 0), sent_frames(8 * number, 8, 10**9 + number)]
            acks = frames.blank(frames.ACKED, min(acked, 8))
            acks["packet"], acks["acked_ns"], acks["latency_us"] = (
                8 * number + np.arange(len(acks)),
                2 * 10**9,
                5.0,
            )
            parts.append(acks)
        out.append(b"".join(part.tobytes() for part in parts))
    return out


def say(path: Path, data: bytes) -> bytes:
    """What the agent answers until it closes the connection."""
    answer = b""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(30)
        raw.connect(str(path))
        try:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            while more := raw.recv(1 << 16):
                answer += more
        except (ConnectionResetError, BrokenPipeError):
            pass
    return answer


def test_damaged_frames_end_only_their_own_connection(agent: tuple[AgentProgram, Path]) -> None:
    """Mutants of good streams at the real agent; a good sender is answered on."""
    program, path = agent
    good_streams = streams()
    for data in good_streams:
        assert b"SWQFRAME" in say(path, data)
    refused = 0
    with LiveSender(path, "good", deadline_us=1_000_000) as good:
        good.until_decided()
        for index in range(mutants.COUNT):
            answer = say(path, mutants.mutant(good_streams, 7, index))
            refused += len(answer) >= 128 and answer[-126] == 6  # the type of the last frame
            if index % 500 == 0:
                good.until_decided()
                assert program.process.poll() is None, f"the agent did not survive mutant {index} of seed 7"
        assert good.alive
    assert refused > mutants.COUNT // 10
    wait_until(lambda: program.metrics()["senders"] == 0, "senders that went are still counted")
    assert program.metrics()["remembered_packets"] == 0


MOST_CLIENTS = 64  # of http_page.h


def metrics_port(program: AgentProgram) -> int:
    return int(program.ready["metrics_port"])


@pytest.mark.parametrize("say", [IDLE, SLOW, DEAF], ids=["idle", "slow", "deaf"])
def test_slow_clients_keep_nobody_from_the_metrics(agent: tuple[AgentProgram, Path], say: bytes) -> None:
    program, _ = agent
    check_a_crowd_costs_only_its_places(
        program.process.pid, metrics_port(program), 300, say, MOST_CLIENTS, b"swiftqueue_agent_senders 0"
    )


@pytest.mark.long
@pytest.mark.parametrize("say", [IDLE, SLOW], ids=["idle", "slow"])
def test_ten_thousand_clients_of_the_metrics_cost_only_their_places(
    agent: tuple[AgentProgram, Path], say: bytes
) -> None:
    program, _ = agent
    check_a_crowd_costs_only_its_places(
        program.process.pid, metrics_port(program), MANY, say, MOST_CLIENTS, b"swiftqueue_agent_senders 0"
    )


def check_a_silent_crowd_delays_no_sender(agent: tuple[AgentProgram, Path], count: int, say: bytes) -> None:
    """Whoever says who it is gets a place, and whoever has one is answered."""
    program, path = agent
    process = psutil.Process(program.process.pid)
    with LiveSender(path, "before", deadline_us=5_000_000) as before:
        before.until_decided()
        files, held = process.num_fds(), process.memory_info().rss
        with crowd(path, count, say):
            before.until_decided()
            with LiveSender(path, "beside", deadline_us=5_000_000) as beside:
                beside.until_decided()
            wait_until(lambda: process.num_fds() <= files + MAX_SENDERS, "more are held than may connect")
            grown = process.memory_info().rss - held
            print(f"{count:,} silent connections: {grown:,} bytes more")
            assert grown < 48 << 20  # 256 places of 32 KiB, and what the allocator keeps of others
            before.until_decided()
        wait_until(lambda: process.num_fds() <= files, "connections that ended are held")


@pytest.mark.parametrize("say", [IDLE, frames.hello("slow").tobytes()[:20]], ids=["idle", "slow"])
def test_silent_connections_take_no_senders_place(agent: tuple[AgentProgram, Path], say: bytes) -> None:
    check_a_silent_crowd_delays_no_sender(agent, 2 * MAX_SENDERS, say)


@pytest.mark.long
@pytest.mark.parametrize("say", [IDLE, frames.hello("slow").tobytes()[:20]], ids=["idle", "slow"])
def test_ten_thousand_connections_cost_only_their_places(
    agent: tuple[AgentProgram, Path], say: bytes
) -> None:
    check_a_silent_crowd_delays_no_sender(agent, MANY, say)


def test_a_sender_without_a_name_is_refused(agent: tuple[AgentProgram, Path]) -> None:
    _, path = agent
    nameless = frames.blank(frames.HELLO)
    nameless["magic"] = frames.MAGIC
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(60)
        raw.connect(str(path))
        raw.sendall(nameless.tobytes())
        frame = np.frombuffer(raw.recv(128, socket.MSG_WAITALL), frames.REFUSED)[0]
    assert frame["type"] == 6
    assert b"its name is empty" in bytes(frame["line"])


def test_the_heartbeat_goes_on_whatever_its_clients_do_and_stops_with_the_agent(
    make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    heart = tmp_path / "agent.alive"
    arguments = ("--listen", tmp_path / "a.sock", "--local", make_artifact(1, layers=1))
    with AgentProgram(*arguments, "--metrics-port", 0, "--heartbeat", heart) as program:

        def beats(times: int) -> None:
            seen = set()
            wait_until(lambda: seen.add(heart.stat().st_mtime_ns) or len(seen) > times, "it is still")

        wait_until(heart.exists)
        assert stat.S_IMODE(heart.stat().st_mode) == 0o600
        with crowd(("127.0.0.1", metrics_port(program)), 200, SLOW):
            beats(3)
        heart.unlink()  # as whoever cleans the folder may do
        wait_until(heart.exists)
        psutil.Process(program.process.pid).suspend()
        wait_until(lambda: psutil.Process(program.process.pid).status() == psutil.STATUS_STOPPED)
        still = heart.stat().st_mtime_ns
        time.sleep(2.5)
        assert heart.stat().st_mtime_ns == still
        psutil.Process(program.process.pid).resume()
        beats(2)
