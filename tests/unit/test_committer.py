"""What the ingest does with more batches than its disk takes: the append is held up, then goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from swiftqueue.feature_store.telemetry.events import BatchKey
from swiftqueue.feature_store.telemetry.log import SegmentWriter, log_dir, read_segment
from swiftqueue.serving.ingest import committer
from swiftqueue.serving.ingest.committer import WAITING_BATCHES, BusyError, Committer


class Disk:
    """Holds every append until it is released."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked, self._released = threading.Event(), threading.Event()
        append = SegmentWriter.append

        def held(writer: SegmentWriter, batches: Sequence[bytes]) -> None:
            self.asked.set()
            assert self._released.wait(30)
            append(writer, batches)

        patch.setattr(SegmentWriter, "append", held)

    def release(self) -> None:
        self._released.set()

    async def until_asked(self) -> None:
        assert await asyncio.to_thread(self.asked.wait, 30)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def key(number: int) -> BatchKey:
    return BatchKey("a", 1, number)


def body(number: int, size: int = 100) -> bytes:
    return bytes([number]) * size


def stored(root: Path) -> list[bytes | None]:
    return [one for path in sorted(log_dir(root).iterdir()) for one in read_segment(path)]


def test_what_would_wait_beyond_the_limit_is_sent_away_and_taken_when_it_comes_again(
    disk: Disk, tmp_path: Path
) -> None:
    async def crowd() -> None:
        ours = Committer(tmp_path)
        accepted = [asyncio.create_task(ours.append(key(0), body(0)))]
        await disk.until_asked()
        accepted += [asyncio.create_task(ours.append(key(n), body(n))) for n in range(1, WAITING_BATCHES + 1)]
        await asyncio.sleep(0)
        late = WAITING_BATCHES + 1
        for _ in range(2):
            with pytest.raises(BusyError, match=f"^{WAITING_BATCHES} batches wait for the disk$"):
                await ours.append(key(late), body(late))
        assert REGISTRY.get_sample_value("swiftqueue_ingest_queue_depth") == WAITING_BATCHES
        again = asyncio.create_task(ours.append(key(3), body(3)))  # takes no place of its own
        await asyncio.sleep(0)
        assert not any(task.done() for task in (*accepted, again))
        disk.release()
        assert all(await asyncio.gather(*accepted))
        assert not await again
        assert await ours.append(key(late), body(late))
        assert REGISTRY.get_sample_value("swiftqueue_ingest_queue_depth") == 0

    asyncio.run(crowd())
    assert stored(tmp_path) == [body(n) for n in range(WAITING_BATCHES + 2)]


def test_large_batches_are_bounded_by_their_bytes(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "WAITING_BYTES", 1000)

    async def crowd() -> None:
        ours = Committer(tmp_path)
        accepted = [asyncio.create_task(ours.append(key(0), body(0)))]
        await disk.until_asked()
        accepted.append(asyncio.create_task(ours.append(key(1), body(1, 600))))
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="1 batches wait for the disk"):
            await ours.append(key(2), body(2, 600))
        accepted.append(asyncio.create_task(ours.append(key(3), body(3, 400))))
        await asyncio.sleep(0)
        disk.release()
        assert all(await asyncio.gather(*accepted))
        assert await ours.append(key(2), body(2, 600))

    asyncio.run(crowd())
    assert stored(tmp_path) == [body(0), body(1, 600), body(3, 400), body(2, 600)]
