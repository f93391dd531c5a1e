"""A replica of the ingest in this process: what it does while the disk is waited for; where it may listen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from swiftqueue.feature_store.telemetry import sessions as telemetry_sessions
from swiftqueue.serving.ingest import server
from swiftqueue.serving.ingest.senders import hashed

TOKEN = "t" * 64


@pytest.fixture
def replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    from swiftqueue.serving.ingest.app import Ingest

    return Ingest(str(tmp_path / "store"), str(tmp_path / "log"), hashed(TOKEN), server.limits(), None)


def request(path: str, body: Callable[[], Awaitable[bytes]], size: int) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": await body(), "more_body": False}

    said = {"authorization": f"Bearer {TOKEN}", "content-length": str(size)}
    headers = [(name.encode(), value.encode()) for name, value in said.items()]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    return Request(scope | {"server": ("x", 80), "scheme": "http"}, receive)


async def nothing() -> bytes:
    return b""


def test_other_requests_are_answered_while_a_session_waits_for_the_disk(
    replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, released = threading.Event(), threading.Event()

    def held(_: Path) -> None:
        asked.set()
        assert released.wait(30)

    monkeypatch.setattr(telemetry_sessions, "sync_dir", held)

    async def both() -> None:
        opening = asyncio.create_task(replica(request("/v1/senders/a/sessions", nothing, 0)))
        assert await asyncio.to_thread(asked.wait, 30)
        other = await replica(request("/v1/nothing", nothing, 0))
        assert (other.status_code, opening.done()) == (404, False)
        released.set()
        assert (await opening).status_code == 201

    asyncio.run(both())


def test_however_many_ask_for_a_check_there_is_one_write_a_second(
    replica: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from swiftqueue.serving.ingest import app

    (tmp_path / "store").mkdir()
    now_s, writes = [100.0], []
    write = app.write_durably
    monkeypatch.setattr(app, "write_durably", lambda *told: writes.append(told) or write(*told))
    monkeypatch.setattr(app.time, "monotonic", lambda: now_s[0])

    async def ask(times: int) -> None:
        for _ in range(times):
            assert (await replica(request("/v1/check", nothing, 0))).status_code == 200
        now_s[0] += 1.1
        assert (await replica(request("/v1/check", nothing, 0))).status_code == 200

    asyncio.run(ask(20))
    assert len(writes) == 2


def test_a_body_that_does_not_come_is_given_up(replica: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from swiftqueue.serving.ingest import app

    monkeypatch.setattr(app, "BODY_S", 0.1)

    async def never() -> bytes:
        await asyncio.Event().wait()
        return b""

    answer = asyncio.run(replica(request("/v1/senders/a/batches", never, 100)))
    assert answer.status_code == 408


@pytest.mark.parametrize("size", ["²", "-1", "1e3", "0x10", "", "9" * 400])
def test_a_size_that_is_none_is_refused(replica: Any, size: str) -> None:
    asked = request("/v1/senders/a/batches", nothing, 0)
    asked.scope["headers"][1] = (b"content-length", size.encode("latin-1"))
    assert asyncio.run(replica(asked)).status_code in (411, 413)


def test_it_listens_beyond_loopback_with_tls_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in server.LISTEN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert server.listen_at() == ("127.0.0.1", None)
    monkeypatch.setenv(server.HOST_VARIABLE, "0.0.0.0")  # noqa: S104
    with pytest.raises(ValueError, match="tokens would be in clear there"):
        server.listen_at()
    monkeypatch.setenv(server.CERT_VARIABLE, "/c.pem")
    with pytest.raises(ValueError, match="go together"):
        server.listen_at()
    monkeypatch.setenv(server.KEY_VARIABLE, "/c.key")
    assert server.listen_at() == ("0.0.0.0", server.Tls(Path("/c.pem"), Path("/c.key")))  # noqa: S104
