"""Serve small pages over HTTP that slow, idle or many other clients cannot block.

A client may ask once, by GET, and stay for MOST_S. When there are MOST_CLIENTS, a new one replaces the
oldest. HTTP servers of other libraries give each client a thread, or as much time as the client likes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

MOST_CLIENTS: Final = 64
MOST_S: Final = 10.0  # seconds from connecting to the answer's end; a scrape may ask each Triton meanwhile
REQUEST_S: Final = 3.0  # seconds of MOST_S in which the request must arrive
MOST_REQUEST_BYTES: Final = 4096
BACKLOG: Final = 1024
AT_ONCE: Final = 32  # clients accepted before the present ones have their turn
TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class PageRequest:
    """A GET request."""

    path: str  # without the query
    headers: Mapping[str, str]  # by name in small letters; values of a repeated one are joined by ", "


@dataclass(frozen=True)
class PageResponse:
    """An answer."""

    body: bytes
    status: str = "200 OK"
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self) -> bytes:
        """Return the bytes to send; the connection ends after them."""
        head = {
            "Content-Type": self.content_type,
            "Content-Length": str(len(self.body)),
            "Connection": "close",
            **self.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        return f"HTTP/1.1 {self.status}\r\n{lines}\r\n".encode() + self.body


Answer = Callable[[PageRequest], Awaitable[PageResponse]]


class _Clients:
    """The clients of a page; every method runs in the thread of the event loop."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._there: dict[asyncio.Task[None], None] = {}  # clients in the order they came

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
                    said = await reader.readuntil(b"\r\n\r\n")
                request = _request(said)
                refused = PageResponse(b"only GET is answered\n", "405 Method Not Allowed")
                writer.write((await self._answer(request) if request else refused).encoded())
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the client left, was too slow, sent too much, or was replaced
        finally:
            self._there.pop(task, None)
            writer.transport.abort()


def _request(said: bytes) -> PageRequest | None:
    """Return the request of a head's bytes; None where it is no GET."""
    first, *lines = said.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[0] != "GET":
        return None
    headers: dict[str, str] = {}
    for line in filter(None, lines):
        name, _, value = line.partition(":")
        name = name.strip().lower()
        headers[name] = ", ".join(filter(None, (headers.get(name), value.strip())))
    return PageRequest(words[1].split("?")[0], headers)


def serve(
    answer: Answer, address: str, port: int, *, name: str, most_request_bytes: int = MOST_REQUEST_BYTES
) -> int:
    """Answer requests at an address from a thread until the process ends; return the port (0: a free one).

    Work that `answer` hands to the event loop's default executor is done one at a time.

    Raises:
        OSError: the port is taken.
    """
    listening = socket.create_server((address, port), backlog=BACKLOG)
    clients = _Clients(answer)

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1, name))
        server = await asyncio.start_server(
            clients.serve, sock=listening, limit=most_request_bytes, backlog=AT_ONCE
        )
        listening.listen(BACKLOG)
        async with server:
            await server.serve_forever()

    threading.Thread(target=asyncio.run, args=(run(),), name=name, daemon=True).start()
    return int(listening.getsockname()[1])
