"""What the edge lets pass: every event that can be, and nothing else; each refusal names its reason."""

from __future__ import annotations

import math
from typing import Any

import event_rows
import numpy as np
import pytest

from swiftqueue.feature_store.telemetry.events import (
    ACK,
    HEADER,
    MAX_BODY_BYTES,
    MAX_EVENTS,
    REASONS,
    SEND,
    BatchKey,
    Events,
    RefusedError,
    checked,
    encode,
    event_batch,
    sealed,
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
    "ecn": 1,
    "retransmitted": 0,
}
ACKED = {"kind": ACK, "time_ns": 20, "packet": 0, "latency_us": 12.5}


def batch(*rows: dict[str, Any]) -> Events:
    return event_rows.batch(rows)


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
    assert events.tobytes() == batch(*rows).tobytes()


@pytest.mark.parametrize(
    ("reason", "rows", "words"),
    [
        ("nan", (SENT, {**ACKED, "latency_us": math.nan}), "NaN"),
        ("nan", (SENT, {**ACKED, "latency_us": math.inf}), "infinite"),
        ("range", ({**SENT, "size_bytes": 0},), "size_bytes 0"),
        ("range", ({**SENT, "size_bytes": 2**21},), "size_bytes"),
        ("range", ({**SENT, "queue": 2},), "queue 2"),
        ("range", ({**SENT, "ecn": 4},), "ecn 4"),
        ("range", ({**SENT, "retransmitted": 2},), "retransmitted 2"),
        ("range", ({**SENT, "packet": -1},), "packet -1"),
        ("range", ({**SENT, "flow_id": -1},), "flow_id -1"),
        ("range", ({**SENT, "time_ns": 2**62},), "time_ns"),
        ("range", ({**SENT, "packet": 10**17},), "packet 100000000000000000 is outside"),
        ("range", ({**ACKED, "latency_us": -2.0},), "latency_us -2"),
        ("range", ({**ACKED, "latency_us": 2e8},), "latency_us 200000000"),
        ("range", ({**SENT, "kind": 2},), "kind 2"),
        ("order", ({**SENT, "time_ns": 11}, {**SENT, "packet": 1}), "1 ns before"),
        ("order", (SENT, SENT), "must grow"),
        ("order", ({**SENT, "packet": 5}, {**SENT, "packet": 4}), "must grow"),
        ("order", (SENT, {**ACKED, "time_ns": 10**13}), "span"),
        (
            "order",
            ({**SENT, "time_ns": 0}, *({**ACKED, "time_ns": 60 * n * 10**9} for n in range(5))),
            "in 5 min",
        ),
        ("schema", ({**ACKED, "flow_id": 1},), "flow_id: must be 0 in an ACK"),
        ("schema", ({**SENT, "latency_us": 1.0},), "must be 0 in a SEND"),
        ("schema", ({**ACKED, "ecn": 1},), "ecn: must be 0 in an ACK"),
        ("schema", ({**ACKED, "retransmitted": 1},), "retransmitted: must be 0 in an ACK"),
        ("empty", (), "without an event"),
    ],
)
def test_an_event_that_cannot_be_is_refused(
    reason: str, rows: tuple[dict[str, Any], ...], words: str
) -> None:
    error = refused(body(*rows))
    assert error.reason == reason
    assert words in str(error)


def header(content: bytes, **fields: Any) -> bytes:
    """The batch with other fields in its header, sealed."""
    changed = np.frombuffer(content[: HEADER.itemsize], HEADER).copy()
    for name, value in fields.items():
        changed[name] = value
    return sealed(changed.tobytes() + content[HEADER.itemsize :])


@pytest.mark.parametrize("sender", [b"", b"a b", b"../up", b".hidden", b"a\0b", "ü".encode()])
def test_a_sender_id_is_a_plain_name(sender: bytes) -> None:
    assert refused(header(body(SENT), sender=sender)).reason == "schema"


@pytest.mark.parametrize("sender", ["", "a b", "../up", "x" * 65, "ü"])
def test_no_batch_is_made_of_another_sender_id(sender: str) -> None:
    with pytest.raises(RefusedError, match="must be 1 to 64"):
        body(SENT, key=BatchKey(sender, 1, 0))


@pytest.mark.parametrize(
    ("session", "sequence"), [(0, 0), (2**48 + 1, 0), (1, 2**48 + 1), (1, 10**17), (2**64 - 1, 0)]
)
def test_session_and_sequence_have_bounds(session: int, sequence: int) -> None:
    assert refused(body(SENT, key=BatchKey("a", session, sequence))).reason == "range"


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (b"", "0 bytes are not a batch"),
        (b"hello", "5 bytes are not a batch"),
        (b"\xff" * HEADER.itemsize, "not a batch of events of format 2"),
        (header(body(SENT), magic=b"SWQFRAME"), "not a batch of events"),
        (header(body(SENT), format=1), "events of format 1, and only format 2 is taken: sender, forwarder"),
        (header(body(SENT), format=3), "events of format 3, and only format 2 is taken: sender, forwarder"),
        (header(body(SENT), events=2), "do not hold a batch of 2 events"),
        (header(body(SENT), events=2**32 - 1), "do not hold a batch of 4,294,967,295 events"),
        (body(SENT) + b"\0", "do not hold"),
        (body(SENT)[:-1], "do not hold"),
        (body(SENT)[:-1] + b"\1", "the checksum does not fit"),
        (header(body(SENT), zero=1), "the header's zero"),
    ],
)
def test_another_layout_is_refused_in_one_line(damaged: bytes, words: str) -> None:
    error = refused(damaged)
    assert (error.reason, words in str(error)) == ("schema", True), str(error)


def test_too_many_events_are_refused() -> None:
    many = np.repeat(batch(SENT), MAX_EVENTS + 1)
    many["packet"] = np.arange(MAX_EVENTS + 1)
    assert len(encode(KEY, many[1:])) == MAX_BODY_BYTES
    checked(encode(KEY, many[1:]))
    assert refused(encode(KEY, many)).reason == "too_large"


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
            "ecn": ones.astype(np.uint8),
            "retransmitted": 0 * ones.astype(np.uint8),
        },
        np.array([0, 12.5, 0, np.nan], np.float32),
    )
    assert events.tobytes() == batch(*rows).tobytes()
    checked(encode(KEY, events))
