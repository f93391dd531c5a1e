"""The local Ray lets nobody in who does not have its token."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from models import ray_job

JOIN = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)"


def test_the_token_is_the_users_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "")  # restored afterwards
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    ray_job.use_token()
    token = tmp_path / "ray" / "token"
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(token)
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    before = token.read_text()
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    ray_job.use_token()
    assert token.read_text() == before
    assert len(before) == 64
    assert [path.name for path in token.parent.iterdir()] == ["token"]


@pytest.mark.slow
def test_a_stranger_is_refused(ray_cluster: None) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    tries = {}
    for who, token in (("ours", os.environ["RAY_AUTH_TOKEN"]), ("a stranger's", "0" * 64)):
        tries[who] = subprocess.Popen(
            [sys.executable, "-c", JOIN, address],
            env={**os.environ, "RAY_AUTH_TOKEN": token},
            stderr=subprocess.PIPE,
            text=True,
        )
    said = {who: joining.communicate(timeout=200)[1] for who, joining in tries.items()}
    assert tries["ours"].returncode == 0, said["ours"]
    assert tries["a stranger's"].returncode != 0
    assert "Failed to connect" in said["a stranger's"]
