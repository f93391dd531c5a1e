"""Find and make the folders of run-time state, below the folder that SWIFTQUEUE_STATE names.

An experiment of DVC uses the project's state, wherever it runs. Private state lies in folders of mode 0700
(`private_dir`) and files of mode 0600 (`secret`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Container, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from swiftqueue.common.settings import settings, variable

RUN: Final = "run"
# A socket's path has 107 bytes at most, and Ray's lie deep: `/retrain/ray/session_DATE_TIME_PID/sockets/...`.
MOST_RUN_BYTES: Final = 31

PRIVATE: Final = 0o077  # umask for writing state
_users_umask: ContextVar[int] = ContextVar("umask before `private_files`", default=-1)
_chosen: ContextVar[Path | None] = ContextVar("state folder", default=None)


def state_dir() -> Path:
    """Return the absolute path of the run-time state; it may not exist yet."""
    if folder := settings().state:
        return folder.absolute()
    if chosen := _chosen.get():
        return chosen.absolute()
    # An experiment of DVC may run in a checkout that is thrown away; DVC_ROOT is the project's folder.
    project = os.environ.get("DVC_ROOT", "") if experiment_name() else ""
    return Path(project, "var").absolute()


@contextlib.contextmanager
def state_at(folder: Path) -> Iterator[None]:
    """Use another state folder in the block, unless SWIFTQUEUE_STATE names one."""
    before = _chosen.set(folder)
    try:
        yield
    finally:
        _chosen.reset(before)


def experiment_name() -> str:
    """Return the name of this process's DVC experiment; empty outside of one."""
    return os.environ.get("DVC_EXP_NAME", "")


def private_dir(path: Path) -> Path:
    """Make a folder, if it is missing, that only its owner may enter, whatever the umask; return it.

    Missing folders above it are made private too: whoever may write in one could swap its content.

    Raises:
        OSError: it cannot be made, or belongs to another user.
    """
    if not path.parent.exists():
        private_dir(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    if stat.S_IMODE(path.stat().st_mode) != 0o700:
        path.chmod(0o700)
    return path


def private_file(path: Path) -> Path:
    """Make a file, if it is missing, that only its owner may read, whatever the umask; return it.

    Raises:
        OSError: it cannot be made, or belongs to another user.
    """
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if stat.S_IMODE(os.fstat(handle).st_mode) & 0o077:  # as an earlier version made it
            os.fchmod(handle, 0o600)
    finally:
        os.close(handle)
    return path


def private_files() -> None:
    """Make files private that this process and its children write from now on."""
    before = os.umask(PRIVATE)
    if before != PRIVATE:
        _users_umask.set(before)


def users_umask() -> int:
    """Return the umask that the user gave this process; -1 if it still has that umask."""
    return _users_umask.get()


def secret(name: str) -> str:
    """Return the secret `name` of this installation (`var/secrets/NAME`), which the first call makes.

    If SWIFTQUEUE_SECRETS names a folder, such as one of Kubernetes, the secret is read there and never made.

    Raises:
        OSError: it cannot be made, or others may read it; the message says what to do.
    """
    return secret_file(name).read_text().strip()


def secret_file(name: str) -> Path:
    """Return the path of a secret, for a program that reads it itself; raises as `secret`."""
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
            os.link(partial, path)  # the file is whole, and if two are made at once the first stays
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
    """Return the folder of sockets, heartbeats and Ray's files; it may not exist yet (`make_scratch`)."""
    if chosen := settings().run:
        return chosen.absolute()
    own = state_dir() / RUN
    return own.readlink() if own.is_symlink() else own


def make_scratch() -> Path:
    """Make the folder of `scratch`, for this user alone, and return it.

    The path of a socket has at most 107 bytes. If the state folder's path is too long, the folder is a new
    one below `/tmp` with a random name, and `run` in the state folder is a link to it. `XDG_RUNTIME_DIR` does
    not serve: it disappears when its user logs out, and lies in memory, which logs would fill.

    Raises:
        OSError: it cannot be made, belongs to another user, or its path is too long.
    """
    own = state_dir() / RUN
    if settings().run is None and len(os.fsencode(own)) > MOST_RUN_BYTES and not _is_ours(scratch()):
        private_dir(own.parent)
        made = Path(tempfile.mkdtemp(prefix="swiftqueue-", dir="/tmp"))  # made with mode 700
        link = own.with_name(f".{RUN}-{os.getpid()}-{secrets.token_hex(4)}")
        link.symlink_to(made)
        with _held(own.parent):
            if _is_ours(scratch()):  # another process was first
                link.unlink()
                made.rmdir()
            else:
                link.replace(own)
    folder = scratch()
    if len(os.fsencode(folder)) > MOST_RUN_BYTES:
        raise OSError(
            f"{folder}: sockets in it would have too long a path; name a folder of at most "
            f"{MOST_RUN_BYTES} bytes with {variable('run')}"
        )
    if not folder.exists():
        private_dir(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_ours(folder):
        raise OSError(
            f"{folder} belongs to another user or is open to others; remove it, or name another with "
            f"{variable('run')}"
        )
    return folder


def drop_scratch() -> None:
    """Remove the folder of `scratch` with its content, and the link to it."""
    shutil.rmtree(scratch(), ignore_errors=True)
    if (own := state_dir() / RUN).is_symlink():
        own.unlink(missing_ok=True)


def _is_ours(folder: Path) -> bool:
    """Return whether `folder` is one of this user that nobody else may enter."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder for the block; one process at a time can."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def stranger_listens(port: int | None) -> bool:
    """Return whether another user of this machine listens at a port and would receive our secrets.

    An IPv6 socket may take IPv4 connections too, and `localhost` may mean either: proc_net(5).
    """
    listening = (row for row in _sockets() if row[3] == "0A" and _port(row[1]) == port)
    return any(int(row[7]) != os.geteuid() for row in listening)


def strangers_connected(ports: Container[int]) -> int:
    """Return how many connections to ports of this machine other users hold or wait for."""
    from_here = (row for row in _sockets() if row[3] in ("01", "02") and _port(row[2]) in ports)
    return sum(int(row[7]) != os.geteuid() for row in from_here)


def _sockets() -> Iterator[list[str]]:
    """Yield rows of the kernel's TCP socket tables, proc_net(5): 1, 2 addresses, 3 state, 7 user."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError):
            yield from (line.split() for line in Path("/proc/net", name).read_text().splitlines()[1:])


def _port(address: str) -> int:
    return int(address.partition(":")[2], 16)
