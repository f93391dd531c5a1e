"""Where another user has taken a server's port, no secret of ours goes there."""

from __future__ import annotations

import http.client
from pathlib import Path

import pytest
from event_rows import batch
from strangers import stranger_at

from swiftqueue.common.state import secret, stranger_listens
from swiftqueue.infra.local import ray_head
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.serving.ingest.client import IngestClient
from swiftqueue.serving.triton.endpoint import Triton, TritonError, control_headers


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.delenv("SWIFTQUEUE_TRITON_SERVERS", raising=False)


@pytest.mark.parametrize("at", ["127.0.0.1", "::"])
def test_who_listens_is_known(at: str) -> None:
    (port,) = free_ports(1)
    assert not stranger_listens(port)
    with stranger_at(port, at):
        assert stranger_listens(port)


def test_what_controls_triton_is_not_told() -> None:
    (port,) = free_ports(1)
    assert secret("triton") in control_headers(f"127.0.0.1:{port}").values()
    with stranger_at(port), Triton(f"127.0.0.1:{port}") as triton:
        with pytest.raises(PermissionError, match=f"another user listens at 127.0.0.1:{port}"):
            control_headers(f"127.0.0.1:{port}")
        with pytest.raises(TritonError, match="another user listens"):
            triton.load("swiftqueue")


def test_the_ingests_token_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(http.client.HTTPConnection, "request", lambda *sent: told.append(sent))
    (port,) = free_ports(1)
    with stranger_at(port):
        url = f"http://127.0.0.1:{port}"
        client = IngestClient(url, "ours", token=secret("ingest"), own_server=True)
        client.send(batch([{"kind": 0, "time_ns": 1, "packet": 0, "size_bytes": 1500, "queue": 1}]))
        assert not client.flush(0.5)
        client.close(0.1)
        assert client.shipped.retries > 0
        assert told == []


def test_rays_token_is_not_told() -> None:
    (port,) = free_ports(1)
    with stranger_at(port):
        well, line = ray_head.check(f"127.0.0.1:{port}")
    assert not well
    assert "another user listens" in line
