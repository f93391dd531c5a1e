"""The window: exactly the stated rules, no leak, the same offline and live."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from window_oracle import Oracle
from window_tables import MS, events, table_of, tables

from feature_store.events.windows import (
    FEATURES,
    NEVER_NS,
    VISIBILITIES,
    SenderWindow,
    bdp_packets,
    build_windows,
    iter_windows,
    schema_hash,
    tokens_for,
)
from feature_store.packets.schema import HORIZON, PACKET_SCHEMA

NAMES = [f.name for f in FEATURES]
TOKENS = st.sampled_from([16, 24, 32, 48])
FEW = settings(max_examples=40)


def column(name: str) -> int:
    return NAMES.index(name)


def candidates(packets: pl.DataFrame, batch: int) -> list[npt.NDArray[np.int32]]:
    part = packets[8 * batch : 8 * batch + 8]
    queue = (part["queue"].cast(pl.String) == "l4s").cast(pl.Int32)
    return [part[c].to_numpy() for c in ("size_bytes", "flow_id", "receiver_id")] + [queue.to_numpy()]


def steady(packets: int, gap_ns: int = MS, latency_ns: int = 20 * MS) -> pl.DataFrame:
    """One flow, evenly paced, every packet acknowledged."""
    return table_of([(gap_ns, latency_ns, False, 1500, 0, 0, "l4s")] * packets)


def test_horizon_and_schema() -> None:
    assert build_windows(steady(8), 16).x_BWF.shape == (1, 16, len(FEATURES))
    assert HORIZON == 8
    assert len(FEATURES) == len({f.name for f in FEATURES})
    assert len(schema_hash()) == 64


@FEW
@given(tables(), TOKENS, st.sampled_from(VISIBILITIES))
@example(steady(64, gap_ns=0), 24, "acked")
@example(steady(64, latency_ns=2500 * MS), 24, "acked")
def test_windows_are_the_oracles_bit_for_bit(packets: pl.DataFrame, tokens: int, visibility: str) -> None:
    expected_BWF = Oracle(packets, visibility).windows(tokens, NAMES)
    got_BWF = build_windows(packets, tokens, visibility).x_BWF
    differing = np.argwhere(got_BWF != expected_BWF)
    first = [(b, w, NAMES[f], got_BWF[b, w, f], expected_BWF[b, w, f]) for b, w, f in differing[:5]]
    assert not first, first
    assert got_BWF.tobytes() == expected_BWF.tobytes()  # zeros have no sign


@pytest.mark.slow
@FEW
@given(tables(), TOKENS)
def test_offline_equals_streaming(packets: pl.DataFrame, tokens: int) -> None:
    offline = build_windows(packets, tokens)
    live = SenderWindow(tokens)
    decided = 0
    for kind, row in events(packets):
        packet = row["packet"]
        if kind == "acked":
            live.acked(packet, row["acked_ns"], row["latency_us"])
            continue
        if packet % 8 == 0 and packet + 8 <= packets.height:
            x_WF, in_flight = live.window(row["sent_ns"], *candidates(packets, packet // 8))
            assert x_WF.tobytes() == offline.x_BWF[packet // 8].tobytes()
            assert in_flight == x_WF[-1, column("in_flight")]
            decided += 1
        live.sent(
            packet,
            row["sent_ns"],
            row["size_bytes"],
            row["flow_id"],
            row["receiver_id"],
            int(row["queue"] == "l4s"),
        )
    assert decided == len(offline.x_BWF)


@FEW
@given(tables(), st.data())
def test_cutting_a_trace_changes_no_window_decided_before(packets: pl.DataFrame, data: st.DataObject) -> None:
    whole = build_windows(packets, 24)
    batch = data.draw(st.integers(0, packets.height // 8 - 1))
    cut_ns = int(packets["sent_ns"][: 8 * batch + 1].max())  # type: ignore[arg-type]
    unknown = pl.col("acked_ns") > cut_ns
    cut = packets[: 8 * (batch + 1)].with_columns(
        acked_ns=pl.when(unknown).then(None).otherwise("acked_ns"),
        latency_us=pl.when(unknown).then(None).otherwise("latency_us"),
    )
    assert build_windows(cut, 24).x_BWF.tobytes() == whole.x_BWF[: batch + 1].tobytes()


@pytest.mark.slow
@FEW
@given(tables(), st.data())
def test_previous_sees_no_later_packet(packets: pl.DataFrame, data: st.DataObject) -> None:
    whole = build_windows(packets, 24, "previous")
    batch = data.draw(st.integers(0, packets.height // 8 - 1))
    later = pl.col("packet") >= 8 * batch
    cut = packets[: 8 * (batch + 1)].with_columns(
        acked_ns=pl.when(later).then(None).otherwise("acked_ns"),
        latency_us=pl.when(later).then(None).otherwise("latency_us"),
    )
    assert build_windows(cut, 24, "previous").x_BWF.tobytes() == whole.x_BWF[: batch + 1].tobytes()


@pytest.mark.slow
@FEW
@given(tables(), st.integers(-(10**18), 10**18), st.sampled_from(VISIBILITIES))
def test_shifting_absolute_time_changes_nothing(
    packets: pl.DataFrame, shift_ns: int, visibility: str
) -> None:
    shifted = packets.with_columns(pl.col("sent_ns", "acked_ns") + shift_ns)
    before = build_windows(packets, 24, visibility)
    after = build_windows(shifted, 24, visibility)
    assert before.x_BWF.tobytes() == after.x_BWF.tobytes()
    assert (after.decision_ns_B - before.decision_ns_B == shift_ns).all()


@FEW
@given(tables(), st.integers(0, 7))
def test_a_candidate_queue_changes_only_its_own_inputs(packets: pl.DataFrame, which: int) -> None:
    live = SenderWindow(32)
    for kind, row in events(packets):
        if kind == "acked":
            live.acked(row["packet"], row["acked_ns"], row["latency_us"])
        else:
            live.sent(row["packet"], row["sent_ns"], row["size_bytes"], row["flow_id"], row["receiver_id"], 1)
    now_ns = int(packets["sent_ns"].max())  # type: ignore[arg-type]
    sizes, flows, receivers, queues = [1500] * 8, [0, 1, 2, 3, 0, 1, 2, 9], [0] * 8, [0] * 8
    one_WF, _ = live.window(now_ns, sizes, flows, receivers, queues)
    queues[which] = 1
    other_WF, _ = live.window(now_ns, sizes, flows, receivers, queues)
    again_WF, _ = live.window(now_ns, sizes, flows, receivers, queues)
    changed = {(int(w), NAMES[f]) for w, f in np.argwhere(one_WF != other_WF)}
    token = 32 - 8 + which
    allowed = {(token, name) for name in ("queue_l4s", "in_flight_queue", "last_latency_queue_us")}
    assert (token, "queue_l4s") in changed
    assert changed <= allowed
    assert other_WF.tobytes() == again_WF.tobytes()


def test_both_kinds_stay_in_view() -> None:
    # 1 ms apart, 100 ms latency (the ACK that comes as we decide counts), and room for 32 only.
    x_WF = build_windows(steady(400, latency_ns=100 * MS), 40).x_BWF[-1]
    history = x_WF[:-8]
    assert history[:, column("latency_visible")].sum() == 16
    assert (history[:, column("latency_visible")] == 0).sum() == 16
    assert (np.diff(history[:, column("age_us")]) < 0).all()  # in send order
    assert x_WF[-1, column("in_flight")] == 99


def test_a_packet_without_an_ack_is_given_up_after_two_seconds() -> None:
    rows = [(MS, None, False, 1500, 0, 0, "classic")] * 8 + [(0, None, False, 1500, 0, 0, "classic")] * 8
    for gap_ns, in_flight in [(2000 * MS - 1, 1), (2000 * MS, 0)]:
        late = [*rows[:8], (gap_ns, *rows[8][1:]), *rows[9:]]
        x_WF = build_windows(table_of(late), 24).x_BWF[1]
        assert x_WF[-1, column("in_flight")] == in_flight
        assert x_WF[-1, column("oldest_unacked_us")] == in_flight * np.float32((2000 * MS - 1) / 1000)


def test_targets() -> None:
    rows = [(MS, 20 * MS, False, 1500, 0, 0, "l4s")] * 20
    rows[3] = (MS, None, False, 1500, 0, 0, "l4s")
    rows[4] = (MS, 20 * MS, True, 1500, 0, 0, "l4s")
    packets = table_of(rows)
    windows = build_windows(packets, 16)
    assert windows.first_packet_B.tolist() == [0, 8]  # the incomplete third batch is not decided
    assert windows.decision_ns_B.tolist() == [packets["sent_ns"][0], packets["sent_ns"][8]]
    assert np.isnan(windows.y_BH[0]).tolist() == [False] * 3 + [True, True] + [False] * 3
    assert windows.y_acked_ns_BH[0, 3] == NEVER_NS
    assert windows.y_acked_ns_BH[0, 4] == packets["acked_ns"][4]


def test_strange_events_are_ignored_or_refused() -> None:
    live, calm = SenderWindow(16), SenderWindow(16)
    for log in (live, calm):
        log.sent(0, 1000, 1500, 0, 0, 1)
        assert log.acked(0, 5000, 4.0)
    assert not live.acked(0, 6000, 5.0)  # acknowledged before
    assert not live.acked(7, 6000, 5.0)  # never sent
    for refused, what in [
        ((0, 9000, 1500, 0, 0, 1), "refused"),  # number does not grow
        ((1, 9000, 0, 0, 0, 1), "refused"),  # no bytes
        ((1, 9000, 1500, 0, 0, 2), "queue 2"),
        ((1, -1, 1500, 0, 0, 1), "sent_ns = -1"),
        ((1, 9000, 1500, 2**32, 0, 1), "32-bit"),
    ]:
        with pytest.raises(ValueError, match=what):
            live.sent(*refused)
    ask = (9000, [1500] * 8, [0] * 8, [0] * 8, [1] * 8)
    assert live.window(*ask)[0].tobytes() == calm.window(*ask)[0].tobytes()
    with pytest.raises(ValueError, match="about 8 packets"):
        live.window(9000, [1500] * 7, [0] * 8, [0] * 8, [1] * 8)
    with pytest.raises(ValueError, match="size below 1 byte"):
        live.window(9000, [0] * 8, [0] * 8, [0] * 8, [1] * 8)


def test_time_stepping_backwards_counts_as_standing_still() -> None:
    live = SenderWindow(16)
    live.sent(0, 9_000_000, 1500, 0, 0, 1)
    live.sent(1, 4_000_000, 1500, 0, 0, 1)
    x_WF, in_flight = live.window(1_000_000, [1500] * 8, [0] * 8, [0] * 8, [1] * 8)
    assert in_flight == 2
    assert (x_WF[:, column("age_us")] == 0).all()
    assert (x_WF[:, column("gap_us")] == 0).all()


def test_bad_input_is_named() -> None:
    packets = steady(16)
    with pytest.raises(ValueError, match="20 tokens: must be a multiple of 8"):
        build_windows(packets, 20)
    with pytest.raises(ValueError, match="visibility 'all' is unknown"):
        build_windows(packets, 16, "all")
    with pytest.raises(ValueError, match="cannot have visibility 'previous'"):
        SenderWindow(16, "previous")
    with pytest.raises(ValueError, match="one whole trace in send order"):
        build_windows(packets[8:], 16)
    with pytest.raises(ValueError, match="sent_ns is missing for 16 packets"):
        build_windows(packets.with_columns(sent_ns=pl.lit(None, pl.Int64)), 16)
    with pytest.raises(ValueError, match="packet 0: size_bytes 0"):
        build_windows(packets.with_columns(size_bytes=pl.lit(0, pl.Int32)), 16)


def test_an_empty_table_has_no_windows() -> None:
    assert build_windows(pl.DataFrame(schema=PACKET_SCHEMA), 16).x_BWF.shape == (0, 16, len(FEATURES))


def test_chunks_make_no_difference() -> None:
    packets = steady(400)
    parts = list(iter_windows(packets, 32, chunk=7))
    assert [len(p) for p in parts] == [7] * 7 + [1]
    assert np.concatenate(parts).tobytes() == build_windows(packets, 32).x_BWF.tobytes()


def test_window_size_follows_the_bandwidth_delay_product() -> None:
    # 20 Mbit/s of 1,432-byte packets at 40 ms: the design's example, 70 packets.
    bdp = bdp_packets(steady(8000, gap_ns=572_800, latency_ns=40 * MS))
    assert bdp == pytest.approx(70, rel=0.01)
    assert tokens_for(bdp, 64, 256) == 120
    assert tokens_for(1, 64, 256) == 64
    assert tokens_for(10_000, 64, 256) == 256
    with pytest.raises(ValueError, match="no ACKs"):
        bdp_packets(steady(8).with_columns(latency_us=pl.lit(None, pl.Float32)))


@settings(max_examples=30)
@given(st.integers(0, 20), st.integers(0, 20), st.sampled_from([1, 3, 512]))
def test_windows_of_a_span_are_those_of_the_whole_trace(first: int, count: int, chunk: int) -> None:
    packets = steady(8 * 21)
    whole = build_windows(packets, 16)
    last = min(first + count, 20)
    span_ns = int(whole.decision_ns_B[min(first, last)]), int(whole.decision_ns_B[last])
    part = build_windows(packets, 16, span_ns=span_ns)
    for name, column in vars(whole).items():
        np.testing.assert_array_equal(vars(part)[name], column[min(first, last) : last], err_msg=name)
    rest = [*iter_windows(packets, 16, chunk=chunk, first=first)]
    np.testing.assert_array_equal(np.concatenate(rest), whole.x_BWF[first:])
    assert all(0 < len(x_BWF) <= chunk for x_BWF in rest)
