"""The rules of docs/PACKETS.md ("Latency", "Time") once more: literal, quadratic, without data structures.

Positions are true byte numbers; the matcher is shown only their low 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from feature_store.packets import pcaplib
from feature_store.packets.rare import address_bytes

SENDER = address_bytes("192.0.2.1")
RECEIVERS = (address_bytes("198.51.100.1"), address_bytes("2001:db8::2"))
START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
ACK, SYN = 16, 2
HEADERS = 40
MAX_WINDOW = 2**30
STEP_NS = 100 * MS
PATIENCE_NS = 120_000 * MS


@dataclass(frozen=True)
class Event:
    """One record: data of the sender, an ACK to it, or its SYN; `at` is a byte's true number."""

    kind: Literal["data", "ack", "syn"]
    stamp_ns: int
    flow: int
    at: int  # data: first byte; ack: the next byte expected; syn: the initial sequence number
    payload: int = 0
    link: int = 0
    value: int = 0  # TSval
    sacks: tuple[tuple[int, int], ...] = ()  # of an ack: blocks of bytes that have come, by true numbers


@dataclass(frozen=True)
class Row:
    """One row of the table as far as it is known; times in ns."""

    sent_ns: int
    acked_ns: int | None
    latency_ns: int | None
    flow: int
    retransmitted: bool
    lost: bool


def segments(events: list[Event]) -> npt.NDArray[np.void]:
    """Return the events as the decoder would give them."""
    out = np.zeros(len(events), pcaplib.SEGMENT)
    for segment, event in zip(out, events, strict=True):
        ends = [(SENDER, 40_000), (RECEIVERS[event.flow], 443)]
        (source, source_port), (destination, destination_port) = ends[::-1] if event.kind == "ack" else ends
        segment["time_ns"] = event.stamp_ns
        segment["source"], segment["destination"] = np.void(source), np.void(destination)
        segment["source_port"], segment["destination_port"] = source_port, destination_port
        segment["acknowledgment" if event.kind == "ack" else "sequence"] = event.at % 2**32
        segment["payload_bytes"], segment["ip_bytes"] = event.payload, HEADERS + event.payload
        segment["flags"] = SYN if event.kind == "syn" else ACK
        segment["link"] = event.link
        segment["timestamp_value"], segment["has_timestamps"] = event.value, True
        segment["sacks"] = len(event.sacks)
        for place, block in enumerate(event.sacks):
            segment["sack"][place] = [edge % 2**32 for edge in block]
    return out


def matched(events: list[Event], chunk: int, latency: str = "acks") -> tuple[list[Row], pcaplib.Stats]:
    """Push the events through the matcher, `chunk` records at a time."""
    matcher = pcaplib.Matcher(SENDER, latency, sharp_ns=20 * MS, sharp_share=0.2)
    rows = pcaplib.Rows(len(events) + 1)
    records = segments(events)
    for start in range(0, len(records), chunk):
        matcher.push(records[start : start + chunk])
        matcher.drain(rows)
    matcher.finish()
    matcher.drain(rows)
    return rows_of(rows), matcher.stats()


def rows_of(rows: pcaplib.Rows) -> list[Row]:
    """Return filled columns as rows; latencies of whole milliseconds below 134 s are exact in float32."""
    columns = {name: column[: rows.used].tolist() for name, column in rows.columns.items()}
    return [
        Row(
            sent,
            None if acked < 0 else acked,
            None if np.isnan(latency) else round(latency * 1000),
            flow,
            retransmitted,
            lost,
        )
        for sent, acked, latency, flow, retransmitted, lost in zip(
            *(columns[n] for n in ("sent_ns", "acked_ns", "latency_us", "flow_id", "retransmitted", "lost")),
            strict=True,
        )
    ]


@dataclass(frozen=True)
class _Seen:
    """An event with its clock reading and its flow's state before it."""

    event: Event
    time_ns: int
    stamp_ns: int
    steps: int  # of the clock so far
    life: int = 0  # how often the flow's 5-tuple began anew
    highest: int | None = None  # sequence number sent, None before any data


def _read_clock(events: list[Event]) -> list[_Seen]:
    last, offset, steps, seen = 0, 0, 0, []
    for event in events:
        now = event.stamp_ns + offset
        if now < last - STEP_NS:
            offset += last - now
            now, steps = last, steps + 1
        last = max(last, now)
        seen.append(_Seen(event, last, now, steps))
    return seen


def _follow_flows(seen: list[_Seen]) -> list[_Seen]:
    lives = [0, 0]
    highest: list[int | None] = [None, None]
    followed = []
    for one in seen:
        event, flow = one.event, one.event.flow
        before = highest[flow]
        followed.append(replace(one, life=lives[flow], highest=before))
        if event.kind == "syn" and before is not None:
            lives[flow], highest[flow] = lives[flow] + 1, event.at + 1
        elif event.kind == "data":
            end = event.at + event.payload
            highest[flow] = end if before is None else max(before, end)
    return followed


def expected(events: list[Event], latency: str = "acks") -> list[Row]:
    """Return the packet table that the rules give."""
    seen = _follow_flows(_read_clock(events))
    numbers: dict[int, int] = {}
    return [
        _row(sent, seen[index + 1 :], numbers.setdefault(sent.event.flow, len(numbers)), latency)
        for index, sent in enumerate(seen)
        if sent.event.kind == "data"
    ]


def _row(sent: _Seen, later: list[_Seen], number: int, latency_from: str) -> Row:
    first, end = sent.event.at, sent.event.at + sent.event.payload
    again = sent.highest is not None and first < sent.highest
    lost = last_byte_again = False
    row = Row(sent.time_ns, None, None, number, again, lost)
    for one in later:
        event = one.event
        if one.time_ns - sent.time_ns > PATIENCE_NS:
            break
        if event.flow != sent.event.flow or one.life != sent.life or one.highest is None:
            continue
        if event.kind == "data" and event.at < one.highest:
            lost |= event.at < end and first < event.at + event.payload
            last_byte_again |= event.at < end <= event.at + event.payload
        blocks = event.sacks if latency_from == "selective" else ()
        sacked = any(left < end <= right <= one.highest for left, right in blocks)
        if event.kind == "ack" and event.at <= one.highest + MAX_WINDOW and (end <= event.at or sacked):
            latency = one.stamp_ns - sent.stamp_ns
            if latency < 0 or one.steps != sent.steps:
                return replace(row, acked_ns=max(one.time_ns, sent.time_ns), lost=lost)
            known = None if again or last_byte_again else latency
            return replace(row, acked_ns=sent.time_ns + latency, latency_ns=known, lost=lost)
    return replace(row, lost=lost)
