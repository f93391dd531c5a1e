"""Where run-time state lives: the folder that SWIFTQUEUE_STATE names.

Of an experiment of DVC, wherever it runs, it is the project's.

What only the owner may read lies in folders of mode 0700 (`private_dir`) and files of mode 0600 (`secret`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from feature_store.settings import settings

_chosen: ContextVar[Path | None] = ContextVar("state folder", default=None)


def state_dir() -> Path:
    """Absolute path of the run-time state; it may not exist yet."""
    if folder := settings().state:
        return folder.absolute()
    if chosen := _chosen.get():
        return chosen.absolute()
    # An experiment of DVC may run in a checkout that is thrown away; DVC_ROOT is the project's folder.
    project = os.environ.get("DVC_ROOT", "") if experiment_name() else ""
    return Path(project, "var").absolute()


@contextlib.contextmanager
def state_at(folder: Path) -> Iterator[None]:
    """Take another folder in the block, unless SWIFTQUEUE_STATE names one."""
    before = _chosen.set(folder)
    try:
        yield
    finally:
        _chosen.reset(before)


def experiment_name() -> str:
    """Name of the experiment of DVC that this process belongs to; empty outside of one."""
    return os.environ.get("DVC_EXP_NAME", "")


def private_dir(path: Path) -> Path:
    """Make a folder, if it is not there, that only its owner may enter, whatever the umask; return it.

    Folders above it that are not there are made so, too: who may write in one could swap what lies in it.

    Raises:
        OSError: it cannot be made, or belongs to somebody else.
    """
    if not path.parent.exists():
        private_dir(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    if stat.S_IMODE(path.stat().st_mode) != 0o700:
        path.chmod(0o700)
    return path


def secret(name: str) -> str:
    """Return the secret NAME of this installation (`var/secrets/NAME`), made at the first call.

    Where SWIFTQUEUE_SECRETS names a folder, as one that Kubernetes mounts, it is in there, and never made.

    Raises:
        OSError: it cannot be made, or others may read it; the message says what to do.
    """
    return secret_file(name).read_text().strip()


def secret_file(name: str) -> Path:
    """Return where secret NAME lies, for a program that reads it itself; as `secret`."""
    if folder := settings().secrets:
        path = folder / name
        if not path.read_text().strip():
            raise OSError(f"{path}: the secret is empty")
        return path
    path = private_dir(state_dir() / "secrets") / name
    if not path.is_file():
        partial = path.with_name(f".{name}-{os.getpid()}-{secrets.token_hex(4)}")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, path)  # whole, and of two that make it at once the first
        except FileExistsError:
            pass
        finally:
            partial.unlink()
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise OSError(f"{path}: others may read this secret; make a new one: rm {path}")
    if not path.read_text().strip():
        raise OSError(f"{path}: the secret is empty; make a new one: rm {path}")
    return path


def scratch() -> Path:
    """Folder of sockets and of Ray's files: its path is short, since a socket's has 107 bytes at most."""
    name = hashlib.sha256(str(state_dir()).encode()).hexdigest()[:8]
    return Path(f"/tmp/swiftqueue-{name}")  # noqa: S108 - ours alone: see `make_scratch`


def make_scratch() -> None:
    """Make the folder, for this user alone.

    Raises:
        OSError: somebody else made it.
    """
    scratch().mkdir(mode=0o700, exist_ok=True)
    found = scratch().lstat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o077 or scratch().is_symlink():
        raise OSError(f"{scratch()} is somebody else's, or open to others; remove it")


def stranger_listens(port: int | None) -> bool:
    """Whether another user of this machine listens at a port: our secrets are not for whoever takes it.

    An IPv6 socket may take IPv4 connections too, and `localhost` may mean either: proc_net(5).
    """
    tables = [table for name in ("tcp", "tcp6") if (table := Path("/proc/net") / name).is_file()]
    rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    listening = [row for row in rows if row[3] == "0A" and int(row[1].partition(":")[2], 16) == port]
    return any(int(row[7]) != os.geteuid() for row in listening)
