"""Windows of the forecasters are those of the former C++ and of the stated rules, and leak nothing."""

# Shapes: B decisions, H horizon (8 packets), W window tokens, F features.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from window_oracle import WindowOracle
from window_tables import MS, table_of, tables

from swiftqueue.feature_store.packets.extract import ExtractJob, extract_trace
from swiftqueue.feature_store.packets.schema import HORIZON, PACKET_SCHEMA, scan_packets
from swiftqueue.models.window.windows import (
    NAMES,
    PacketAttributes,
    Windows,
    bdp_packets,
    check_tokens,
    input_names,
    schema_hash,
    tokens_for,
)

GOLDEN = Path(__file__).parent / "golden"
TOKENS = st.sampled_from([16, 24, 32, 48])
VISIBILITIES = ("acked", "previous")
FEW = settings(max_examples=40)


def column(name: str) -> int:
    return NAMES.index(name)


def firsts(packets: pl.DataFrame) -> npt.NDArray[np.int64]:
    return np.arange(packets.height // HORIZON, dtype=np.int64) * HORIZON


def built(packets: pl.DataFrame, tokens: int, visibility: str = "acked") -> npt.NDArray[np.float32]:
    return Windows(packets, firsts(packets), tokens, visibility)[:]


def steady(packets: int, gap_ns: int = MS, latency_ns: int = 20 * MS) -> pl.DataFrame:
    """Return one flow, evenly paced, with every packet acknowledged."""
    return table_of([(gap_ns, latency_ns, False, 1500, 0, 0, "l4s")] * packets)


def table_of_events(events: list[list[Any]]) -> pl.DataFrame:
    acks = {event[1]: event[2:] for event in events if event[0] == "acked"}
    rows = []
    for _, packet, sent_ns, size, flow, receiver, queue in (e for e in events if e[0] == "sent"):
        acked_ns, latency_us = acks.get(packet, (None, None))
        rows.append(
            {
                "trace": "golden",
                "packet": packet,
                "sent_ns": sent_ns,
                "flow_id": flow,
                "receiver_id": receiver,
                "size_bytes": size,
                "ecn": queue,
                "queue": ("classic", "l4s")[queue],
                "acked_ns": acked_ns,
                "latency_us": latency_us,
                "retransmitted": False,
                "lost": acked_ns is None,
            }
        )
    return pl.DataFrame(rows, schema=PACKET_SCHEMA)


def test_windows_are_those_that_cpp_wrote_bit_for_bit() -> None:
    """The golden log has a hole, losses, given-up packets and ties; each decision is asked twice."""
    golden = json.loads((GOLDEN / "windows.json").read_text())
    assert golden["schema_hash"] == schema_hash()
    packets = table_of_events(golden["events"])
    questions = [event for event in golden["events"] if event[0] == "window"]
    sent = np.cumsum([event[0] == "sent" for event in golden["events"]])  # up to each event
    first_B = np.array([n for n, event in zip(sent, golden["events"], strict=True) if event[0] == "window"])
    asked = (np.array([each[3 + i] for each in questions], np.int32).ravel() for i in range(4))
    x_BWF = Windows(packets, first_B, golden["tokens"], asked=PacketAttributes(*asked))[:]
    assert x_BWF.shape == (len(questions), golden["tokens"], golden["features"])
    expected = np.frombuffer((GOLDEN / "windows.bin").read_bytes(), "<f4").reshape(x_BWF.shape)
    differing = np.argwhere(x_BWF != expected)
    assert [(b, w, NAMES[f]) for b, w, f in differing[:5]] == []
    assert x_BWF.astype("<f4").tobytes() == expected.tobytes()
    assert x_BWF[:, -1, column("in_flight")].tolist() == [each[2] for each in questions]


@FEW
@given(tables(), TOKENS, st.sampled_from(VISIBILITIES))
@example(steady(64, gap_ns=0), 24, "acked")
@example(steady(64, latency_ns=2500 * MS), 24, "acked")
def test_windows_are_the_oracles_bit_for_bit(packets: pl.DataFrame, tokens: int, visibility: str) -> None:
    expected_BWF = WindowOracle(packets, visibility).windows(tokens, list(NAMES))
    got_BWF = built(packets, tokens, visibility)
    differing = np.argwhere(got_BWF != expected_BWF)
    first = [(b, w, NAMES[f], got_BWF[b, w, f], expected_BWF[b, w, f]) for b, w, f in differing[:5]]
    assert not first, first
    assert got_BWF.tobytes() == expected_BWF.tobytes()  # zeros have no sign


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ndt/ndt-C2E15", "ndt/ndt-363A84"])
def test_windows_of_a_real_capture_are_the_oracles(captures: Path, tmp_path: Path, name: str) -> None:
    extract_trace(ExtractJob(captures / f"{name}.pcap.gz", "real"), tmp_path)
    table = scan_packets(tmp_path).collect()
    # The packets with most retransmissions around them, renumbered as a trace of their own.
    middle = int(table.filter(pl.col("retransmitted"))["packet"].median() or 0)  # type: ignore[arg-type]
    start = max(0, middle - 200)
    part = table[start : start + 400].with_columns(packet=pl.int_range(pl.len(), dtype=pl.Int64))
    for visibility in VISIBILITIES:
        expected_BWF = WindowOracle(part, visibility).windows(64, list(NAMES))
        assert built(part, 64, visibility).tobytes() == expected_BWF.tobytes()


@FEW
@given(tables(), st.data())
def test_cutting_a_trace_changes_no_window_decided_before(packets: pl.DataFrame, data: st.DataObject) -> None:
    whole_BWF = built(packets, 24)
    batch = data.draw(st.integers(0, packets.height // 8 - 1))
    cut_ns = int(packets["sent_ns"][: 8 * batch + 1].max())  # type: ignore[arg-type]
    unknown = pl.col("acked_ns") > cut_ns
    cut = packets[: 8 * (batch + 1)].with_columns(
        acked_ns=pl.when(unknown).then(None).otherwise("acked_ns"),
        latency_us=pl.when(unknown).then(None).otherwise("latency_us"),
    )
    assert built(cut, 24).tobytes() == whole_BWF[: batch + 1].tobytes()
    alone_BWF = Windows(packets, firsts(packets)[: batch + 1], 24)[:]
    assert alone_BWF.tobytes() == whole_BWF[: batch + 1].tobytes()


@pytest.mark.slow
@FEW
@given(tables(), st.data())
def test_previous_sees_no_later_packet(packets: pl.DataFrame, data: st.DataObject) -> None:
    whole_BWF = built(packets, 24, "previous")
    batch = data.draw(st.integers(0, packets.height // 8 - 1))
    later = pl.col("packet") >= 8 * batch
    cut = packets[: 8 * (batch + 1)].with_columns(
        acked_ns=pl.when(later).then(None).otherwise("acked_ns"),
        latency_us=pl.when(later).then(None).otherwise("latency_us"),
    )
    assert built(cut, 24, "previous").tobytes() == whole_BWF[: batch + 1].tobytes()


@pytest.mark.slow
@FEW
@given(tables(), st.integers(-(10**18), 10**18), st.sampled_from(VISIBILITIES))
def test_shifting_absolute_time_changes_nothing(
    packets: pl.DataFrame, shift_ns: int, visibility: str
) -> None:
    shifted = packets.with_columns(pl.col("sent_ns", "acked_ns") + shift_ns)
    assert built(packets, 24, visibility).tobytes() == built(shifted, 24, visibility).tobytes()


@pytest.mark.slow
@FEW
@given(tables(), st.data(), st.sampled_from(VISIBILITIES))
def test_some_windows_are_those_of_the_whole_trace(
    packets: pl.DataFrame, data: st.DataObject, visibility: str
) -> None:
    """From a later decision on, by slice, by number, and with some of the inputs in another order."""
    whole_BWF = built(packets, 32, visibility)
    lo = data.draw(st.integers(0, len(whole_BWF) - 1))
    later = Windows(packets, firsts(packets)[lo:], 32, visibility)
    assert len(later) == len(whole_BWF) - lo
    assert later[:].tobytes() == whole_BWF[lo:].tobytes()
    assert later[1:3].tobytes() == whole_BWF[lo + 1 : lo + 3].tobytes()
    which = np.array(data.draw(st.lists(st.integers(0, len(later) - 1), max_size=5)), np.int64)
    assert later[which].tobytes() == whole_BWF[lo + which].tobytes()
    names = data.draw(st.permutations(NAMES))[:5]
    some = Windows(packets, firsts(packets)[lo:], 32, visibility, inputs=names)
    expected = np.ascontiguousarray(whole_BWF[lo:, :, [column(name) for name in names]])
    assert some[:].tobytes() == expected.tobytes()


@FEW
@given(tables(), st.integers(0, 7))
def test_a_candidate_queue_changes_only_its_own_inputs(packets: pl.DataFrame, which: int) -> None:
    first_B = firsts(packets)[-1:]
    said = [np.array(each, np.int32) for each in ([1500] * 8, [0, 1, 2, 3, 0, 1, 2, 9], [0] * 8)]
    queues = np.zeros(8, np.uint8)
    one_WF = Windows(packets, first_B, 32, asked=PacketAttributes(*said, queues))[:][0]
    queues[which] = 1
    other_WF = Windows(packets, first_B, 32, asked=PacketAttributes(*said, queues))[:][0]
    changed = {(int(w), NAMES[f]) for w, f in np.argwhere(one_WF != other_WF)}
    token = 32 - 8 + which
    assert (token, "queue_l4s") in changed
    allowed = {(token, name) for name in ("queue_l4s", "in_flight_queue", "last_latency_queue_us")}
    assert changed <= allowed


def test_both_kinds_stay_in_view() -> None:
    # 1 ms apart, 100 ms latency (the ACK that comes as we decide counts), and room for 32 only.
    x_WF = built(steady(400, latency_ns=100 * MS), 40)[-1]
    history = x_WF[:-8]
    assert history[:, column("latency_visible")].sum() == 16
    assert (history[:, column("latency_visible")] == 0).sum() == 16
    assert (np.diff(history[:, column("age_us")]) < 0).all()  # in send order
    assert x_WF[-1, column("in_flight")] == 99


def test_a_packet_without_an_ack_is_given_up_after_two_seconds() -> None:
    rows = [(MS, None, False, 1500, 0, 0, "classic")] * 8 + [(0, None, False, 1500, 0, 0, "classic")] * 8
    for gap_ns, in_flight in [(2000 * MS - 1, 1), (2000 * MS, 0)]:
        late = [*rows[:8], (gap_ns, *rows[8][1:]), *rows[9:]]
        x_WF = built(table_of(late), 24)[1]
        assert x_WF[-1, column("in_flight")] == in_flight
        assert x_WF[-1, column("oldest_unacked_us")] == in_flight * np.float32((2000 * MS - 1) / 1000)


def test_codes_are_of_32_bits_whatever_the_sign() -> None:
    packets = steady(16).with_columns(flow_id=pl.lit(-7, pl.Int32), receiver_id=pl.lit(2**31 - 1, pl.Int32))
    assert built(packets, 16).tobytes() == WindowOracle(packets, "acked").windows(16, list(NAMES)).tobytes()


def test_bad_input_is_named() -> None:
    packets = steady(16)
    for tokens in (8, 20, 4104):
        with pytest.raises(ValueError, match=f"{tokens} tokens: must be a multiple of 8 in 16..4096"):
            built(packets, tokens)
    with pytest.raises(ValueError, match="visibility 'all' is unknown"):
        built(packets, 16, "all")
    with pytest.raises(ValueError, match="one whole trace in send order"):
        built(packets[8:], 16)
    with pytest.raises(ValueError, match="sent_ns is missing for 16 packets"):
        built(packets.with_columns(sent_ns=pl.lit(None, pl.Int64)), 16)
    with pytest.raises(ValueError, match="packet 0: size_bytes 0 must be at least 1"):
        built(packets.with_columns(size_bytes=pl.lit(0, pl.Int32)), 16)
    for first_B in ([16], [4], [8, 0]):
        with pytest.raises(ValueError, match="each about 8 of the trace's 16 packets"):
            Windows(packets, np.array(first_B), 16)
    with pytest.raises(ValueError, match="inputs names 'size', which no window has; did you mean size_bytes"):
        input_names(["size"])


def test_no_decision_has_no_window() -> None:
    for packets in (pl.DataFrame(schema=PACKET_SCHEMA), steady(7)):
        assert built(packets, 16).shape == (0, 16, len(NAMES))


def test_window_size_follows_the_bandwidth_delay_product() -> None:
    # 20 Mbit/s of 1,432-byte packets at 40 ms: the design's example, 70 packets.
    bdp = bdp_packets(steady(8000, gap_ns=572_800, latency_ns=40 * MS))
    assert bdp == pytest.approx(70, rel=0.01)
    assert tokens_for(bdp, 64, 256) == 120
    assert tokens_for(1, 64, 256) == 64
    assert tokens_for(10_000, 64, 256) == check_tokens(256)
    with pytest.raises(ValueError, match="no ACKs"):
        bdp_packets(steady(8).with_columns(latency_us=pl.lit(None, pl.Float32)))
