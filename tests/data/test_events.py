"""The event stream follows exactly the stated rules, leaks nothing, and is the same offline and live."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
import pytest
from event_oracle import ROUNDED, EventOracle
from hypothesis import example, given, settings
from hypothesis import strategies as st
from make_golden_events import GOLDEN, replay_stream
from window_tables import MS, events, table_of, tables

from swiftqueue.feature_store.events.event_library import SCHEMA_TEXT
from swiftqueue.feature_store.events.event_stream import (
    INPUTS,
    NEVER_NS,
    EventStream,
    event_schema_hash,
    replay_events,
    targets,
)
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.window.windows import NAMES as OF_WINDOWS
from swiftqueue.models.window.windows import Windows

NAMES = [each.name for each in INPUTS]
IN_WINDOWS = [name for name in OF_WINDOWS if name in NAMES and name not in ("latency_us", "latency_visible")]
FEW = settings(max_examples=40)
STEADY = table_of([(MS, 20 * MS, False, 1500, 0, 0, "l4s")] * 40)
LOST = [(0, 2500 * MS, False, 1500, flow % 3, 0, "l4s") for flow in range(24)]
GIVEN_UP = table_of(LOST + [(2400 * MS, 9 * MS, False, 60, 1, 1, "classic")] * 16)


def differing(got_F: np.ndarray, expected: dict[str, Any]) -> list[Any]:
    assert sorted(expected) == sorted(NAMES)
    out = []
    for name, got in zip(NAMES, got_F, strict=True):
        wanted = np.float32(expected[name])
        same = np.isclose(got, wanted, rtol=2e-6, atol=1e-6) if name.startswith(ROUNDED) else got == wanted
        if not same:
            out.append((name, got, wanted))
    return out


def test_the_horizon_is_the_packet_tables() -> None:
    assert f"\nhorizon {HORIZON}\n" in SCHEMA_TEXT


def test_the_rows_are_the_golden_ones_bit_for_bit() -> None:
    """Yesterday's bytes, for this build and for every other implementation."""
    golden = json.loads((GOLDEN / "windows.json").read_text())
    assert golden["event_schema_hash"] == event_schema_hash(), (
        "the definition changed: see make_golden_events.py"
    )
    assert golden["event_inputs"] == len(INPUTS)
    rows = sum(8 if event[0] == "window" else 1 for event in golden["events"])
    expected = (GOLDEN / "events.bin").read_bytes()
    assert len(expected) == rows * len(INPUTS) * 4
    assert replay_stream(golden["events"]) == expected


@pytest.mark.slow
@FEW
@given(tables(48))
@example(STEADY)
@example(GIVEN_UP)
def test_rows_are_the_oracles(packets: pl.DataFrame) -> None:
    oracle = EventOracle(packets)
    got = replay_events(packets)
    assert [
        (bool(a), int(p), int(t)) for a, p, t in zip(got.ack_E, got.packet_E, got.time_ns_E, strict=True)
    ] == [(kind == "acked", row["packet"], t) for kind, t, row in oracle.log]
    for number in range(len(oracle.log)):
        assert not differing(got.x_EF[number], oracle.event(number)), number
    rows = packets.to_dicts()
    for d, cut in enumerate(got.cut_D):
        assert cut == oracle.cut(8 * d)
        for place in range(8):
            expected = oracle.query(8 * d, place, rows[8 * d + place])
            assert not differing(got.x_DHF[d, place], expected), (d, place)


@pytest.mark.slow
@FEW
@given(tables(), st.data())
def test_a_live_sender_sees_the_same_whatever_it_asks(packets: pl.DataFrame, data: st.DataObject) -> None:
    """Queries of either queue, at any time up to ten seconds on, leave no trace."""
    offline = replay_events(packets)
    other = replay_events(packets, queue=0)
    live, number = EventStream(), 0
    rows = packets.to_dicts()
    for kind, row in events(packets):
        packet = row["packet"]
        asked_ns = row["sent_ns"] + data.draw(st.sampled_from([0, 0, MS, 1999 * MS, 2001 * MS, 10_000 * MS]))
        live.query(asked_ns, row["size_bytes"], data.draw(st.integers(0, 5)), 0, 1, 0)
        if kind == "acked":
            x_F = live.acked(packet, row["acked_ns"], row["latency_us"])
            assert live.acked(packet, row["acked_ns"], 5.0) is None
            if x_F is None:
                continue
        else:
            for expected, queue in ((offline, None), (other, 0)):
                for place in range(8 if packet % 8 == 0 and packet + 8 <= packets.height else 0):
                    w = rows[packet + place]
                    own = int(w["queue"] == "l4s") if queue is None else queue
                    got_F = live.query(
                        row["sent_ns"], w["size_bytes"], w["flow_id"], w["receiver_id"], own, place
                    )
                    assert got_F is not None
                    assert got_F.tobytes() == expected.x_DHF[packet // 8, place].tobytes()
            queue = int(row["queue"] == "l4s")
            x_F = live.sent(
                packet, row["sent_ns"], row["size_bytes"], row["flow_id"], row["receiver_id"], queue
            )
        assert x_F is not None
        assert x_F.tobytes() == offline.x_EF[number].tobytes()
        number += 1
    assert number == len(offline.x_EF)


@FEW
@given(tables(), st.data())
def test_cutting_a_trace_changes_nothing_before(packets: pl.DataFrame, data: st.DataObject) -> None:
    whole = replay_events(packets)
    batch = data.draw(st.integers(0, packets.height // 8 - 1))
    cut_ns = int(packets["sent_ns"][: 8 * batch + 1].max())  # type: ignore[arg-type]
    unknown = pl.col("acked_ns") > cut_ns
    cut = replay_events(
        packets[: 8 * (batch + 1)].with_columns(
            acked_ns=pl.when(unknown).then(None).otherwise("acked_ns"),
            latency_us=pl.when(unknown).then(None).otherwise("latency_us"),
        )
    )
    events_before = int(whole.cut_D[batch])
    assert cut.cut_D.tolist() == whole.cut_D[: batch + 1].tolist()
    assert cut.x_EF[:events_before].tobytes() == whole.x_EF[:events_before].tobytes()
    assert cut.x_DHF.tobytes() == whole.x_DHF[: batch + 1].tobytes()


@FEW
@given(tables(), st.integers(-(10**18), 10**18))
def test_shifting_absolute_time_changes_nothing(packets: pl.DataFrame, shift_ns: int) -> None:
    shifted = replay_events(packets.with_columns(pl.col("sent_ns", "acked_ns") + shift_ns))
    assert shifted.x_EF.tobytes() == replay_events(packets).x_EF.tobytes()


@FEW
@given(tables())
@example(GIVEN_UP)
def test_a_query_says_what_a_windows_candidate_says(packets: pl.DataFrame) -> None:
    """Where both have an input of one name, it is one definition."""
    first_B = np.arange(packets.height // 8, dtype=np.int64) * 8
    x_BHF = Windows(packets, first_B, 16)[:][:, -8:]
    queries = replay_events(packets).x_DHF
    assert len(IN_WINDOWS) == 20
    for name in IN_WINDOWS:
        windows_BH = x_BHF[..., OF_WINDOWS.index(name)]
        assert windows_BH.tobytes() == queries[..., NAMES.index(name)].tobytes(), name


def test_decisions_may_begin_anywhere() -> None:
    every = replay_events(STEADY, np.arange(33))
    batches = replay_events(STEADY)
    assert every.x_DHF[::8].tobytes() == batches.x_DHF.tobytes()
    assert (every.x_DHF[..., NAMES.index("place")] == np.arange(8)).all()
    for wrong in ([-1], [33], [8, 0]):
        with pytest.raises(
            ValueError, match="decisions must be ascending, each with 8 of 40 packets after it"
        ):
            replay_events(STEADY, np.array(wrong))


def test_what_cannot_be_is_refused() -> None:
    live = EventStream()
    assert live.sent(0, 1, 100, 0, 0, 1) is not None
    for packet, sent_ns, size, queue in (
        (0, 2, 100, 1),
        (1, -1, 100, 1),
        (1, 2**62 + 1, 100, 1),
        (1, 2**64 + 2, 100, 1),
        (1, 2, 0, 1),
        (1, 2, 2**32 + 9, 1),
        (1, 2, 9, 2),
        (1, 2, 9, 256),
    ):
        assert live.sent(packet, sent_ns, size, 0, 0, queue) is None
    for what in ((9, 2**32, 0, 1), (9, 0, 2**31, 1), (2**32 + 9, 0, 0, 1), (9, 0, 0, 257)):
        assert live.sent(1, 2, *what) is None
        assert live.query(2, *what, 0) is None
    assert live.acked(1, 5, 1.0) is None
    assert live.acked(0, -1, 1.0) is None
    assert live.query(5, 0, 0, 0, 1, 0) is None
    with pytest.raises(ValueError, match="size_bytes 0 must be at least 1"):
        replay_events(STEADY.with_columns(size_bytes=pl.lit(0, pl.Int32)))
    with pytest.raises(ValueError, match="visibility 'later' is unknown"):
        replay_events(STEADY, visibility="later")


def test_what_a_sender_does_not_tell_is_as_of_the_first() -> None:
    rows = [(MS, 20 * MS, False, 1500 - n, n % 5, n % 3, ("classic", "l4s")[n % 2]) for n in range(64)]
    packets = table_of(rows)
    table = packets.to_dicts()
    live = EventStream()
    told = {name: replay_events(packets, told=name) for name in ("all", "flows", "first")}
    for name, found in told.items():
        np.testing.assert_array_equal(found.x_EF, told["all"].x_EF)
        np.testing.assert_array_equal(found.x_DHF[:, 0], told["all"].x_DHF[:, 0], name)
    acks = sorted((row["acked_ns"], row["packet"]) for row in table)
    for number, row in enumerate(table):
        while acks and acks[0][0] <= row["sent_ns"]:
            acked_ns, packet = acks.pop(0)
            live.acked(packet, acked_ns, table[packet]["latency_us"])
        for place in range(8 if number % 8 == 0 else 0):
            own = table[number + place]
            for name, size, what in (
                ("all", own["size_bytes"], own),
                ("flows", row["size_bytes"], own),
                ("first", row["size_bytes"], row),
            ):
                queue = int(what["queue"] == "l4s")
                expected = live.query(
                    row["sent_ns"], size, what["flow_id"], what["receiver_id"], queue, place
                )
                np.testing.assert_array_equal(told[name].x_DHF[number // 8, place], expected, name)
        what = [row[key] for key in ("size_bytes", "flow_id", "receiver_id")]
        live.sent(number, row["sent_ns"], *what, int(row["queue"] == "l4s"))
    with pytest.raises(ValueError, match="told 'some' is unknown; take one of all, flows, first"):
        replay_events(packets, told="some")


def test_targets() -> None:
    rows = [(MS, 20 * MS, False, 1500, 0, 0, "l4s")] * 20
    rows[3] = (MS, None, False, 1500, 0, 0, "l4s")
    rows[4] = (MS, 20 * MS, True, 1500, 0, 0, "l4s")
    packets = table_of(rows)
    found = targets(packets)
    assert found.first_packet_B.tolist() == [0, 8]  # the incomplete third batch is not decided
    assert found.decision_ns_B.tolist() == [packets["sent_ns"][0], packets["sent_ns"][8]]
    assert np.isnan(found.y_BH[0]).tolist() == [False] * 3 + [True, True] + [False] * 3
    assert found.y_acked_ns_BH[0, 3] == NEVER_NS
    assert found.y_acked_ns_BH[0, 4] == packets["acked_ns"][4]


def test_a_table_that_is_no_log_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="one whole trace in send order"):
        replay_events(STEADY[8:])
    with pytest.raises(ValueError, match="sent_ns is missing for 40 packets"):
        replay_events(STEADY.with_columns(sent_ns=pl.lit(None, pl.Int64)))
    with pytest.raises(ValueError, match=r"packet table: sent_ns = -1: must be nanoseconds in 0\.\.2\^62"):
        replay_events(STEADY.with_columns(sent_ns=pl.lit(-1, pl.Int64)))


def test_an_empty_table_has_no_events() -> None:
    found = replay_events(STEADY.clear())
    assert found.x_EF.shape == (0, len(INPUTS))
    assert found.x_DHF.shape == (0, 8, len(INPUTS))
