"""The event of a sender's log as telemetry carries it, and a batch of them: the one place of its schema.

A batch is one Arrow IPC stream of one record batch; its schema's metadata say whose it is and which. The edge
refuses a bad batch whole, under one of `REASONS`.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

SEND: Final = 0
ACK: Final = 1
EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field("kind", pa.uint8(), nullable=False),  # SEND or ACK
        pa.field("time_ns", pa.int64(), nullable=False),  # sender's clock; must not step back within a batch
        pa.field("packet", pa.int64(), nullable=False),  # number in send order, from 0 in each session
        pa.field("size_bytes", pa.int32()),  # of a SEND (null in an ACK): IP length
        pa.field("flow_id", pa.int32()),  # of a SEND
        pa.field("receiver_id", pa.int32()),  # of a SEND
        pa.field("queue", pa.uint8()),  # of a SEND: 0 classic, 1 l4s
        pa.field("latency_us", pa.float32()),  # of an ACK (null in a SEND); null where unknown (Karn)
    ]
)
SEND_COLUMNS: Final = ("size_bytes", "flow_id", "receiver_id", "queue")

MAX_EVENTS: Final = 65_536  # 4 s of a sender at 100 Mbit/s
MAX_BODY_BYTES: Final = 4 << 20  # 65,536 events are 2.3 MB
MAX_SPAN_NS: Final = 3_600_000_000_000  # of one batch; more is a clock that was set, and a folder per minute
MAX_TIME_NS: Final = 2**62  # as in window.h: differences cannot overflow
MAX_LATENCY_US: Final = 120e6  # as long as a packet-table row waits for its ACK (docs/PACKETS.md)
MAX_SIZE_BYTES: Final = 1 << 20  # as in expectations.py: above any super-segment
SENDER_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")

REASONS: Final = ("schema", "too_large", "empty", "nan", "range", "order", "session", "two_senders")


class RefusedError(ValueError):
    """A batch that must not be stored; `reason` is one of `REASONS`."""

    def __init__(self, reason: str, line: str) -> None:
        super().__init__(line)
        self.reason = reason


@dataclass(frozen=True)
class BatchKey:
    """What makes a batch that one and no other: a retry carries the same key."""

    sender: str
    session: int  # given by the ingest each time a sender starts; from 1
    sequence: int  # from 0 in each session, one more with each batch


def event_batch(
    kind: npt.NDArray[np.uint8],
    time_ns: npt.NDArray[np.int64],
    packet: npt.NDArray[np.int64],
    send: Mapping[str, npt.NDArray[np.generic]],
    latency_us: npt.NDArray[np.float32],
) -> pa.RecordBatch:
    """Return events, given as arrays of one length, as a batch.

    Args:
        kind: SEND or ACK.
        time_ns: sender's clock.
        packet: number in send order.
        send: the `SEND_COLUMNS`; their values in ACKs do not matter.
        latency_us: of ACKs; NaN where unknown. Its values in SENDs do not matter.
    """
    is_ack = kind == ACK
    no_latency = ~is_ack | np.isnan(latency_us)
    columns = {"kind": kind, "time_ns": time_ns, "packet": packet, **send, "latency_us": latency_us}
    masks = {**dict.fromkeys(SEND_COLUMNS, is_ack), "latency_us": no_latency}
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[f.name], f.type, mask=masks.get(f.name)) for f in EVENT_SCHEMA], schema=EVENT_SCHEMA
    )


def encode(key: BatchKey, events: pa.RecordBatch) -> bytes:
    """Return the batch as the bytes that are sent, logged and read again."""
    metadata = {"sender": key.sender, "session": str(key.session), "sequence": str(key.sequence)}
    schema = EVENT_SCHEMA.with_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(events.columns, schema=schema))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def decode(body: bytes) -> tuple[BatchKey, pa.RecordBatch]:
    """Read a batch that `checked` has let pass before.

    Raises:
        RefusedError: it is no such batch.
    """
    try:
        messages = pa.ipc.MessageReader.open_stream(body)
        schema = pa.ipc.read_schema(messages.read_next_message())
        key = _key(schema)
        message = messages.read_next_message()
        if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
            raise RefusedError("schema", "compressed, or no record batch: send one plain record batch")
        events = pa.ipc.read_record_batch(message, schema)
        events.validate(full=True)
        with contextlib.suppress(StopIteration):
            messages.read_next_message()
            raise RefusedError("schema", "more than one record batch: send each with its own sequence")
    except (pa.ArrowException, StopIteration, OSError, ValueError, struct.error) as error:
        if isinstance(error, RefusedError):
            raise
        first = (str(error).splitlines() or ["no record batch"])[0]
        raise RefusedError("schema", f"not an Arrow stream of one record batch: {first[:200]}") from None
    return key, events


def _is_compressed(message: bytes) -> bool:
    """Whether a record batch's message has its optional field `compression` (Arrow's Message.fbs).

    Arrow would unpack it while reading: a few kilobytes can be made to fill the memory.
    """

    def field(table: int, number: int) -> int:  # where it stands, 0 if it is not there
        vtable = table - struct.unpack_from("<i", message, table)[0]
        slot = 4 + 2 * number
        if slot >= struct.unpack_from("<H", message, vtable)[0]:
            return 0
        offset: int = struct.unpack_from("<H", message, vtable + slot)[0]
        return table + offset if offset else 0

    header = field(struct.unpack_from("<I", message, 0)[0], 2)
    return bool(field(header + struct.unpack_from("<I", message, header)[0], 3))


def checked(body: bytes) -> tuple[BatchKey, pa.RecordBatch]:
    """Read a batch from outside and refuse it unless every event in it can be.

    Raises:
        RefusedError: the first thing that is wrong with it.
    """
    if len(body) > MAX_BODY_BYTES:
        raise RefusedError("too_large", f"{len(body):,} bytes: a batch may have {MAX_BODY_BYTES:,}")
    key, events = decode(body)
    if not events.num_rows:
        raise RefusedError("empty", "a batch without an event")
    if events.num_rows > MAX_EVENTS or events.nbytes > MAX_BODY_BYTES:
        raise RefusedError("too_large", f"{events.num_rows:,} events: a batch may have {MAX_EVENTS:,}")
    _check_nulls(events)
    _check_values(events)
    _check_order(events)
    return key, events


def _key(schema: pa.Schema) -> BatchKey:
    if not schema.equals(EVENT_SCHEMA):
        same = [f.name for f in EVENT_SCHEMA if f.name in schema.names and schema.field(f.name).equals(f)]
        differing = next((name for name in EVENT_SCHEMA.names if name not in same), "their number or order")
        raise RefusedError("schema", f"columns differ from the event schema in {differing}")
    metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    sender = metadata.get("sender", "")
    if not SENDER_NAME.fullmatch(sender):
        raise RefusedError("schema", f"sender {sender[:80]!r}: must be 1 to 64 of A-Z a-z 0-9 . _ -")
    numbers = {}
    for name, least in (("session", 1), ("sequence", 0)):
        text = metadata.get(name, "")
        if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
            raise RefusedError("schema", f"{name} {text[:20]!r}: must be a whole number from {least}")
        numbers[name] = int(text)
    return BatchKey(sender, numbers["session"], numbers["sequence"])


def _check_nulls(events: pa.RecordBatch) -> None:
    for field, column in zip(EVENT_SCHEMA, events.columns, strict=True):
        if not field.nullable and column.null_count:
            raise RefusedError("schema", f"{field.name} is null in {column.null_count} events")
    kind = events.column("kind").to_numpy()
    if kind.max() > ACK:
        raise RefusedError("range", f"kind {kind.max()}: must be {SEND} (SEND) or {ACK} (ACK)")
    is_ack = kind == ACK
    for name in SEND_COLUMNS:
        if not np.array_equal(_is_null(events.column(name)), is_ack):
            raise RefusedError("schema", f"{name}: must be there in every SEND and in no ACK")
    if not _is_null(events.column("latency_us"))[~is_ack].all():
        raise RefusedError("schema", "latency_us: must not be there in a SEND")


def _is_null(column: pa.Array) -> npt.NDArray[np.bool_]:
    if not column.null_count:
        return np.zeros(len(column), bool)
    return column.is_null().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _check_values(events: pa.RecordBatch) -> None:
    latency_us = events.column("latency_us").drop_null().to_numpy()
    if not np.isfinite(latency_us).all():
        raise RefusedError("nan", "latency_us is NaN or infinite; an unknown latency is null")
    for name, least, most in (
        ("time_ns", 0, MAX_TIME_NS),
        ("packet", 0, MAX_TIME_NS),
        ("size_bytes", 1, MAX_SIZE_BYTES),
        ("flow_id", 0, 2**31 - 1),
        ("receiver_id", 0, 2**31 - 1),
        ("queue", 0, 1),
        ("latency_us", 0, MAX_LATENCY_US),
    ):
        bounds = pc.min_max(events.column(name))
        for value in (bounds["min"].as_py(), bounds["max"].as_py()):
            if value is not None and not least <= value <= most:
                raise RefusedError("range", f"{name} {value} is outside {least:g}..{most:g}")


def _check_order(events: pa.RecordBatch) -> None:
    time_ns = events.column("time_ns").to_numpy()
    steps = np.diff(time_ns)
    if (steps < 0).any():
        row = int(np.argmax(steps < 0)) + 1
        raise RefusedError("order", f"event {row} is {-steps[row - 1]:,} ns before the one that precedes it")
    if time_ns[-1] - time_ns[0] > MAX_SPAN_NS:
        raise RefusedError(
            "order", f"the events span {(time_ns[-1] - time_ns[0]) / 1e9:,.0f} s: at most 3,600"
        )
    sent = events.column("packet").to_numpy()[events.column("kind").to_numpy() == SEND]
    if (np.diff(sent) <= 0).any():
        raise RefusedError("order", "packet numbers of SENDs must grow")
