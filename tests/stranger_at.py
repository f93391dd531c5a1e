"""A user `nobody` who has taken a port of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def stranger_at(port: int, at: str = "127.0.0.1") -> Iterator[None]:
    """Let nobody listen at a port, at `::` for IPv4 too; what comes is kept by nobody and not answered."""
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    family, both = (socket.AF_INET6, True) if at == "::" else (socket.AF_INET, False)
    listen = (
        f"import socket; s = socket.create_server(({at!r}, {port}), family={family:d}, "
        f"dualstack_ipv6={both}); print(flush=True); input()"
    )
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "python3", "-I", "-c", listen]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as stranger:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        try:
            yield
        finally:
            stranger.communicate(b"\n")
