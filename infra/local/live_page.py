"""The address of the loop's live page, which has the key of the page in it."""

from __future__ import annotations

import sys

from swiftqueue.common.state import secret, stranger_listens
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.parts import PAGE
from swiftqueue.serving.triton.endpoint import LOOPBACK


def address(port: int) -> str:
    """Return the address to open in a browser; whoever has it may look.

    Raises:
        OSError: the key cannot be read, or others may read it.
        PermissionError: another user listens at the port.
    """
    if stranger_listens(port):
        raise PermissionError(f"another user listens at {LOOPBACK}:{port}, and is not told the page's key")
    return f"http://{LOOPBACK}:{port}/#key={secret(PAGE)}"


def where() -> str:
    """Return a line that says where the live page is; only a terminal is told its key, no log."""
    server = processes.running(PAGE)
    if server is None:
        return "the live page does not run"
    if not sys.stdout.isatty():
        return "the live page: `swiftqueue monitor page` prints its address"
    try:
        return f"the live page: {address(server.ports['http'])}"
    except OSError as error:
        return f"the live page: {error}"


def print_address() -> None:
    """Print the address of the live page, with its key, to open in a browser.

    Example: swiftqueue monitor page
    """
    server = processes.running(PAGE)
    if server is None:
        raise OSError("the live page does not run: swiftqueue up --live")
    print(address(server.ports["http"]))
