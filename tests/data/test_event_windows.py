"""The event window has the rows of `event_stream.h` as one array, live and offline bit for bit the same."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_tables import events, tables

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.feature_store.events.event_stream import INPUTS, replay_events
from swiftqueue.feature_store.events.event_window import EventWindow
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.pipelines.live.encoding import event_windows

FEW = settings(max_examples=40)
TOKENS = [16, 72]
NAMES = [feature.name for feature in EVENTS.features]


def windows_of(packets: pl.DataFrame, tokens: int, first: int = 0) -> np.ndarray:
    empty = np.empty((0, tokens, len(NAMES)), np.float32)
    return np.concatenate([empty, *event_windows(packets, tokens, first)])


def test_its_features_are_the_events_inputs_and_whether_it_is_an_ack() -> None:
    assert [(f.name, f.unit) for f in EVENTS.features] == [
        *((each.name, each.unit) for each in INPUTS),
        ("ack", "flag"),
    ]


@FEW
@given(tables(), st.sampled_from(TOKENS), st.integers(0, 8))
def test_a_window_is_the_last_events_and_the_queries(packets: pl.DataFrame, tokens: int, first: int) -> None:
    log = replay_events(packets)
    x_BWF = windows_of(packets, tokens, first)
    assert len(x_BWF) == max(packets.height // HORIZON - first, 0)
    for x_WF, cut, x_HF in zip(x_BWF, log.cut_D[first:], log.x_DHF[first:], strict=True):
        held = min(cut, tokens - HORIZON)
        begin = tokens - HORIZON - held
        assert not x_WF[:begin].any()
        np.testing.assert_array_equal(x_WF[begin:-HORIZON, :-1], log.x_EF[cut - held : cut])
        np.testing.assert_array_equal(x_WF[begin:-HORIZON, -1], log.ack_E[cut - held : cut])
        np.testing.assert_array_equal(x_WF[-HORIZON:, :-1], x_HF)
        assert not x_WF[-HORIZON:, -1].any()


@FEW
@given(tables(), st.sampled_from(TOKENS))
def test_a_live_sender_makes_the_same_windows(packets: pl.DataFrame, tokens: int) -> None:
    """Asked for both queues, bit for bit; and it counts the packets in flight that its queries say."""
    offline = windows_of(packets, tokens)
    live = EventWindow(tokens)
    rows = packets.to_dicts()
    for kind, row in events(packets):
        packet = row["packet"]
        if kind == "acked":
            live.acked(packet, row["acked_ns"], row["latency_us"])
            continue
        if packet % HORIZON == 0 and packet + HORIZON <= packets.height:
            asked = rows[packet : packet + HORIZON]
            what = [[each[name] for each in asked] for name in ("size_bytes", "flow_id", "receiver_id")]
            as_sent = [int(each["queue"] == "l4s") for each in asked]
            live.window(row["sent_ns"], *what, [0] * HORIZON)
            x_WF, in_flight = live.window(row["sent_ns"], *what, as_sent)
            np.testing.assert_array_equal(x_WF, offline[packet // HORIZON])
            assert (x_WF[-HORIZON:, NAMES.index("in_flight")] == in_flight).all()
        queue = int(row["queue"] == "l4s")
        live.sent(packet, row["sent_ns"], row["size_bytes"], row["flow_id"], row["receiver_id"], queue)


def test_strange_events_are_ignored_or_refused_in_one_line() -> None:
    for tokens in (8, 70, 4104):
        with pytest.raises(ValueError, match=rf"{tokens} tokens: must be a multiple of 8 in 16\.\.4096"):
            EventWindow(tokens)
    live, calm = EventWindow(16), EventWindow(16)
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
    with pytest.raises(ValueError, match="a candidate packet has a size below 1 byte or a queue"):
        live.window(9000, [0] * 8, [0] * 8, [0] * 8, [1] * 8)


def test_time_stepping_backwards_counts_as_standing_still() -> None:
    live = EventWindow(16)
    live.sent(0, 9_000_000, 1500, 0, 0, 1)
    live.sent(1, 4_000_000, 1500, 0, 0, 1)
    x_WF, in_flight = live.window(1_000_000, [1500] * 8, [0] * 8, [0] * 8, [1] * 8)
    assert in_flight == 2
    assert (x_WF[:, NAMES.index("flow_age_us")] == 0).all()
    assert (x_WF[:, NAMES.index("gap_us")] == 0).all()
