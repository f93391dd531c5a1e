"""The door of a server's TCP ports: other users of this machine reach only the ports that are open to them.

door.cc says how; docs/DOORS.md says which ports are open.
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
MOST_OF_ONE: Final = 256  # connections that another user may have to a program's open ports; as in door.cc
_PRELOAD: Final = "LD_PRELOAD"


def variables(*open_ports: int) -> dict[str, str]:
    """Return the environment for starting a program whose TCP ports, and those of its children, get a door.

    Args:
        open_ports: port numbers that other users may reach too, each user with MOST_OF_ONE connections at
            most.

    If the kernel does not say whose a connection is, or the program loader does not take the path, there is
    no door, and a line says so.
    """
    if why := _why_not():
        print(f"other users of this machine reach the ports of Ray and of servers: {why}", flush=True)
        return {}
    before = os.environ.get(_PRELOAD, "").split(":")
    preloads = [str(LIBRARY), *(one for one in before if one and one != str(LIBRARY))]
    return {_PRELOAD: ":".join(preloads), variable("open_ports"): ",".join(map(str, open_ports))}


@functools.cache
def _why_not() -> str:
    if set(str(LIBRARY)) & set(" :"):
        return f"{LIBRARY} has a space or a colon in its path, which the loader of programs does not take"
    library = native.load(LIBRARY, SOURCES, {"swiftqueue_door_can_tell": (ctypes.c_int, [])})
    return "" if library.swiftqueue_door_can_tell() else "the kernel does not say whose a connection is"
