"""`swiftqueue part forwarder`: forwards telemetry from the agents' socket to the ingest.

It listens on the unix socket; agents (`--telemetry unix:SOCKET`, docs/AGENT.md) connect and write frames.
Each sender that they name becomes a sender of the ingest, with a session of its own for each visit.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import re
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

from swiftqueue.common.heartbeat import Heartbeat
from swiftqueue.common.say import say
from swiftqueue.common.settings import settings
from swiftqueue.common.state import secret
from swiftqueue.feature_store.telemetry.events import (
    ACK,
    EVENT,
    MAX_EVENTS,
    MAX_NUMBER,
    MINUTE_NS,
    SEND,
    SEND_COLUMNS,
    UNKNOWN_US,
)
from swiftqueue.serving.agent.io import frames
from swiftqueue.serving.ingest.client import IngestClient, SenderRefusedError, read_token
from swiftqueue.serving.ingest.own_socket import listening, stranger
from swiftqueue.serving.ingest.senders import INSTALLATION

BATCH_S: Final = 0.25  # seconds that events wait for company: a request costs the ingest some milliseconds
COMPLAINT_S: Final = 10.0  # seconds between two lines about the same fault
LAST_READ_S: Final = 1.0  # seconds to read what agents had written when the end came
MOST_SENDERS: Final = 64  # most senders at once: each has a thread; an agent takes 256
MOST_NAMED: Final = 4096  # most senders that one connection may name at once
MOST_AGENTS: Final = 16
CLOSERS: Final = 16  # threads that end clients: each waits some seconds where the ingest is away
READ_BYTES: Final = 1 << 18
SOON_EVENTS: Final = MAX_EVENTS - READ_BYTES // frames.ACKED.itemsize  # one more read might be too many
HELLO, BYE = 1, 7
SIZES: Final = {frames.TYPES[number].itemsize: number for number in (HELLO, 2, 3, BYE)}  # and SENT, ACKED
TYPE_OF: Final = np.array([SIZES.get(size, 0) for size in range(max(SIZES) + 1)], np.uint8)
NUMBERED: Final = np.dtype([("sender", "<u4"), ("number", "<u8"), ("event", EVENT)])  # numbered by the agent
_log = logging.getLogger(__name__)


class FrameError(ValueError):
    """The bytes are no frames of telemetry; their connection is closed."""


@dataclass
class ForwarderCounts:
    """The forwarder's counts, which stand in `SOCKET.alive` as JSON."""

    events: int = 0  # given to the senders' clients
    lost: int = 0  # numbered by their agent, but never received
    of_nobody: int = 0  # events of senders that nobody had named, or that were refused
    refused_senders: int = 0
    refused_agents: int = 0
    bad_streams: int = 0
    said_s: dict[str, float] = field(default_factory=dict, repr=False)

    def as_said(self) -> dict[str, int]:
        """Return the counts alone."""
        return {name: value for name, value in asdict(self).items() if name != "said_s"}

    def complain(self, about: str, line: str) -> None:
        """Count a fault, and log it unless that was done a moment ago."""
        count = getattr(self, about) + 1
        setattr(self, about, count)
        if time.monotonic() - self.said_s.get(about, -COMPLAINT_S) >= COMPLAINT_S:
            self.said_s[about] = time.monotonic()
            _log.warning("%s (%s: %d so far)", line, about, count)


@dataclass(eq=False)
class NamedSender:
    """A sender that an agent named."""

    id: str  # id at the ingest
    began_before: bool  # its HELLO said that another forwarder had events of this connection
    taken: int  # its agent's number of the next event
    client: IngestClient | None = None  # made for its first event
    refused: bool = False


# Makes a client for a sender id, the number of its connection's earlier events, and an event to wait for.
Connect = Callable[[str, int, threading.Event | None], IngestClient]


class SenderClients:
    """The clients of all agents' senders: one for each id, and at most so many."""

    def __init__(self, connect: Connect, counts: ForwarderCounts, most: int = MOST_SENDERS) -> None:
        if most < 1:
            raise ValueError(f"--most-senders {most}: must be at least 1")
        self.counts = counts
        self._connect, self._most = connect, most
        self._there: dict[str, NamedSender] = {}
        self._ends: dict[threading.Event, str] = {}  # the ends of clients that ship their last batches
        self._closers = ThreadPoolExecutor(CLOSERS, "forwarder-closer")

    def client(self, sender: NamedSender, number: int) -> IngestClient | None:
        """Return the sender's client, made for its event `number`; None while there is no place for it."""
        if sender.client is not None:
            return sender.client
        self._ends = {end: name for end, name in self._ends.items() if not end.is_set()}
        why = ""
        if sender.id in self._there:
            why = "one of that name is there; give each its own"
        elif len(self._there) + len(self._ends) >= self._most:
            why = f"{self._most} are there already (--most-senders)"
        if why:
            if not sender.refused:
                sender.refused = True
                self.counts.complain("refused_senders", f"sender {sender.id} is not forwarded: {why}")
            return None
        # Its session would end the one before it, which may have batches to ship.
        before = [end for end, name in self._ends.items() if name == sender.id]
        events_before = number if sender.began_before else 0
        sender.client = self._connect(sender.id, events_before, before[-1] if before else None)
        self._there[sender.id] = sender
        return sender.client

    def leave(self, sender: NamedSender) -> None:
        """Let the sender's client ship what it has, and end."""
        if sender.client is None:
            return
        del self._there[sender.id]
        end = threading.Event()
        self._ends[end] = sender.id
        self._closers.submit(_end, sender.client, end)

    def close(self) -> None:
        """Wait until the clients that were left have ended."""
        self._closers.shutdown()

    def __len__(self) -> int:
        return len(self._there)


def _end(client: IngestClient, end: threading.Event) -> None:
    try:
        client.close()
        say(f"forwarder: sender {client.sender}: {client.shipped}")
    except Exception:
        _log.exception("sender %s", client.sender)
    finally:
        end.set()


class Forwarder:
    """Turns one connection's frames into batches and gives them to the senders' clients."""

    def __init__(self, senders: SenderClients) -> None:
        self._senders = senders
        self._counts = senders.counts
        self._rest = b""  # bytes of an incomplete frame
        self._named: dict[int, NamedSender] = {}  # senders by the agent's number
        self._events: list[NDArray[Any]] = []  # arrays of NUMBERED, in the order they came
        self._oldest_s = 0.0

    def take(self, data: bytes) -> None:
        """Take bytes that were read from the socket; frames before a bad one are taken, too.

        Raises:
            FrameError: a frame is none of telemetry.
        """
        data = self._rest + data
        start_N, rest, bad_size = frames.split(data, SIZES)
        self._rest = data[rest:]
        if len(start_N):
            self._take_frames(np.frombuffer(data, np.uint8), start_N)
        if bad_size is not None:
            raise FrameError(f"a frame of {bad_size} bytes is none of telemetry (docs/AGENT.md)")
        if sum(map(len, self._events)) > SOON_EVENTS:
            self.ship()

    def _take_frames(self, raw: NDArray[np.uint8], start_N: NDArray[np.int64]) -> None:
        headers = frames.records(raw, start_N, frames.HEADER)
        is_bad = (headers["format"] != frames.FORMAT) | (headers["type"] != TYPE_OF[headers["bytes"]])
        is_bad |= headers["sequence"] > MAX_NUMBER
        good = int(np.argmax(is_bad)) if is_bad.any() else len(headers)
        news = np.flatnonzero((headers["type"][:good] == HELLO) | (headers["type"][:good] == BYE))
        for first, last in zip([0, *news + 1], [*news, good], strict=True):
            self._take_events(raw, start_N[first:last], headers[first:last])
            if last == good:
                break
            if headers["type"][last] == BYE:
                self._bye(headers[last])
            else:
                self._hello(frames.records(raw, start_N[last : last + 1], frames.HELLO)[0])
        if good < len(headers):
            raise FrameError("a frame's type, format or number cannot be (docs/AGENT.md)")

    def ship_if_due(self) -> None:
        """Ship the events that have waited long enough."""
        if self._events and time.monotonic() - self._oldest_s >= BATCH_S:
            self.ship()

    def ship(self) -> None:
        """Give every sender's events to its client."""
        if not self._events:
            return
        events, self._events = np.concatenate(self._events), []
        of_nobody = len(events)
        for number in np.unique(events["sender"]).tolist():
            sender = self._named.get(number)
            if sender is None:
                continue
            of_one = events[events["sender"] == number]
            client = self._senders.client(sender, int(of_one["number"][0]))
            if client is None:
                continue
            # An ACK may be read slightly late: it counts from the last event's time (docs/EVENTS.md).
            batch = of_one["event"].copy()
            time_ns = batch["time_ns"] = np.maximum.accumulate(batch["time_ns"])
            # After a long wait or a clock change events may span more than a batch may: one batch a minute.
            minutes = np.split(batch, np.flatnonzero(np.diff(time_ns // MINUTE_NS)) + 1)
            with contextlib.suppress(SenderRefusedError):  # logged when it came
                for minute in minutes:
                    client.send(minute)
                    self._counts.events += len(minute)
                    of_nobody -= len(minute)
        self._counts.of_nobody += of_nobody

    def close(self) -> None:
        """Ship the waiting events and end the sessions."""
        self.ship()
        for sender in self._named.values():
            self._senders.leave(sender)
        self._named.clear()

    def _hello(self, hello: np.void) -> None:
        number, name = int(hello["sender"]), hello["name"]
        if hello["magic"] != frames.MAGIC or len(name) == frames.HELLO["name"].itemsize:
            raise FrameError("a HELLO whose magic is not SWQFRAME, or whose name does not end")
        if not all(32 <= byte < 127 for byte in name):
            raise FrameError("a sender's name that is not printable ASCII (docs/AGENT.md)")
        if number in self._named or len(self._named) >= MOST_NAMED:
            raise FrameError(f"a HELLO of a sender that is there, or of more than {MOST_NAMED}")
        following = int(hello["sequence"])
        self._named[number] = NamedSender(sender_id(name.decode()), following > 0, following)

    def _bye(self, header: np.void) -> None:
        if int(header["sender"]) not in self._named:  # its HELLO was dropped
            return
        self.ship()
        sender = self._named.pop(int(header["sender"]))
        self._counts.lost += max(0, int(header["sequence"]) - sender.taken)  # dropped at its end
        self._senders.leave(sender)

    def _take_events(self, raw: NDArray[np.uint8], start_N: NDArray[np.int64], headers: NDArray[Any]) -> None:
        if not len(headers):
            return
        events = np.zeros(len(headers), NUMBERED)
        events["sender"], events["number"], event = headers["sender"], headers["sequence"], events["event"]
        for kind, frame, time_field, columns in (
            (SEND, frames.SENT, "sent_ns", SEND_COLUMNS),
            (ACK, frames.ACKED, "acked_ns", ("latency_us",)),
        ):
            is_kind = headers["bytes"] == frame.itemsize
            part = frames.records(raw, start_N[is_kind], frame)
            event["kind"][is_kind] = kind
            event["time_ns"][is_kind], event["packet"][is_kind] = part[time_field], part["packet"]
            for name in columns:
                event[name][is_kind] = part[name]
        event["latency_us"][np.isnan(event["latency_us"])] = UNKNOWN_US
        self._check_numbers(events)
        if not self._events:
            self._oldest_s = time.monotonic()
        self._events.append(events)

    def _check_numbers(self, events: NDArray[Any]) -> None:
        """Check that each sender's numbers grow, and count the missing ones."""
        order = np.argsort(events["sender"], kind="stable")
        sender_N, number_N = events["sender"][order], events["number"][order].astype(np.int64)
        begins = np.flatnonzero(np.append(True, np.diff(sender_N) != 0))
        for begin, end in zip(begins, [*begins[1:], len(events)], strict=True):
            sender = self._named.get(int(sender_N[begin]))
            if sender is None:
                continue
            of_one = number_N[begin:end]
            if of_one[0] < sender.taken or (np.diff(of_one) <= 0).any():
                raise FrameError("a sender's frames are not in their order")
            after = int(of_one[-1]) + 1
            self._counts.lost += after - sender.taken - len(of_one)
            sender.taken = after


def sender_id(name: str) -> str:
    """Return the id of an agent's sender at the ingest.

    Characters other than A-Z a-z 0-9 . _ - become `_`, and the first 8 digits of the name's SHA-256 follow,
    so two names never share an id.
    """
    taken = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "unnamed"
    if taken == name and len(name) <= 64:
        return name
    return f"{taken[:55]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class _AgentConnections:
    """The agents' connections, each with its forwarder."""

    def __init__(self, senders: SenderClients) -> None:
        self._senders = senders
        self._counts = senders.counts
        self._by_connection: dict[socket.socket, Forwarder] = {}
        self._selector = selectors.DefaultSelector()
        # One buffer serves all reads: `recv` would allocate it each time and shrink it to the few kilobytes
        # that came, which breaks the heap into pieces (300 MiB an hour at 2,400 events/s).
        self._buffer = memoryview(bytearray(READ_BYTES))

    def serve(self, listener: socket.socket, beat: Callable[[], None], ended: threading.Event) -> None:
        """Accept and read until told to end; then read what was written before."""
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        while not ended.is_set():
            beat()
            for key, _ in self._selector.select(BATCH_S / 2):
                if key.fileobj is listener:
                    self._accept(listener)
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered
            for forwarder in self._by_connection.values():
                forwarder.ship_if_due()
        listener.shutdown(socket.SHUT_RDWR)  # nobody connects any more; accepted connections are still read
        while self._accept(listener):
            pass
        until_s = time.monotonic() + LAST_READ_S
        for connection in list(self._by_connection):
            # From now on an agent's writes fail: those frames are for the next forwarder.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)
            while connection in self._by_connection and time.monotonic() < until_s:
                self._read(connection)
        for connection in list(self._by_connection):
            self._hang_up(connection)
        self._selector.close()

    def _accept(self, listener: socket.socket) -> bool:
        """Accept one connection; return False if none waits."""
        try:
            connection, _ = listener.accept()
        except OSError as error:  # the client is gone; or no descriptor is left, and the listener stays ready
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(BATCH_S)
            return False
        why = stranger(connection)
        if not why and len(self._by_connection) >= MOST_AGENTS:
            why = f"more than {MOST_AGENTS}"
        if why:
            self._counts.complain("refused_agents", f"an agent is refused: {why}")
            connection.close()
            return True
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ)
        self._by_connection[connection] = Forwarder(self._senders)
        return True

    def _read(self, connection: socket.socket) -> None:
        try:
            count = connection.recv_into(self._buffer)
            if count:
                self._by_connection[connection].take(bytes(self._buffer[:count]))
                return
        except BlockingIOError:
            return
        except FrameError as error:
            self._counts.complain("bad_streams", f"an agent's stream is closed: {error}")
        except OSError as error:
            _log.error("an agent's connection: %s", error)
        self._hang_up(connection)

    def _hang_up(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._by_connection.pop(connection).close()
        connection.close()


def forward(path: Path, senders: SenderClients, ended: threading.Event) -> None:
    """Listen at `path` and forward agents' events, until told to end.

    Raises:
        OSError: no socket can be made there.
    """
    heart = Heartbeat(settings().heartbeat or path.with_name(f"{path.name}.alive"))
    with listening(path) as listener:
        say(f"forwarder: listens at {path}")
        said = lambda: {"senders": len(senders)} | senders.counts.as_said()  # noqa: E731
        _AgentConnections(senders).serve(listener, lambda: heart.beat(said), ended)
    senders.close()
    counts = senders.counts
    if counts.lost or counts.of_nobody:
        _log.warning("%d events never came, %d belonged to nobody", counts.lost, counts.of_nobody)
    heart.file.unlink(missing_ok=True)


def main(
    listen: Annotated[
        Path, typer.Argument(metavar="SOCKET", help="socket to listen at, the agent's --telemetry")
    ],
    url: Annotated[
        str, typer.Argument(metavar="URL", help="URL of the ingest, http://HOST:PORT or https://HOST:PORT")
    ],
    token_file: Annotated[
        Path | None,
        typer.Option(help="file of the token that speaks for the senders (default: this machine's own)"),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="PEM file of the authority that signed the ingest's certificate")
    ] = None,
    most_senders: Annotated[int, typer.Option(help="at once")] = MOST_SENDERS,
) -> None:
    """Forward telemetry from the agents' socket to the ingest until SIGTERM.

    Example: swiftqueue part forwarder var/telemetry.sock http://127.0.0.1:8010
    """
    logging.basicConfig(format="%(asctime)s forwarder: %(message)s")
    ended = threading.Event()
    for end in (signal.SIGTERM, signal.SIGINT):
        signal.signal(end, lambda *_: ended.set())
    file = token_file or settings().ingest_token_file
    token = read_token(file) if file else secret(INSTALLATION)

    def connect(sender: str, events_before: int = 0, after: threading.Event | None = None) -> IngestClient:
        return IngestClient(
            url,
            sender,
            token=token,
            ca=ca or settings().ingest_ca,
            own_server=file is None,
            events_before=events_before,
            after=after,
        )

    connect("address-and-certificates").close()  # checks address and certificates: it sends nothing
    forward(listen, SenderClients(connect, ForwarderCounts(), most_senders), ended)
