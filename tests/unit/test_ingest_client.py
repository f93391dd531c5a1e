"""The ingest's client beside what else may answer at its port: only the ingest's own words count."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from self_signed import self_signed
from waiting import wait_until

from swiftqueue.feature_store.telemetry.events import EVENT, SEND, SEND_COLUMNS, Events, checked, event_batch
from swiftqueue.serving.ingest import client
from swiftqueue.serving.ingest.client import IngestClient, SenderRefusedError

Answer = Callable[[str, bytes], tuple[int, Any]]


def batch(number: int) -> Events:
    one = np.array([1500], np.int32)
    send = {name: np.zeros(1, np.uint8) if EVENT[name] == np.uint8 else one for name in SEND_COLUMNS}
    at = np.array([number], np.int64)
    return event_batch(np.array([SEND], np.uint8), at, at, send, np.array([np.nan], np.float32))


@contextmanager
def answering(
    answer: Answer,
    port: int = 0,
    *,
    told: list[tuple[str, bytes, str | None]] | None = None,
    tls: tuple[Path, Path] | None = None,
    **headers: str,
) -> Iterator[int]:
    """A server that answers every POST so, and notes what it was told."""
    told = [] if told is None else told

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.append((self.path, body, self.headers["Authorization"]))
            status, said = answer(self.path, body)
            content = json.dumps(said).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ingest(stored: list[int]) -> Answer:
    def answer(path: str, body: bytes) -> tuple[int, Any]:
        if path.endswith("/sessions"):
            return 201, {"session": 1}
        key, _ = checked(body)
        again = key.sequence in stored
        stored.append(key.sequence)
        return 200, {"sequence": key.sequence, "duplicate": again}

    return answer


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LONGEST_PAUSE_S", 0.1)


def wait_for_retries(ours: IngestClient, count: int) -> None:
    wait_until(lambda: ours.shipped.retries >= count, lambda: ours.shipped)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (200, {}),
        (200, {"session": "1", "sequence": "0"}),
        (200, {"reason": "schema"}),
        (201, ["hello"]),
        (404, {"reason": "Not Found"}),
    ],
)
def test_what_another_server_at_the_port_says_is_no_answer(status: int, said: object) -> None:
    stored: list[int] = []
    with answering(lambda *_: (status, said), Retry_After="9" * 400) as port:
        ours = IngestClient(f"http://127.0.0.1:{port}", "a")
        ours.send(batch(0))
        wait_for_retries(ours, 3)
    with answering(ingest(stored), port, Connection="close"):
        ours.send(batch(1))
        assert ours.flush(20)
    with answering(lambda *_: (status, said), port):  # within a session
        ours.send(batch(2))
        wait_for_retries(ours, ours.shipped.retries + 3)
    with answering(ingest(stored), port, Connection="close"):
        assert ours.flush(20)
        ours.close()
    assert stored == [0, 1, 2]
    assert (ours.shipped.accepted, ours.shipped.refused, ours.shipped.dropped) == (3, 0, 0)


def test_a_duplicate_is_taken_and_a_refusal_final() -> None:
    with (
        answering(ingest([0])) as port,
        IngestClient(f"http://127.0.0.1:{port}", "a") as ours,
    ):
        ours.send(batch(0))
        assert ours.flush(20)
        assert (ours.shipped.accepted, ours.shipped.duplicates) == (1, 1)
    refusal = {"error": "earlier", "reason": "two_senders"}
    with (
        answering(lambda *_: (409, refusal)) as port,
        IngestClient(f"http://127.0.0.1:{port}", "a") as ours,
    ):
        ours.send(batch(0))
        assert ours.flush(20)
        with pytest.raises(SenderRefusedError, match="earlier"):
            ours.send(batch(1))


def test_an_error_costs_its_batch_and_not_the_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored: list[int] = []
    encode = client.encode

    def encode_all_but_one(key: Any, events: Events) -> bytes:
        if key.sequence == 1:
            raise KeyError("a mistake")
        return encode(key, events)

    monkeypatch.setattr(client, "encode", encode_all_but_one)
    with answering(ingest(stored)) as port, IngestClient(f"http://127.0.0.1:{port}", "a") as ours:
        for number in range(3):
            ours.send(batch(number))
        assert ours.flush(20)
    assert stored == [0, 2]
    assert (ours.shipped.accepted, ours.shipped.dropped) == (2, 1)
    assert "batch 1 of sender a is given up" in caplog.text


def test_what_waits_when_it_is_closed_is_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    stored: list[int] = []
    with answering(ingest(stored), Connection="close") as port:
        ours = IngestClient(f"http://127.0.0.1:{port}", "a")
        ours.send(batch(0))
        assert ours.flush(20)
    for number in (1, 2, 3):  # one of them in hand
        ours.send(batch(number))
    wait_for_retries(ours, 2)
    ours.close(timeout_s=0.1)
    assert stored == [0]
    assert (ours.shipped.accepted, ours.shipped.dropped, ours.waiting) == (1, 3, 0)
    assert "sender a: closed with 3 batches not shipped" in caplog.text


TOKEN = "0123456789abcdef" * 4


def test_each_request_has_the_token_and_the_opening_what_came_before() -> None:
    told: list[tuple[str, bytes, str | None]] = []
    with answering(ingest([]), told=told) as port:
        with IngestClient(f"http://127.0.0.1:{port}", "a", token=TOKEN, events_before=17) as ours:
            ours.send(batch(0))
            assert ours.flush(20)
        with IngestClient(f"http://127.0.0.1:{port}", "a") as ours:
            ours.send(batch(0))
            assert ours.flush(20)
    assert [(path, header) for path, _, header in told] == [
        ("/v1/senders/a/sessions", f"Bearer {TOKEN}"),
        ("/v1/senders/a/batches", f"Bearer {TOKEN}"),
        ("/v1/senders/a/sessions", None),
        ("/v1/senders/a/batches", None),
    ]
    assert (told[0][1], told[2][1]) == (b'{"events_before": 17}', b"")


@pytest.mark.parametrize("token", ["", "short", "with space" * 4, "new\nline" * 4, "ü" * 20])
def test_what_is_no_token_is_refused_here(token: str) -> None:
    with pytest.raises(ValueError, match="the token must be 16 to 256") as caught:
        IngestClient("http://127.0.0.1:1", "a", token=token)
    assert not token or token not in str(caught.value)


def test_a_wrong_token_ends_the_sender_with_what_the_ingest_says() -> None:
    refusal = {"error": "no token, or none that speaks for sender 'a'", "reason": "token"}
    with (
        answering(lambda *_: (401, refusal)) as port,
        IngestClient(f"http://127.0.0.1:{port}", "a", token=TOKEN) as ours,
    ):
        ours.send(batch(0))
        assert ours.flush(20)
        with pytest.raises(SenderRefusedError, match="none that speaks for sender 'a'"):
            ours.send(batch(1))


def test_tls_is_spoken_with_the_server_of_that_certificate_alone(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    (tmp_path / "other").mkdir()
    stranger, _ = self_signed(tmp_path / "other")
    wrong_host, wrong_key = self_signed(tmp_path, "127.0.0.2")
    told: list[tuple[str, bytes, str | None]] = []
    with answering(ingest([]), told=told, tls=(certificate, key)) as port:
        url = f"https://127.0.0.1:{port}"
        for ca in (stranger, None):
            with IngestClient(url, "a", token=TOKEN, ca=ca) as ours:
                ours.send(batch(0))
                wait_for_retries(ours, 2)
                ours.close(timeout_s=0)
        assert told == []  # the token was not said
        with IngestClient(url, "a", token=TOKEN, ca=certificate) as ours:
            ours.send(batch(0))
            assert ours.flush(20)
        assert ours.shipped.accepted == 1
    with (
        answering(ingest([]), told=told, tls=(wrong_host, wrong_key)) as port,
        IngestClient(f"https://127.0.0.1:{port}", "a", token=TOKEN, ca=wrong_host) as ours,
    ):
        ours.send(batch(0))
        wait_for_retries(ours, 2)
        ours.close(timeout_s=0)
    assert len(told) == 2
    with pytest.raises(FileNotFoundError):
        IngestClient(url, "a", ca=tmp_path / "absent.pem")


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:80", "ftp://host", "unix:/x", "https://", "http://user:pass@", "http://user:pass@host:80"],
)
def test_what_is_no_address_is_refused_without_saying_it(url: str) -> None:
    with pytest.raises(ValueError, match="must be http://HOST:PORT or https://HOST:PORT") as caught:
        IngestClient(url, "a")
    assert "pass" not in str(caught.value)


def test_a_token_in_clear_over_a_network_is_said(caplog: pytest.LogCaptureFixture) -> None:
    IngestClient("http://192.0.2.1:1", "a", token=TOKEN).close()
    assert "its token goes to 192.0.2.1 in clear" in caplog.text
    assert TOKEN not in caplog.text


def test_after_a_jump_it_goes_on_in_a_new_session() -> None:
    """As after days without an ingest, of which the buffer kept a minute."""
    sessions: list[int] = []
    stored: list[tuple[int, int]] = []

    def answer(path: str, body: bytes) -> tuple[int, Any]:
        if path.endswith("/sessions"):
            sessions.append(len(sessions) + 1)
            return 201, {"session": sessions[-1]}
        key, _ = checked(body)
        if key.session == 1 and key.sequence > 1:
            return 400, {"error": "too far", "reason": "jump"}
        stored.append((key.session, key.sequence))
        return 200, {"sequence": key.sequence, "duplicate": False}

    with answering(answer) as port, IngestClient(f"http://127.0.0.1:{port}", "a") as ours:
        for number in range(4):
            ours.send(batch(number))
        assert ours.flush(20)
    assert stored == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert (ours.shipped.accepted, ours.shipped.refused) == (4, 0)
