"""Tokens of senders: only hashes are kept, only for their owner, and only the right one is taken."""

from __future__ import annotations

import hmac
import os
import stat
import subprocess
from pathlib import Path

import pytest

from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.serving.ingest import senders
from swiftqueue.serving.ingest.client import read_token
from swiftqueue.serving.ingest.senders import add, hashed, may_speak, remove, tokens_dir, with_tokens

INSTALLATION = "i" * 64


def speaks(root: Path, sender: str, token: str) -> bool:
    return may_speak(root, hashed(INSTALLATION), sender, f"Bearer {token}")


def test_a_token_speaks_for_its_sender_alone_and_the_installations_for_the_others(tmp_path: Path) -> None:
    token = add(tmp_path, "a")
    assert speaks(tmp_path, "a", token)
    assert not speaks(tmp_path, "b", token)
    assert speaks(tmp_path, "b", INSTALLATION)
    assert not speaks(tmp_path, "a", INSTALLATION)  # the forwarder does not take a sender's name from it
    for wrong in ("", token[:-1], token + "0", token.upper(), hashed(token), "ü"):
        assert not speaks(tmp_path, "a", wrong)
    for header in ("", token, f"bearer {token}", f"Basic {token}", f"Bearer Bearer {token}"):
        assert not may_speak(tmp_path, hashed(INSTALLATION), "a", header)
    for stranger in ("../tokens/a", "a/../a", "", ".", "a\0"):
        assert not speaks(tmp_path, stranger, token)


def test_only_the_hash_is_stored_and_only_its_owner_may_read(tmp_path: Path) -> None:
    root = tmp_path / "store"
    before = os.umask(0)
    try:
        token = add(root, "a", tmp_path / "a.token")
    finally:
        os.umask(before)
    stored = tokens_dir(root) / "a"
    assert stored.read_text().strip() == hashed(token)
    assert {stat.S_IMODE(p.stat().st_mode) for p in (root, tokens_dir(root))} == {0o700}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (stored, tmp_path / "a.token")} == {0o600}
    assert read_token(tmp_path / "a.token") == token
    (tmp_path / "a.token").chmod(0o644)
    with pytest.raises(PermissionError, match="others may read"):
        read_token(tmp_path / "a.token")


def test_it_is_compared_in_constant_time_for_known_and_unknown_senders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tmp_path, "a")
    compared = []
    compare = hmac.compare_digest

    def noted(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(senders.hmac, "compare_digest", noted)
    for sender, header in (("a", "Bearer x"), ("nobody", "Bearer x"), ("a", ""), ("..", "Basic x")):
        assert not may_speak(tmp_path, hashed(INSTALLATION), sender, header)
    assert compared == [(64, 64)] * 4


def test_a_token_is_taken_back_at_once_and_never_replaced_silently(tmp_path: Path) -> None:
    token = add(tmp_path, "a")
    with pytest.raises(FileExistsError, match="swiftqueue sender remove a"):
        add(tmp_path, "a")
    assert speaks(tmp_path, "a", token)
    assert with_tokens(tmp_path) == ["a"]
    remove(tmp_path, "a")
    assert not speaks(tmp_path, "a", token)
    assert with_tokens(tmp_path) == []
    with pytest.raises(FileNotFoundError, match="sender a has no token"):
        remove(tmp_path, "a")
    for name in ("../a", ""):
        with pytest.raises(ValueError, match="must be 1 to 64"):
            add(tmp_path, name)
        with pytest.raises(ValueError, match="must be 1 to 64"):
            remove(tmp_path, name)


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    taken = tmp_path / "a.token"
    taken.write_text("mine")
    with pytest.raises(FileExistsError):
        add(tmp_path, "a", taken)
    assert taken.read_text() == "mine"
    assert with_tokens(tmp_path) == []


@pytest.mark.slow
def test_the_command_makes_lists_and_removes(tmp_path: Path, project: Path) -> None:
    def sender(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SWIFTQUEUE, "sender", *arguments],
            cwd=project,
            env={**os.environ, "SWIFTQUEUE_TELEMETRY": str(tmp_path / "store")},
            capture_output=True,
            text=True,
            check=False,
        )

    token = sender("add", "a").stdout.strip()
    out = tmp_path / "b.token"
    assert str(out) in sender("add", "b", "--out", str(out)).stdout
    assert speaks(tmp_path / "store", "a", token)
    assert speaks(tmp_path / "store", "b", read_token(out))
    assert sender("list").stdout.split() == ["a", "b"]
    assert sender("remove", "a").returncode == 0
    again = sender("remove", "a")
    assert (again.returncode, again.stderr) == (1, "swiftqueue: sender a has no token of its own\n")
    assert sender("list").stdout.split() == ["b"]
