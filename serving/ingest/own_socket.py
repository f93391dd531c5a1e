"""The forwarder's unix socket, in a private folder of its owner.

Only a socket of the same user at which nobody listens any more is ever removed for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from swiftqueue.common.state import private_dir

BACKLOG: Final = 16
_PEER: Final = struct.Struct("3i")  # pid, uid and gid: unix(7), SO_PEERCRED


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Listen at `path` while the block runs; its folder is made if it is missing.

    Raises:
        OSError: the folder is not private, something else is at `path`, or another program listens there.
    """
    if not path.parent.exists():
        private_dir(path.parent)
    with socket.socket(socket.AF_UNIX) as listener:
        with _alone_in(path.parent):
            _remove_stale(path)
            before = os.umask(0o177)  # the socket is 0600 from its first moment
            try:
                listener.bind(str(path))
            except OSError as error:
                raise OSError(f"{path}: {error.strerror or error}") from None
            finally:
                os.umask(before)
            listener.listen(BACKLOG)
            own = path.lstat()
        try:
            yield listener
        finally:
            with _alone_in(path.parent), contextlib.suppress(FileNotFoundError):
                # While it is bound nobody else's file can have its number.
                if os.path.samestat(path.lstat(), own):
                    path.unlink()


def listens(path: Path) -> bool:
    """Return whether a program listens at a socket.

    Raises:
        OSError: nobody can tell: the path is no such socket, or another user's.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # more clients wait there than its backlog takes
            return True
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as error:
            raise OSError(f"{path}: {error.strerror or error}") from None
    return True


def stranger(connection: socket.socket) -> str:
    """Return the other end's process, if it is neither this user's nor root's; else nothing."""
    pid, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return "" if uid in (os.geteuid(), 0) else f"process {pid} of user {uid}"


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder, so that of two programs that start at once one sees the other's socket listen."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = os.fstat(held)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise OSError(
                f"{folder}: not this user's alone; give the socket a folder of its own (mkdir -m 700 FOLDER)"
            )
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(f"{path}: is there and is no socket of this user; name another path, or move it away")
    if listens(path):
        raise OSError(f"{path}: another program listens there")
    path.unlink()
