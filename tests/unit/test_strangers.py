"""Whatever answers at a part's port, the part does not answer: no look at it may raise."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from swiftqueue.infra.local import status
from swiftqueue.infra.local.pages import answers, metrics
from swiftqueue.infra.local.processes import ServerProcess
from swiftqueue.infra.local.prometheus_query import QueryError, ask

STRANGERS = {
    "no-http": b"SSH-2.0-OpenSSH\r\n",
    "cut-short": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nswiftqueue_x 1\n",
    "hangs-up": b"",
    "refuses": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 15\r\n\r\nswiftqueue_x 1\n",
}


@pytest.fixture(params=STRANGERS.values(), ids=STRANGERS)
def stranger(request: pytest.FixtureRequest) -> Iterator[int]:
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
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("asks", [answers, status.ingest_check])
def test_a_stranger_is_no_answer(asks: Callable[[str], bool], stranger: int) -> None:
    assert asks(f"http://127.0.0.1:{stranger}") is False


def test_a_strangers_page_has_no_series(stranger: int) -> None:
    assert status.number(f"http://127.0.0.1:{stranger}", "swiftqueue_x") is None


def test_a_stranger_is_no_prometheus(stranger: int) -> None:
    with pytest.raises(QueryError, match=f"127.0.0.1:{stranger}"):
        ask(f"http://127.0.0.1:{stranger}", "query", query="up")
    assert not status._prometheus(ServerProcess("prometheus", 1, 0.0, {"http": stranger}, "", 0)).well


@contextmanager
def says_yes(body: bytes) -> Iterator[int]:
    """The port of a server that answers each request with these bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"{}"])
def test_another_server_that_says_yes_is_no_prometheus(body: bytes) -> None:
    with says_yes(body) as port, pytest.raises(QueryError, match="is no Prometheus"):
        ask(f"http://127.0.0.1:{port}", "query", query="up")


@pytest.mark.parametrize("body", [b"<html> <p>5", b"swiftqueue_x five\n", b'swiftqueue_x{part="a} 5\n'])
def test_another_server_that_says_yes_has_no_metrics(body: bytes) -> None:
    with says_yes(body) as port:
        assert metrics(f"http://127.0.0.1:{port}") is None
        assert status.number(f"http://127.0.0.1:{port}", "swiftqueue_x") is None
