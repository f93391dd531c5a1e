"""The token of the local Ray; that a stranger is refused is in test_ingest.py."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from models import ray_job


def test_the_token_is_the_users_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "")  # restored afterwards
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    ray_job.use_token()
    token = tmp_path / "ray" / "token"
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(token)
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    before = token.read_text()
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    ray_job.use_token()
    assert token.read_text() == before
    assert len(before) == 64
    assert [path.name for path in token.parent.iterdir()] == ["token"]
