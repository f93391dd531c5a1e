"""Damaged, torn, foreign and removed files of the telemetry store cost their own sender, and no other."""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from telemetry_batches import MS, bodies, compact, log, steady, store

from swiftqueue.feature_store.telemetry import compact as telemetry_compact
from swiftqueue.feature_store.telemetry import round as telemetry_round
from swiftqueue.feature_store.telemetry.compact import Compactor
from swiftqueue.feature_store.telemetry.events import HEADER, sealed
from swiftqueue.feature_store.telemetry.log import (
    FRAME,
    MAGIC,
    adopt_segments,
    read_segment,
)
from swiftqueue.feature_store.telemetry.manifest import FILE, load_manifest, sender_dir
from swiftqueue.feature_store.telemetry.recent import (
    latest_minutes,
    next_sender,
    senders,
)


def test_a_torn_segment_is_read_to_its_tear_and_kept(tmp_path: Path) -> None:
    batches = bodies(steady(2000), 100)
    log(tmp_path, batches[:5])
    (segment,) = adopt_segments(tmp_path)
    segment.write_bytes(segment.read_bytes()[:-10])
    assert [b is None for b in read_segment(segment)] == [False] * 4 + [True]
    report = compact(tmp_path)
    assert [line.split()[1] for line in report.damaged] == [segment.name]
    assert (tmp_path / "damaged" / segment.name).exists()
    assert load_manifest(tmp_path, "a").counts.batches == 4


def test_only_the_newest_torn_segments_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_compact, "KEEP_DAMAGED", 2)
    torn = []
    for part in bodies(steady(2000), 500):
        log(tmp_path, [part])
        (segment,) = adopt_segments(tmp_path)
        segment.write_bytes(segment.read_bytes()[:-10])
        torn.append(segment.name)
        compact(tmp_path)
        if len(torn) == 1:  # after it the clock was set back an hour
            os.utime(tmp_path / "damaged" / segment.name, (time.time() + 3600,) * 2)
    assert {path.name for path in (tmp_path / "damaged").iterdir()} == set(torn[-2:])


def test_minutes_of_an_older_format_are_put_aside_and_their_sender_begins_anew(tmp_path: Path) -> None:
    """They say an ECN codepoint that nobody saw. However many senders there are, none of it is lost."""
    names = [f"s{number}" for number in range(telemetry_compact.KEEP_DAMAGED + 2)]
    for name in names:
        store(tmp_path, bodies(steady(80), 100, sender=name))
    for name in names:
        file = sender_dir(tmp_path, name) / FILE
        file.write_text(file.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(
        ValueError, match=r"trace=s3/manifest.json: .*older format.*; the ingest puts"
    ) as caught:
        latest_minutes(tmp_path, "s3", 1)
    assert "\n" not in str(caught.value)
    lines = compact(tmp_path).damaged
    assert len(lines) == len(names)
    assert all("older format" in line and f"{tmp_path}/older/trace=s" in line for line in lines)
    assert len(list((tmp_path / "older").glob("trace=*/minute=*/*.parquet"))) == len(names)
    assert not (tmp_path / "damaged").exists()
    store(tmp_path, bodies(steady(80), 100, sender="s3", session=2))
    assert latest_minutes(tmp_path, "s3", 1e6).packets.height == 80


def of_format_1() -> bytes:
    """Return a segment with a batch whose events have neither ECN codepoint nor retransmission flag."""
    (body,) = bodies(steady(4), 100)
    header = np.frombuffer(body[: HEADER.itemsize], HEADER).copy()
    header["format"] = 1
    body = sealed(header.tobytes() + body[HEADER.itemsize :])
    return FRAME.pack(MAGIC, len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize("content", [b"SQT1" + b"\0" * 100, of_format_1()])
def test_a_log_of_an_older_format_is_refused_in_one_line_and_left(tmp_path: Path, content: bytes) -> None:
    log(tmp_path, bodies(steady(100), 1000))
    (segment,) = adopt_segments(tmp_path)
    older = segment.with_name(f"0{segment.name}")
    older.write_bytes(content)
    with pytest.raises(ValueError, match=r"1 segment\(s\) as .* are of an older format") as caught:
        Compactor(tmp_path)
    assert older.name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert older.exists()
    assert not (tmp_path / "damaged").exists()
    older.unlink()
    compact(tmp_path)
    assert load_manifest(tmp_path, "a").counts.batches == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-10],
        lambda text: text.replace('"format": 2', '"format": 3'),
        lambda text: text.replace('"sender": "a"', '"sender": "b"'),
        lambda text: text.replace('"packets": ["minute=', '"packets": ["../../minute='),
        lambda text: text.replace('"ranges": [[0, ', '"ranges": [[5, '),
        lambda text: text.replace('"rows": ', '"rows": -'),
        lambda text: text.replace('"sessions": {"1"', '"sessions": {"2"'),
        lambda text: text.replace('"flow": {"0": [[', '"flow": {"0": [[9000000000000000000, 1.0], ['),
        lambda text: text.replace('"newest_ns": ', '"newest_ns": 99999999999999999999'),
        lambda text: "[" * 100_000,
    ],
)
def test_a_damaged_manifest_is_named_in_one_line(tmp_path: Path, damage: Callable[[str], str]) -> None:
    store(tmp_path, bodies(steady(100), 1000))
    path = sender_dir(tmp_path, "a") / FILE
    good = path.read_text()
    path.write_text(damage(good))
    assert path.read_text() != good
    with pytest.raises(ValueError, match="not a telemetry manifest") as caught:
        load_manifest(tmp_path, "a")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "damage", "kept"),
    [
        (FILE, lambda file: file.write_bytes(b""), "minute=*/*.parquet"),
        ("minute=*/*.parquet", lambda part: part.write_bytes(b"PAR1" + part.read_bytes()[9:]), FILE),
        ("minute=*/*.parquet", lambda part: pl.DataFrame({"packed": [1]}).write_parquet(part), FILE),
        ("minute=*/*.parquet", Path.unlink, FILE),
    ],
)
def test_a_damaged_file_costs_its_own_sender_alone(
    tmp_path: Path,
    pattern: str,
    damage: Callable[[Path], object],
    kept: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A part is found by a running compactor, and a manifest by the next one; nothing is lost."""
    monkeypatch.setattr(telemetry_round, "MAX_PARTS", 1)
    batches = {name: bodies(steady(200), 100, sender=name) for name in "ab"}
    compactor = Compactor(tmp_path)
    log(tmp_path, [batches["a"][0], batches["b"][0]])
    compactor.run()
    (file,) = sender_dir(tmp_path, "a").glob(pattern)
    damage(file)
    with pytest.raises((ValueError, FileNotFoundError)):
        latest_minutes(tmp_path, "a", 1)
    log(tmp_path, [*batches["a"][1:], *batches["b"][1:]])
    if file.name == FILE:
        compactor.close()
        compactor = Compactor(tmp_path)
    (line,) = compactor.run().damaged
    assert all(part in line for part in ("trace=a", file.name, "begins anew"))
    assert load_manifest(tmp_path, "b").counts.batches == len(batches["b"])
    assert load_manifest(tmp_path, "a").counts.batches == len(batches["a"]) - 1
    assert list((tmp_path / "damaged" / "trace=a").glob(kept))
    assert compactor.run().damaged == []
    assert adopt_segments(tmp_path) == []
    compactor.close()


def test_a_damaged_minute_costs_what_came_before_it(tmp_path: Path) -> None:
    packets = steady(6000, gap_ns=60 * MS)  # 6 minutes; no compaction reads the first again
    for part in bodies(packets, 500):
        store(tmp_path, [part])
    whole = latest_minutes(tmp_path, "a", 60)
    first, second = load_manifest(tmp_path, "a").partitions[:2]
    part = sender_dir(tmp_path, "a") / first.packets[0]
    part.write_bytes(b"PAR1" + part.read_bytes()[9:])
    latest = latest_minutes(tmp_path, "a", 60)
    assert (str(part) in latest.damaged, whole.damaged) == (True, "")
    assert latest.missing_packets == 0
    kept = whole.packets.filter(pl.col("packet") >= -(-second.first_packet // 8) * 8)
    assert_frame_equal(latest.packets.drop("packet"), kept.drop("packet"))
    assert latest_minutes(tmp_path, "a", 1).damaged == ""


def test_a_sender_that_is_removed_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As settings.py says how to free its place: while the ingest runs."""
    monkeypatch.setattr(telemetry_round, "MAX_PARTS", 1)
    first, *rest = bodies(steady(200), 100)
    compactor = Compactor(tmp_path)
    log(tmp_path, [first])
    compactor.run()
    shutil.rmtree(sender_dir(tmp_path, "a"))
    log(tmp_path, rest)
    assert compactor.run().damaged == []
    assert load_manifest(tmp_path, "a").counts.batches == len(rest)
    shutil.rmtree(sender_dir(tmp_path, "a"))
    compactor.run()
    assert senders(tmp_path) == []
    compactor.close()


def test_a_sender_of_whom_a_minute_is_removed_begins_anew_and_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_compact, "ROOM_S", 0.0)
    compactor = Compactor(tmp_path)
    log(tmp_path, [*bodies(steady(200), 100, sender="a"), *bodies(steady(100), 100, sender="b")])
    compactor.run()
    shutil.rmtree(next(sender_dir(tmp_path, "a").glob("minute=*")))
    (line,) = compactor.run().damaged
    assert "minute=" in line
    assert "begins anew" in line
    assert compactor.run().damaged == []
    assert load_manifest(tmp_path, "b").partitions
    compactor.close()


def test_of_senders_one_with_a_damaged_manifest_is_not_the_latest(tmp_path: Path) -> None:
    store(tmp_path, [*bodies(steady(100), 100, sender="a"), *bodies(steady(50), 100, sender="b")])
    (sender_dir(tmp_path, "a") / FILE).write_bytes(b"")
    assert next_sender(tmp_path, {}, ["b", "b"]) == "b"


def test_events_of_another_layout_are_refused_in_one_line_and_never_filed_as_damaged(tmp_path: Path) -> None:
    (body, *_) = bodies(steady(100), 1000)
    at = HEADER.fields["format"][1]  # type: ignore[index]
    older = sealed(body[:at] + bytes([7]) + body[at + 1 :])
    compactor = Compactor(tmp_path)
    log(tmp_path, [older])
    with pytest.raises(ValueError, match=r"1 segment\(s\) as .* are of an older format"):
        compactor.run()  # a replica of another version wrote it while this one compacts
    compactor.close()
    with pytest.raises(ValueError, match=r"1 segment\(s\) as .* are of an older format"):
        Compactor(tmp_path)
    assert not (tmp_path / "damaged").exists()
    assert len(adopt_segments(tmp_path)) == 1
