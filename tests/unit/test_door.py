"""A server behind the door: who is let in, how often, and from where."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from strangers import as_nobody
from waiting import wait_until

from swiftqueue.common import door
from swiftqueue.infra.local.processes import free_ports

SERVER = """
import socket, selectors, sys
listeners = [socket.create_server(("", 0)), socket.create_server(("", int(sys.argv[1]))),
             socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)]
print(*(f"{one.getsockname()[0]} {one.getsockname()[1]}" for one in listeners), flush=True)
choose = selectors.DefaultSelector()
for one in listeners:
    one.setblocking(False)
    choose.register(one, selectors.EVENT_READ)
while True:
    for key, _ in choose.select():
        if key.fileobj not in listeners:  # the other side has hung up
            choose.unregister(key.fileobj)
            key.fileobj.close()
            continue
        try:
            connection, _ = key.fileobj.accept()
        except BlockingIOError:
            continue
        connection.sendall(b"!")
        choose.register(connection, selectors.EVENT_READ)
"""
CLOSED, OPEN, SIX = range(3)


@contextmanager
def listening(variables: dict[str, str], open_port: int) -> Iterator[list[tuple[str, int]]]:
    """A server of three ports, of which the second is the open one; gives where it listens."""
    command = [sys.executable, "-c", SERVER, str(open_port)]
    with subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            words = server.stdout.readline().split()
            yield [(words[at], int(words[at + 1])) for at in range(0, len(words), 2)]
        finally:
            server.kill()


@pytest.fixture(scope="module")
def kept() -> Iterator[list[tuple[str, int]]]:
    [port] = free_ports(1)
    with listening(door.variables(port), port) as at:
        yield at


def greeted(port: int, times: int = 1) -> int:
    """How many of so many connections, open at the same time, the program has spoken to."""
    opened = [socket.socket() for _ in range(times)]
    for one in opened:
        one.settimeout(60)
        one.connect(("127.0.0.1", port))
    count = 0
    for one in opened:
        try:
            count += one.recv(1) == b"!"
        except ConnectionError:
            continue
    for one in opened:
        one.close()
    return count


def test_a_port_that_is_not_open_is_on_loopback_alone(kept: list[tuple[str, int]]) -> None:
    addresses = [address for address, _ in kept]
    assert addresses == ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1"]  # noqa: S104 - the second is open


def test_its_own_user_is_let_in_at_every_port(kept: list[tuple[str, int]]) -> None:
    assert [greeted(port) for _, port in kept] == [1, 1, 1]
    assert greeted(kept[OPEN][1], door.MOST_OF_ONE + 50) == door.MOST_OF_ONE + 50


def test_another_user_is_let_in_where_it_is_open_and_so_often_at_once(kept: list[tuple[str, int]]) -> None:
    tries = as_nobody(lambda: [greeted(kept[at][1], 20) for at in (CLOSED, SIX)])
    assert tries == [0, 0]
    most, port = door.MOST_OF_ONE, kept[OPEN][1]
    for _ in range(2):  # those that left make room, once the server has closed its side
        wait_until(lambda: as_nobody(lambda: greeted(port, 2 * most)) == most)
    assert greeted(kept[CLOSED][1]) == 1


def test_who_has_sent_and_hung_up_is_nobody(kept: list[tuple[str, int]]) -> None:
    """Its socket has no owner any more when the server looks; what it sent could still be read."""
    port = kept[CLOSED][1]

    def send_and_go() -> int:
        for _ in range(200):
            one = socket.socket()
            one.connect(("127.0.0.1", port))
            one.sendall(b"x" * 100)
            one.close()
        return 0

    as_nobody(send_and_go)
    assert greeted(port) == 1


def test_without_the_variables_everything_is_as_without_it() -> None:
    [port] = free_ports(1)
    everywhere = "0.0.0.0"  # noqa: S104 - that is the point
    only_loaded = {"LD_PRELOAD": str(door.LIBRARY)}
    with listening(only_loaded, port) as at:
        assert [address for address, _ in at] == [everywhere, everywhere, "::"]
        assert as_nobody(lambda: greeted(at[CLOSED][1])) == 1


def test_what_is_no_list_of_ports_ends_the_program() -> None:
    variables = door.variables() | {"SWIFTQUEUE_OPEN_PORTS": "8000,x"}
    ran = subprocess.run(
        [sys.executable, "-c", SERVER, "0"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "SWIFTQUEUE_OPEN_PORTS=8000,x: not ports, parted by commas" in ran.stderr
