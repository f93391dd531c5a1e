"""What one sender may ask of a replica: more is refused or told to come again, and nobody else feels it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import event_rows
import pytest

from swiftqueue.feature_store.telemetry import sessions
from swiftqueue.feature_store.telemetry.compact import Compactor
from swiftqueue.feature_store.telemetry.events import MINUTE_NS, SEND, BatchKey, Events, RefusedError, encode
from swiftqueue.feature_store.telemetry.log import SegmentWriter
from swiftqueue.feature_store.telemetry.sessions import open_session
from swiftqueue.serving.ingest import bounds
from swiftqueue.serving.ingest.bounds import IN_FLIGHT, PACKET_JUMP, SEQUENCE_JUMP, Bounds, LaterError, Limits
from swiftqueue.serving.ingest.server import limits


def batch(packet: int, minutes: tuple[int, ...] = (0,)) -> Events:
    return event_rows.batch(
        [
            {"kind": SEND, "time_ns": n * MINUTE_NS, "packet": packet + i, "size_bytes": 1500}
            for i, n in enumerate(minutes)
        ]
    )


def check(ours: Bounds, sequence: int, events: Events, sender: str = "a", size: int = 1000) -> None:
    key = BatchKey(sender, 1, sequence)
    asyncio.run(ours.check(key, events, size))
    ours.note(key, events)


def test_numbers_jump_only_so_far_from_the_sessions_last(tmp_path: Path) -> None:
    ours = Bounds(tmp_path, limits())
    check(ours, SEQUENCE_JUMP - 1, batch(10**12))  # a long-lived sender's first packet is any
    for sequence, packet, words in (
        (2 * SEQUENCE_JUMP, 10**12, "batch 2097152 after batch 1048575"),
        (0, 10**12 + PACKET_JUMP + 1, "packet 1004294967297 after packet 1000000000000"),
    ):
        with pytest.raises(RefusedError, match=words) as caught:
            check(ours, sequence, batch(packet))
        assert caught.value.reason == "jump"
    check(ours, 2 * SEQUENCE_JUMP - 1, batch(10**12 + PACKET_JUMP))


def test_a_replica_learns_from_the_store_what_another_has_stored(tmp_path: Path) -> None:
    ours, early = Bounds(tmp_path, limits()), Bounds(tmp_path, limits())
    with pytest.raises(RefusedError, match="after batch -1"):  # which nothing was stored of yet
        check(early, 2 * SEQUENCE_JUMP, batch(0))
    check(ours, 0, batch(0))
    far = SEQUENCE_JUMP + 10
    with pytest.raises(RefusedError):
        check(ours, far, batch(1))
    writer = SegmentWriter(tmp_path)
    writer.append([encode(BatchKey("a", 1, 100), batch(1))])
    writer.close()
    Compactor(tmp_path).run()
    check(ours, far, batch(1))
    for replica in (Bounds(tmp_path, limits()), early):
        with pytest.raises(RefusedError, match="after packet 1"):
            check(replica, 101, batch(PACKET_JUMP + 2))


def test_a_sender_has_its_own_places_and_no_others() -> None:
    ours = Bounds(Path(), limits())
    with ours.turn("b"):
        turns = [ours.turn("a") for _ in range(IN_FLIGHT)]
        for turn in turns:
            turn.__enter__()
        with pytest.raises(LaterError, match="8 requests under way"), ours.turn("a"):
            pass
        with ours.turn("b"):
            pass
        turns.pop().__exit__(None, None, None)
        with ours.turn("a"):
            pass


def test_bytes_minutes_and_openings_come_at_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(bounds.time, "monotonic", lambda: now_s[0])
    ours = Bounds(tmp_path, Limits(senders=9, bytes_s=1000, openings_s=1, openings_burst=2, minutes_burst=3))
    check(ours, 0, batch(0), size=10_000)
    with pytest.raises(LaterError, match="too much at once"):
        check(ours, 1, batch(1), size=1000)
    check(ours, 1, batch(1), sender="b", size=10_000)  # another is not held up
    now_s[0] = 1.0
    check(ours, 1, batch(1), size=1000)
    check(ours, 2, batch(2, (0, 1, 2, 3)), sender="c", size=1)
    with pytest.raises(LaterError):
        check(ours, 3, batch(9, (3, 4)), sender="c", size=1)  # a new minute is a new file
    check(ours, 3, batch(9, (3,)), sender="c", size=1)
    for _ in range(2):
        ours.check_opening("d")
    with pytest.raises(LaterError, match="opens sessions too fast"):
        ours.check_opening("d")
    now_s[0] = 2.0
    ours.check_opening("d")


def test_only_so_many_senders_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "REMEMBERED", 3)
    ours = Bounds(Path(), limits())
    for number in range(10):
        with ours.turn(f"s{number}"):
            pass
    assert len(ours._senders) <= 4


def test_a_slow_request_does_not_keep_the_names_that_come_after_it() -> None:
    """As it did: nobody was forgotten while the oldest had a request under way."""
    ours = Bounds(Path(), limits())
    with ours.turn("slow"):
        for number in range(100_000):
            with ours.turn(f"s{number}"):
                pass
        assert len(ours._senders) <= bounds.REMEMBERED + 1
        assert ours._senders["slow"].in_flight == 1


def test_there_are_only_so_many_senders(tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert open_session(tmp_path, name, most=2) == 1
    with pytest.raises(RefusedError, match="sender c: there are 2 others") as caught:
        open_session(tmp_path, "c", most=2)
    assert caught.value.reason == "senders"
    assert not (tmp_path / "sessions" / "c").exists()
    assert open_session(tmp_path, "a", most=2) == 2


def test_there_are_only_so_many_senders_however_many_come_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks how many there are while the other does."""
    both = threading.Barrier(2)

    def listed(path: Path) -> list[str]:
        names = os.listdir(path)
        if path == sessions.sessions_dir(tmp_path):
            with contextlib.suppress(threading.BrokenBarrierError):  # the other waits for its turn
                both.wait(1)
        return names

    monkeypatch.setattr(sessions, "os", SimpleNamespace(**{**vars(os), "listdir": listed}))

    def opened(name: str) -> bool:
        try:
            return open_session(tmp_path, name, most=1) == 1
        except RefusedError:
            return False

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(opened, ("a", "b"))) == [False, True]
    assert len(os.listdir(sessions.sessions_dir(tmp_path))) == 1
