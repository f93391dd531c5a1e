"""Messages of gRPC that are small on the wire and large once they are inflated, sent by hand over HTTP/2.

gRPC's own servers and clients do not send them to who says that it takes none.
"""

from __future__ import annotations

import functools
import socket
import socketserver
import struct
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
INFLATED_BYTES: Final = 1 << 30
AT_ONCE: Final = 4
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_BYTES: Final = 16_384
_FIRST_WINDOW: Final = 65_535
TIMEOUT_S: Final = 120.0


@functools.cache
def bomb() -> bytes:
    """Return a gzip stream of a little over 1 MB that inflates to 1 GiB: a protobuf message with one field.

    The field is number 7: `raw_input_contents` in an inference, in other messages an unknown one. Blocks
    of zeros that end in a full flush can be repeated, so only one of them is compressed.
    """
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    field = b"\x3a" + _varint(INFLATED_BYTES)
    first = packer.compress(field) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(16 * MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + block * (INFLATED_BYTES // (16 * MIB))


def throw(port: int, method: str) -> None:
    """Send one bomb to a method of a gRPC server on loopback, and wait until it has answered or hung up."""
    body = b"\x01" + struct.pack(">I", len(bomb())) + bomb()
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        try:
            _throw(connection, method, body)
        except (ConnectionError, EOFError):  # the server has refused it by hanging up
            return


def throw_together(port: int, method: str) -> None:
    """Send several bombs at once, each on a connection of its own."""
    bomb()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda _: throw(port, method), range(AT_ONCE)))


@contextmanager
def bombing(inflated_bytes: int) -> Iterator[int]:
    """Give the port of a gRPC server that answers each call with a compressed message, whoever asks."""
    packed = zlib.compress(bytes(inflated_bytes), 9, 16 + zlib.MAX_WBITS)
    answer = b"\x01" + struct.pack(">I", len(packed)) + packed
    headers = _packed({":status": "200", "content-type": "application/grpc", "grpc-encoding": "gzip"})
    assert len(answer) <= _FRAME_BYTES

    class Bomber(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError, EOFError):
                _exactly(self.request, len(_PREFACE))
                self.request.sendall(_frame(_SETTINGS, 0, 0, b""))
                while True:
                    kind, flags, stream, payload = _read_frame(self.request)
                    if kind in (_SETTINGS, _PING) and not flags & 1:
                        self.request.sendall(_frame(kind, 1, 0, payload if kind == _PING else b""))
                    elif kind == _HEADERS:
                        self.request.sendall(_frame(_HEADERS, 4, stream, headers))
                        self.request.sendall(_frame(_DATA, 0, stream, answer))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Bomber) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process has had so far (VmHWM)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"process {pid} has no VmHWM")


def _throw(connection: socket.socket, method: str, body: bytes) -> None:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/{method}",
        ":authority": "127.0.0.1",
        "content-type": "application/grpc",
        "te": "trailers",
        "grpc-encoding": "gzip",
    }
    connection.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
    connection.sendall(_frame(_HEADERS, 4, 1, _packed(headers)))
    windows = {0: _FIRST_WINDOW, 1: _FIRST_WINDOW}
    changed, ended = threading.Condition(), threading.Event()

    def read() -> None:
        first = _FIRST_WINDOW
        try:
            while not ended.is_set():
                kind, flags, stream, payload = _read_frame(connection)
                with changed:
                    if kind == _WINDOW and stream in windows:
                        windows[stream] += int.from_bytes(payload)
                    elif kind == _SETTINGS and not flags & 1:
                        for at in range(0, len(payload), 6):
                            name, value = struct.unpack(">HI", payload[at : at + 6])
                            if name == 4:  # the streams' first window
                                windows[1] += value - first
                                first = value
                        connection.sendall(_frame(_SETTINGS, 1, 0, b""))
                    elif kind == _PING and not flags & 1:
                        connection.sendall(_frame(_PING, 1, 0, payload))
                    elif kind in (_RST, _GOAWAY) or (kind == _HEADERS and flags & 1):
                        ended.set()
                    changed.notify_all()
        except (OSError, EOFError):
            ended.set()
            with changed:
                changed.notify_all()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        at = 0
        while at < len(body) and not ended.is_set():
            with changed:
                changed.wait_for(lambda: min(windows.values()) > 0 or ended.is_set(), TIMEOUT_S)
                size = max(min(_FRAME_BYTES, len(body) - at, *windows.values()), 0)
                for stream in windows:
                    windows[stream] -= size
                if size == 0:
                    break
                last = at + size == len(body)
                connection.sendall(_frame(_DATA, int(last), 1, body[at : at + size]))
            at += size
        reader.join(TIMEOUT_S)
    finally:
        ended.set()
        connection.close()
        reader.join()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _read_frame(connection: socket.socket) -> tuple[int, int, int, bytes]:
    """Return a frame's type, flags, stream and payload."""
    head = _exactly(connection, 9)
    payload = _exactly(connection, int.from_bytes(head[:3]))
    return head[3], head[4], int.from_bytes(head[5:]) & 0x7FFFFFFF, payload


def _packed(headers: dict[str, str]) -> bytes:
    """Return headers as literals of HPACK's without names from its table (RFC 7541, 6.2.2)."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())


def _text(text: str) -> bytes:
    """Return a string of HPACK's, not compressed (RFC 7541, 5.2)."""
    return bytes((len(text),)) + text.encode()  # below 127 bytes


def _varint(number: int) -> bytes:
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes((*parts, number))


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return parts
