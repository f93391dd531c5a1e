"""Minutes read from the store have the rows of the whole log, since the store knows the sender's past."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from telemetry_batches import bodies, store
from toy_world import START_NS, bottleneck_table
from window_tables import MS, table_of

from swiftqueue.feature_store.events.beginning import LEAD_IN_NS, SCOPES, Hole
from swiftqueue.feature_store.events.event_stream import replay_events
from swiftqueue.feature_store.telemetry import round as telemetry_round
from swiftqueue.feature_store.telemetry.manifest import MAX_FLOWS, Session, load_manifest, save_manifest
from swiftqueue.feature_store.telemetry.recent import latest_minutes

S = 1_000_000_000


@pytest.fixture(scope="module")
def packets() -> pl.DataFrame:
    """Return 20 s of four flows to two receivers; the least latencies are in the second second."""
    table = bottleneck_table("a", seconds=20)
    early = pl.col("sent_ns").is_between(START_NS + S, START_NS + 2 * S)
    return table.with_columns(
        latency_us=pl.when(early).then(pl.col("latency_us") * 0.5).otherwise("latency_us")
    )


@pytest.mark.parametrize("parts", [1, 23])
def test_a_minute_of_the_store_has_the_rows_of_the_whole_log(
    packets: pl.DataFrame, tmp_path: Path, parts: int
) -> None:
    """Bit for bit after the lead-in, however often the compaction ran; ACKs come later than their packets."""
    batches = bodies(packets, 250)
    for part in np.array_split(np.arange(len(batches)), parts):
        store(tmp_path, [batches[number] for number in part])
    latest, whole = latest_minutes(tmp_path, "a", 9 / 60), replay_events(packets)
    first = packets.height // 8 * 8 - latest.packets.height
    told = replay_events(latest.packets, beginning=latest.beginning)
    until_ns = int(latest.packets["sent_ns"][0]) + LEAD_IN_NS
    rows, expected = told.time_ns_E > until_ns, (whole.time_ns_E > until_ns) & (whole.packet_E >= first)
    decided = told.packet_E[rows].max() + first  # ACKs of the last, incomplete batch have no row here
    expected &= whole.packet_E <= decided
    assert rows.sum() > 10_000
    np.testing.assert_array_equal(told.packet_E[rows] + first, whole.packet_E[expected])
    assert told.x_EF[rows].tobytes() == whole.x_EF[expected].tobytes()
    assert latest.beginning.last_hole is not None
    untold = replay_events(latest.packets)
    assert untold.x_EF[rows].tobytes() != whole.x_EF[expected].tobytes()


def note(session: Session, packets: pl.DataFrame) -> None:
    known = np.isfinite(packets["latency_us"].to_numpy())
    session.note_latencies(packets["acked_ns"].to_numpy()[known], telemetry_round._columns(packets, known))


LATENCIES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 20), st.integers(0, 1)), min_size=1, max_size=40
)


@given(LATENCIES, st.randoms(use_true_random=False), st.integers(-1, 60))
def test_least_latencies_are_those_seen_by_a_time_whatever_the_order(
    latencies: list[tuple[int, int, int]], dice: random.Random, at_ms: int
) -> None:
    table = table_of([(0, 1, False, 1500, flow, flow, "l4s") for _, _, flow in latencies])
    table = table.with_columns(
        sent_ns=pl.lit(0, pl.Int64),
        acked_ns=pl.Series([ms * MS for ms, _, _ in latencies]),
        latency_us=pl.Series([float(us) for _, us, _ in latencies], dtype=pl.Float32),
    )
    session, order = Session(), list(range(table.height))
    dice.shuffle(order)
    for at in range(0, len(order), 7):
        note(session, table[order[at : at + 7]])
    beginning = session.beginning(at_ms * MS - LEAD_IN_NS)
    for scope, column in (("flow", 2), ("receiver", 2)):
        expected: dict[int, float] = {}
        for row in latencies:
            if row[0] <= at_ms:
                expected[row[column]] = min(row[1], expected.get(row[column], row[1]))
        assert beginning.least_us[scope] == expected


def test_holes_are_those_between_acks_also_across_batches() -> None:
    session, times_ms = Session(), [0, 4, 9, 12, 40, 41, 1100, 1104, 1110, 3000]
    for part in (times_ms[:2], times_ms[2:5], times_ms[5:5], times_ms[5:]):
        session.note_acks(np.array([START_NS + ms * MS for ms in part], np.int64))
    at = {
        ms: session.beginning(START_NS + ms * MS - LEAD_IN_NS).last_hole for ms in (8, 39, 1000, 2000, 3000)
    }
    told = {ms: (hole.end_ns - START_NS, hole.length_ns) for ms, hole in at.items() if hole}
    assert told == {  # the last one of each second is remembered
        1000: (40 * MS, 28 * MS),
        2000: (1110 * MS, 6 * MS),
        3000: (3000 * MS, 1890 * MS),
    }


def test_what_is_remembered_is_bounded_and_survives_the_manifest(tmp_path: Path) -> None:
    session = Session()
    for first in range(0, 2 * MAX_FLOWS, 512):
        rows = [(MS, 20 * MS, False, 1500, first + one, first + one, "l4s") for one in range(512)]
        note(session, table_of(rows))
    session.note_acks(np.arange(0, 4000, dtype=np.int64) * S)
    for ns in range(100):
        rows = [(0, (200 - ns) * 1000, False, 1500, 7, 7, "classic")]
        note(session, table_of(rows).with_columns(acked_ns=pl.col("sent_ns") + ns))
    assert {scope: len(session.least_us[scope]) for scope in SCOPES} == {
        "flow": MAX_FLOWS,
        "receiver": MAX_FLOWS,
        "queue": 2,
    }
    assert len(session.least_us["flow"]["7"]) <= 16
    assert len(session.holes) == 300
    assert session.beginning(10**19).last_hole == Hole(3999 * S, S)
    manifest = load_manifest(tmp_path, "a")
    manifest.sessions[1] = session
    (tmp_path / "packets" / "trace=a").mkdir(parents=True)
    save_manifest(tmp_path, manifest)
    assert load_manifest(tmp_path, "a") == manifest
