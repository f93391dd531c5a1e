"""The rules of docs/PACKETS.md ("Latency", "Time", "Copies") once more: literal, without data structures.

Positions are true byte numbers; the matcher is shown only their low 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from swiftqueue.feature_store.packets import pcaplib
from swiftqueue.feature_store.packets.rare import address_bytes

SENDER = address_bytes("192.0.2.1")
RECEIVERS = (address_bytes("198.51.100.1"), address_bytes("2001:db8::2"))
START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
ACK, SYN = 16, 2
HEADERS = 40
MAX_WINDOW = 2**30
STEP_NS = 100 * MS
PATIENCE_NS = 120_000 * MS
COPY_NS = 5 * MS
NO_TIMER_NS = MS


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
    ip_id: int = 0
    vlan: int = 0

    @property
    def end(self) -> int:
        """The byte behind the last one."""
        return self.at + self.payload


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
        segment["link"], segment["ip_id"], segment["vlan"] = event.link, event.ip_id, event.vlan
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
    first_ns: int = 0  # stamp of the first event


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


def _nearest(event: Event, reference: int) -> Event:
    """Return the event with its numbers, of which 32 bits are known, nearest to another one."""

    def near(number: int) -> int:
        return reference + (number - reference + 2**31) % 2**32 - 2**31

    return replace(event, at=near(event.at), sacks=tuple((near(a), near(b)) for a, b in event.sacks))


def _follow_flows(seen: list[_Seen]) -> list[_Seen]:
    """Return the events with their flows' states; those that are copies are left out."""
    lives = [0, 0]
    highest: list[int | None] = [None, None]
    number = [0, 0]  # of the SYN, seen or not
    began_ns = [0, 0]
    followed: list[_Seen] = []
    for one in seen:
        flow = one.event.flow
        before = highest[flow]
        one = one if before is None else replace(one, event=_nearest(one.event, before))
        event = one.event
        own = [e for e in followed if (e.event.flow, e.life) == (flow, lives[flow]) and e.highest is not None]
        acks = [e for e in own if e.event.kind == "ack" and e.event.at <= (e.highest or 0) + MAX_WINDOW]
        if event.kind == "data" and before is not None and abs(event.at - before) > MAX_WINDOW:
            lives[flow], before, own = lives[flow] + 1, event.at, []
            number[flow], began_ns[flow] = event.at - 1, one.time_ns
        if (
            event.kind == "data"
            and before is not None
            and event.at < before
            and _is_copy(one, flow, lives, followed, acks)
        ):
            continue
        followed.append(replace(one, life=lives[flow], highest=before, first_ns=seen[0].stamp_ns))
        if event.kind == "syn" and before is not None:
            same = (event.at - number[flow]) % 2**32 == 0
            if not same or (acks and one.time_ns - began_ns[flow] >= COPY_NS):
                lives[flow], highest[flow] = lives[flow] + 1, event.at + 1
                number[flow], began_ns[flow] = event.at, one.time_ns
        elif event.kind == "data":
            if before is None:
                number[flow], began_ns[flow] = event.at - 1, one.time_ns
            highest[flow] = event.end if before is None else max(before, event.end)
    return followed


def _is_copy(one: _Seen, flow: int, lives: list[int], followed: list[_Seen], acks: list[_Seen]) -> bool:
    """Return whether recent packets show all of a packet's bytes."""
    shown = [
        sent.event
        for sent in followed
        if (sent.event.kind, sent.event.flow, sent.life) == ("data", flow, lives[flow])
        and one.time_ns - sent.time_ns < COPY_NS
        and _shows(sent, one, acks)
    ]
    edges = {one.event.at, *(recent.end for recent in shown if one.event.at < recent.end < one.event.end)}
    return all(any(recent.at <= edge < recent.end for recent in shown) for edge in edges)


def _shows(sent: _Seen, one: _Seen, acks: list[_Seen]) -> bool:
    recent, event = sent.event, one.event
    if recent.value != event.value:
        return False
    numbered = recent.ip_id and event.ip_id
    piece, whole = (event, recent) if event.at >= recent.at else (recent, event)
    if numbered and (piece.ip_id - whole.ip_id) % 2**16 <= (piece.at - whole.at) // piece.payload:
        return True
    if recent.link != event.link:
        return True
    if numbered and (recent.at, recent.payload) == (event.at, event.payload):
        return False
    ack_between = bool(acks) and acks[-1].time_ns > sent.time_ns
    return one.time_ns - sent.time_ns < NO_TIMER_NS and not ack_between


def expected(events: list[Event], latency: str = "acks") -> list[Row]:
    """Return the packet table that the rules give."""
    seen = _follow_flows(_read_clock(events))
    numbers: dict[int, int] = {}
    return [
        _row(
            sent, seen[:index], seen[index + 1 :], numbers.setdefault(sent.event.flow, len(numbers)), latency
        )
        for index, sent in enumerate(seen)
        if sent.event.kind == "data"
    ]


def _row(sent: _Seen, earlier: list[_Seen], later: list[_Seen], number: int, latency_from: str) -> Row:
    first, end = sent.event.at, sent.event.at + sent.event.payload
    again = sent.highest is not None and first < sent.highest
    lost = last_byte_again = False
    row = Row(sent.time_ns, None, None, number, again, lost)
    # An ACK in the same tick, of bytes that were not sent yet when it was written.
    for one in () if again else reversed(earlier):
        if (one.event.kind, one.event.flow, one.life) != ("ack", sent.event.flow, sent.life):
            continue
        if one.highest is None or not one.highest < one.event.at <= one.highest + MAX_WINDOW:
            continue
        if (one.stamp_ns, one.steps) == (sent.stamp_ns, sent.steps) and end <= one.event.at:
            return replace(
                row, acked_ns=sent.time_ns, latency_ns=None if sent.stamp_ns == sent.first_ns else 0
            )
        break
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
            known = None if again or last_byte_again or one.stamp_ns == sent.first_ns else latency
            return replace(row, acked_ns=sent.time_ns + latency, latency_ns=known, lost=lost)
    return replace(row, lost=lost)
