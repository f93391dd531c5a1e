"""Compaction: what was logged, whatever its order and its repetitions, is the packet table it came from."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from telemetry_batches import MS, SECOND, bodies, event_rows, log, record_batch, steady
from window_tables import table_of

from feature_store import telemetry_compact
from feature_store.schema import scan_packets
from feature_store.telemetry import gaps, latest_minutes, latest_sender, senders, write_trace
from feature_store.telemetry_compact import Compactor
from feature_store.telemetry_events import BatchKey, encode
from feature_store.telemetry_log import SegmentWriter, adopt_segments, log_dir, read_segment
from feature_store.telemetry_manifest import FILE, MAX_RANGES, Session, load_manifest, sender_dir
from feature_store.windows import build_windows


def expected(packets: pl.DataFrame, sender: str = "a") -> pl.DataFrame:
    """The table as telemetry knows it: an ACK without a latency is Karn's, loss is unknown."""
    return packets.with_columns(
        trace=pl.lit(sender),
        retransmitted=pl.col("acked_ns").is_not_null() & pl.col("latency_us").is_null(),
        lost=pl.lit(value=False),
    )


def compact(root: Path, **options: int) -> Compactor:
    compactor = Compactor(root, **options)
    compactor.run()
    compactor.close()
    return compactor


def rows_in(root: Path, sender: str = "a") -> int:
    return latest_minutes(root, sender, 1e6).packets.height


@pytest.mark.parametrize("segments", [1, 7])
def test_the_table_comes_back_and_its_windows_bit_for_bit(tmp_path: Path, segments: int) -> None:
    packets = steady(4000)  # 8 s: no minute is settled
    batches = bodies(packets, 300)
    for part in np.array_split(np.arange(len(batches)), segments):  # ACKs come in later rounds than packets
        log(tmp_path, [batches[i] for i in part])
        compact(tmp_path)
    latest = latest_minutes(tmp_path, "a", 5)
    assert_frame_equal(latest.packets, expected(packets))
    assert latest.missing_packets == 0
    assert latest.newest_ns == max(row["time_ns"] for row in event_rows(packets))
    assert senders(tmp_path) == ["a"]
    assert not list(log_dir(tmp_path).iterdir())
    assert build_windows(latest.packets, 32).x_BWF.tobytes() == build_windows(packets, 32).x_BWF.tobytes()


def test_the_last_minute_is_cut_by_the_senders_clock_and_keeps_whole_batches(tmp_path: Path) -> None:
    packets = steady(9001, gap_ns=20 * MS)  # 3 minutes
    log(tmp_path, bodies(packets, 1000))
    compact(tmp_path)
    latest = latest_minutes(tmp_path, "a", 1)
    sent_ns = packets["sent_ns"].to_numpy()
    inside = packets.filter(pl.col("sent_ns") > latest.newest_ns - 60 * SECOND)["packet"]
    first = -(-inside[0] // 8) * 8
    assert latest.packets["sent_ns"].to_list() == sent_ns[first:9000].tolist()
    assert latest.packets["packet"].to_list() == list(range(9000 - first))


def test_settled_minutes_become_one_file_each_and_lose_nothing(tmp_path: Path) -> None:
    packets = steady(6000, gap_ns=60 * MS)  # 6 minutes
    for part in bodies(packets, 500):
        log(tmp_path, [part])
        compact(tmp_path)
    manifest = load_manifest(tmp_path, "a")
    files = [len(p.packets) + len(p.acks) for p in manifest.partitions]
    assert files[:3] == [1, 1, 1]
    assert [p.minute for p in manifest.partitions] == sorted({p.minute for p in manifest.partitions})
    on_disk = {str(p.relative_to(sender_dir(tmp_path, "a"))) for p in sender_dir(tmp_path, "a").glob("*/*")}
    assert on_disk == manifest.files()
    assert_frame_equal(latest_minutes(tmp_path, "a", 60).packets, expected(packets))
    counts = manifest.counts
    assert (counts.sends, counts.acks) == (6000, packets["acked_ns"].count())
    assert counts.repeated_sends == counts.repeated_acks == counts.unmatched_acks == counts.gaps == 0


def test_an_ack_of_an_earlier_minute_finds_its_packet(tmp_path: Path) -> None:
    packets = steady(800, gap_ns=100 * MS, latency_ns=70 * SECOND)
    for part in bodies(packets, 250):
        log(tmp_path, [part])
        compact(tmp_path)
    assert_frame_equal(latest_minutes(tmp_path, "a", 60).packets, expected(packets))


@pytest.mark.parametrize("seed", range(5))
def test_disorder_and_repetition_change_nothing(tmp_path: Path, seed: int) -> None:
    """Several replicas, retries that both arrived, segments compacted in any order."""
    chance = random.Random(seed)
    packets = steady(4800, gap_ns=30 * MS)
    batches = bodies(packets, 200)
    arrived = batches + chance.choices(batches, k=10)
    chance.shuffle(arrived)
    writers = [SegmentWriter(tmp_path) for _ in range(3)]
    for batch in arrived:
        writer = chance.choice(writers)
        writer.append([batch])
        if chance.random() < 0.3:
            writer.close()
        if chance.random() < 0.2:
            compact(tmp_path)
    for writer in writers:
        writer.close()
    compact(tmp_path)
    assert_frame_equal(latest_minutes(tmp_path, "a", 60).packets, expected(packets))
    manifest = load_manifest(tmp_path, "a")
    assert manifest.counts.duplicate_batches == 10
    assert manifest.counts.batches == len(batches)
    assert manifest.counts.repeated_acks == manifest.counts.unmatched_acks == 0
    assert gaps(tmp_path).is_empty()


def test_a_gap_is_in_the_table_until_it_is_filled(tmp_path: Path) -> None:
    packets = steady(2000)
    batches = bodies(packets, 100)
    log(tmp_path, [b for i, b in enumerate(batches) if i not in (3, 4, 9)])
    compact(tmp_path)
    assert gaps(tmp_path).rows() == [("a", 1, 3, 4, 2), ("a", 1, 9, 9, 1)]
    assert load_manifest(tmp_path, "a").counts.gaps == 0  # it may lie in another replica's open segment
    compactor = Compactor(tmp_path, gap_s=0)
    for _ in range(3):
        compactor.run()
    compactor.close()
    assert load_manifest(tmp_path, "a").counts.gaps == 3
    latest = latest_minutes(tmp_path, "a", 5)
    assert latest.missing_packets > 0
    assert latest.packets.height % 8 == 0
    log(tmp_path, [batches[9]])
    compact(tmp_path)
    assert gaps(tmp_path).rows() == [("a", 1, 3, 4, 2)]
    log(tmp_path, [batches[4], batches[3]])
    compact(tmp_path)
    assert gaps(tmp_path).is_empty()
    assert_frame_equal(latest_minutes(tmp_path, "a", 5).packets, expected(packets))


def test_the_newest_seconds_are_left_out_while_a_batch_of_them_may_still_come(tmp_path: Path) -> None:
    packets = steady(4000)  # 8 s
    batches = bodies(packets, 100)
    late = len(batches) - 5  # in a segment that another replica has not closed yet
    log(tmp_path, batches[:late] + batches[late + 1 :])
    compact(tmp_path)
    assert latest_minutes(tmp_path, "a", 5).missing_packets > 0
    settled = latest_minutes(tmp_path, "a", 5, settled=True)
    whole = int((packets["sent_ns"] <= settled.newest_ns - 3 * SECOND).sum()) // 8 * 8
    assert_frame_equal(settled.packets, expected(packets)[:whole])
    assert settled.missing_packets == 0
    last_minute = latest_minutes(tmp_path, "a", 1 / 60, settled=True)  # a whole second all the same
    assert last_minute.packets.height == pytest.approx(500, abs=8)
    compactor = Compactor(tmp_path, gap_s=0)
    for _ in range(3):  # it is not coming any more: nothing is left out for it
        compactor.run()
    compactor.close()
    assert latest_minutes(tmp_path, "a", 5, settled=True).packets["sent_ns"][-1] > settled.newest_ns - SECOND
    log(tmp_path, [batches[late]])
    compact(tmp_path)
    assert_frame_equal(latest_minutes(tmp_path, "a", 5, settled=True).packets, expected(packets))


@pytest.mark.parametrize("late", [13, 15, 16, 30])
def test_a_batch_that_comes_late_has_the_clock_of_its_time(tmp_path: Path, late: int) -> None:
    """The clock is set back before batch 16; the late one has the first packets of a flow."""
    rows = event_rows(steady(2000))
    begin_ns = rows[late * 100]["time_ns"]
    for row in rows[late * 100 :]:
        if row["kind"] == 0:
            row["flow_id"] = 7
    for row in rows[1600:]:
        row["time_ns"] -= 3600 * SECOND
    batches = [
        encode(BatchKey("a", 1, n), record_batch(rows[at : at + 100]))
        for n, at in enumerate(range(0, len(rows), 100))
    ]
    for part in (batches[:late], batches[late + 1 :], [batches[late]]):
        log(tmp_path, part)
        compact(tmp_path)
    latest = latest_minutes(tmp_path, "a", 5)
    assert latest.packets.height == 2000
    assert latest.packets["sent_ns"][-1] - latest.packets["sent_ns"][0] < 4 * SECOND
    assert len(load_manifest(tmp_path, "a").partitions) == 1
    # Where the first batch after the step is the late one, the session's time went on without its 0.1 s.
    least_ms = -110 if late == 16 else -5
    assert least_ms * MS <= latest.flow_starts_ns[7] - begin_ns <= 5 * MS


def test_a_clock_set_back_neither_ages_nor_disorders_anything(tmp_path: Path) -> None:
    rows = event_rows(steady(2000))
    for row in rows[1800:]:
        row["time_ns"] -= 3600 * SECOND
    batches = [
        encode(BatchKey("a", 1, n), record_batch(rows[at : at + 100]))
        for n, at in enumerate(range(0, len(rows), 100))
    ]
    for part in (batches[:15], batches[15:18], batches[18:30], batches[30:]):
        log(tmp_path, part)
        compact(tmp_path)
    latest = latest_minutes(tmp_path, "a", 5).packets
    assert latest.height == 2000
    assert latest["sent_ns"].is_sorted()
    assert latest["sent_ns"][-1] - latest["sent_ns"][0] < 4 * SECOND
    assert (latest["acked_ns"] >= latest["sent_ns"]).all()


def test_a_clock_set_forward_drops_nothing(tmp_path: Path) -> None:
    before = steady(800)
    after = steady(800).with_columns(
        pl.col("packet") + 800, *(pl.col(c) + 10**6 * SECOND for c in ("sent_ns", "acked_ns"))
    )
    log(tmp_path, bodies(before, 400) + bodies(after, 400, first=len(bodies(before, 400))))
    compact(tmp_path)
    assert latest_minutes(tmp_path, "a", 1).packets.height == 800
    assert rows_in(tmp_path) == 1600


def test_a_new_session_starts_anew_and_the_old_minutes_stay(tmp_path: Path) -> None:
    log(tmp_path, bodies(steady(800), 100) + bodies(steady(400), 100, session=2))
    compact(tmp_path)
    latest = latest_minutes(tmp_path, "a", 5)
    assert (latest.session, latest.packets.height) == (2, 400)
    assert {p.session for p in load_manifest(tmp_path, "a").partitions} == {1, 2}


def test_repeated_packets_and_acks_and_acks_of_nothing_are_counted(tmp_path: Path) -> None:
    packets = steady(8 * 5, gap_ns=10 * SECOND, latency_ns=SECOND)
    rows = event_rows(packets)
    acks = [row for row in rows if row["kind"] == 1]
    again = [
        {**row, "time_ns": rows[-1]["time_ns"]} for row in (*rows[:2], *acks[:3], {**acks[0], "packet": 999})
    ]
    for n, part in enumerate((rows, again)):
        log(tmp_path, [encode(BatchKey("a", 1, n), record_batch(part))])
        compact(tmp_path)
    log(tmp_path, bodies(steady(8), 100, session=2))  # settles session 1
    compact(tmp_path)
    counts = load_manifest(tmp_path, "a").counts
    assert counts.repeated_sends == sum(row["kind"] == 0 for row in rows[:2])
    assert counts.repeated_acks == sum(row["kind"] == 1 for row in rows[:2]) + 3
    assert counts.sends + counts.acks == len(rows) + len(again) + len(event_rows(steady(8)))


def test_only_the_newest_minutes_are_kept(tmp_path: Path) -> None:
    packets = steady(3000, gap_ns=200 * MS)  # 10 minutes
    for part in bodies(packets, 500):
        log(tmp_path, [part])
        compact(tmp_path, keep_minutes=4)
    manifest = load_manifest(tmp_path, "a")
    assert len(manifest.partitions) == 4
    kept = sum(p.rows for p in manifest.partitions)
    assert kept + manifest.counts.dropped_rows == manifest.counts.sends == 3000
    assert len(list(sender_dir(tmp_path, "a").glob("minute=*"))) == 4


def test_a_torn_segment_is_read_to_its_tear_and_kept(tmp_path: Path) -> None:
    batches = bodies(steady(2000), 100)
    log(tmp_path, batches[:5])
    (segment,) = adopt_segments(tmp_path)
    segment.write_bytes(segment.read_bytes()[:-10])
    assert [b is None for b in read_segment(segment)] == [False] * 4 + [True]
    compactor = Compactor(tmp_path)
    report = compactor.run()
    compactor.close()
    assert report.damaged == [segment.name]
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
    assert {path.name for path in (tmp_path / "damaged").iterdir()} == set(torn[-2:])


def test_one_compactor_at_a_time(tmp_path: Path) -> None:
    first = Compactor(tmp_path)
    with pytest.raises(BlockingIOError, match="another compactor"):
        Compactor(tmp_path)
    first.close()
    Compactor(tmp_path).close()


def test_the_stages_read_it_as_a_trace(tmp_path: Path) -> None:
    from pipelines.windows import make_windows

    log(tmp_path, bodies(steady(6000), 1000))
    compact(tmp_path)
    latest = latest_minutes(tmp_path, "a", 5)
    write_trace(latest, tmp_path / "trace")
    assert_frame_equal(scan_packets(tmp_path / "trace").collect(), latest.packets)
    params = {"protocol": "short", "visibility": ["acked"], "tokens": 32, "tokens_min": 16, "tokens_max": 64}
    meta = make_windows(tmp_path / "trace", tmp_path / "windows", params)
    assert meta["traces"]["a"]["windows"] == 750


def stored_ago(root: Path, sender: str, seconds: int) -> None:
    at_ns = time.time_ns() - seconds * SECOND
    os.utime(sender_dir(root, sender) / FILE, ns=(at_ns, at_ns))


def test_of_several_senders_the_one_stored_last_is_the_latest(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no telemetry under"):
        latest_sender(tmp_path)
    for sender, packets in (("a", 80), ("b", 800)):
        log(tmp_path, bodies(steady(packets), 40, sender=sender))
    compact(tmp_path)
    (tmp_path / "packets" / "trace=c").mkdir()  # its first packets are being written
    stored_ago(tmp_path, "b", 61)
    assert latest_sender(tmp_path) == "a"
    stored_ago(tmp_path, "a", 200)
    assert latest_sender(tmp_path) == "b"


def test_of_senders_at_the_same_time_the_one_of_most_packets_is_the_latest(tmp_path: Path) -> None:
    for sender, packets in (("a", 80), ("b", 160), ("c", 80)):
        log(tmp_path, bodies(steady(packets), 40, sender=sender))
    compact(tmp_path)
    for last in ("a", "b", "c"):
        for sender in ("a", "b", "c"):
            stored_ago(tmp_path, sender, 0 if sender == last else 30)
        assert latest_sender(tmp_path) == "b"


def test_an_unknown_sender_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no telemetry of sender 'b'"):
        latest_minutes(Path("/nowhere"), "b", 1)
    with pytest.raises(ValueError, match="must be above 0"):
        latest_minutes(Path("/nowhere"), "b", float("nan"))


def test_sequence_ranges_are_those_of_a_set() -> None:
    chance, session, seen = random.Random(1), Session(), set()
    for _ in range(2000):
        number = chance.randrange(300)
        assert session.take(number) == (number not in seen)
        seen.add(number)
        missing = {n for first, last in session.gaps() for n in range(first, last + 1)}
        assert missing == set(range(max(seen))) - seen
    for number in range(1000, 5000, 2):
        session.take(number)
    session.forget_old_gaps()
    assert len(session.ranges) <= MAX_RANGES
    assert session.last_sequence == 4998


def test_a_table_with_every_corner_case(tmp_path: Path) -> None:
    rows = [(0, None, False, 60, 0, 0, "classic"), (0, 0, False, 65535, 3, 2, "l4s")] * 16
    packets = table_of(rows)
    log(tmp_path, bodies(packets, 7))
    compact(tmp_path)
    assert_frame_equal(latest_minutes(tmp_path, "a", 1).packets, expected(packets))
