"""Signs of life for systemd, where it started this process and asked for them: sd_notify(3)."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Tell systemd a state, such as READY=1; do nothing where no systemd asked for it or listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.setblocking(False)
        to.sendto(state.encode(), address.replace("@", "\0", 1))
