"""Folders and secrets that only their owner may read."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from feature_store.state import private_dir, secret


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / "var"))
    return tmp_path / "var"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_others_may_read_nothing_whatever_the_umask(state: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        text = secret("key")
    finally:
        os.umask(before)
    assert len(text) == 64
    assert stat.S_IMODE((state / "secrets").stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "secrets" / "key").stat().st_mode) & 0o077 == 0


def test_of_several_that_make_a_secret_at_once_all_get_the_same() -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(secret, ["key"] * 32))) == 1


def test_a_folder_that_was_open_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    assert stat.S_IMODE(private_dir(folder).stat().st_mode) == 0o700


@pytest.mark.parametrize("wrong", ["open", "empty"])
def test_a_secret_that_is_none_is_refused_with_its_name(state: Path, wrong: str) -> None:
    secret("key")
    path = state / "secrets" / "key"
    if wrong == "open":
        path.chmod(0o644)
    else:
        path.write_text("\n")
    with pytest.raises(OSError, match=str(path)):
        secret("key")


def test_a_mounted_secret_is_read_and_never_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes mounts them readable for the pod's group."""
    monkeypatch.setenv("SWIFTQUEUE_SECRETS", str(tmp_path))
    with pytest.raises(OSError, match="triton"):
        secret("triton")
    assert not list(tmp_path.iterdir())
    (tmp_path / "triton").write_text("abc\n")
    (tmp_path / "triton").chmod(0o440)
    assert secret("triton") == "abc"
    (tmp_path / "empty").touch()
    with pytest.raises(OSError, match="empty"):
        secret("empty")
