"""The forwarder between agents' frames and the ingest: who may come, who is who, and what is counted."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import socket
import ssl
import stat
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import mutants
import numpy as np
import pytest
from self_signed import self_signed
from strangers import PYTHON
from waiting import wait_until

from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.feature_store.telemetry.events import (
    ACK,
    EVENT,
    MAX_SPAN_NS,
    MINUTE_NS,
    SEND,
    SEND_COLUMNS,
    SENDER_NAME,
    UNKNOWN_US,
    BatchKey,
    Events,
    checked,
    encode,
)
from swiftqueue.serving.agent.io import frames
from swiftqueue.serving.ingest import own_socket
from swiftqueue.serving.ingest.client import IngestClient
from swiftqueue.serving.ingest.forwarder import (
    MOST_NAMED,
    Forwarder,
    ForwarderCounts,
    FrameError,
    SenderClients,
    _AgentConnections,
    forward,
    sender_id,
)

WAIT_S = 20.0


class Stored:
    """A client that keeps what it is given, as the ingest would of a session."""

    def __init__(self, store: Store, sender: str, events_before: int, after: threading.Event | None) -> None:
        self.store, self.sender, self.events_before, self.after = store, sender, events_before, after
        self.packets: list[int] = []
        self.kinds: list[int] = []
        self.events: list[Events] = []
        self.shipped = "kept"
        self.closed = threading.Event()

    def send(self, events: Events) -> None:
        if self.store.is_checking:
            checked(encode(BatchKey(self.sender, 1, 0), events))
        self.packets += events["packet"].tolist()
        self.kinds += events["kind"].tolist()
        self.events.append(events)

    def close(self) -> None:
        assert self.store.may_close.wait(WAIT_S)
        self.closed.set()


class Store:
    """All clients of a test, in the order they were made."""

    def __init__(self, *, is_checking: bool = True) -> None:
        self.is_checking = is_checking  # what it is given, as the ingest does
        self.clients: list[Stored] = []
        self.may_close = threading.Event()
        self.may_close.set()

    def senders(self, most: int = 8) -> SenderClients:
        return SenderClients(lambda *of: self._connect(*of), ForwarderCounts(), most)  # type: ignore[arg-type,return-value]

    def _connect(self, *of: Any) -> Stored:
        self.clients.append(Stored(self, *of))
        return self.clients[-1]

    def of(self, sender: str) -> list[Stored]:
        return [client for client in self.clients if client.sender == sender]


def hello(number: int, name: str, following: int = 0) -> bytes:
    frame = frames.hello(name)
    frame["sender"], frame["sequence"] = number, following
    return frame.tobytes()


def bye(number: int, following: int) -> bytes:
    frame = frames.blank(frames.BYE)
    frame["sender"], frame["sequence"] = number, following
    return frame.tobytes()


def sent(number: int, first: int, count: int, step_ns: int = 1_000_000) -> bytes:
    """SENT frames of a sender whose packets have the numbers of its events."""
    frame = frames.blank(frames.SENT, count)
    frame["sender"], frame["sequence"] = number, np.arange(first, first + count)
    frame["packet"] = frame["sequence"]
    frame["sent_ns"], frame["size_bytes"] = step_ns * frame["packet"], 1500
    return frame.tobytes()


def acked(number: int, event: int, packet: int, latency_us: float = 500) -> bytes:
    frame = frames.blank(frames.ACKED)
    frame["sender"], frame["sequence"], frame["packet"] = number, event, packet
    frame["acked_ns"], frame["latency_us"] = 1_000_000 * event, latency_us
    return frame.tobytes()


# Frames and those who say them.


def test_a_bye_ends_the_senders_client_and_its_thread() -> None:
    store = Store()
    senders = store.senders()
    forwarder = Forwarder(senders)
    forwarder.take(hello(1, "a") + sent(1, 0, 5) + acked(1, 5, 0) + hello(2, "b") + sent(2, 0, 3))
    forwarder.ship()
    forwarder.take(sent(1, 6, 2) + bye(1, 8))
    (a,), (b,) = store.of("a"), store.of("b")
    assert a.closed.wait(WAIT_S)
    assert not b.closed.is_set()
    assert a.packets == [0, 1, 2, 3, 4, 0, 6, 7]
    assert a.kinds.count(ACK) == 1
    forwarder.close()
    senders.close()
    assert b.closed.is_set()
    assert senders.counts.lost == senders.counts.of_nobody == 0


def test_what_never_came_is_counted_by_sender() -> None:
    store = Store()
    forwarder = Forwarder(senders := store.senders())
    forwarder.take(hello(1, "a", 40) + hello(2, "b"))
    forwarder.take(sent(1, 43, 2) + sent(2, 0, 1) + sent(1, 50, 1) + sent(2, 1, 1))  # 40..42, 45..49 lost
    forwarder.take(bye(1, 53) + bye(2, 2))  # and 51 and 52
    assert senders.counts.lost == 3 + 5 + 2
    assert [(client.sender, client.events_before) for client in store.clients] == [("a", 43), ("b", 0)]


@pytest.mark.parametrize("step_ns", [MINUTE_NS // 7, MAX_SPAN_NS + 1])
def test_what_waited_for_long_goes_in_batches_that_the_ingest_takes(step_ns: int) -> None:
    """Minutes of a slow sender while nobody listened; and a clock that was set forward."""
    store = Store()
    forwarder = Forwarder(senders := store.senders())
    forwarder.take(hello(1, "a") + sent(1, 0, 100, step_ns))
    forwarder.ship()
    assert store.clients[0].packets == list(range(100))
    assert (senders.counts.events, senders.counts.of_nobody) == (100, 0)


def test_names_that_look_alike_at_the_ingest_are_two_senders() -> None:
    store = Store()
    forwarder = Forwarder(store.senders())
    for number, name in enumerate(("a b", "a/b", "a_b", ".a_b"), 1):
        forwarder.take(hello(number, name) + sent(number, 0, number))
    forwarder.ship()
    assert len({client.sender for client in store.clients}) == 4
    assert sorted(len(client.packets) for client in store.clients) == [1, 2, 3, 4]
    assert store.of("a_b")[0].packets == [0, 1, 2]  # what needs no change is none
    assert sender_id("a b") == store.clients[0].sender  # and each is the same at its next visit
    for name in ("", ".", "x" * 55, "ü" * 60, "a" * 65):
        assert SENDER_NAME.fullmatch(sender_id(name)), name


def test_a_second_sender_of_one_name_waits_and_does_not_end_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store()
    senders = store.senders()
    one, two = Forwarder(senders), Forwarder(senders)  # of two agents
    one.take(hello(1, "a") + sent(1, 0, 2))
    one.ship()
    with caplog.at_level(logging.WARNING):
        for first in (0, 2):
            two.take((hello(1, "a") if not first else b"") + sent(1, first, 2))
            two.ship()
    assert senders.counts.refused_senders == 1
    assert senders.counts.of_nobody == 4
    (line,) = [record.getMessage() for record in caplog.records]
    assert "sender a is not forwarded: one of that name is there" in line
    one.take(sent(1, 2, 1) + bye(1, 3))
    assert store.clients[0].closed.wait(WAIT_S)
    two.take(sent(1, 4, 2))
    two.ship()
    assert [(client.events_before, client.packets) for client in store.clients] == [
        (0, [0, 1, 2]),
        (0, [4, 5]),  # of another connection: what it lost at its beginning is not the first one's loss
    ]


def test_what_a_frame_says_of_its_packet_is_what_the_ingest_gets() -> None:
    dice, store = np.random.default_rng(1), Store()
    frame = np.frombuffer(sent(1, 0, 64), frames.SENT).copy()
    for name, most in (("size_bytes", 1500), ("flow_id", 9), ("receiver_id", 9), ("queue", 1), ("ecn", 3)):
        frame[name] = dice.integers(1 if name == "size_bytes" else 0, most + 1, len(frame))
    frame["retransmitted"] = dice.integers(0, 2, len(frame))
    forwarder = Forwarder(store.senders())
    forwarder.take(hello(1, "a") + frame.tobytes() + acked(1, 64, 3, 1000) + acked(1, 65, 4, math.nan))
    forwarder.ship()
    (events,) = store.clients[0].events
    sends, acks = events[events["kind"] == SEND], events[events["kind"] == ACK]
    for name in ("packet", *SEND_COLUMNS):
        assert sends[name].tolist() == frame[name].tolist(), name
        assert name == "packet" or not acks[name].any()
    assert sends["time_ns"].tolist() == frame["sent_ns"].tolist()
    assert not sends["latency_us"].any()
    assert (acks["packet"].tolist(), acks["latency_us"].tolist()) == ([3, 4], [1000.0, UNKNOWN_US])


def test_senders_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    senders = store.senders(most=3)
    forwarder = Forwarder(senders)
    with caplog.at_level(logging.WARNING):
        for number in range(1, 21):
            forwarder.take(hello(number, f"s{number}") + sent(number, 0, 1))
        forwarder.ship()
    assert len(store.clients) == 3
    assert (senders.counts.refused_senders, senders.counts.of_nobody) == (17, 17)
    assert len(caplog.records) == 1  # not a line each
    assert "3 are there already (--most-senders)" in caplog.text
    store.may_close.clear()
    forwarder.take(bye(1, 1) + sent(20, 1, 1))
    forwarder.ship()
    assert len(store.clients) == 3  # one that still ships its last counts too
    store.may_close.set()
    assert store.clients[0].closed.wait(WAIT_S)
    wait_until(lambda: all(end.is_set() for end in senders._ends))
    forwarder.take(sent(20, 2, 1))
    forwarder.ship()
    assert (store.clients[3].sender, store.clients[3].events_before) == ("s20", 0)


def test_a_sender_that_comes_again_waits_for_its_last_session() -> None:
    """Opened at once, its session would end the one before it, which has batches to ship."""
    store = Store()
    store.may_close.clear()
    forwarder = Forwarder(store.senders())
    forwarder.take(hello(1, "a") + sent(1, 0, 1) + bye(1, 1) + hello(2, "a") + sent(2, 0, 1))
    forwarder.ship()
    first, second = store.clients
    assert first.after is None
    assert second.after is not None
    assert not second.after.is_set()
    store.may_close.set()
    assert second.after.wait(WAIT_S)


def test_a_client_says_nothing_before_the_one_before_it_has_ended() -> None:
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as ingest:
        ingest.settimeout(0.3)
        client = IngestClient(f"http://127.0.0.1:{ingest.getsockname()[1]}", "a", after=ended)
        client.send(np.zeros(1, EVENT))
        with pytest.raises(TimeoutError):
            ingest.accept()
        ended.set()
        ingest.settimeout(WAIT_S)
        connection, _ = ingest.accept()
        with connection:
            assert connection.recv(100).startswith(b"POST /v1/senders/a/sessions")
        client.close(0)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"\x07\x00" + bytes(14), "a frame of 7 bytes"),
        (hello(1, "a").replace(b"SWQF", b"SWQX"), "magic"),
        (hello(1, "a").replace(b"a\0", b"\x01\0"), "printable"),
        (hello(1, "a")[:24] + b"x" * 56, "does not end"),
        (hello(1, "a") + hello(1, "b"), "that is there"),
        (hello(1, "a") + sent(1, 4, 1) + sent(1, 4, 1), "order"),
        (hello(1, "a", 9) + sent(1, 4, 1), "order"),
        (hello(1, "a", 2**63), "number cannot be"),
        (b"".join(hello(n, f"s{n}") for n in range(MOST_NAMED + 1)), f"more than {MOST_NAMED}"),
    ],
)
def test_what_is_no_telemetry_is_refused_in_one_line(data: bytes, line: str) -> None:
    with pytest.raises(FrameError, match=line) as caught:
        Forwarder(Store().senders()).take(data)
    assert "\n" not in str(caught.value)


def good_streams() -> list[bytes]:
    """Frames as an agent writes them: of one sender, of several, said again, and with gaps."""
    two = hello(1, "a") + hello(2, "b c") + sent(1, 0, 2) + sent(2, 0, 1) + acked(1, 2, 0) + sent(2, 1, 1)
    return [
        two + bye(1, 3) + hello(3, "a") + sent(3, 0, 1) + bye(2, 2) + bye(3, 1),
        hello(5, "long-lived", 1000) + sent(5, 1010, 2) + acked(5, 1020, 1),
        hello(1, "x" * 55) + bye(1, 0),
    ]


_mutants_store = Store(is_checking=False)
_mutants_senders = _mutants_store.senders()
_said_s = dict.fromkeys(vars(ForwarderCounts()), math.inf)  # nothing


def take_mutant(data: bytes) -> None:
    """Take a damaged stream whole, and in pieces of any size: both must come to the same."""
    dice = random.Random(zlib.crc32(data))
    pieces, at = [], 0
    while at < len(data):
        pieces.append(data[at : at + dice.randrange(1, 200)])
        at += len(pieces[-1])
    came = []
    for parts in ([data], pieces):
        senders = _mutants_senders
        senders.counts = ForwarderCounts(said_s=_said_s)
        _mutants_store.clients.clear()
        forwarder, refused = Forwarder(senders), ""
        try:
            for part in parts:
                forwarder.take(part)
        except FrameError as error:
            refused = str(error)
        forwarder.close()
        counts = senders.counts
        if not refused:
            came.append(
                [(c.sender, c.events_before, c.packets, c.kinds) for c in _mutants_store.clients]
                + [counts.events, counts.lost, counts.of_nobody]
            )
        else:
            came.append(refused)
        assert all(end.wait(WAIT_S) for end in list(senders._ends))
    if isinstance(came[0], str) != isinstance(came[1], str) or (
        not isinstance(came[0], str) and came[0] != came[1]
    ):
        raise AssertionError(f"whole: {came[0]}\nin pieces: {came[1]}")
    if isinstance(came[0], str):
        raise FrameError(came[0])


@pytest.mark.long
@pytest.mark.slow
def test_damaged_streams_are_taken_or_refused() -> None:
    for good in good_streams():
        take_mutant(good)
    taken, refused = mutants.survive("tests.unit.test_forwarder:take_mutant", good_streams())
    assert taken > 0.02 * mutants.COUNT
    assert refused > 0.2 * mutants.COUNT


# Its socket.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_socket_is_its_owners_alone_whatever_the_umask(folder: Path, umask: int) -> None:
    path = folder / "made" / "t.sock"
    before = os.umask(umask)
    try:
        with own_socket.listening(path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            assert os.umask(umask) == umask  # it is as it was
    finally:
        os.umask(before)
    assert not path.exists()


@pytest.mark.parametrize("kind", ["file", "folder", "link", "live", "full"])
def test_what_is_not_its_stale_socket_stays(folder: Path, kind: str) -> None:
    path, elsewhere = folder / "t.sock", folder / "elsewhere"
    elsewhere.write_text("kept")
    others: list[socket.socket] = []
    if kind == "file":
        path.write_text("kept")
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(elsewhere)
    else:
        others.append(listen(path))
    if kind == "full":  # nobody accepts: a probe cannot connect either
        others[0].listen(0)
        for _ in range(3):
            waiting = socket.socket(socket.AF_UNIX)
            waiting.setblocking(False)
            waiting.connect_ex(str(path))
            others.append(waiting)
    before = path.lstat()
    with pytest.raises(OSError, match=str(path)), own_socket.listening(path):
        pass
    assert os.path.samestat(path.lstat(), before)
    assert elsewhere.read_text() == "kept"
    for each in others:
        each.close()


def test_a_stale_socket_is_replaced_and_anothers_is_left_at_the_end(folder: Path) -> None:
    path = folder / "t.sock"
    listen(path).close()  # of one that was killed
    with own_socket.listening(path):
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(str(path))
        path.unlink()
        other = listen(path)
    assert path.is_socket()  # not ours any more
    other.close()


def test_of_two_that_start_at_once_one_listens(folder: Path) -> None:
    path, came, go = folder / "t.sock", [], threading.Event()
    listen(path).close()

    def start() -> None:
        assert go.wait(WAIT_S)
        try:
            with own_socket.listening(path):
                came.append("listens")
                wait_until(lambda: len(came) == 6)
        except OSError as error:
            came.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    assert came.count("listens") == 1
    assert came.count(f"{path}: another program listens there") == 5


def test_a_folder_that_others_may_enter_is_no_place_for_it(folder: Path) -> None:
    (folder / "open").mkdir()
    (folder / "open").chmod(0o755)
    with pytest.raises(OSError, match="mkdir -m 700"), own_socket.listening(folder / "open" / "t.sock"):
        pass
    assert stat.S_IMODE((folder / "open").stat().st_mode) == 0o755  # it is not ours to change
    assert list((folder / "open").iterdir()) == []


@contextmanager
def forwarding(folder: Path) -> Iterator[tuple[Path, Store, SenderClients]]:
    """A forwarder at its socket, in a thread."""
    store, ended = Store(), threading.Event()
    path, senders = folder / "t.sock", store.senders()
    thread = threading.Thread(target=forward, args=(path, senders, ended))
    thread.start()
    try:
        wait_until(path.is_socket)
        yield path, store, senders
    finally:
        ended.set()
        thread.join()
    assert list(folder.iterdir()) == []


@pytest.fixture
def running(folder: Path) -> Iterator[tuple[Path, Store, SenderClients]]:
    with forwarding(folder) as found:
        yield found


def connect(path: Path) -> socket.socket:
    agent = socket.socket(socket.AF_UNIX)
    wait_until(lambda: agent.connect_ex(str(path)) == 0)
    return agent


def test_several_agents_are_forwarded_at_once(running: tuple[Path, Store, SenderClients]) -> None:
    path, store, _ = running
    with connect(path) as one, connect(path) as two:
        for count in range(2):
            one.sendall((b"" if count else hello(1, "a")) + sent(1, count, 1))
            two.sendall((b"" if count else hello(1, "b")) + sent(1, count, 1))
            wait_until(lambda came=count + 1: [len(each.packets) for each in store.clients] == [came] * 2)
        assert {client.sender for client in store.clients} == {"a", "b"}
    wait_until(lambda: all(client.closed.is_set() for client in store.clients))  # the agents are gone


def test_a_bad_stream_ends_its_connection_and_no_other(running: tuple[Path, Store, SenderClients]) -> None:
    path, store, senders = running
    with connect(path) as good, connect(path) as bad:
        good.sendall(hello(1, "good") + sent(1, 0, 1))
        bad.sendall(hello(1, "bad") + sent(1, 0, 1) + b"\xff" * 100)
        assert bad.recv(1) == b""
        wait_until(lambda: len(store.of("bad")) == 1 and store.of("bad")[0].closed.is_set())
        good.sendall(sent(1, 1, 1))
        wait_until(lambda: bool(store.of("good")) and store.of("good")[0].packets == [0, 1])
    assert senders.counts.bad_streams == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_agent_is_refused() -> None:
    """Even where somebody opened the socket and its folder."""
    with tempfile.TemporaryDirectory() as made, forwarding(Path(made)) as (path, store, senders):
        path.chmod(0o666)
        path.parent.chmod(0o701)
        try:
            program = "import socket,sys;s=socket.socket(1);s.connect(sys.argv[1]);print(s.recv(1))"
            nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            command = [*nobody, PYTHON, "-c", program, str(path)]
            answer = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
        finally:
            path.parent.chmod(0o700)
        assert answer.stdout.strip() == "b''", answer.stderr
        assert senders.counts.refused_agents == 1
        assert not store.clients


def test_what_agents_wrote_before_the_end_is_forwarded(folder: Path) -> None:
    store, ended = Store(), threading.Event()
    path = folder / "t.sock"
    thread = threading.Thread(target=forward, args=(path, store.senders(), ended))
    thread.start()
    with connect(path) as agent:
        agent.sendall(hello(1, "a") + sent(1, 0, 1))
        wait_until(lambda: bool(store.clients))
        ended.set()
        agent.settimeout(WAIT_S)
        written = 1
        try:
            while True:
                agent.sendall(sent(1, written, 1))
                written += 1
        except (BrokenPipeError, ConnectionResetError):
            pass
    thread.join()
    (client,) = store.clients
    assert client.packets == list(range(written))


def test_who_connected_just_before_the_end_is_heard(folder: Path) -> None:
    store, ended = Store(), threading.Event()
    path = folder / "t.sock"
    senders = store.senders()
    with own_socket.listening(path) as listener, connect(path) as agent:
        agent.sendall(hello(1, "a") + sent(1, 0, 3) + bye(1, 3))
        ended.set()
        _AgentConnections(senders).serve(listener, lambda: None, ended)
        late = socket.socket(socket.AF_UNIX)
        with late, pytest.raises(ConnectionRefusedError):
            late.connect(str(path))
    senders.close()
    assert [client.packets for client in store.clients] == [[0, 1, 2]]


def test_the_heartbeat_has_the_counts(running: tuple[Path, Store, SenderClients]) -> None:
    path, store, _ = running
    heart = path.with_name(f"{path.name}.alive")
    with connect(path) as agent:
        agent.sendall(hello(1, "a") + sent(1, 3, 2))
        wait_until(lambda: bool(store.clients))
        wait_until(lambda: json.loads(heart.read_text())["events"] == 2)
    said = json.loads(heart.read_text())
    assert (said["lost"], said["refused_senders"]) == (3, 0)


# The program.


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_token_of_a_file_goes_to_the_ingest_and_nowhere_else(folder: Path, scheme: str) -> None:
    """The program beside an ingest that notes what it is told."""
    token, heard = "a-token-of-a-sender-0123", []
    (folder / "token").write_text(f"{token}\n")
    (folder / "token").chmod(0o600)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((self.path, self.headers["Authorization"], body))
            sequence = {} if b"events_before" in body else {"sequence": 0, "duplicate": False}
            content = json.dumps({"session": 1} | sequence).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    certificate, key = self_signed(folder)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        if scheme == "https":
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certificate, key)
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        path, url = folder / "t.sock", f"{scheme}://127.0.0.1:{server.server_port}"
        program = [SWIFTQUEUE, "part", "forwarder", path, url, f"--ca={certificate}"]
        forwarder = subprocess.Popen(
            [*map(str, program), f"--token-file={folder / 'token'}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            wait_until(path.is_socket)
            with connect(path) as agent:
                agent.sendall(hello(1, "a", 5) + sent(1, 5, 1))
                wait_until(lambda: len(heard) == 2)
            assert token not in Path(f"/proc/{forwarder.pid}/cmdline").read_text()
        finally:
            forwarder.terminate()
            said, _ = forwarder.communicate(timeout=WAIT_S)
            server.shutdown()
            thread.join()
    assert token not in said
    assert forwarder.returncode == 0, said
    assert {authorization for _, authorization, _ in heard} == {f"Bearer {token}"}
    assert heard[0][0] == "/v1/senders/a/sessions"
    assert json.loads(heard[0][2]) == {"events_before": 5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["http://127.0.0.1:1x"], "Port could not be cast"),
        (["http://user:secret@127.0.0.1:1"], "http://HOST:PORT"),
        (["ftp://user:secret@127.0.0.1"], "http://HOST:PORT"),
        (["https://127.0.0.1:1", "--ca=missing.pem"], "No such file"),
        (["http://127.0.0.1:1", "--token-file=missing"], "missing"),
        (["http://127.0.0.1:1", "--most-senders=0"], "--most-senders"),
    ],
)
def test_options_that_cannot_be_are_one_line(folder: Path, options: list[str], line: str) -> None:
    command = [SWIFTQUEUE, "part", "forwarder", str(folder / "t.sock"), *options]
    environment = os.environ | {"SWIFTQUEUE_STATE": str(folder / "state")}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert ended.returncode == 1
    (said,) = ended.stderr.splitlines()
    assert line in said
    assert "user" not in said
    assert not (folder / "t.sock").exists()
