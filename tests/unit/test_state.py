"""Folders and secrets that only their owner may read."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import PROJECT

from swiftqueue.common.state import (
    drop_scratch,
    make_scratch,
    private_dir,
    private_file,
    scratch,
    secret,
    strangers_connected,
)


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


@pytest.fixture
def dropped() -> Iterator[None]:
    yield
    drop_scratch()


def test_the_run_folder_is_ours_alone_in_the_state_folder_or_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropped: None
) -> None:
    """One that anybody could make before us kept the loop from starting: its name was the state's hash."""
    long = tmp_path / ("x" * 60)
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(long))
    folder = make_scratch()
    assert make_scratch() == folder == scratch() == (long / "run").readlink()
    assert str(folder).startswith("/tmp/swiftqueue-")  # noqa: S108
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.rmdir()
    folder.mkdir()
    folder.chmod(0o755)  # whoever cleans /tmp, and somebody who was waiting for it
    again = make_scratch()
    assert again != folder
    assert scratch() == again
    folder.rmdir()
    (again / "file").touch()
    drop_scratch()
    assert not again.exists()
    assert not (long / "run").is_symlink()

    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as short:
        monkeypatch.setenv("SWIFTQUEUE_STATE", short)
        assert make_scratch() == Path(short, "run")
        assert stat.S_IMODE(scratch().stat().st_mode) == 0o700
        scratch().chmod(0o755)
        with pytest.raises(OSError, match="open to others; remove it, or name another with SWIFTQUEUE_RUN"):
            make_scratch()
        chosen = Path(short, "chosen")
        monkeypatch.setenv("SWIFTQUEUE_RUN", str(chosen))
        assert make_scratch() == scratch() == chosen
        monkeypatch.setenv("SWIFTQUEUE_RUN", f"{short}/{'y' * 40}")
        with pytest.raises(OSError, match="at most 31 bytes with SWIFTQUEUE_RUN"):
            make_scratch()


def test_of_many_that_make_the_run_folder_at_once_all_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropped: None
) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / ("x" * 60)))
    common = Path("/tmp")  # noqa: S108 - where they are made
    before = set(common.glob("swiftqueue-*"))
    with ThreadPoolExecutor(8) as pool:
        made = {one.result() for one in [pool.submit(make_scratch) for _ in range(32)]}
    assert len(made) == 1
    # What the others made is gone again: tests that run beside fill theirs.
    assert made <= {one for one in set(common.glob("swiftqueue-*")) - before if not any(one.iterdir())}


def test_a_command_that_writes_state_lets_nobody_read_it_and_dvc_has_the_users_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    program = (
        "import os, sys; from swiftqueue.cli.app import main\n"
        "from swiftqueue.infra.local import status\n"
        "from swiftqueue.pipelines.experiments import dvc_command\n"
        "def look(**_):\n"
        "    open('made', 'w').close()\n"
        "    sys.executable = '/bin/sh'; dvc_command.run_dvc(['-c', 'true'], '.')\n"
        "    print(oct(os.stat('made').st_mode)[-3:], oct(state.users_umask()))\n"
        "    return 0\n"
        "from swiftqueue.common import state; status.print_status = look; os.umask(0o022)\n"
        "sys.argv = ['swiftqueue', 'status']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
    )
    assert done.stdout.split() == ["600", "0o22"], done.stderr


def test_a_private_file_is_so_whoever_made_it_before(tmp_path: Path) -> None:
    (tmp_path / "old").touch(mode=0o644)  # as an earlier version left it
    for name in ("old", "new"):
        assert stat.S_IMODE(private_file(tmp_path / name).stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_connections_of_other_users_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        port = server.getsockname()[1]
        own = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        assert strangers_connected({port}) == 0
        program = (
            "import encodings.idna, os, socket; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            f"held = [socket.create_connection(('127.0.0.1', {port})) for _ in range(20)]\n"
            "print('there', flush=True); input()"
        )
        become = [sys.executable, "-c", program]
        with subprocess.Popen(become, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as nobody:
            assert nobody.stdout is not None
            assert nobody.stdout.readline() == b"there\n"
            assert strangers_connected({port}) == 20
            assert strangers_connected({port + 1}) == 0
            nobody.communicate(b"\n")
        for one in own:
            one.close()
