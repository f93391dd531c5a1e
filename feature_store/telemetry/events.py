"""Define the layout of a sender's events in telemetry, and check batches of them.

A SEND describes its packet by `SEND_FIELDS`, here and in the agent's frames. A batch is a `HEADER`, which
names its sender and number, followed by its events, records of `EVENT`. Both are flat and little-endian, and
NumPy alone reads them, so the worst that a stranger's bytes can do is to be refused. A bad batch is refused
as a whole, with one of `REASONS`. Unused fields are 0, so equal content gives equal bytes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MINUTE_NS: Final = 60_000_000_000  # as in table_writer.py, which needs Polars; a sender does not
SEND: Final = 0
ACK: Final = 1
# Attributes of a SEND's packet as the sender saw it when the packet left; 0 in an ACK.
SEND_FIELDS: Final = (
    ("size_bytes", "<i4"),  # IP length
    ("flow_id", "<i4"),
    ("receiver_id", "<i4"),
    ("queue", "u1"),  # queue of its mark: 0 classic, 1 l4s
    ("ecn", "u1"),  # IP codepoint as sent, 0..3
    ("retransmitted", "u1"),  # 1: bytes that had been sent before (docs/PACKETS.md)
)
SEND_COLUMNS: Final = tuple(name for name, _ in SEND_FIELDS)
EVENT: Final = np.dtype(
    [
        ("time_ns", "<i8"),  # sender's clock; must not step back within a batch
        ("packet", "<i8"),  # number in send order
        *SEND_FIELDS,
        ("kind", "u1"),  # SEND or ACK
        ("latency_us", "<f4"),  # latency of an ACK (0 in a SEND); UNKNOWN_US where unknown (Karn)
    ]
)
UNKNOWN_US: Final = -1.0
MAGIC: Final = b"SWQEVENT"
FORMAT: Final = 2  # version 1 had no `ecn` and no `retransmitted`
HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("format", "<u4"),
        ("events", "<u4"),
        ("sender", "S64"),
        ("session", "<u8"),
        ("sequence", "<u8"),
        ("zero", "<u4"),
        ("crc", "<u4"),  # CRC-32 of the header above and of the events
    ]
)
_SEALED: Final = HEADER.itemsize - 4  # bytes of the header that the CRC covers

MAX_EVENTS: Final = 65_536  # 4 s of a sender at 100 Mbit/s
MAX_BODY_BYTES: Final = HEADER.itemsize + MAX_EVENTS * EVENT.itemsize
MAX_SPAN_NS: Final = 3_600_000_000_000  # time span of a batch; a longer one means a set clock
MAX_MINUTES: Final = 4  # minutes of one batch's events; each is a file
MAX_TIME_NS: Final = 2**62 - 1  # as in event_stream.h: neither differences nor sums of two times overflow
MAX_LATENCY_US: Final = 120e6  # as long as a packet-table row waits for its ACK (docs/PACKETS.md)
MAX_SIZE_BYTES: Final = 1 << 20  # as in expectations.py: above any super-segment
MAX_PACKET: Final = 2**48  # 100 years of 1500-byte packets at 1 Gbit/s
MAX_NUMBER: Final = 2**48  # largest number of a session or batch, likewise
SENDER_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")

REASONS: Final = (
    *("token", "schema", "too_large", "no_size", "empty", "nan"),
    *("range", "order", "jump", "session", "two_senders", "senders"),
)

Events = npt.NDArray[Any]  # records of EVENT


class RefusedError(ValueError):
    """The error for a batch that must not be stored; `reason` is one of `REASONS`."""

    def __init__(self, reason: str, line: str) -> None:
        super().__init__(line)
        self.reason = reason


@dataclass(frozen=True)
class BatchKey:
    """The identity of a batch: a retry carries the same key."""

    sender: str
    session: int  # number from 1 that the ingest gives each time a sender starts
    sequence: int  # number from 0 in each session, one more with each batch


def check_sender(sender: str) -> None:
    """Refuse an invalid sender id.

    Raises:
        RefusedError: the id is invalid (reason `schema`).
    """
    if not SENDER_NAME.fullmatch(sender):
        raise RefusedError("schema", f"sender {sender[:80]!r}: must be 1 to 64 of A-Z a-z 0-9 . _ -")


def is_other_format(body: bytes) -> bool:
    """Return whether a complete batch has another version of this layout."""
    at = HEADER.fields["format"][1]  # type: ignore[index]
    is_ours = body[at : at + 4] == FORMAT.to_bytes(4, "little")
    return body.startswith(MAGIC) and len(body) >= at + 4 and not is_ours


def event_batch(
    kind: npt.NDArray[np.uint8],
    time_ns: npt.NDArray[np.int64],
    packet: npt.NDArray[np.int64],
    send: Mapping[str, npt.NDArray[Any]],
    latency_us: npt.NDArray[np.float32],
) -> Events:
    """Return events, given as arrays of one length, as records.

    Args:
        kind: SEND or ACK for each event.
        time_ns: time by the sender's clock, in ns.
        packet: number in send order.
        send: arrays of the `SEND_COLUMNS`; their values in ACKs do not matter.
        latency_us: latencies of ACKs in µs, NaN where unknown; values in SENDs do not matter.
    """
    events = np.zeros(len(kind), EVENT)
    events["kind"], events["time_ns"], events["packet"] = kind, time_ns, packet
    is_ack = events["kind"] == ACK
    for name in SEND_COLUMNS:
        events[name] = np.where(is_ack, 0, send[name])
    events["latency_us"] = np.where(is_ack, np.where(np.isnan(latency_us), UNKNOWN_US, latency_us), 0)
    return events


def encode(key: BatchKey, events: Events) -> bytes:
    """Return the batch as the bytes that are sent, logged and read back.

    Raises:
        RefusedError: the sender id is invalid.
    """
    check_sender(key.sender)
    header = np.zeros(1, HEADER)
    header["magic"], header["format"], header["events"] = MAGIC, FORMAT, len(events)
    header["sender"] = key.sender.encode()
    header["session"], header["sequence"] = key.session, key.sequence
    return sealed(header.tobytes() + events.tobytes())


def sealed(body: bytes) -> bytes:
    """Return a batch with the checksum of its other bytes."""
    crc = _crc(body).to_bytes(4, "little")
    return body[:_SEALED] + crc + body[HEADER.itemsize :]


def _crc(body: bytes) -> int:
    view = memoryview(body)
    return zlib.crc32(view[HEADER.itemsize :], zlib.crc32(view[:_SEALED]))


def checked(body: bytes) -> tuple[BatchKey, Events]:
    """Read a batch and refuse it unless every event in it is valid.

    Raises:
        RefusedError: a part of it is invalid; the line names the first one.
    """
    if len(body) > MAX_BODY_BYTES:
        raise RefusedError("too_large", f"{len(body):,} bytes: a batch may have {MAX_BODY_BYTES:,}")
    if len(body) < HEADER.itemsize:
        raise RefusedError(
            "schema", f"{len(body)} bytes are not a batch of events: a header has {HEADER.itemsize}"
        )
    (header,) = np.frombuffer(body, HEADER, 1)
    if header["magic"] != MAGIC:
        raise RefusedError("schema", f"not a batch of events of format {FORMAT} (docs/TELEMETRY.md)")
    if header["format"] != FORMAT:
        raise RefusedError(
            "schema",
            f"a batch of events of format {header['format']}, and only format {FORMAT} is taken: "
            "sender, forwarder and ingest must be of one version; update the older",
        )
    count = int(header["events"])
    if len(body) != HEADER.itemsize + count * EVENT.itemsize:
        raise RefusedError("schema", f"{len(body):,} bytes do not hold a batch of {count:,} events")
    if header["crc"] != _crc(body):
        raise RefusedError("schema", "the checksum does not fit: the batch was damaged on its way")
    key = _key(header)
    if not count:
        raise RefusedError("empty", "a batch without an event")
    events = np.frombuffer(body, EVENT, count, HEADER.itemsize)
    _check_values(events)
    _check_order(events)
    return key, events


def _key(header: Any) -> BatchKey:
    sender = header["sender"].decode("ascii", "replace")
    check_sender(sender)
    if header["zero"]:
        raise RefusedError("schema", "the header's zero is not 0")
    session, sequence = int(header["session"]), int(header["sequence"])
    for name, number, least in (("session", session, 1), ("sequence", sequence, 0)):
        if not least <= number <= MAX_NUMBER:
            raise RefusedError("range", f"{name} {number}: must be in {least}..{MAX_NUMBER:,}")
    return BatchKey(sender, session, sequence)


def _check_values(events: Events) -> None:
    kind, latency_us = events["kind"], events["latency_us"]
    if kind.max() > ACK:
        raise RefusedError("range", f"kind {kind.max()}: must be {SEND} (SEND) or {ACK} (ACK)")
    if not np.isfinite(latency_us).all():
        raise RefusedError("nan", f"latency_us is NaN or infinite; an unknown latency is {UNKNOWN_US:g}")
    is_ack = kind == ACK
    if latency_us[~is_ack].any():
        raise RefusedError("schema", "latency_us: must be 0 in a SEND")
    for name in SEND_COLUMNS:
        if events[name][is_ack].any():
            raise RefusedError("schema", f"{name}: must be 0 in an ACK")
    is_known = latency_us != UNKNOWN_US
    for name, least, most, of in (
        ("time_ns", 0, MAX_TIME_NS, None),
        ("packet", 0, MAX_PACKET, None),
        ("size_bytes", 1, MAX_SIZE_BYTES, ~is_ack),
        ("flow_id", 0, 2**31 - 1, None),
        ("receiver_id", 0, 2**31 - 1, None),
        ("queue", 0, 1, None),
        ("ecn", 0, 3, None),
        ("retransmitted", 0, 1, None),
        ("latency_us", 0, MAX_LATENCY_US, is_known),
    ):
        values = events[name] if of is None else events[name][of]
        if not len(values):
            continue
        for value in (values.min().item(), values.max().item()):
            if not least <= value <= most:
                raise RefusedError("range", f"{name} {value} is outside {least:g}..{most:g}")


def _check_order(events: Events) -> None:
    time_ns = events["time_ns"]
    steps = np.diff(time_ns)
    if (steps < 0).any():
        row = int(np.argmax(steps < 0)) + 1
        raise RefusedError("order", f"event {row} is {-steps[row - 1]:,} ns before the one that precedes it")
    if time_ns[-1] - time_ns[0] > MAX_SPAN_NS:
        raise RefusedError(
            "order", f"the events span {(time_ns[-1] - time_ns[0]) / 1e9:,.0f} s: at most 3,600"
        )
    minutes = np.count_nonzero(np.diff(time_ns // MINUTE_NS)) + 1
    if minutes > MAX_MINUTES:
        raise RefusedError("order", f"the events lie in {minutes} minutes: at most {MAX_MINUTES}")
    sent = events["packet"][events["kind"] == SEND]
    if (np.diff(sent) <= 0).any():
        raise RefusedError("order", "packet numbers of SENDs must grow")
