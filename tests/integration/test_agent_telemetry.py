"""What the agent tells of its senders, and to whom: addresses, readers that come and go, numbers."""

from __future__ import annotations

import contextlib
import resource
import socket
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from agent_program import AgentProgram, LiveSender, split_frames
from waiting import wait_until

from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.agent.io import frames

if (_why := agent_process.why_not_built()) is not None:
    pytest.skip(_why, allow_module_level=True)

HELLO, SENT, BYE = 1, 2, 7
EVENTS = (2, 3)


class Reader:
    """Listens like a forwarder, and keeps what one connection says."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self.data = bytearray()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._connected = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._connection, _ = self._listener.accept()
        self._connected.set()
        with contextlib.suppress(ConnectionError):
            while more := self._connection.recv(1000):  # ends inside frames
                self.data += more

    def frames(self) -> list[np.void]:
        return split_frames(bytes(self.data))

    def end(self) -> list[np.void]:
        """End in order, once somebody has connected: what was written before is read."""
        assert self._connected.wait(30), "nobody connected"
        self._listener.close()
        self._connection.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._connection.close()
        return self.frames()


@contextmanager
def agent_telling(folder: Path, artifact: Path) -> Iterator[tuple[AgentProgram, Path, Path]]:
    """A listening agent, where its senders connect, and the socket it tells."""
    listen, telemetry = folder / "agent.sock", folder / "telemetry.sock"
    arguments = (
        "--listen",
        listen,
        f"--telemetry=unix:{telemetry}",
        "--metrics-port",
        0,
        "--local",
        artifact,
    )
    with AgentProgram(*arguments) as agent:
        yield agent, listen, telemetry


def numbers(heard: list[np.void], sender: int) -> list[int]:
    return [int(f["sequence"]) for f in heard if f["type"] in EVENTS and f["sender"] == sender]


def test_a_socket_that_is_not_there_is_waited_for_and_never_made(
    make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    with agent_telling(tmp_path, make_artifact(1, layers=1)) as (agent, listen, telemetry):
        agent.complained(f"unix:{telemetry}: nobody listens there, telemetry waits")
        assert any(each.endswith("No such file or directory") for each in agent.complaints)
        with LiveSender(listen, deadline_us=1_000_000) as sender:
            sender.until_decided()
            assert not telemetry.exists()
            events = 8 * len(sender.outcomes)
            reader = Reader(telemetry)
            wait_until(lambda: len(numbers(reader.frames(), 1)) >= events, "what waited did not come")
        wait_until(lambda: reader.frames()[-1]["type"] == BYE, "no BYE")
        heard = reader.end()
        assert agent.end()["telemetry_dropped"] == 0
    assert [int(frame["type"]) for frame in heard].count(HELLO) == 1
    assert numbers(heard, 1) == list(range(len(heard) - 2))
    assert sum("nobody listens" in line for line in agent.complaints) == 1


@pytest.mark.parametrize(
    ("option", "address", "line"),
    [
        ("--telemetry", "SOCKET", "is a socket; its address is unix:"),
        ("--telemetry", "unix:", "a socket's path has 1 to 107 bytes"),
        ("--telemetry", "unix:/" + "x" * 107, "a socket's path has 1 to 107 bytes"),
        ("--telemetry", "FOLDER", "Is a directory"),
        ("--record", "unix:SOCKET", "a record is a file, not a socket"),
    ],
)
def test_an_address_that_cannot_be_is_one_line(
    make_artifact: Callable[..., Path], tmp_path: Path, option: str, address: str, line: str
) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "other.sock"))
        other.listen()
        named = address.replace("SOCKET", str(tmp_path / "other.sock")).replace("FOLDER", str(tmp_path))
        command = [agent_process.BINARY, "--local", make_artifact(1, layers=1), option, named]
        command += ["--synthetic-bps", "1e6", "--seconds", "0.1"]
        ended = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=30, check=False
        )
    assert ended.returncode == 1
    (said,) = (each for each in ended.stderr.splitlines() if "runs as root" not in each)
    assert line in said
    assert named in said


def test_telemetry_files_are_their_owners_alone(make_artifact: Callable[..., Path], tmp_path: Path) -> None:
    file = tmp_path / "telemetry"
    arguments = ("--synthetic-bps", "1e6", "--seconds", "0.1", "--telemetry", file, "--speed", 0)
    with AgentProgram(*arguments, "--local", make_artifact(1, layers=1)) as agent:
        agent.end(None)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_file_that_the_disk_cut_short_ends_with_a_whole_frame(
    make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    told, most = tmp_path / "told", 10_001
    options = ("--synthetic-bps=1e7", "--seconds=1", "--speed=0", f"--telemetry={told}")
    subprocess.run(
        [agent_process.BINARY, *options, "--local", make_artifact(1)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
        restore_signals=False,  # a write beyond it is an error
        check=True,
        capture_output=True,
    )
    data = told.read_bytes()
    assert most - 100 < len(data) == sum(int(frame["bytes"]) for frame in split_frames(data))


def test_a_new_reader_hears_who_is_there_and_all_that_happened(
    make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    """A sender that stayed while 1,100 came and went is known to each reader, and none misses an event."""
    with agent_telling(tmp_path, make_artifact(1, layers=1)) as (agent, listen, telemetry):
        reader = Reader(telemetry)
        with LiveSender(listen, "stays", deadline_us=1_000_000) as sender:
            sender.until_decided()
            for each in range(1100):
                LiveSender(listen, f"goes {each}").socket.close()
            wait_until(lambda: agent.metrics()["senders"] == 1, "not all have left")
            sender.until_decided()
            every_bye = lambda: sum(f["type"] == BYE for f in reader.frames()) == 1100  # noqa: E731
            wait_until(every_bye, "not all were heard of")
            heard = [reader.end()]
            for _ in range(3):
                for _ in range(20):  # told to nobody at first, then in one piece with what is new
                    sender.batch()
                reader = Reader(telemetry)
                wait_until(lambda to=reader: len(to.frames()) > 100, "nothing came")
                for _ in range(5):
                    sender.batch()
                heard.append(reader.end())
            reader = Reader(telemetry)
            sender.until_decided()
        wait_until(lambda: bool(reader.frames()) and reader.frames()[-1]["type"] == BYE, "no BYE")
        heard.append(reader.end())
        assert agent.end()["telemetry_dropped"] == 0
    together: list[int] = []
    for each in heard[1:]:
        hellos = [(f["name"], int(f["sequence"])) for f in each if f["type"] == HELLO]
        assert [name for name, _ in hellos] == [b"stays"]
        assert hellos[0][1] == numbers(each, 1)[0]  # it says which number comes next
    for each in heard:
        together += numbers(each, 1)
    assert together == list(range(len(together)))
    assert len(together) > 8 * len(sender.outcomes)
    assert heard[-1][-1]["sequence"] == len(together)


def test_who_came_or_left_while_there_was_no_room_is_heard_of(
    make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    """Nobody listens until the buffer, and what of it is kept for HELLO and BYE, is full."""
    with agent_telling(tmp_path, make_artifact(1, layers=1)) as (agent, listen, telemetry):
        left = LiveSender(listen, "leaves")
        with LiveSender(listen, "fills") as fills:
            sent = frames.blank(frames.SENT, 1000)
            sent["size_bytes"] = 1500
            while not agent.metrics()["telemetry_dropped_frames_total"]:
                sent["packet"], sent["sent_ns"] = fills.packet + np.arange(1000), fills.now_ns
                fills.packet, fills.now_ns = fills.packet + 1000, fills.now_ns + 10**6
                fills.send(sent)
            for each in range(1000):
                LiveSender(listen, f"goes {each}").socket.close()
            left.socket.close()
            wait_until(lambda: agent.metrics()["senders"] == 1, "not all have left")
            with LiveSender(listen, "comes", deadline_us=1_000_000) as comes:
                reader = Reader(telemetry)
                wait_until(lambda: comes.batch() and b"comes" in reader.data, "its HELLO is lost")
                comes.until_decided()
        wait_until(lambda: agent.metrics()["senders"] == 0, "not all have left")
        agent.end()
    came = reader.end()
    there: set[int] = set()
    for frame in came:
        if frame["type"] == HELLO:
            there.add(int(frame["sender"]))
            last = int(frame["sender"])
        else:
            assert int(frame["sender"]) in there  # nothing is of nobody
        if frame["type"] == BYE:
            there.remove(int(frame["sender"]))
    assert not there  # all that were heard of have left
    assert numbers(came, last)


def test_a_reader_that_hangs_up_again_and_again_is_not_a_line_each(
    make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    with agent_telling(tmp_path, make_artifact(1, layers=1)) as (agent, listen, telemetry):
        with socket.socket(socket.AF_UNIX) as listener, LiveSender(listen) as sender:
            listener.bind(str(telemetry))
            listener.listen()
            listener.setblocking(False)
            refused = 0
            while refused < 6:
                sender.batch()
                with contextlib.suppress(BlockingIOError):
                    listener.accept()[0].close()
                    refused += 1
        agent.end()
    assert sum("unix:" in each for each in agent.complaints) == 1


@pytest.mark.parametrize("listens", [True, False])
def test_what_waits_at_the_end_is_told_or_counted_as_lost(
    make_artifact: Callable[..., Path], tmp_path: Path, listens: bool
) -> None:
    """Who begins to listen just before the end hears all of it; without anybody it is not passed over."""
    with agent_telling(tmp_path, make_artifact(1, layers=1)) as (agent, listen, telemetry):
        with LiveSender(listen, deadline_us=1_000_000) as sender:
            sender.until_decided()
            events = 8 * len(sender.outcomes)
        wait_until(lambda: agent.metrics()["senders"] == 0, "it has not left")
        agent.complained("nobody listens there")
        reader = Reader(telemetry) if listens else None
        lost = agent.end()["telemetry_dropped"]
    if reader is None:
        assert lost >= events
        return
    assert lost == 0
    assert len(numbers(reader.end(), 1)) >= events


def test_senders_have_numbers_of_their_own(make_artifact: Callable[..., Path], tmp_path: Path) -> None:
    with agent_telling(tmp_path, make_artifact(1, layers=1)) as (agent, listen, telemetry):
        reader = Reader(telemetry)
        with LiveSender(listen, "a") as one, LiveSender(listen, "b") as two:
            for _ in range(10):
                one.batch()
                two.batch()
                two.batch()
        wait_until(lambda: agent.metrics()["senders"] == 0, "not all have left")
        agent.end()
        heard = reader.end()
    for sender in (1, 2):
        mine = [frame for frame in heard if frame["sender"] == sender]
        assert [int(mine[0]["type"]), int(mine[-1]["type"])] == [HELLO, BYE]
        assert numbers(heard, sender) == list(range(len(mine) - 2))
        assert mine[-1]["sequence"] == len(mine) - 2
