"""A TCP connection on the bed: who sends as fast as it may, and who takes it; a program on a host each.

    tcp_traffic.py take ADDRESS PORT           # any number of connections
    tcp_traffic.py send ADDRESS PORT SECONDS [CONTROL]
    tcp_traffic.py flows ADDRESS PORT BYTES COUNT GAP_S SEED CONTROL     # short ones, by a Poisson process

Prints a JSON object per line. Needs Python alone, so that it starts at once. Ends at SIGTERM, in order.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import struct
import sys
import threading
import time
from types import FrameType
from typing import Final

SO_COOKIE: Final = 57
TCP_NOTSENT_LOWAT: Final = 25
UNSENT_BYTES: Final = 128 << 10  # what waits in the socket: its end is soon after SECONDS
CHUNK: Final = bytes(16 << 10)
TOTAL_RETRANSMITTED: Final = 100  # offset of tcpi_total_retrans in struct tcp_info (linux/tcp.h)


class _Told(Exception):
    """SIGTERM came."""


def _tell(number: int, frame: FrameType | None) -> None:
    raise _Told


def take(address: str, port: int) -> None:
    """Take connections until SIGTERM; whatever comes is dropped."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    taken: list[int] = []

    def drop(near: socket.socket) -> None:
        count = 0
        with near, contextlib.suppress(ConnectionError):
            while more := near.recv(1 << 20):
                count += len(more)
        taken.append(count)

    with socket.create_server((address, port), family=family) as listener:
        print(json.dumps({"event": "ready", "port": listener.getsockname()[1]}), flush=True)
        with contextlib.suppress(_Told):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=drop, args=(near,), daemon=True).start()
    print(json.dumps({"event": "summary", "connections": len(taken), "bytes": sum(taken)}), flush=True)


def send(address: str, port: int, seconds: float, control: str) -> None:
    """Send for so long, and wait until all of it is acknowledged."""
    with socket.create_connection((address, port)) as near:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        near.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        cookie = struct.unpack("=Q", near.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0]
        print(json.dumps({"event": "ready", "cookie": cookie, "port": near.getsockname()[1]}), flush=True)
        begin, sent = time.monotonic(), 0
        try:
            while time.monotonic() < begin + seconds:
                sent += near.send(CHUNK)
        except _Told:
            pass
        near.shutdown(socket.SHUT_WR)
        near.recv(1)  # the other end closes when it has all
        took = time.monotonic() - begin
        info = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    (again,) = struct.unpack_from("=I", info, TOTAL_RETRANSMITTED)
    said = {"bytes": sent, "seconds": took, "goodput_mbps": sent * 8 / took / 1e6, "retransmitted": again}
    print(json.dumps({"event": "summary", **said}), flush=True)


def flows(address: str, port: int, size: int, count: int, gap_s: float, seed: int, control: str) -> None:
    """Send `count` flows of `size` bytes, a mean of `gap_s` apart, and wait until all are acknowledged."""
    draw = random.Random(seed)  # noqa: S311 - when flows arrive is no secret
    seconds: list[float] = []
    failed: list[str] = []

    def one() -> None:
        begin = time.monotonic()
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as near:
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
                near.connect((address, port))
                near.sendall(bytes(size))
                near.shutdown(socket.SHUT_WR)
                near.recv(1)  # the other end closes when it has all
            seconds.append(time.monotonic() - begin)
        except OSError as error:
            failed.append(str(error))

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
        time.sleep(draw.expovariate(1 / gap_s))
    for thread in threads:
        thread.join()
    if failed:
        raise OSError(f"{len(failed)} of {count} flows failed, first: {failed[0]}")
    print(json.dumps({"event": "summary", "flows": count, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _tell)
    try:
        if sys.argv[1] == "take":
            take(sys.argv[2], int(sys.argv[3]))
        elif sys.argv[1] == "flows":
            size, count, gap_s, seed, control = sys.argv[4:]
            flows(sys.argv[2], int(sys.argv[3]), int(size), int(count), float(gap_s), int(seed), control)
        else:
            send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), (*sys.argv, "cubic")[5])
    except OSError as error:
        sys.exit(f"{sys.argv[2]} port {sys.argv[3]}: {error}")
