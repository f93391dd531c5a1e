"""The matcher of data packets and ACKs: against its rules written out literally, and case by case."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matcher_oracle import HEADERS, MS, SENDER, START_NS, Event, Row, expected, matched, rows_of, segments
from mutants import ALL

from swiftqueue import feature_store
from swiftqueue.feature_store.packets import pcaplib

WRAP = 2**32
AT_SENDER = st.sampled_from(("acks", "selective"))


@st.composite
def conversations(draw: st.DrawFn) -> list[Event]:
    """Draw records of two flows whose sequence numbers are about to wrap, and of a clock that may be set."""
    stamp_ns = START_NS
    next_byte = [WRAP - draw(st.integers(0, 8)) * 100 for _ in range(2)]
    opened = [byte - 1 for byte in next_byte]
    numbered = draw(st.booleans())
    events: list[Event] = []
    for count in range(draw(st.integers(0, 40))):
        ip_id = count + 1 if numbered else 0
        stamp_ns += MS * draw(
            st.one_of(
                st.integers(0, 3),
                st.sampled_from((30, 1_000)),
                st.sampled_from((-1, -50, -101, -5_000, 60_000, 119_999)),
            )
        )
        flow = draw(st.integers(0, 1))
        payload = 100 * draw(st.sampled_from((1, 1, 2, 5, 640)))  # 640: a super-segment of 64 kB
        what = draw(
            st.sampled_from(("new", "new", "new", "again", "ack", "ack", "ack", "far", "syn", "copy", "jump"))
        )
        back = 100 * draw(st.integers(0, 12))
        if what == "new":
            at = next_byte[flow] + draw(st.sampled_from((0, 0, 0, 100)))  # 100 bytes that the capture missed
            events.append(Event("data", stamp_ns, flow, at, payload, ip_id=ip_id))
            next_byte[flow] = at + payload
        elif what == "copy":  # of one of the last few packets: whole or a piece, on either link
            if sent := [event for event in events[-4:] if event.kind == "data"]:
                of = draw(st.sampled_from(sent))
                at = of.at + draw(st.sampled_from((0, 0, of.payload // 2)))
                size, link = draw(st.sampled_from((of.end - at, of.payload // 2))), draw(st.integers(0, 1))
                number = of.ip_id + (at > of.at) if numbered else 0
                events.append(Event("data", stamp_ns, of.flow, at, size, link, ip_id=number))
        elif what == "jump":  # the ports are used anew, and the capture has no SYN of it
            at = next_byte[flow] + draw(st.sampled_from((-1, 1))) * draw(
                st.integers(2**30 + 10**6, 2**31 - 10**6)
            )
            if at > 0:
                opened[flow], next_byte[flow] = at - 1, at + payload
                events.append(Event("data", stamp_ns, flow, at, payload, ip_id=ip_id))
        elif what == "again":  # retransmitted or reordered; it may reach beyond what was sent
            at = next_byte[flow] - back
            events.append(Event("data", stamp_ns, flow, at, payload, ip_id=ip_id))
            next_byte[flow] = max(next_byte[flow], at + payload)
        elif what == "ack":  # whole, partial, duplicate or overtaken; pure, or with data of the receiver
            at = next_byte[flow] - back + draw(st.sampled_from((0, 50, 300)))
            lefts = [next_byte[flow] - 100 * n for n in draw(st.lists(st.integers(-1, 12), max_size=4))]
            sacks = tuple((left, left + 50 * draw(st.integers(-1, 9))) for left in lefts)
            events.append(Event("ack", stamp_ns, flow, at, draw(st.sampled_from((0, 30))), sacks=sacks))
        elif what == "far":  # of bytes never sent: just within the largest window, or just beyond
            at = next_byte[flow] + 2**30 + draw(st.sampled_from((-1_000_000, 1_000_000)))
            events.append(Event("ack", stamp_ns, flow, at))
        elif draw(st.booleans()):  # sent again, or a new connection with the number of the old one
            events.append(Event("syn", stamp_ns, flow, opened[flow]))
        else:
            opened[flow] = next_byte[flow] + 5_000_000
            events.append(Event("syn", stamp_ns, flow, opened[flow]))
            next_byte[flow] += 5_000_001
    return events


@pytest.mark.slow
@settings(max_examples=100)
@given(conversations(), AT_SENDER)
def test_matcher_follows_its_rules(events: list[Event], latency: str) -> None:
    rows, stats = matched(events, len(events) + 1, latency)
    assert rows == expected(events, latency)
    assert all(row.latency_ns is None or row.latency_ns >= 0 for row in rows)
    assert stats.known == sum(row.latency_ns is not None for row in rows)
    assert stats.retransmitted == sum(row.retransmitted for row in rows)


@pytest.mark.long
@pytest.mark.slow
@settings(max_examples=20_000 if ALL else 200)
@given(conversations(), AT_SENDER)
def test_matcher_follows_its_rules_in_many_conversations(events: list[Event], latency: str) -> None:
    assert matched(events, 3, latency)[0] == expected(events, latency)


@pytest.mark.slow
@settings(max_examples=30)
@given(conversations(), AT_SENDER)
def test_any_length_of_pieces_gives_the_same_table(events: list[Event], latency: str) -> None:
    whole, stats = matched(events, len(events) + 1, latency)
    for chunk in range(1, len(events) + 1):
        rows, counts = matched(events, chunk, latency)
        assert rows == whole
        assert bytes(counts) == bytes(stats)


def data(ms: float, at: int, payload: int = 100, flow: int = 0, **rest: Any) -> Event:
    return Event("data", START_NS + round(ms * MS), flow, at, payload, **rest)


def ack(ms: float, at: int) -> Event:
    return Event("ack", START_NS + round(ms * MS), 0, at)


def latencies_ms(rows: list[Row]) -> list[float | None]:
    return [None if row.latency_ns is None else row.latency_ns / MS for row in rows]


def table(*events: Event) -> list[Row]:
    rows, _ = matched(list(events), chunk=2)
    return rows


def test_selective_acks_say_what_cumulative_ones_hide() -> None:
    """A packet that overtook others: its cumulative ACK waits for them, its selective one does not."""

    def sack(ms: float, at: int, *sacks: tuple[int, int]) -> Event:
        return Event("ack", START_NS + round(ms * MS), 0, at, sacks=sacks)

    sent = [data(0, 100), data(1, 200), data(2, 300)]
    acks = [sack(20, 100, (300, 400)), sack(30, 100, (200, 400)), sack(50, 400)]
    for latency, expected_ms in (("acks", [50, 49, 48]), ("selective", [50, 29, 18])):
        assert latencies_ms(matched([*sent, *acks], 1, latency)[0]) == expected_ms
    # What a selective ACK covered is sent again all the same: its first sending keeps its latency.
    again = [sack(20, 100, (200, 300)), data(25, 200), sack(45, 100, (200, 300)), sack(60, 300)]
    rows, _ = matched([*sent[:2], *again], 1, "selective")
    assert latencies_ms(rows) == [60, 19, None]
    assert [row.acked_ns for row in rows] == [START_NS + ms * MS for ms in (60, 20, 45)]
    assert [row.lost for row in rows] == [False, False, False]
    # Blocks that are none, of bytes never sent, or told twice (RFC 2883) cover nothing more.
    odd = sack(20, 100, (300, 200), (300, 500), (100, 100), (0, 50))
    assert latencies_ms(matched([*sent, odd, sack(50, 400, (200, 300))], 1, "selective")[0]) == [50, 49, 48]


def test_a_syn_begins_the_five_tuple_anew() -> None:
    syn = Event("syn", START_NS + 50 * MS, 0, 7_000_000)
    rows = table(
        data(0, 100), data(1, 200), ack(20, 200), syn, data(52, 7_000_001), ack(60, 300), ack(72, 7_000_101)
    )
    # What the old connection still waited for has no ACK; that of the new one is no retransmission.
    assert latencies_ms(rows) == [20, None, 20]
    assert rows[1].acked_ns is None
    assert not any(row.retransmitted for row in rows)
    # Also where the new connection's numbers lie below the old one's.
    rows = table(data(0, 9_000), ack(9, 9_100), Event("syn", START_NS + 10 * MS, 0, 99), data(11, 100))
    assert not rows[1].retransmitted


def test_a_clock_set_back_gives_no_latency_below_zero() -> None:
    events = [data(0, 100), data(1_000, 200), ack(500, 300), data(510, 300), ack(530, 400)]
    rows, stats = matched(events, chunk=1)
    assert stats.clock_steps == 1
    # The times go on from where they were, and no latency spans the step.
    assert [row.sent_ns - START_NS for row in rows] == [0, 1_000 * MS, 1_010 * MS]
    assert latencies_ms(rows) == [None, None, 20]
    assert all(row.acked_ns is not None and row.acked_ns >= row.sent_ns for row in rows)


def test_records_that_changed_places_keep_their_own_stamps() -> None:
    rows, stats = matched([data(50, 100), data(40, 200), ack(60, 300)], chunk=1)
    assert stats.clock_steps == 0
    assert [row.sent_ns - START_NS for row in rows] == [50 * MS, 50 * MS]
    assert latencies_ms(rows) == [10, 20]
    # An ACK stamped before what it covers.
    assert latencies_ms(table(data(50, 100), ack(45, 200))) == [None]


def test_a_packet_is_given_up_after_120_seconds() -> None:
    assert latencies_ms(table(data(0, 100), ack(120_000, 200))) == [120_000]
    rows = table(data(0, 100), data(100_000, 200), ack(120_001, 300))
    assert latencies_ms(rows) == [None, 20_001]
    assert rows[0].acked_ns is None


def test_a_dead_flow_does_not_hold_back_the_rows_of_others() -> None:
    matcher = pcaplib.Matcher(SENDER, "acks", sharp_ns=20 * MS, sharp_share=0.2)
    rows = pcaplib.Rows(10)
    matcher.push(segments([data(0, 100, flow=1), data(1, 100), ack(2, 200)]))
    matcher.drain(rows)
    assert rows.used == 0  # rows leave in send order
    matcher.push(segments([data(121_000, 200)]))
    matcher.drain(rows)
    assert latencies_ms(rows_of(rows)) == [None, 1]


def test_a_super_segment_that_lost_one_packet_keeps_its_latency() -> None:
    whole = data(0, 10_000, 64_000)
    inside = data(30, 20_000, 1_000)
    rows = table(whole, ack(20, 20_000), inside, ack(50, 74_000))
    assert latencies_ms(rows) == [50, None]
    assert [(row.lost, row.retransmitted) for row in rows] == [(True, False), (False, True)]
    # Its last byte sent again: the ACK may belong to either sending (Karn).
    rows = table(whole, data(30, 73_000, 1_000), ack(50, 74_000))
    assert latencies_ms(rows) == [None, None]
    assert rows[0].acked_ns == START_NS + 50 * MS


def test_a_copy_on_another_interface_is_no_retransmission() -> None:
    events = [data(0, 100), data(0.1, 100, link=1), data(1, 200), data(1.1, 200, link=1), ack(20, 300)]
    rows, stats = matched(events, chunk=1)
    assert latencies_ms(rows) == [20, 19]
    assert (stats.copies, stats.retransmitted) == (2, 0)
    # With a number of its own, or a round trip later, it is one.
    for again in (data(0.1, 100, ip_id=8), data(30, 100, link=1)):
        rows, stats = matched([data(0, 100, ip_id=7), again, ack(40, 200)], chunk=1)
        assert [row.retransmitted for row in rows] == [False, True]
        assert stats.copies == 0


def test_a_capture_may_start_mid_flow() -> None:
    # ACKs of what was sent before it, and the first packet seen wherever its number lies.
    rows = table(ack(0, 3_000_000_000), data(1, 3_000_000_500), ack(2, 3_000_000_500), ack(21, 3_000_000_600))
    assert rows == [Row(START_NS + MS, START_NS + 21 * MS, 20 * MS, 0, False, False)]
    # A retransmission whose first sending was before the capture looks like a first one.
    assert not table(data(1, 5_000), data(2, 6_000))[0].retransmitted
    assert table(data(1, 5_000), data(2, 4_000))[1].retransmitted


def at_receiver(*events: Event) -> list[Row]:
    matcher = pcaplib.Matcher(
        SENDER, "timestamps", pcaplib.SenderView(SENDER, tick_ns=MS), sharp_ns=20 * MS, sharp_share=0.2
    )
    rows = pcaplib.Rows(len(events))
    matcher.push(segments(list(events)))
    matcher.finish()
    matcher.drain(rows)
    return rows_of(rows)


def test_the_receiver_tells_overtaken_packets_from_retransmissions() -> None:
    first, second = data(5, 100, value=10), data(6, 200, value=11)
    assert [row.retransmitted for row in at_receiver(second, first)] == [False, False]
    again = data(40, 100, value=44)
    assert [row.retransmitted for row in at_receiver(second, first, again)] == [False, False, True]
    # Sent again in two pieces, an overtaken super-segment is lost, and its ACK of doubtful origin.
    overtaken = data(6, 100, 1_000, value=10)
    pieces = (data(40, 100, 500, value=44), data(41, 600, 500, value=45))
    rows = at_receiver(data(5, 1_100, value=11), overtaken, *pieces)
    assert [row.lost for row in rows] == [False, True, False, False]


def test_control_connections_are_those_of_next_to_nothing() -> None:
    long = [data(n, 1_000 + 60_000 * n, 60_000) for n in range(20)]
    short = [data(5 + n, 100 + 10 * n, 10, flow=1) for n in range(7)]
    matcher = pcaplib.Matcher(SENDER, "acks", sharp_ns=20 * MS, sharp_share=0.2)
    matcher.push(segments(long + short))
    control = matcher.control_flows()
    assert len(control) == pcaplib.FLOW_KEY_BYTES
    without = pcaplib.Matcher(SENDER, "acks", sharp_ns=20 * MS, sharp_share=0.2)
    without.leave_out(control)
    without.push(segments(long + short))
    without.finish()
    rows = pcaplib.Rows(100)
    without.drain(rows)
    assert (rows.used, without.stats().left_out) == (20, 7)
    assert set(rows.columns["size_bytes"][:20].tolist()) == {60_000 + HEADERS}


def test_the_library_knows_its_sources() -> None:
    makefile = (feature_store.FOLDER / "packets" / "pcap.mk").read_text().replace("\\\n", " ")
    listed = [
        name
        for line in makefile.splitlines()
        if line.startswith(("EXTRACT_SOURCES", "EXTRACT_HEADERS"))
        for name in line.split(":=")[1].split()
    ]
    assert sorted(listed) == sorted(pcaplib.SOURCES)
