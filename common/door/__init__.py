"""Keep other users of this machine away from a server's TCP ports, except those that are open to them.

door.cc explains how; docs/DOORS.md lists the open ports.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import Final

from swiftqueue.common import native
from swiftqueue.common.settings import variable

FOLDER: Final = Path(__file__).resolve().parents[1]
LIBRARY: Final = FOLDER / "_build" / "libswiftqueue_door.so"
SOURCES: Final = ("door/door.cc", "door/door.h", "door/exports.map")
MOST_OF_ONE: Final = 256  # most connections of another user to a program's open ports; as in door.cc
_PRELOAD: Final = "LD_PRELOAD"


def variables(*open_ports: int) -> dict[str, str]:
    """Return the environment that guards the TCP ports of a program and of its children.

    If the kernel does not name a connection's owner, or the program loader does not accept the library's
    path, the ports are not guarded, and a line says so.

    Args:
        open_ports: ports that other users may reach as well, each user with at most MOST_OF_ONE connections.
    """
    if why := _why_not():
        print(f"other users of this machine can reach the ports of Ray and of servers: {why}", flush=True)
        return {}
    before = os.environ.get(_PRELOAD, "").split(":")
    preloads = [str(LIBRARY), *(one for one in before if one and one != str(LIBRARY))]
    return {_PRELOAD: ":".join(preloads), variable("open_ports"): ",".join(map(str, open_ports))}


@functools.cache
def _why_not() -> str:
    if set(str(LIBRARY)) & set(" :"):
        return f"{LIBRARY} has a space or a colon in its path, which the program loader does not accept"
    library = native.load(LIBRARY, SOURCES, {"swiftqueue_door_can_tell": (ctypes.c_int, [])})
    return "" if library.swiftqueue_door_can_tell() else "the kernel does not name the owner of a connection"
