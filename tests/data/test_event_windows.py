"""The event window: rows of `event_stream.h` as one array, live and offline bit for bit the same."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_tables import MS, events, table_of, tables

from feature_store.events.definition import DEFINITIONS, EVENTS, WINDOW, definition_of
from feature_store.events.event_stream import INPUTS, replay_events
from feature_store.events.windows import HORIZON, SenderWindow, iter_windows

FEW = settings(max_examples=40)
TOKENS = [16, 72]
NAMES = [feature.name for feature in EVENTS.features]


def windows_of(packets: pl.DataFrame, tokens: int, visibility: str = "acked") -> np.ndarray:
    empty = np.empty((0, tokens, len(NAMES)), np.float32)
    return np.concatenate([empty, *iter_windows(packets, tokens, visibility, chunk=3, definition=EVENTS)])


def test_its_features_are_the_events_inputs_and_whether_it_is_an_ack() -> None:
    assert [(f.name, f.unit) for f in EVENTS.features] == [
        *((each.name, each.unit) for each in INPUTS),
        ("ack", "flag"),
    ]
    assert {definition_of(one.schema_hash).name for one in DEFINITIONS} == {"window", "event-stream"}
    with pytest.raises(
        ValueError, match=r"made for features 123, but this code computes .*\(event-stream\); train again"
    ):
        definition_of("123")


@pytest.mark.slow
@FEW
@given(tables(), st.sampled_from(TOKENS), st.sampled_from(["acked", "previous"]))
def test_a_window_is_the_last_events_and_the_queries(
    packets: pl.DataFrame, tokens: int, visibility: str
) -> None:
    log = replay_events(packets, visibility=visibility)
    x_BWF = windows_of(packets, tokens, visibility)
    assert len(x_BWF) == len(log.cut_D) == packets.height // HORIZON
    for x_WF, cut, x_HF in zip(x_BWF, log.cut_D, log.x_DHF, strict=True):
        held = min(cut, tokens - HORIZON)
        first = tokens - HORIZON - held
        assert not x_WF[:first].any()
        np.testing.assert_array_equal(x_WF[first:-HORIZON, :-1], log.x_EF[cut - held : cut])
        np.testing.assert_array_equal(x_WF[first:-HORIZON, -1], log.ack_E[cut - held : cut])
        np.testing.assert_array_equal(x_WF[-HORIZON:, :-1], x_HF)
        assert not x_WF[-HORIZON:, -1].any()


@pytest.mark.slow
@FEW
@given(tables(), st.sampled_from(TOKENS))
def test_a_live_sender_makes_the_same_windows(packets: pl.DataFrame, tokens: int) -> None:
    """Asked for both queues, bit for bit; and it counts the same packets in flight as a window's sender."""
    offline = windows_of(packets, tokens)
    live, other = SenderWindow(tokens, definition=EVENTS), SenderWindow(tokens)
    rows = packets.to_dicts()
    for kind, row in events(packets):
        packet = row["packet"]
        if kind == "acked":
            for sender in (live, other):
                sender.acked(packet, row["acked_ns"], row["latency_us"])
            continue
        if packet % HORIZON == 0 and packet + HORIZON <= packets.height:
            asked = rows[packet : packet + HORIZON]
            what = [[each[name] for each in asked] for name in ("size_bytes", "flow_id", "receiver_id")]
            as_sent = [int(each["queue"] == "l4s") for each in asked]
            live.window(row["sent_ns"], *what, [0] * HORIZON)
            x_WF, in_flight = live.window(row["sent_ns"], *what, as_sent)
            np.testing.assert_array_equal(x_WF, offline[packet // HORIZON])
            assert in_flight == other.window(row["sent_ns"], *what, as_sent)[1]
        queue = int(row["queue"] == "l4s")
        for sender in (live, other):
            sender.sent(packet, row["sent_ns"], row["size_bytes"], row["flow_id"], row["receiver_id"], queue)


@pytest.mark.slow
@FEW
@given(tables(), st.integers(0, 8))
def test_cutting_the_table_changes_no_window_before(packets: pl.DataFrame, batches: int) -> None:
    """No leak: later packets and later ACKs are in no earlier window."""
    kept = min(batches * HORIZON, packets.height)
    end_ns = packets["sent_ns"][:kept].max() or 0
    before = packets.head(kept).with_columns(
        acked_ns=pl.when(pl.col("acked_ns") <= end_ns).then("acked_ns"),
        latency_us=pl.when(pl.col("acked_ns") <= end_ns).then("latency_us"),
    )
    np.testing.assert_array_equal(windows_of(before, 72), windows_of(packets, 72)[: kept // HORIZON])


def test_what_cannot_be_is_refused_in_one_line() -> None:
    packets = table_of([(MS, 20 * MS, False, 1500, 0, 0, "l4s")] * 16)
    with pytest.raises(ValueError, match=r"packet 9: size_bytes 0 must be at least 1"):
        windows_of(packets.with_columns(size_bytes=pl.when(packet=9).then(0).otherwise("size_bytes")), 72)
    with pytest.raises(ValueError, match=r"must be a multiple of 8 in 16\.\.4096"):
        SenderWindow(70, definition=EVENTS)
    sender = SenderWindow(72, definition=EVENTS)
    with pytest.raises(ValueError, match="a candidate packet has a size below 1 byte or a queue"):
        sender.window(0, [0] * 8, [0] * 8, [0] * 8, [0] * 8)
    with pytest.raises(ValueError, match="live sender cannot have visibility 'previous'"):
        SenderWindow(72, "previous", EVENTS)


def test_the_windows_of_senders_keep_their_own_definition() -> None:
    one, other = SenderWindow(72, definition=EVENTS), SenderWindow(72, definition=WINDOW)
    assert one.window(0, [1] * 8, [0] * 8, [0] * 8, [0] * 8)[0].shape == (72, len(EVENTS.features))
    assert other.window(0, [1] * 8, [0] * 8, [0] * 8, [0] * 8)[0].shape == (72, len(WINDOW.features))
