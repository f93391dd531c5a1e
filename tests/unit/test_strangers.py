"""Whatever answers at a part's port, the part does not answer: no look at it may raise."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from infra import stack
from infra.live import health
from infra.monitoring import prometheus
from infra.processes import Server

CUT_SHORT = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nswiftqueue_x 1\n"


@pytest.fixture(params=[b"SSH-2.0-OpenSSH\r\n", CUT_SHORT, b""], ids=["no-http", "cut-short", "hangs-up"])
def stranger(request: pytest.FixtureRequest) -> Iterator[tuple[int, bytes]]:
    """A port at which each connection is told the same, and closed."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(request.param)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield int(listener.getsockname()[1]), request.param
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("asks", [health.answers, health.ingest_check, stack._answers, prometheus._ready])
def test_a_stranger_is_no_answer(asks: Callable[[str], bool], stranger: tuple[int, bytes]) -> None:
    port, said = stranger
    assert asks(f"http://127.0.0.1:{port}") is (said == CUT_SHORT)  # of that the status was asked alone


def test_a_strangers_page_has_no_series(stranger: tuple[int, bytes]) -> None:
    assert health.number(f"http://127.0.0.1:{stranger[0]}", "swiftqueue_x") is None


def test_a_stranger_is_no_prometheus(stranger: tuple[int, bytes]) -> None:
    port, _ = stranger
    assert not health._prometheus(Server("prometheus", 1, 0.0, {"http": port}, "", 0)).well
