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
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from feature_store.telemetry_events import ACK, MAX_EVENTS, SEND, SEND_COLUMNS, event_batch
from serving.ingest.client import IngestClient, SenderRefusedError

BATCH_S: Final = 0.25  # events wait so long for company: a request costs the ingest some milliseconds
READ_BYTES: Final = 1 << 18
VERSION: Final = 1
HELLO, SENT, ACKED = 1, 2, 3
# Frames of docs/AGENT.md after their header: size of the frame, type, version, sender, sequence.
HEADER: Final = struct.Struct("<HBBIQ")
BODIES: Final = {
    HELLO: struct.Struct("<8s56s"),  # magic, name
    SENT: struct.Struct("<qqiiiBBBB"),  # packet, time, size, flow, receiver, queue, ecn, retransmitted, 0
    ACKED: struct.Struct("<qqfI"),  # packet, time, latency (NaN where unknown), 0
}
EVENT: Final = np.dtype(
    [
        ("kind", np.uint8),
        ("time_ns", np.int64),
        ("packet", np.int64),
        ("size_bytes", np.int32),
        ("flow_id", np.int32),
        ("receiver_id", np.int32),
        ("queue", np.uint8),
        ("latency_us", np.float32),
    ]
)
_log = logging.getLogger(__name__)


class FrameError(ValueError):
    """Bytes that are no telemetry frame; the connection they came by is closed."""


class Forwarder:
    """Turns one connection's frames into batches and gives them to the senders' clients."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._rest = b""  # an incomplete frame
        self._clients: dict[int, IngestClient] = {}  # by the agent's number of a sender
        self._next_sequence: int | None = None
        self.lost_frames = 0  # that the agent dropped: its sequence shows them
        self._events: dict[
            int, list[tuple[float, ...]]
        ] = {}  # rows of EVENT by the agent's number of a sender
        self._oldest_s = 0.0

    def take(self, data: bytes) -> None:
        """Take what was read from the socket.

        Raises:
            FrameError: it is no frame of this version.
        """
        data = self._rest + data
        at = 0
        while len(data) - at >= HEADER.size:
            size, kind, version, sender, sequence = HEADER.unpack_from(data, at)
            body = BODIES.get(kind)
            if body is None or version != VERSION or size != HEADER.size + body.size:
                raise FrameError(f"type {kind}, version {version}, {size} bytes: no frame of telemetry")
            if len(data) - at < size:
                break
            self._take_frame(kind, sender, sequence, body.unpack_from(data, at + HEADER.size))
            at += size
        self._rest = data[at:]

    def ship_if_due(self) -> None:
        """Ship what has waited long enough."""
        if self._events and time.monotonic() - self._oldest_s >= BATCH_S:
            self.ship()

    def ship(self) -> None:
        """Give every sender's events to its client."""
        events, self._events = self._events, {}
        for sender, rows in events.items():
            client = self._clients.get(sender)
            if client is None:  # its HELLO was dropped, or a later sender took its name
                self.lost_frames += len(rows)
                continue
            with contextlib.suppress(SenderRefusedError):  # said in the log when it came
                client.send(_batch(rows))

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
                _log.warning(
                    "sender %s connected anew: its frames before this belong to a session that ended", name
                )
                _close(self._clients.pop(number))
        self._clients[sender] = IngestClient(self._url, name)

    def _take_frame(self, kind: int, sender: int, sequence: int, body: tuple[Any, ...]) -> None:
        if kind == HELLO:  # said again on a new connection, with its old number
            self._hello(sender, sender_id(body[1].rstrip(b"\0").decode("ascii", "replace")))
        elif self._next_sequence is not None:
            self.lost_frames += max(sequence - self._next_sequence, 0)
        if kind != HELLO or self._next_sequence is None or sequence >= self._next_sequence:
            self._next_sequence = sequence + 1
        if kind == HELLO:
            return
        if not self._events:
            self._oldest_s = time.monotonic()
        packet, time_ns, *more = body
        rows = self._events.setdefault(sender, [])
        if kind == SENT:
            rows.append((SEND, time_ns, packet, *more[:4], 0.0))
        else:
            rows.append((ACK, time_ns, packet, 0, 0, 0, 0, more[0]))
        if len(rows) == MAX_EVENTS:
            self.ship()


def sender_id(name: str) -> str:
    """Return an agent's name of a sender as the ingest takes it: other characters become `_`."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:64] or "unnamed"


def _batch(rows: list[tuple[float, ...]]) -> pa.RecordBatch:
    """Return rows of EVENT as a batch."""
    events = np.array(rows, EVENT)
    # An ACK may be heard a hair late: a time before the last event's counts as that one's (docs/WINDOWS.md).
    time_ns = np.maximum.accumulate(events["time_ns"])
    send = {name: events[name] for name in SEND_COLUMNS}
    return event_batch(events["kind"], time_ns, events["packet"], send, events["latency_us"])


def _close(client: IngestClient) -> None:
    client.close()
    print(f"forwarder: sender {client.sender}: {client.shipped}, {client.waiting} not shipped", flush=True)


def forward(path: Path, url: str, ended: threading.Event) -> None:
    """Listen at `path` and forward whoever connects, one connection after the other, until told to end."""
    with socket.socket(socket.AF_UNIX) as listener:
        path.unlink(missing_ok=True)  # of one that was killed
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(BATCH_S)
        print(f"forwarder: {path} to {url}", flush=True)
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(BATCH_S / 2)
                    _forward_one(connection, Forwarder(url), ended)
    path.unlink(missing_ok=True)


def _forward_one(connection: socket.socket, forwarder: Forwarder, ended: threading.Event) -> None:
    try:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                data = connection.recv(READ_BYTES)
                if not data:
                    break
                forwarder.take(data)
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
