"""Compaction gives back the packet table that was logged, whatever the order and the repetitions."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from event_rows import batch
from polars.testing import assert_frame_equal
from telemetry_batches import MS, SECOND, bodies, compact, event_rows, log, steady, store
from window_tables import table_of

from swiftqueue.feature_store.events.event_stream import replay_events
from swiftqueue.feature_store.packets.schema import scan_packets
from swiftqueue.feature_store.telemetry import compact as telemetry_compact
from swiftqueue.feature_store.telemetry import round as telemetry_round
from swiftqueue.feature_store.telemetry.compact import Compactor
from swiftqueue.feature_store.telemetry.events import ACK, MAX_TIME_NS, SEND, BatchKey, encode
from swiftqueue.feature_store.telemetry.log import (
    SegmentWriter,
    log_dir,
)
from swiftqueue.feature_store.telemetry.manifest import FILE, MAX_RANGES, Session, load_manifest, sender_dir
from swiftqueue.feature_store.telemetry.recent import (
    gaps,
    latest_minutes,
    next_sender,
    sender_weights,
    senders,
    write_trace,
)
from swiftqueue.feature_store.telemetry.round import MAX_PARTS
from swiftqueue.feature_store.telemetry.sessions import (
    KEPT,
    SessionOpening,
    current_session,
    open_session,
    read_opening,
    sessions_dir,
)
from swiftqueue.feature_store.telemetry.tables import read_part


def expected(packets: pl.DataFrame) -> pl.DataFrame:
    """Return the table as telemetry knows it, where loss is unknown."""
    return packets.with_columns(trace=pl.lit("a"), lost=pl.lit(value=False))


def rows_in(root: Path, sender: str = "a") -> int:
    return latest_minutes(root, sender, 1e6).packets.height


@pytest.mark.parametrize("segments", [1, 7])
def test_the_table_comes_back_and_its_events_bit_for_bit(tmp_path: Path, segments: int) -> None:
    packets = steady(4000)  # 8 s: no minute is settled
    batches = bodies(packets, 300)
    for part in np.array_split(np.arange(len(batches)), segments):  # ACKs come in later rounds than packets
        store(tmp_path, [batches[i] for i in part])
    latest = latest_minutes(tmp_path, "a", 5)
    assert_frame_equal(latest.packets, expected(packets))
    assert latest.missing_packets == 0
    assert latest.newest_ns == max(row["time_ns"] for row in event_rows(packets))
    assert senders(tmp_path) == ["a"]
    assert not list(log_dir(tmp_path).iterdir())
    found, whole = replay_events(latest.packets), replay_events(packets)
    assert found.x_EF.tobytes() == whole.x_EF.tobytes()
    assert found.x_DHF.tobytes() == whole.x_DHF.tobytes()


def test_the_last_minute_is_cut_by_the_senders_clock_and_keeps_whole_batches(tmp_path: Path) -> None:
    packets = steady(9001, gap_ns=20 * MS)  # 3 minutes
    store(tmp_path, bodies(packets, 1000))
    latest = latest_minutes(tmp_path, "a", 1)
    sent_ns = packets["sent_ns"].to_numpy()
    inside = packets.filter(pl.col("sent_ns") > latest.newest_ns - 60 * SECOND)["packet"]
    first = -(-inside[0] // 8) * 8
    assert latest.packets["sent_ns"].to_list() == sent_ns[first:9000].tolist()
    assert latest.packets["packet"].to_list() == list(range(9000 - first))


def test_settled_minutes_become_one_file_each_and_lose_nothing(tmp_path: Path) -> None:
    packets = steady(6000, gap_ns=60 * MS)  # 6 minutes
    for part in bodies(packets, 500):
        store(tmp_path, [part])
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
        store(tmp_path, [part])
    assert_frame_equal(latest_minutes(tmp_path, "a", 60).packets, expected(packets))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_disorder_and_repetition_change_nothing(tmp_path: Path, seed: int) -> None:
    """Several replicas, retries that both arrived, segments compacted in any order."""
    chance = random.Random(seed)
    packets = steady(4800, gap_ns=30 * MS)
    batches = bodies(packets, 200)
    arrived = batches + chance.choices(batches, k=10)
    chance.shuffle(arrived)
    writers = [SegmentWriter(tmp_path) for _ in range(3)]
    for body in arrived:
        writer = chance.choice(writers)
        writer.append([body])
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
    store(tmp_path, [b for i, b in enumerate(batches) if i not in (3, 4, 9)])
    assert gaps(tmp_path).rows() == [("a", 1, 3, 4, 2, None), ("a", 1, 9, 9, 1, None)]
    assert load_manifest(tmp_path, "a").counts.gaps == 0  # it may lie in another replica's open segment
    compactor = Compactor(tmp_path, gap_s=0)
    for _ in range(3):
        compactor.run()
    compactor.close()
    assert load_manifest(tmp_path, "a").counts.gaps == 3
    latest = latest_minutes(tmp_path, "a", 5)
    assert latest.missing_packets > 0
    assert latest.packets.height % 8 == 0
    store(tmp_path, [batches[9]])
    assert gaps(tmp_path).rows() == [("a", 1, 3, 4, 2, None)]
    store(tmp_path, [batches[4], batches[3]])
    assert gaps(tmp_path).is_empty()
    assert_frame_equal(latest_minutes(tmp_path, "a", 5).packets, expected(packets))


@pytest.mark.parametrize("why", ["many files", "a newer session"])
def test_acks_wait_for_the_packets_of_a_gap_when_their_minute_is_merged(tmp_path: Path, why: str) -> None:
    packets = steady(2000)
    batches = bodies(packets, 100)
    for part in batches[:4] + batches[5:]:
        store(tmp_path, [part])
    if why == "a newer session":
        store(tmp_path, bodies(steady(8), 100, session=2))
    minute = load_manifest(tmp_path, "a").partitions[0]
    assert len(minute.packets) < MAX_PARTS // 2
    assert minute.acks
    store(tmp_path, bodies(steady(8), 100, session=3))
    settled = load_manifest(tmp_path, "a").partitions[0]
    assert (len(settled.packets), len(settled.acks)) == (1, 1)
    store(tmp_path, bodies(steady(8), 100, session=4))
    assert load_manifest(tmp_path, "a").partitions[0] == settled  # it is not written again for what waits
    store(tmp_path, [batches[4]])
    manifest = load_manifest(tmp_path, "a")
    assert manifest.counts.unmatched_acks == manifest.counts.repeated_acks == 0
    (name,) = manifest.partitions[0].packets
    assert not manifest.partitions[0].acks
    stored = read_part(sender_dir(tmp_path, "a"), name)
    assert_frame_equal(stored, expected(packets).select(stored.columns))


def test_the_newest_seconds_are_left_out_while_a_batch_of_them_may_still_come(tmp_path: Path) -> None:
    packets = steady(4000)  # 8 s
    batches = bodies(packets, 100)
    late = len(batches) - 5  # in a segment that another replica has not closed yet
    store(tmp_path, batches[:late] + batches[late + 1 :])
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
    store(tmp_path, [batches[late]])
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
        encode(BatchKey("a", 1, n), batch(rows[at : at + 100]))
        for n, at in enumerate(range(0, len(rows), 100))
    ]
    for part in (batches[:late], batches[late + 1 :], [batches[late]]):
        store(tmp_path, part)
    latest = latest_minutes(tmp_path, "a", 5)
    assert latest.packets.height == 2000
    assert latest.packets["sent_ns"][-1] - latest.packets["sent_ns"][0] < 4 * SECOND
    assert len(load_manifest(tmp_path, "a").partitions) == 1
    # Where the first batch after the step is the late one, the session's time went on without its 0.1 s.
    least_ms = -110 if late == 16 else -5
    assert least_ms * MS <= load_manifest(tmp_path, "a").sessions[1].flow_starts_ns["7"] - begin_ns <= 5 * MS


def test_a_clock_set_back_neither_ages_nor_disorders_anything(tmp_path: Path) -> None:
    rows = event_rows(steady(2000))
    for row in rows[1800:]:
        row["time_ns"] -= 3600 * SECOND
    batches = [
        encode(BatchKey("a", 1, n), batch(rows[at : at + 100]))
        for n, at in enumerate(range(0, len(rows), 100))
    ]
    for part in (batches[:15], batches[15:18], batches[18:30], batches[30:]):
        store(tmp_path, part)
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
    store(tmp_path, bodies(before, 400) + bodies(after, 400, first=len(bodies(before, 400))))
    assert latest_minutes(tmp_path, "a", 1).packets.height == 800
    assert rows_in(tmp_path) == 1600


def test_a_new_session_starts_anew_and_the_old_minutes_stay(tmp_path: Path) -> None:
    store(tmp_path, bodies(steady(800), 100) + bodies(steady(400), 100, session=2))
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
    halves = (rows[: len(rows) // 2], rows[len(rows) // 2 :])  # a batch may span four minutes
    for n, part in enumerate((*halves, again)):
        store(tmp_path, [encode(BatchKey("a", 1, n), batch(part))])
    log(tmp_path, bodies(steady(8), 100, session=2))  # settles session 1
    compact(tmp_path)
    counts = load_manifest(tmp_path, "a").counts
    assert counts.repeated_sends == sum(row["kind"] == 0 for row in rows[:2])
    assert counts.repeated_acks == sum(row["kind"] == 1 for row in rows[:2]) + 3
    assert counts.sends + counts.acks == len(rows) + len(again) + len(event_rows(steady(8)))


def test_only_the_newest_minutes_are_kept(tmp_path: Path) -> None:
    packets = steady(3000, gap_ns=200 * MS)  # 10 minutes
    for part in bodies(packets, 500):
        store(tmp_path, [part], keep_minutes=4)
    manifest = load_manifest(tmp_path, "a")
    assert len(manifest.partitions) == 4
    kept = sum(p.rows for p in manifest.partitions)
    assert kept + manifest.counts.dropped_rows == manifest.counts.sends == 3000
    assert len(list(sender_dir(tmp_path, "a").glob("minute=*"))) == 4


def test_one_compactor_at_a_time(tmp_path: Path) -> None:
    first = Compactor(tmp_path)
    with pytest.raises(BlockingIOError, match="another compactor"):
        Compactor(tmp_path)
    first.close()
    Compactor(tmp_path).close()


def test_the_stages_read_it_as_a_trace(tmp_path: Path) -> None:
    from swiftqueue.pipelines.split import SplitParams, split

    store(tmp_path, bodies(steady(6000), 1000))
    latest = latest_minutes(tmp_path, "a", 5)
    write_trace(latest, tmp_path / "trace")
    assert_frame_equal(scan_packets(tmp_path / "trace").collect(), latest.packets)
    (divided,) = split(SplitParams(protocol="short"), tmp_path / "trace")["traces"].values()
    assert divided["duration_s"] == pytest.approx(749 * 8 * 2e-3)  # from the first decision to the last


def stored_ago(root: Path, sender: str, seconds: int) -> None:
    at_ns = time.time_ns() - seconds * SECOND
    os.utime(sender_dir(root, sender) / FILE, ns=(at_ns, at_ns))


def test_a_sender_that_has_stopped_teaches_no_more(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no telemetry under"):
        next_sender(tmp_path, {}, [])
    for sender, packets in (("a", 80), ("b", 800)):
        store(tmp_path, bodies(steady(packets), 40, sender=sender))
    (tmp_path / "packets" / "trace=c").mkdir()  # its first packets are being written
    stored_ago(tmp_path, "b", 70)
    stored_ago(tmp_path, "a", 0)
    assert next_sender(tmp_path, {}, ["a", "a"]) == "a"
    stored_ago(tmp_path, "a", 200)
    assert next_sender(tmp_path, {}, ["b", "b"]) == "b"
    stored_ago(tmp_path, "a", -3000)  # it stopped before the clock was set back by an hour
    assert next_sender(tmp_path, {}, ["b", "b"]) == "b"
    stored_ago(tmp_path, "b", -3001)  # nobody has sent since
    assert next_sender(tmp_path, {}, ["b", "b"]) == "a"


def test_senders_teach_by_their_weights_and_only_those_that_are_trusted(tmp_path: Path) -> None:
    """However much one sends: it was the one of most packets that taught everyone."""
    for sender, packets in (("a", 80), ("b", 1600), ("c", 80)):
        store(tmp_path, bodies(steady(packets), 40, sender=sender))
    for sender in ("a", "b", "c"):
        stored_ago(tmp_path, sender, 0 if sender == "b" else 30)

    def turns(weights: dict[str, float]) -> str:
        taught: list[str] = []
        for _ in range(12):
            taught.append(next_sender(tmp_path, weights, taught))
        return "".join(sorted(taught))

    assert turns({}) == "aaaabbbbcccc"
    assert turns({"a": 1, "c": 3}) == "aaaccccccccc"
    with pytest.raises(FileNotFoundError, match=r"no telemetry of d \(SWIFTQUEUE_SENDERS\) under"):
        next_sender(tmp_path, {"d": 1}, [])


def test_the_trusted_senders_are_read_from_the_setting() -> None:
    assert sender_weights("") == {}
    assert sender_weights("a, b=2.5") == {"a": 1.0, "b": 2.5}
    for wrong in ("a=0", "a=x", "a/b", "a=inf", "=2"):
        with pytest.raises(ValueError, match="must be a sender, or SENDER=WEIGHT above 0"):
            sender_weights(wrong)


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
    store(tmp_path, bodies(packets, 7))
    assert_frame_equal(latest_minutes(tmp_path, "a", 1).packets, expected(packets))


def sent_by(root: Path, batches: list[bytes], events_before: int = 0) -> int:
    """Open a session, log the batches made for it, and return its number."""
    session = open_session(root, "a", events_before, most=10)
    log(root, batches)
    return session


def missing_events(root: Path) -> int:
    return compact(root, gap_s=0).counts.missing_events


def test_what_a_killed_forwarder_held_is_a_gap(tmp_path: Path) -> None:
    """Its successor says how many events there had been; what no session has of them is missing, once."""
    rows = event_rows(steady(1000))

    def batches(session: int, first: int, last: int) -> list[bytes]:
        return [encode(BatchKey("a", session, 0), batch(rows[first:last]))]

    assert sent_by(tmp_path, batches(1, 0, 200)) == 1
    assert missing_events(tmp_path) == 0
    sent_by(tmp_path, batches(2, 250, 300), 250)  # 50 were in the first forwarder's memory
    sent_by(tmp_path, batches(3, 300, 400), 300)  # nothing was
    assert missing_events(tmp_path) == 50
    open_session(tmp_path, "a", 450, most=10)  # killed before it stored anything
    sent_by(tmp_path, batches(5, 500, 600), 500)
    assert missing_events(tmp_path) == 100
    assert missing_events(tmp_path) == 0
    assert gaps(tmp_path).rows() == [("a", 2, None, None, None, 50), ("a", 5, None, None, None, 100)]
    sent_by(tmp_path, batches(6, 0, 10))  # it connected anew: nothing came before
    sent_by(tmp_path, batches(7, 30, 40), 30)
    assert missing_events(tmp_path) == 20
    assert load_manifest(tmp_path, "a").counts.missing_events == 170
    assert latest_minutes(tmp_path, "a", 5).session == 7


def test_what_the_session_before_still_has_in_an_open_segment_is_awaited(tmp_path: Path) -> None:
    rows = event_rows(steady(100))
    first = encode(BatchKey("a", open_session(tmp_path, "a", most=1), 0), batch(rows[:50]))
    sent_by(tmp_path, [encode(BatchKey("a", 2, 0), batch(rows[50:]))], 50)
    compact(tmp_path)  # as after a second: the first is in the segment of another replica
    log(tmp_path, [first])
    assert missing_events(tmp_path) == 0
    assert gaps(tmp_path).is_empty()


def test_a_senders_oldest_minutes_go_where_it_has_too_many_bytes(tmp_path: Path) -> None:
    packets = steady(3000, gap_ns=200 * MS)  # 10 minutes
    for part in bodies(packets, 500):
        store(tmp_path, [part], keep_bytes=60_000)
    stored = sum(path.stat().st_size for path in sender_dir(tmp_path, "a").glob("minute=*/*"))
    manifest = load_manifest(tmp_path, "a")
    assert 0 < stored <= 60_000
    assert 3 < len(manifest.partitions) < 8
    assert manifest.partitions[-1].last_packet == 2999
    assert sum(p.rows for p in manifest.partitions) + manifest.counts.dropped_rows == 3000
    log(tmp_path, bodies(packets.tail(1), 500, session=2))
    compact(tmp_path, keep_bytes=1)  # the newest stay
    assert len(load_manifest(tmp_path, "a").partitions) == telemetry_round.LEAST_MINUTES


def test_a_minute_does_not_grow_while_the_clock_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is merged whole, in the memory of the one process that compacts for all senders."""
    monkeypatch.setattr(telemetry_round, "MAX_MINUTE_ROWS", 100)
    sent = {"size_bytes": 1500, "flow_id": 0, "receiver_id": 0, "queue": 1, "ecn": 1}
    for number in range(5):
        sends = [{"kind": SEND, "time_ns": SECOND, "packet": 60 * number + row, **sent} for row in range(60)]
        store(tmp_path, [encode(BatchKey("a", 1, number), batch(sends))])
    later = [{"kind": SEND, "time_ns": 61 * SECOND, "packet": 1000, **sent}]
    store(tmp_path, [encode(BatchKey("a", 1, 5), batch(later))])
    manifest = load_manifest(tmp_path, "a")
    assert [(p.minute, p.rows, p.last_packet) for p in manifest.partitions] == [(0, 100, 99), (1, 1, 1000)]
    assert (manifest.counts.sends, manifest.counts.dropped_rows) == (301, 200)


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["quota", "free"])
def test_a_sender_that_stopped_makes_room_for_the_others(
    tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_compact, "ROOM_S", 0.0)
    for sender in "ab":  # `a` has stopped when `b` sends
        for part in bodies(steady(3000, gap_ns=200 * MS), 500, sender=sender):  # 10 minutes
            store(tmp_path, [part])
    files = list((tmp_path / "packets").glob("*/minute=*/*"))
    for file in files:  # after `a` stopped, the clock was set back
        if "trace=b" in str(file):
            os.utime(file, (1e9, 1e9))
    stored = sum(file.stat().st_size for file in files)
    if limit == "quota":
        compact(tmp_path, keep_total_bytes=stored * 3 // 4)
    else:
        usage = shutil.disk_usage(tmp_path)
        short = usage._replace(total=20 * usage.free, free=usage.free - stored // 4)
        monkeypatch.setattr(telemetry_compact.shutil, "disk_usage", lambda path: short)
        compact(tmp_path, free_bytes=usage.free)
    left = [file for file in files if file.exists()]
    assert sum(file.stat().st_size for file in left) == pytest.approx(stored * 3 / 4, rel=0.15)
    a, b = (load_manifest(tmp_path, sender) for sender in "ab")
    assert len(b.partitions) > len(a.partitions) >= telemetry_round.LEAST_MINUTES
    assert b.counts.dropped_rows == 0
    assert sum(p.rows for p in a.partitions) + a.counts.dropped_rows == 3000
    assert rows_in(tmp_path, "a") > 0
    compact(tmp_path, keep_total_bytes=1)  # the newest stay, whatever the disk says
    assert len(load_manifest(tmp_path, "b").partitions) == telemetry_round.LEAST_MINUTES


def test_acks_of_nothing_do_not_grow_while_the_clock_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they fill the memory of the one process that compacts for all senders."""
    monkeypatch.setattr(telemetry_round, "MAX_WAITING", 100)
    for number in range(5):
        acks = [
            {"kind": ACK, "time_ns": SECOND, "packet": 60 * number + row, "latency_us": 1.0}
            for row in range(60)
        ]
        store(tmp_path, [encode(BatchKey("a", 1, number), batch(acks))])
    manifest = load_manifest(tmp_path, "a")
    (waiting,) = (pl.read_parquet(sender_dir(tmp_path, "a") / name) for name in manifest.orphans)
    assert sorted(waiting["packet"].to_list())[-60:] == list(range(240, 300))  # the newest are among them
    assert waiting.height == 100
    assert manifest.counts.unmatched_acks == 200
    assert len(list((sender_dir(tmp_path, "a") / "acks").iterdir())) == 1


def test_times_at_the_end_of_the_clock_do_not_wrap(tmp_path: Path) -> None:
    """A clock set to the far end, back to 0, and forward again: the session's time stands still there."""
    rows = [
        {"kind": 0, "packet": n, "size_bytes": 100, "time_ns": t} for n, t in enumerate((MAX_TIME_NS, 0, 9))
    ]
    rows.append({**rows[0], "packet": 3})
    batches = [encode(BatchKey("a", 1, n), batch([row])) for n, row in enumerate(rows)]
    store(tmp_path, batches[:3])
    store(tmp_path, batches[3:])
    manifest = load_manifest(tmp_path, "a")
    assert manifest.sessions[1].newest_ns == MAX_TIME_NS
    assert manifest.counts.sends == 4
    assert {p.minute for p in manifest.partitions} == {MAX_TIME_NS // (60 * SECOND)}


def test_sessions_are_kept_as_long_as_the_compaction_may_ask(tmp_path: Path) -> None:
    for number in range(1, 40):
        assert open_session(tmp_path, "a", number, most=1) == number
    (sessions_dir(tmp_path) / "a" / "notes.txt").touch()  # somebody's
    assert current_session(tmp_path, "a") == 39
    assert read_opening(tmp_path, "a", 30) == SessionOpening(30, 1)
    assert len(list((sessions_dir(tmp_path) / "a").iterdir())) == KEPT + 1
    assert read_opening(tmp_path, "a", 1) == SessionOpening()
    assert open_session(tmp_path, "a", most=1) == 40
    assert read_opening(tmp_path, "a", 40) == SessionOpening(0, 40)
