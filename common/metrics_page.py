"""Serve a page of metrics to Prometheus, by page_server.py: that of prometheus_client has no limits."""

from __future__ import annotations

import asyncio
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from swiftqueue.common import page_server
from swiftqueue.common.page_server import PageRequest, PageResponse

PATH: Final = "/metrics"


class _Page:
    """A page that is made once for the clients that wait for it at the same time."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._made: asyncio.Task[bytes] | None = None

    async def answer(self, request: PageRequest) -> PageResponse:
        if request.path != PATH:
            return PageResponse(f"the page is {PATH}\n".encode(), "404 Not Found")
        if self._made is None or self._made.done():  # clients that arrive meanwhile get the same page
            self._made = asyncio.create_task(asyncio.to_thread(generate_latest, self._registry))
        return PageResponse(await asyncio.shield(self._made), content_type=CONTENT_TYPE_PLAIN_0_0_4)


def serve(registry: CollectorRegistry, address: str, port: int) -> int:
    """Serve scrapes at an address from a thread until the process ends; return the port (0: a free one).

    Raises:
        OSError: the port is taken.
    """
    return page_server.serve(_Page(registry).answer, address, port, name="metrics")
