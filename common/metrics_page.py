"""Serve a page of metrics to Prometheus that slow, idle or many other clients cannot block.

A client may stay for MOST_S. When there are MOST_CLIENTS, a new one replaces the oldest. The server of
prometheus_client itself gives each client a thread for as long as the client likes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

MOST_CLIENTS: Final = 64
MOST_S: Final = 10.0  # seconds from connecting to the answer's end; a scrape may ask each Triton meanwhile
REQUEST_S: Final = 3.0  # seconds of MOST_S in which the request must arrive
MOST_REQUEST_BYTES: Final = 4096
BACKLOG: Final = 1024
AT_ONCE: Final = 32  # clients accepted before the present ones have their turn
PATH: Final = "/metrics"


class _Page:
    """A page and its clients; every method runs in the thread of the event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._there: dict[asyncio.Task[None], None] = {}  # clients in the order they came
        self._made: asyncio.Task[bytes] | None = None

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client and end the connection."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker: it runs in one
        if len(self._there) >= MOST_CLIENTS:
            longest = next(iter(self._there))
            del self._there[longest]
            longest.cancel()
        self._there[task] = None
        try:
            async with asyncio.timeout(MOST_S):
                async with asyncio.timeout(REQUEST_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._response(request.split(b"\r\n", 1)[0].split(b" ")))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client left, was too slow, sent too much, or was replaced
        finally:
            self._there.pop(task, None)
            writer.transport.abort()

    async def _response(self, line: list[bytes]) -> bytes:
        if len(line) != 3 or line[0] != b"GET":
            return _response("405 Method Not Allowed", b"only GET is answered\n")
        if line[1].split(b"?")[0] != PATH.encode():
            return _response("404 Not Found", f"the page is {PATH}\n".encode())
        if self._made is None or self._made.done():  # clients that arrive meanwhile get the same page
            self._made = asyncio.create_task(asyncio.to_thread(generate_latest, self._registry))
        return _response("200 OK", await asyncio.shield(self._made))


def _response(status: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE_PLAIN_0_0_4}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def serve(registry: CollectorRegistry, address: str, port: int) -> int:
    """Serve scrapes at an address from a thread until the process ends; return the port (0: a free one).

    Raises:
        OSError: the port is taken.
    """
    listening = socket.create_server((address, port), backlog=BACKLOG)
    page = _Page(registry)

    async def run() -> None:
        one = ThreadPoolExecutor(1, "metrics")  # makes one page at a time
        asyncio.get_running_loop().set_default_executor(one)
        server = await asyncio.start_server(
            page.answer, sock=listening, limit=MOST_REQUEST_BYTES, backlog=AT_ONCE
        )
        listening.listen(BACKLOG)
        async with server:
            await server.serve_forever()

    threading.Thread(target=asyncio.run, args=(run(),), name="metrics", daemon=True).start()
    return int(listening.getsockname()[1])
