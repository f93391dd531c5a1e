"""TCP traffic on the bed: a program that sends on one host, and one that receives on the other.

    tcp_traffic.py take ADDRESS PORT [CONTROL [BYTES]]  # any number of connections; BYTES of receive window
    tcp_traffic.py send ADDRESS PORT SECONDS [CONTROL]
    tcp_traffic.py messages ADDRESS SECONDS SEED GROUPS     # like the laboratory's: JSON, see `messages`
    tcp_traffic.py flows ADDRESS PORT BYTES COUNT GAP_S SEED CONTROL [OTHERS]   # by a Poisson process

It prints a JSON object per line. It needs Python alone, so that it starts at once. SIGTERM ends it in order.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import socket
import struct
import sys
import threading
import time
from types import FrameType
from typing import Any, Final

SO_COOKIE: Final = 57
TCP_NOTSENT_LOWAT: Final = 25
UNSENT_BYTES: Final = 128 << 10  # most bytes waiting in the socket, so that it ends soon after SECONDS
CHUNK: Final = bytes(16 << 10)
SO_RCVBUFFORCE: Final = 33
TOTAL_RETRANSMITTED: Final = 100  # offset of tcpi_total_retrans in struct tcp_info (linux/tcp.h)
SEGMENTS_OUT: Final = 136  # offset of tcpi_segs_out


class _StopSignal(Exception):
    """SIGTERM came."""


def _tell(number: int, frame: FrameType | None) -> None:
    raise _StopSignal


def take(address: str, port: int, control: str = "", window: int = 0) -> None:
    """Take connections until SIGTERM, with a congestion control of their own, and drop the data.

    The receive window grows as the kernel lets it; with `window` its buffer has that many bytes (root).
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    taken: list[int] = []

    def drop(near: socket.socket) -> None:
        count = 0
        with near, contextlib.suppress(ConnectionError):
            while more := near.recv(1 << 20):
                count += len(more)
        taken.append(count)

    with socket.create_server((address, port), family=family, backlog=256) as listener:
        if control:
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        if window:
            listener.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, window)
        print(json.dumps({"event": "ready", "port": listener.getsockname()[1]}), flush=True)
        with contextlib.suppress(_StopSignal):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=drop, args=(near,), daemon=True).start()
    print(json.dumps({"event": "summary", "connections": len(taken), "bytes": sum(taken)}), flush=True)


def send(address: str, port: int, seconds: float, control: str) -> None:
    """Send for `seconds`, and wait until all of it is acknowledged."""
    with socket.create_connection((address, port)) as near:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
        near.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        cookie = struct.unpack("=Q", near.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0]
        print(json.dumps({"event": "ready", "cookie": cookie, "port": near.getsockname()[1]}), flush=True)
        begin, sent = time.monotonic(), 0
        try:
            while time.monotonic() < begin + seconds:
                sent += near.send(CHUNK)
        except _StopSignal:
            pass
        near.shutdown(socket.SHUT_WR)
        near.recv(1)  # the other end closes when it has all
        took = time.monotonic() - begin
        info = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    (again,) = struct.unpack_from("=I", info, TOTAL_RETRANSMITTED)
    said = {"bytes": sent, "seconds": took, "goodput_mbps": sent * 8 / took / 1e6, "retransmitted": again}
    print(json.dumps({"event": "summary", **said}), flush=True)


def messages(address: str, seconds: float, seed: int, groups: list[dict[str, Any]]) -> None:
    """Send messages on connections that stay: sizes drawn from a distribution, by a Poisson process each.

    Args:
        address: address of the receiver.
        seconds: seconds from now; messages that are unsent then are dropped.
        seed: seed of starts, sizes and times.
        groups: groups with `port`, `flows`, `control`, `rate_bps` of a flow, `start_s` (first and last) and
            `sizes`: bytes and the share that is at most as large, rising.

    """
    failed: list[str] = []
    begin = time.monotonic()
    end = begin + seconds

    def one(group: dict[str, Any], draw: random.Random) -> None:
        points: list[list[float]] = group["sizes"]
        mean = sum((b[1] - a[1]) * (a[0] + b[0]) / 2 for a, b in itertools.pairwise(points))
        gap_s = mean * 8 / group["rate_bps"]

        def size() -> int:
            at = draw.random()
            low, high = next(pair for pair in itertools.pairwise(points) if at <= pair[1][1])
            return max(1, round(low[0] + (high[0] - low[0]) * (at - low[1]) / (high[1] - low[1])))

        time.sleep(draw.uniform(*group["start_s"]))
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as near:
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, group["control"].encode())
                near.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends at once
                near.connect((address, group["port"]))
                next_at, unsent = time.monotonic(), 0
                while (now := time.monotonic()) < end:
                    while next_at <= now:
                        unsent += size()
                        next_at += draw.expovariate(1 / gap_s)
                    if unsent:
                        near.settimeout(max(end - now, 1e-3))
                        unsent -= near.send(CHUNK[:unsent])
                    else:
                        time.sleep(max(min(next_at, end) - now, 0))
        except TimeoutError:
            return  # its time was over while it could not send
        except OSError as error:
            failed.append(str(error))

    threads = []
    for number, (group, _) in enumerate((g, n) for g in groups for n in range(g["flows"])):
        # Each flow draws for itself, so that no flow changes another.
        draw = random.Random(1000 * seed + number)  # noqa: S311 - no secret
        threads.append(threading.Thread(target=one, args=(group, draw)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise OSError(f"{len(failed)} of {len(threads)} flows failed, first: {failed[0]}")
    print(
        json.dumps({"event": "summary", "flows": len(threads), "seconds": time.monotonic() - begin}),
        flush=True,
    )


def flows(
    address: str, port: int, size: int, count: int, gap_s: float, seed: int, control: str, others: int = 0
) -> None:
    """Send `count` flows of `size` bytes, a mean of `gap_s` apart, and wait until all are acknowledged.

    With `others`, a port, only each second flow is as described; the rest are plain BBR to that port.
    """
    draw = random.Random(seed)  # noqa: S311 - when flows arrive is no secret
    told: list[dict[str, float]] = []
    failed: list[str] = []

    def one(number: int) -> None:
        asked = not others or number % 2 == 1
        begin = time.monotonic()
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as near:
                how = control if asked else "bbr"
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, how.encode())
                near.connect((address, port if asked else others))
                near.sendall(bytes(size))
                near.shutdown(socket.SHUT_WR)
                near.recv(1)  # the other end closes when it has all
                took = time.monotonic() - begin
                info = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
            (again,), (sent,) = (
                struct.unpack_from("=I", info, at) for at in (TOTAL_RETRANSMITTED, SEGMENTS_OUT)
            )
            told.append({"asked": asked, "seconds": took, "retransmitted": again, "segments": sent})
        except OSError as error:
            failed.append(str(error))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
        time.sleep(draw.expovariate(1 / gap_s))
    for thread in threads:
        thread.join()
    if failed:
        raise OSError(f"{len(failed)} of {count} flows failed, first: {failed[0]}")
    print(json.dumps({"event": "summary", "flows": count, "each": told}), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _tell)
    try:
        if sys.argv[1] == "take":
            control, window = (*sys.argv[4:], *("", "0")[len(sys.argv) - 4 :])[:2]
            take(sys.argv[2], int(sys.argv[3]), control, int(window))
        elif sys.argv[1] == "messages":
            messages(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5]))
        elif sys.argv[1] == "flows":
            size, count, gap_s, seed, control, others = (*sys.argv[4:], "0")[:6]
            port, sizes = int(sys.argv[3]), (int(size), int(count))
            flows(sys.argv[2], port, *sizes, float(gap_s), int(seed), control, int(others))
        else:
            send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), (*sys.argv, "cubic")[5])
    except OSError as error:
        sys.exit(f"{sys.argv[2]} port {sys.argv[3]}: {error}")
