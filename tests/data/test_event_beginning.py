"""A log that is cut out of a longer one and told its beginning has the longer log's rows, bit for bit."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_world import START_NS, bottleneck_table
from window_tables import MS, table_of, tables

from swiftqueue.feature_store.events import beginning as known
from swiftqueue.feature_store.events.beginning import LEAD_IN_NS, NOTHING, Beginning, Hole
from swiftqueue.feature_store.events.event_stream import INPUTS, EventReplay, replay_events

NAMES = [each.name for each in INPUTS]
S = 1_000_000_000


@pytest.fixture(scope="module")
def packets() -> pl.DataFrame:
    """Return 16 s of four flows to two receivers, with least latencies and last hole in the first 6 s."""
    table = bottleneck_table("live", seconds=16)
    early = pl.col("sent_ns").is_between(START_NS + S, START_NS + 2 * S)
    hole_ns = START_NS + 5 * S
    in_hole = pl.col("acked_ns").is_between(hole_ns, hole_ns + 60 * MS)
    return table.with_columns(
        latency_us=pl.when(early).then(pl.col("latency_us") * 0.5).otherwise("latency_us"),
        acked_ns=pl.when(in_hole).then(hole_ns + 60 * MS).otherwise("acked_ns").cast(pl.Int64),
    )


def cut_at(packets: pl.DataFrame, first: int) -> pl.DataFrame:
    rest = packets[first:]
    return rest.with_columns(packet=pl.int_range(rest.height, dtype=pl.Int64))


def after(log: EventReplay, from_ns: int, first: int) -> tuple[np.ndarray, ...]:
    """Return the events after a lead-in that belong to packets from `first` on."""
    chosen = (log.time_ns_E > from_ns) & (log.packet_E >= first)
    return log.ack_E[chosen], log.packet_E[chosen] - first, log.time_ns_E[chosen], log.x_EF[chosen]


@pytest.mark.parametrize("first", [8 * 500, 8 * 875])
def test_after_the_lead_in_the_rows_are_those_of_the_whole_log(packets: pl.DataFrame, first: int) -> None:
    whole, rest = replay_events(packets), cut_at(packets, first)
    until_ns = int(rest["sent_ns"][0]) + LEAD_IN_NS
    told, untold = (
        replay_events(rest, beginning=beginning) for beginning in (NOTHING.moved(packets, first), NOTHING)
    )
    expected = after(whole, until_ns, first)
    assert len(expected[0]) > 5000
    for got, column in zip(after(told, until_ns, 0), expected, strict=True):
        assert got.tobytes() == column.tobytes()
    decided = packets["sent_ns"].to_numpy()[first::8][: len(told.cut_D)] > until_ns
    assert told.x_DHF[decided].tobytes() == whole.x_DHF[first // 8 :][decided].tobytes()
    differs = (after(untold, until_ns, 0)[3] != expected[3]).any(axis=0)
    only_told = {name for name, differs_here in zip(NAMES, differs, strict=True) if differs_here}
    assert only_told >= {"flow_age_us", "min_latency_receiver_us", "last_queueing_us"}


def test_the_last_hole_is_told(packets: pl.DataFrame) -> None:
    """Nothing later would show it; and the lead-in's silences, which the missing ACKs make, are not holes."""
    steady = table_of([(MS, 20 * MS, False, 1500, 0, 0, "l4s")] * 4000)
    begin_ns = int(steady["sent_ns"][1000])
    late = pl.col("acked_ns").is_between(begin_ns, begin_ns + 30 * MS)  # the packets in flight at the cut
    holed = steady.with_columns(acked_ns=pl.when(late).then(begin_ns + 30 * MS).otherwise("acked_ns"))
    for table, length_ns in ((holed, 31 * MS), (steady, None)):
        beginning, whole = NOTHING.moved(table, 1000), replay_events(table)
        assert (beginning.last_hole and beginning.last_hole.length_ns) == length_ns
        got = replay_events(cut_at(table, 1000), beginning=beginning)
        until_ns = begin_ns + LEAD_IN_NS
        assert after(got, until_ns, 0)[3].tobytes() == after(whole, until_ns, 1000)[3].tobytes()


def test_a_beginning_can_be_moved_again(packets: pl.DataFrame) -> None:
    once = NOTHING.moved(packets, 8 * 500)
    twice = once.moved(cut_at(packets, 8 * 500), 8 * 375)
    direct = NOTHING.moved(packets, 8 * 875)
    assert twice == direct
    assert direct.moved(cut_at(packets, 8 * 875), 0) is direct


@settings(max_examples=15)
@given(tables(), st.data())
def test_nothing_later_than_the_lead_in_is_told(packets: pl.DataFrame, data: st.DataObject) -> None:
    """No leak: what was acknowledged after the lead-in changes nothing in a beginning."""
    first = data.draw(st.integers(1, packets.height - 1))
    packets = packets.with_columns(pl.col("sent_ns").cum_max())
    later = pl.col("acked_ns") > packets["sent_ns"][first] + LEAD_IN_NS
    cut = packets.with_columns(
        acked_ns=pl.when(later).then(None).otherwise("acked_ns"),
        latency_us=pl.when(later).then(None).otherwise("latency_us"),
    )
    assert NOTHING.moved(cut, first) == NOTHING.moved(packets, first)
    replay_events(cut_at(packets, first), beginning=NOTHING.moved(packets, first))  # and it is taken


STEADY = table_of([(MS, 20 * MS, False, 1500, 0, 0, "l4s")] * 16, 10**18)


@pytest.mark.parametrize(
    ("beginning", "line"),
    [
        (
            Beginning({7: 10**18 + S}),
            "packet 0 was sent at .* tells of flow 7, which began later, at .* leave out",
        ),
        (Beginning({7: -5}), "invalid beginning of a log: flow 7, began at -5 ns"),
        (Beginning({7: 2**62 + 1}), "invalid beginning of a log: flow 7"),
        (Beginning({}, {"receiver": {1: -1.0}}), "beginning of a log: receiver 1, least latency -1 us"),
        (
            Beginning({}, {"flow": {1: 5.0}, "queue": {1: np.inf}}),
            "beginning of a log: queue 1, least latency inf",
        ),
        (Beginning({}, {"queue": {2: 1.0}}), "beginning of a log: queue 2"),
        (Beginning(last_hole=Hole(9, 1), known_until_ns=10), "beginning of a log: last hole .*length_ns=1"),
        (Beginning(last_hole=Hole(11, 10**7), known_until_ns=10), "beginning of a log: last hole"),
    ],
)
def test_a_log_that_cannot_begin_so_is_refused_in_one_line(beginning: Beginning, line: str) -> None:
    with pytest.raises(ValueError, match=line) as caught:
        replay_events(STEADY, beginning=beginning)
    assert "\n" not in str(caught.value)


def test_an_ack_of_a_packet_of_before_the_log_is_no_event(packets: pl.DataFrame) -> None:
    log = replay_events(cut_at(packets, 8 * 500), beginning=NOTHING.moved(packets, 8 * 500))
    assert log.packet_E.min() == 0
    assert not log.ack_E[0]


def test_the_constants_are_those_of_the_stream(project: Path) -> None:
    text = (project / "feature_store/events/event_stream.h").read_text()
    for name, value in (("Forget", known.FORGET_NS), ("GiveUp", LEAD_IN_NS), ("Hole", known.HOLE_NS)):
        (written,) = re.findall(rf"k{name}Ns = ([\d']+);", text)
        assert int(written.replace("'", "")) == value


def test_scopes_are_those_of_the_stream(project: Path) -> None:
    text = (project / "feature_store/events/event_stream.h").read_text()
    (names,) = re.findall(r"enum class Of : std::uint8_t \{ (.*?) \};", text)
    assert [name.strip()[1:].lower() for name in names.split(",")] == [*known.SCOPES]
