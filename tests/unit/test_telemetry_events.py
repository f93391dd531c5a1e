"""What the edge lets pass: every event that can be, and nothing else; each refusal names its reason."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feature_store.telemetry_events import (
    ACK,
    EVENT_SCHEMA,
    MAX_BODY_BYTES,
    MAX_EVENTS,
    REASONS,
    SEND,
    BatchKey,
    RefusedError,
    checked,
    encode,
    event_batch,
)

KEY = BatchKey("agent-1", 3, 7)
SENT = {
    "kind": SEND,
    "time_ns": 10,
    "packet": 0,
    "size_bytes": 1500,
    "flow_id": 0,
    "receiver_id": 0,
    "queue": 1,
}
ACKED = {"kind": ACK, "time_ns": 20, "packet": 0, "latency_us": 12.5}


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=EVENT_SCHEMA)


def body(*rows: dict[str, Any], key: BatchKey = KEY) -> bytes:
    return encode(key, batch(*rows))


def refused(content: bytes) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        checked(content)
    assert caught.value.reason in REASONS
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_good_batch_passes_and_keeps_its_key() -> None:
    rows = (SENT, {**SENT, "packet": 1}, ACKED, {**ACKED, "packet": 1, "latency_us": None})
    key, events = checked(body(*rows))
    assert key == KEY
    assert events.to_pylist() == batch(*rows).to_pylist()


@pytest.mark.parametrize(
    ("reason", "rows", "words"),
    [
        ("nan", (SENT, {**ACKED, "latency_us": math.nan}), "NaN"),
        ("nan", (SENT, {**ACKED, "latency_us": math.inf}), "infinite"),
        ("range", ({**SENT, "size_bytes": 0},), "size_bytes 0"),
        ("range", ({**SENT, "size_bytes": 2**21},), "size_bytes"),
        ("range", ({**SENT, "queue": 2},), "queue 2"),
        ("range", ({**SENT, "packet": -1},), "packet -1"),
        ("range", ({**SENT, "flow_id": -1},), "flow_id -1"),
        ("range", ({**SENT, "time_ns": 2**62 + 1},), "time_ns"),
        ("range", ({**ACKED, "latency_us": -1.0},), "latency_us -1"),
        ("range", ({**ACKED, "latency_us": 2e8},), "latency_us 200000000"),
        ("range", ({**SENT, "kind": 2},), "kind 2"),
        ("order", ({**SENT, "time_ns": 11}, {**SENT, "packet": 1}), "1 ns before"),
        ("order", (SENT, SENT), "must grow"),
        ("order", ({**SENT, "packet": 5}, {**SENT, "packet": 4}), "must grow"),
        ("order", (SENT, {**ACKED, "time_ns": 10**13}), "span"),
        ("schema", ({**SENT, "queue": None},), "queue: must be there in every SEND"),
        ("schema", ({**ACKED, "flow_id": 1},), "flow_id: must be there in every SEND and in no ACK"),
        ("schema", ({**SENT, "latency_us": 1.0},), "must not be there in a SEND"),
        ("empty", (), "without an event"),
    ],
)
def test_an_event_that_cannot_be_is_refused(
    reason: str, rows: tuple[dict[str, Any], ...], words: str
) -> None:
    error = refused(body(*rows))
    assert error.reason == reason
    assert words in str(error)


@pytest.mark.parametrize("sender", ["", "a b", "../up", ".hidden", "x" * 65, "ü"])
def test_a_sender_id_is_a_plain_name(sender: str) -> None:
    assert refused(body(SENT, key=BatchKey(sender, 1, 0))).reason == "schema"


@pytest.mark.parametrize(("session", "sequence"), [(0, 0), (1, -1), (10**18, 0)])
def test_session_and_sequence_are_whole_numbers(session: int, sequence: int) -> None:
    assert refused(body(SENT, key=BatchKey("a", session, sequence))).reason == "schema"


def test_another_schema_is_refused_by_the_column_that_differs() -> None:
    good = batch(SENT)
    fields = [
        f if f.name != "packet" else pa.field("packet", pa.int32(), nullable=False) for f in EVENT_SCHEMA
    ]
    for schema, word in (
        (pa.schema(fields), "packet"),
        (pa.schema([f for f in EVENT_SCHEMA if f.name != "queue"]), "queue"),
        (pa.schema([*EVENT_SCHEMA, pa.field("more", pa.int8())]), "number or order"),
    ):
        other = pa.RecordBatch.from_pylist(good.to_pylist(), schema=schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(other)
        error = refused(sink.getvalue().to_pybytes())
        assert (error.reason, word in str(error)) == ("schema", True)


def test_two_record_batches_and_too_many_events_are_refused() -> None:
    metadata = {"sender": "a", "session": "1", "sequence": "0"}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, EVENT_SCHEMA.with_metadata(metadata)) as stream:
        stream.write_batch(batch(SENT))
        stream.write_batch(batch(SENT))
    assert refused(sink.getvalue().to_pybytes()).reason == "schema"
    many = [{**SENT, "packet": p} for p in range(MAX_EVENTS + 1)]
    assert refused(body(*many)).reason == "too_large"
    assert refused(b"\0" * (MAX_BODY_BYTES + 1)).reason == "too_large"


def test_a_compressed_batch_is_refused_before_it_is_unpacked() -> None:
    metadata = {"sender": "a", "session": "1", "sequence": "0"}
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, EVENT_SCHEMA.with_metadata(metadata), options=options) as stream:
        stream.write_batch(batch(*[{**SENT, "packet": p} for p in range(1000)]))
    error = refused(sink.getvalue().to_pybytes())
    assert "compress" in str(error)


@settings(max_examples=300)
@given(st.data())
def test_damaged_bytes_are_refused_and_never_crash(data: st.DataObject) -> None:
    good = bytearray(body(SENT, ACKED))
    for _ in range(data.draw(st.integers(1, 8))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(good[: data.draw(st.integers(0, len(good)))])
    try:
        key, events = checked(cut)
    except RefusedError as error:
        reason = error.reason
    else:
        reason = REASONS[0]
        assert key.sequence >= 0
        assert 0 < events.num_rows <= MAX_EVENTS
    assert reason in REASONS


def test_arrays_become_the_same_events() -> None:
    rows = [
        SENT,
        ACKED,
        {**SENT, "packet": 1, "time_ns": 30},
        {**ACKED, "packet": 1, "time_ns": 40, "latency_us": None},
    ]
    ones = np.ones(4, np.int32)
    events = event_batch(
        np.array([0, 1, 0, 1], np.uint8),
        np.array([10, 20, 30, 40]),
        np.array([0, 0, 1, 1]),
        {
            "size_bytes": 1500 * ones,
            "flow_id": 0 * ones,
            "receiver_id": 0 * ones,
            "queue": ones.astype(np.uint8),
        },
        np.array([0, 12.5, 0, np.nan], np.float32),
    )
    assert events.to_pylist() == batch(*rows).to_pylist()
    checked(encode(KEY, events))
