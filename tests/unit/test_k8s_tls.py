"""TLS before the ingest of a cluster: what comes inside it is passed on; a renewed certificate is shown."""

from __future__ import annotations

import asyncio
import http.server
import os
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from self_signed import self_signed

from swiftqueue.infra.k8s import tls

MOST = 3


class Echo(http.server.BaseHTTPRequestHandler):
    """Stands where Serve's proxy does."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Seen", self.headers["Authorization"])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def front(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Its URL, and the folder of what it shows."""
    self_signed(tmp_path)
    inner = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=inner.serve_forever, daemon=True).start()
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    certificates = tls.Certificates(tmp_path / "127.0.0.1.pem", tmp_path / "127.0.0.1.key")
    starting = tls.serve(("127.0.0.1", 0), ("127.0.0.1", inner.server_port), certificates, most=MOST)
    server = asyncio.run_coroutine_threadsafe(starting, loop).result(30)
    yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", tmp_path
    loop.call_soon_threadsafe(server.close)
    loop.call_soon_threadsafe(loop.stop)
    inner.shutdown()


def post(url: str, body: bytes, authority: Path) -> tuple[bytes, str]:
    request = urllib.request.Request(f"{url}/v1", body, {"Authorization": "Bearer x"})  # noqa: S310
    context = ssl.create_default_context(cafile=authority)
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:  # noqa: S310
        return answer.read(), answer.headers["Seen"]


def test_what_comes_inside_tls_is_passed_on(front: tuple[str, Path]) -> None:
    url, folder = front
    body = os.urandom(2_359_400)
    for _ in range(2):
        assert post(url, body, folder / "127.0.0.1.pem") == (body, "Bearer x")
    with pytest.raises(OSError, match=r"reset|closed|Remote end"):
        urllib.request.urlopen(url.replace("https", "http"), b"x", timeout=30)  # noqa: S310


def test_a_renewed_certificate_is_shown_to_who_connects_next(front: tuple[str, Path]) -> None:
    url, folder = front
    authority = folder / "before.pem"
    authority.write_bytes((folder / "127.0.0.1.pem").read_bytes())
    post(url, b"x", authority)
    (folder / "127.0.0.1.key").write_text("half a renewal")
    post(url, b"x", authority)
    self_signed(folder)
    assert post(url, b"x", folder / "127.0.0.1.pem") == (b"x", "Bearer x")
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        post(url, b"x", authority)


def test_it_holds_only_so_many_connections(front: tuple[str, Path]) -> None:
    """One more is closed, and the others go on."""
    url, folder = front
    authority = folder / "127.0.0.1.pem"
    context = ssl.create_default_context(cafile=authority)
    port = int(url.rpartition(":")[2])
    with ExitStack() as stack:
        held = []
        for _ in range(MOST):
            raw = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            held.append(stack.enter_context(context.wrap_socket(raw, server_hostname="127.0.0.1")))
            held[-1].sendall(b"POST / HTTP/1.1\r\nAuthorization: x\r\nContent-Length: 1\r\n\r\n1")
            assert held[-1].recv(12) == b"HTTP/1.1 200"  # it has its place
        with pytest.raises(OSError, match=r"closed|reset|EOF|Remote end"):
            post(url, b"x", authority)
        held[0].sendall(b"POST / HTTP/1.1\r\nAuthorization: x\r\nContent-Length: 1\r\n\r\n2")
        assert held[0].recv(1)
