"""User `nobody`, who shares this machine with us: what it runs, connects to, and listens at."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

NOBODY = 65534
PYTHON = shutil.which("python3", path=os.defpath) or "python3"  # the first of PATH may lie in a home of ours


def _become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def as_nobody(work: Callable[[], Any]) -> Any:
    """Return what `work` gives in a process of user nobody; its result must be JSON."""
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become_nobody()
            with os.fdopen(writing, "w") as told:
                json.dump(work(), told)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    os.waitpid(child, 0)
    assert text, "the process of nobody ended before it said anything"
    return json.loads(text)


@contextlib.contextmanager
def connected(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Hold so many connections to a port of loopback; the server may close some meanwhile."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most[1], most[1]))
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            opened.append(socket.socket())
            opened[-1].settimeout(60)
            opened[-1].connect(("127.0.0.1", port))
        yield opened
    finally:
        for one in opened:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, most)


def still_open(connections: list[socket.socket]) -> int:
    """Count those that the server has not closed. A server that has greeted keeps the connection open."""
    count = 0
    for one in connections:
        one.setblocking(False)
        try:
            while one.recv(65536):
                pass
        except BlockingIOError:
            count += 1
        except ConnectionError:
            pass
    return count


def crowd(port: int, count: int, most: int, *, slow: bytes = b"") -> int:
    """As nobody, hold so many connections; return how many of them the server keeps.

    Every other one has begun to say something, and says no more. It looks until no more than `most` are
    open, or for a while.
    """

    def work() -> int:
        with connected(port, count) as connections:
            for one in connections[::2]:
                with contextlib.suppress(ConnectionError):
                    one.sendall(slow)
            deadline_s = time.monotonic() + 60
            while (left := still_open(connections)) > most and time.monotonic() < deadline_s:
                time.sleep(0.2)
            return left

    found: int = as_nobody(work)
    return found


@contextlib.contextmanager
def stranger_at(port: int, at: str = "127.0.0.1") -> Iterator[None]:
    """Let nobody listen at a port, at `::` for IPv4 too; what comes is kept by nobody and not answered."""
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    family, both = (socket.AF_INET6, True) if at == "::" else (socket.AF_INET, False)
    listening, ended = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become_nobody()
            os.close(ended[1])
            with socket.create_server((at, port), family=family, dualstack_ipv6=both):
                os.write(listening[1], b"!")
                os.read(ended[0], 1)
        finally:
            os._exit(0)
    os.close(listening[1])
    os.close(ended[0])
    assert os.read(listening[0], 1) == b"!", f"nobody cannot listen at port {port}"
    try:
        yield
    finally:
        os.close(ended[1])
        os.close(listening[0])
        os.waitpid(child, 0)
