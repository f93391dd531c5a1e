"""Many clients at one door, idle or slow, and what they cost the process behind it."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
from waiting import LIMIT_S, wait_until

IDLE, SLOW, DEAF = b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"  # what each client says
MANY = 10_000


@contextlib.contextmanager
def crowd(address: tuple[str, int] | Path, count: int, say: bytes = IDLE) -> Iterator[list[socket.socket]]:
    """Hold so many connections in the block; those that were ended at the other side stay in the list."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    assert most > count + 1000, "too few files may be open here (ulimit -n)"
    held = []
    try:
        for _ in range(count):
            one = socket.socket(socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET)
            held.append(one)
            one.settimeout(LIMIT_S)
            with contextlib.suppress(ConnectionError):
                _connect(one, str(address) if isinstance(address, Path) else address)
                one.sendall(say)
        yield held
    finally:
        for one in held:
            one.close()


def _connect(one: socket.socket, address: str | tuple[str, int]) -> None:
    """Connect, also where so many wait at a unix socket that the kernel says to come again."""
    while True:
        try:
            return one.connect(address)
        except BlockingIOError:
            time.sleep(0.001)


def check_a_crowd_costs_only_its_places(
    pid: int, port: int, count: int, say: bytes, places: int, shows: bytes, path: str = "/metrics"
) -> None:
    """The page at `port` answers beside a crowd, which costs its process places, no thread and no memory."""
    process, url = psutil.Process(pid), f"http://127.0.0.1:{port}{path}"

    def page() -> bytes:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            found: bytes = answer.read()
            return found
        return b""  # its place was needed, as a scrape's may be

    assert shows in page()
    with crowd(("127.0.0.1", port), 100):
        wait_until(page)
    files, threads, held = process.num_fds(), process.num_threads(), process.memory_info().rss
    with crowd(("127.0.0.1", port), count, say):
        for _ in range(5):
            wait_until(lambda: shows in page(), "the page does not answer beside a crowd")
        wait_until(lambda: process.num_fds() <= files + places, lambda: f"{process.num_fds()} files are open")
        assert process.num_threads() <= threads
        grown = process.memory_info().rss - held
        print(f"{count:,} clients: {grown:,} bytes more, {process.num_fds() - files} more files")
        assert grown < 16 << 20
    wait_until(lambda: process.num_fds() <= files, lambda: f"{process.num_fds()} of {files} files are open")
