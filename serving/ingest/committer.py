"""Group commit: requests that wait at the same time share one append and one fsync."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from swiftqueue.feature_store.telemetry.events import BatchKey
from swiftqueue.feature_store.telemetry.log import SEGMENT_S, SegmentWriter
from swiftqueue.serving.ingest import metrics

GROUP_BYTES: Final = 16 << 20  # most bytes of one append
WAITING_BATCHES: Final = 64
WAITING_BYTES: Final = 64 << 20
REMEMBERED: Final = 4096  # batches whose repetition is known at once; the compaction finds older ones


class BusyError(RuntimeError):
    """Too many batches wait already: the sender must come again."""


class Committer:
    """Appends batches to this process's own segments, for one event loop."""

    def __init__(self, root: Path) -> None:
        self._writer = SegmentWriter(root)
        self._thread = ThreadPoolExecutor(1, "append")  # the loop goes on while the disk is waited for
        self._waiting: list[tuple[BatchKey, bytes]] = []
        self._waiting_bytes = 0
        self._known: OrderedDict[BatchKey, asyncio.Future[None]] = OrderedDict()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def append(self, key: BatchKey, body: bytes) -> bool:
        """Return once the batch is durable; False if it was there before.

        Raises:
            BusyError: the queue is full.
            OSError: the batch could not be written.
        """
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        known = self._known.get(key)
        if known is not None:
            await asyncio.shield(known)  # the first one may still be on its way to the disk
            return False
        if len(self._waiting) >= WAITING_BATCHES or self._waiting_bytes + len(body) > WAITING_BYTES:
            raise BusyError(f"{len(self._waiting)} batches wait for the disk")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._known[key] = future
        self._waiting.append((key, body))
        self._waiting_bytes += len(body)
        metrics.QUEUE_DEPTH.set(len(self._waiting))
        self._news.set()
        await asyncio.shield(future)  # a client that hangs up does not take its batch back
        return True

    def ended(self) -> bool:
        """Return whether the appending task has ended, which only an error of its own can cause."""
        return self._task is not None and self._task.done()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), SEGMENT_S)
            self._news.clear()
            loop = asyncio.get_running_loop()
            while group := self._take_group():
                started = time.perf_counter()
                error: OSError | None = None
                try:
                    await loop.run_in_executor(self._thread, self._writer.append, [body for _, body in group])
                except OSError as failed:
                    error = failed
                metrics.APPEND_SECONDS.observe(time.perf_counter() - started)
                self._answer([key for key, _ in group], error)
            with contextlib.suppress(OSError):  # if it cannot be renamed, the next append does it
                await loop.run_in_executor(self._thread, self._writer.close_if_due)

    def _take_group(self) -> list[tuple[BatchKey, bytes]]:
        size, count = 0, 0
        for _, body in self._waiting:
            if count and size + len(body) > GROUP_BYTES:
                break
            size, count = size + len(body), count + 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        self._waiting_bytes -= size
        metrics.QUEUE_DEPTH.set(len(self._waiting))
        return group

    def _answer(self, keys: list[BatchKey], error: OSError | None) -> None:
        for key in keys:
            future = self._known[key]
            if error is None:
                future.set_result(None)
            else:
                del self._known[key]  # the batch is not stored: its retry must be written
                future.set_exception(error)
                future.exception()  # marks the error as seen, even if its request is gone
        while len(self._known) > REMEMBERED and next(iter(self._known.values())).done():
            self._known.popitem(last=False)
