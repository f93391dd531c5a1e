"""`python -m serving.ingest.forwarder`: from the agent's telemetry socket to the ingest.

    python -m serving.ingest.forwarder SOCKET http://127.0.0.1:8010

It listens on the unix socket; the agent (`--telemetry SOCKET`, docs/AGENT.md) connects and writes frames.
Each sender that the agent names becomes a sender of the ingest, by that name, and each time that it connects
to the agent a session of its own, since its packets count from 0 again.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from feature_store.telemetry_events import ACK, MAX_EVENTS, SEND, SEND_COLUMNS, event_batch
from serving import frames
from serving.ingest.client import IngestClient, SenderRefusedError

BATCH_S: Final = 0.25  # events wait so long for company: a request costs the ingest some milliseconds
HEARTBEAT_S: Final = 1.0
READ_BYTES: Final = 1 << 18
SOON_EVENTS: Final = MAX_EVENTS - READ_BYTES // frames.ACKED.itemsize  # one more read might be too many
HEADER: Final = np.dtype([(name, frames.SENT[name]) for name in frames.SENT.names[:5]])  # type: ignore[index]
HELLO: Final = 1
SIZES: Final = {frames.TYPES[number].itemsize: number for number in (HELLO, 2, 3)}  # HELLO, SENT, ACKED
TYPE_OF: Final = np.array([SIZES.get(size, 0) for size in range(max(SIZES) + 1)], np.uint8)
EVENT: Final = np.dtype(
    [
        ("sender", np.uint32),
        ("kind", np.uint8),
        ("time_ns", np.int64),
        ("packet", np.int64),
        *((name, frames.SENT[name]) for name in SEND_COLUMNS),
        ("latency_us", np.float32),
    ]
)
_log = logging.getLogger(__name__)


class FrameError(ValueError):
    """Bytes that are no frames of telemetry; the connection they came by is closed."""


class Forwarder:
    """Turns one connection's frames into batches and gives them to the senders' clients."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._rest = b""  # an incomplete frame
        self._clients: dict[int, IngestClient] = {}  # by the agent's number of a sender
        self._next_sequence: int | None = None
        self.lost_frames = 0  # that the agent dropped: its sequence shows them
        self._events: list[NDArray[Any]] = []  # of EVENT, in the order they came
        self._oldest_s = 0.0

    def take(self, data: bytes) -> None:
        """Take what was read from the socket.

        Raises:
            FrameError: it is no frame of telemetry.
        """
        data = self._rest + data
        starts, at = [], 0
        while len(data) - at >= HEADER.itemsize:
            size = data[at] | data[at + 1] << 8
            if size not in SIZES:
                raise FrameError(f"a frame of {size} bytes is none of telemetry (docs/AGENT.md)")
            if len(data) - at < size:
                break
            starts.append(at)
            at += size
        self._rest = data[at:]
        if not starts:
            return
        raw, start_N = np.frombuffer(data, np.uint8), np.array(starts)
        headers = _records(raw, start_N, HEADER)
        if (headers["format"] != frames.FORMAT).any() or (headers["type"] != TYPE_OF[headers["bytes"]]).any():
            raise FrameError("a frame's type or format does not fit its size (docs/AGENT.md)")
        self._count_lost(headers)
        hellos = np.flatnonzero(headers["type"] == HELLO)
        for first, last in zip([0, *hellos + 1], [*hellos, len(headers)], strict=True):
            self._take_events(raw, start_N[first:last], headers[first:last])
            if last < len(headers):
                (hello,) = _records(raw, start_N[last : last + 1], frames.HELLO)
                self._hello(int(hello["sender"]), sender_id(hello["name"].decode("ascii", "replace")))
        if sum(map(len, self._events)) > SOON_EVENTS:
            self.ship()

    def ship_if_due(self) -> None:
        """Ship what has waited long enough."""
        if self._events and time.monotonic() - self._oldest_s >= BATCH_S:
            self.ship()

    def ship(self) -> None:
        """Give every sender's events to its client."""
        events, self._events = np.concatenate([*self._events, np.empty(0, EVENT)]), []
        for sender in np.unique(events["sender"]):
            of_one = events[events["sender"] == sender]
            client = self._clients.get(int(sender))
            if client is None:  # its HELLO was dropped, or a later sender took its name
                self.lost_frames += len(of_one)
                continue
            # An ACK may be heard a hair late: it counts as of the last event's time (docs/WINDOWS.md).
            time_ns = np.maximum.accumulate(of_one["time_ns"])
            send = {name: of_one[name] for name in SEND_COLUMNS}
            with contextlib.suppress(SenderRefusedError):  # said in the log when it came
                client.send(
                    event_batch(of_one["kind"], time_ns, of_one["packet"], send, of_one["latency_us"])
                )

    def close(self) -> None:
        """Ship what there is and end the sessions."""
        self.ship()
        for client in self._clients.values():
            _close(client)
        if self.lost_frames:
            _log.warning("%d frames never came, or belonged to nobody", self.lost_frames)

    def _hello(self, sender: int, name: str) -> None:
        if sender in self._clients:  # said again
            return
        self.ship()
        for number, client in list(self._clients.items()):
            if client.sender == name:
                _log.warning("sender %s connected anew: a session of its own", name)
                _close(self._clients.pop(number))
        self._clients[sender] = IngestClient(self._url, name)

    def _count_lost(self, headers: NDArray[Any]) -> None:
        sequence = headers["sequence"].astype(np.int64)
        if self._next_sequence is None:  # a HELLO may be said again, with its old number
            news = sequence[headers["type"] != HELLO]
            self._next_sequence = int(news[0]) if len(news) else None
        if self._next_sequence is not None:
            news = sequence[sequence >= self._next_sequence]
            after = int(news[-1]) + 1 if len(news) else self._next_sequence
            self.lost_frames += after - self._next_sequence - len(news)
            self._next_sequence = after

    def _take_events(self, raw: NDArray[np.uint8], start_N: NDArray[np.int64], headers: NDArray[Any]) -> None:
        if not len(headers):
            return
        events = np.zeros(len(headers), EVENT)
        events["sender"] = headers["sender"]
        for kind, frame, time_field, columns in (
            (SEND, frames.SENT, "sent_ns", SEND_COLUMNS),
            (ACK, frames.ACKED, "acked_ns", ("latency_us",)),
        ):
            is_kind = headers["bytes"] == frame.itemsize
            part = _records(raw, start_N[is_kind], frame)
            events["kind"][is_kind] = kind
            events["time_ns"][is_kind], events["packet"][is_kind] = part[time_field], part["packet"]
            for name in columns:
                events[name][is_kind] = part[name]
        if not self._events:
            self._oldest_s = time.monotonic()
        self._events.append(events)


def _records(raw: NDArray[np.uint8], start_N: NDArray[np.int64], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return the records of one kind that begin at these places."""
    record_NB = raw[start_N[:, None] + np.arange(kind.itemsize)]  # N records, B bytes of each
    return np.frombuffer(record_NB.tobytes(), kind)


def sender_id(name: str) -> str:
    """Return an agent's name of a sender as the ingest takes it: other characters become `_`."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:64] or "unnamed"


def _close(client: IngestClient) -> None:
    client.close()
    print(f"forwarder: sender {client.sender}: {client.shipped}", flush=True)


class Heartbeat:
    """A file beside the socket that is touched every second: it has no port at which to be asked."""

    def __init__(self, path: Path) -> None:
        """Choose the file of the forwarder that listens at `path`."""
        self.file = path.with_name(f"{path.name}.alive")
        self._last_s = -HEARTBEAT_S

    def beat(self) -> None:
        """Touch it, if it is time to."""
        if time.monotonic() - self._last_s >= HEARTBEAT_S:
            with contextlib.suppress(OSError):  # the disk is full
                self.file.touch()
            self._last_s = time.monotonic()


def forward(path: Path, url: str, ended: threading.Event) -> None:
    """Listen at `path` and forward whoever connects, one connection after the other, until told to end."""
    with socket.socket(socket.AF_UNIX) as listener:
        path.unlink(missing_ok=True)  # of one that was killed
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(BATCH_S)
        print(f"forwarder: {path} to {url}", flush=True)
        heart = Heartbeat(path)
        while not ended.is_set():
            heart.beat()
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(BATCH_S / 2)
                    _forward_one(connection, Forwarder(url), ended, heart)
    path.unlink(missing_ok=True)
    heart.file.unlink(missing_ok=True)


def _forward_one(
    connection: socket.socket, forwarder: Forwarder, ended: threading.Event, heart: Heartbeat
) -> None:
    # One buffer for all reads: `recv` would allocate all of it each time, and shrink it to the few kilobytes
    # that came, which breaks the heap into pieces (300 MiB an hour at 2,400 events/s).
    buffer = memoryview(bytearray(READ_BYTES))
    try:
        while not ended.is_set():
            heart.beat()
            with contextlib.suppress(TimeoutError):
                count = connection.recv_into(buffer)
                if not count:
                    break
                forwarder.take(bytes(buffer[:count]))
            forwarder.ship_if_due()
    except (FrameError, ConnectionError) as error:
        _log.error("%s", error)
    forwarder.close()


def main() -> None:
    """Forward until SIGTERM."""
    parser = argparse.ArgumentParser(description="From the agent's telemetry socket to the ingest.")
    parser.add_argument("socket", type=Path, help="unix socket to listen at; the agent's --telemetry")
    parser.add_argument("url", help="of the ingest, http://HOST:PORT")
    arguments = parser.parse_args()
    logging.basicConfig(format="forwarder: %(message)s")
    ended = threading.Event()
    for end in (signal.SIGTERM, signal.SIGINT):
        signal.signal(end, lambda *_: ended.set())
    try:
        forward(arguments.socket, arguments.url, ended)
    except (OSError, ValueError) as error:
        sys.exit(f"forwarder: {error}")


if __name__ == "__main__":
    main()
