"""The ingest's client beside what else may answer at its port: only the ingest's own words count."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from feature_store.telemetry_events import SEND, SEND_COLUMNS, decode, event_batch
from serving.ingest import client
from serving.ingest.client import IngestClient, SenderRefusedError

Answer = Callable[[str, bytes], tuple[int, Any]]


def batch(number: int) -> pa.RecordBatch:
    one = np.array([1500], np.int32)
    send = {name: np.zeros(1, np.uint8) if name == "queue" else one for name in SEND_COLUMNS}
    at = np.array([number], np.int64)
    return event_batch(np.array([SEND], np.uint8), at, at, send, np.array([np.nan], np.float32))


@contextmanager
def answering(answer: Answer, port: int = 0, **headers: str) -> Iterator[int]:
    """A server that answers every POST so."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
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
        key, _ = decode(body)
        again = key.sequence in stored
        stored.append(key.sequence)
        return 200, {"sequence": key.sequence, "duplicate": again}

    return answer


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LONGEST_PAUSE_S", 0.1)


def wait_for_retries(ours: IngestClient, count: int) -> None:
    deadline = time.monotonic() + 20
    while ours.shipped.retries < count:
        assert time.monotonic() < deadline, ours.shipped
        time.sleep(0.01)


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

    def encode_all_but_one(key: Any, events: pa.RecordBatch) -> bytes:
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
