"""The agent's frames (docs/AGENT.md) as NumPy records, for replay files, streams and decision records.

`frames.h` has the same frames as structs: a test lets the compiler compare the place, size and type of
each field. A SENT frame describes its packet by `SEND_FIELDS`, as telemetry does. Shapes: H horizon.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from feature_store.packets.schema import HORIZON
from feature_store.telemetry.events import SEND_COLUMNS, SEND_FIELDS
from serving.agent.io.packet_log import PacketLog

FORMAT: Final = 1
MAGIC: Final = b"SWQFRAME"
OUTCOMES: Final = ("decided", "late", "error", "no_model")

_HEADER: Final = [("bytes", "<u2"), ("type", "u1"), ("format", "u1"), ("sender", "<u4"), ("sequence", "<u8")]
_CANDIDATE: Final = np.dtype([*SEND_FIELDS[:4], ("zero", "u1", 3)])  # known before the packet is sent
HELLO: Final = np.dtype([*_HEADER, ("magic", "S8"), ("name", "S56")])
SENT: Final = np.dtype([*_HEADER, ("packet", "<i8"), ("sent_ns", "<i8"), *SEND_FIELDS, ("zero", "u1")])
ACKED: Final = np.dtype(
    [*_HEADER, ("packet", "<i8"), ("acked_ns", "<i8"), ("latency_us", "<f4"), ("zero", "<u4")]
)
BATCH: Final = np.dtype(
    [
        *_HEADER,
        ("first_packet", "<i8"),
        ("now_ns", "<i8"),
        ("due_ns", "<i8"),
        ("packets", _CANDIDATE, HORIZON),
    ]
)
DECISION: Final = np.dtype(
    [
        *_HEADER,
        ("first_packet", "<i8"),
        ("now_ns", "<i8"),
        ("version", "<i8"),
        ("round_trip_us", "<f4"),
        ("outcome", "u1"),
        ("zero", "u1", 3),
        ("queues", "u1", HORIZON),
        ("classic_us", "<f4", HORIZON),
        ("default_us", "<f4", HORIZON),
    ]
)
REFUSED: Final = np.dtype([*_HEADER, ("line", "S112")])
BYE: Final = np.dtype(_HEADER)
HEADER: Final = BYE  # a BYE has no other fields
TYPES: Final = {1: HELLO, 2: SENT, 3: ACKED, 4: BATCH, 5: DECISION, 6: REFUSED, 7: BYE}
_NUMBERS: Final = {kind: number for number, kind in TYPES.items()}
_CHUNK_PACKETS: Final = 1 << 16


def blank(kind: np.dtype[Any], count: int = 1) -> NDArray[Any]:
    """Return frames of one kind with their headers and everything else zero."""
    frames = np.zeros(count, kind)
    frames["bytes"], frames["type"], frames["format"] = kind.itemsize, _NUMBERS[kind], FORMAT
    return frames


def hello(name: str) -> NDArray[Any]:
    """Return the first frame of a sender; a character of its name that is not printable ASCII becomes `?`."""
    frame = blank(HELLO)
    frame["magic"], frame["name"] = MAGIC, heard_name(name).encode()
    return frame


def heard_name(name: str) -> str:
    """Return a sender's name from its HELLO frame."""
    return "".join(c if " " <= c <= "~" else "?" for c in name)[: HELLO["name"].itemsize - 1]


def replay_frames(log: PacketLog) -> Iterator[bytes]:
    """Yield the log as the agent replays it: HELLO, then every event in the order it happened.

    At one instant ACKs come before the next send, but never before their own packet's. A BATCH stands
    at its decision, before its first packet.
    """
    yield hello(log.trace).tobytes()
    packets = len(log.sent_ns)
    clock_ns = np.maximum.accumulate(log.sent_ns)
    # Index of the packet that each ACK precedes; ACKs after all packets come at the end.
    before = np.maximum(np.searchsorted(clock_ns, log.acked_ns, side="left"), log.ack_packet + 1)
    before = np.maximum.accumulate(before) if len(before) else before
    for begin in range(0, packets, _CHUNK_PACKETS):
        end = min(begin + _CHUNK_PACKETS, packets)
        first, last = np.searchsorted(before, (begin, end if end < packets else packets + 1))
        yield _chunk(log, clock_ns, begin, end, slice(first, last), before)


def _chunk(
    log: PacketLog,
    clock_ns: NDArray[np.int64],
    begin: int,
    end: int,
    acks: slice,
    before: NDArray[np.int64],
) -> bytes:
    """Return the frames of packets `begin` to `end` and of the ACKs between them."""
    part = slice(begin, end)
    sent = blank(SENT, end - begin)
    sent["packet"] = np.arange(begin, end)
    for name in ("sent_ns", *SEND_COLUMNS):
        sent[name] = getattr(log, name)[part]

    acked = blank(ACKED, acks.stop - acks.start)
    acked["packet"], acked["acked_ns"] = log.ack_packet[acks], log.acked_ns[acks]
    acked["latency_us"] = log.latency_us[log.ack_packet[acks]]

    numbers = np.arange(max(-(-begin // HORIZON), log.first_batch), len(log.sent_ns) // HORIZON)
    firsts = (numbers * HORIZON)[numbers * HORIZON < end]
    batch = blank(BATCH, len(firsts))
    batch["first_packet"], batch["now_ns"] = firsts, clock_ns[firsts]
    for name in SEND_COLUMNS[:4]:
        batch["packets"][name] = getattr(log, name)[firsts[:, None] + np.arange(HORIZON)]

    # They are ordered by packet; a packet's ACKs come first, then its batch, then itself.
    kinds = (acked, before[acks]), (batch, firsts), (sent, sent["packet"])
    place = np.concatenate([at for _, at in kinds])
    rank = np.repeat([0, 1, 2], [len(frames) for frames, _ in kinds])
    size = np.repeat([frames.itemsize for frames, _ in kinds], [len(frames) for frames, _ in kinds])
    order = np.lexsort((np.arange(len(place)), rank, place))
    offsets = np.empty(len(place), np.int64)
    offsets[order] = np.cumsum(size[order]) - size[order]
    out = np.empty(int(size.sum()), np.uint8)
    at = 0
    for frames, _ in kinds:
        where = offsets[at : at + len(frames), None] + np.arange(frames.itemsize)
        out[where] = frames.view(np.uint8).reshape(-1, frames.itemsize)
        at += len(frames)
    return out.tobytes()


def split(data: bytes, sizes: Collection[int]) -> tuple[NDArray[np.int64], int, int | None]:
    """Find the whole frames of a stream.

    Args:
        data: bytes of the stream, starting with a frame.
        sizes: possible frame sizes in bytes.

    Returns:
        The offset of each whole frame, the offset of the rest, and the size there if no frame has it.

    """
    starts: list[int] = []
    at = 0
    while len(data) - at >= HEADER.itemsize:
        size = data[at] | data[at + 1] << 8
        if size not in sizes:
            return np.array(starts, np.int64), at, size
        if len(data) - at < size:
            break
        starts.append(at)
        at += size
    return np.array(starts, np.int64), at, None


def records(raw: NDArray[np.uint8], start_N: NDArray[np.int64], kind: np.dtype[Any]) -> NDArray[Any]:
    """Return the frames of one kind that begin at these offsets, or their headers."""
    record_NB = raw[start_N[:, None] + np.arange(kind.itemsize)]  # N records, B bytes of each
    return np.frombuffer(record_NB.tobytes(), kind)


def read_decisions(path: Path, last: int | None = None) -> NDArray[Any]:
    """Read the DECISION frames of a record, whose last frame may be half written.

    Args:
        path: file that the agent wrote as `--record`.
        last: number of the newest frames to read; None reads all.

    """
    with path.open("rb") as file:
        whole = file.seek(0, 2) // DECISION.itemsize
        begin = 0 if last is None else max(whole - last, 0)
        file.seek(begin * DECISION.itemsize)
        return np.frombuffer(file.read((whole - begin) * DECISION.itemsize), DECISION)
