"""Writes tests/data/golden/windows.{json,bin} and events.bin: a log and, bit for bit, what it gives.

Any implementation, in any language and on any machine, must turn the log into these bytes. Run it only
when the definition changes on purpose, which changes the schema hash too:
`python tests/data/make_golden_windows.py`.

Format: the JSON holds `schema_hash`, `tokens`, `features`, `event_schema_hash`, `event_inputs` and
`events` in time order, each one of
  ["sent", packet, sent_ns, size_bytes, flow_id, receiver_id, queue]
  ["acked", packet, acked_ns, latency_us or null]
  ["window", decision_ns, in_flight, [size_bytes x 8], [flow_id x 8], [receiver_id x 8], [queue x 8]]
and windows.bin the windows in the order of the "window" events, float32, little-endian, `tokens` x
`features` each, row by row. events.bin holds rows of `event_inputs` float32: one for a "sent" or an
"acked", eight queries for a "window".
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from feature_store.events.event_stream import INPUTS, EventStream, event_schema_hash
from feature_store.events.windows import FEATURES, SenderWindow, schema_hash

GOLDEN = Path(__file__).parent / "golden"
TOKENS = 24
PACKETS = 80
START_NS = 1_700_000_000_123_456_789
MS = 1_000_000


def make_events(seed: int = 2410_06112) -> list[list[Any]]:
    """Return a log with a hole, a long pause, losses, given-up packets, retransmissions and ties."""
    rng = random.Random(seed)
    now_ns = START_NS
    acks: list[tuple[int, int, float | None]] = []
    events: list[list[Any]] = []
    for packet in range(PACKETS):
        now_ns += rng.choice([0, 1, rng.randrange(3 * MS), rng.randrange(12 * MS)])
        if packet == 48:
            now_ns += 2_345 * MS  # all before it are given up or acknowledged
        acks.sort()
        while acks and acks[0][0] <= now_ns:
            acked_ns, number, latency_us = acks.pop(0)
            events.append(["acked", number, acked_ns, latency_us])
        sizes = [rng.choice([60, 1432, 1500, 65535]) for _ in range(8)]
        flows = [rng.randrange(4) for _ in range(8)]
        queues = [rng.randrange(2) for _ in range(8)]
        if packet % 8 == 0:
            events.append(["window", now_ns, 0, sizes, flows, [f % 3 for f in flows], queues])
            events.append(["window", now_ns, 0, sizes, flows, [f % 3 for f in flows], [1] * 8])
        events.append(["sent", packet, now_ns, sizes[0], flows[0], flows[0] % 3, queues[0]])
        fate = rng.random()
        if fate > 0.1:
            latency_ns = rng.randrange(5 * MS, 60 * MS) if fate < 0.95 else 2_100 * MS
            # float32 exactly, so that the JSON says what the window holds
            latency_us = float(np.float32(latency_ns / 1000)) if fate > 0.15 else None
            acks.append((now_ns + latency_ns, packet, latency_us))
    return events


def replay(events: list[list[Any]], tokens: int) -> tuple[list[bytes], list[int]]:
    """Feed a log to the window and return its windows, and the packets in flight at each."""
    log = SenderWindow(tokens)
    windows, in_flight = [], []
    for kind, *values in events:
        if kind == "sent":
            log.sent(*values)
        elif kind == "acked":
            log.acked(*values)
        else:
            decision_ns, _, *columns = values
            x_WF, flying = log.window(decision_ns, *columns)
            windows.append(x_WF.astype("<f4").tobytes())
            in_flight.append(flying)
    return windows, in_flight


def replay_stream(events: list[list[Any]]) -> bytes:
    """Feed a log to the event stream and return all its rows."""
    stream, rows = EventStream(), []
    for kind, *values in events:
        if kind == "sent":
            rows.append(stream.sent(*values))
        elif kind == "acked":
            rows.append(stream.acked(*values))
        else:
            decision_ns, _, *columns = values
            eight = zip(*columns, range(8), strict=True)
            rows.extend(stream.query(decision_ns, *packet) for packet in eight)
    return b"".join(row.astype("<f4").tobytes() for row in rows if row is not None)


def main() -> None:
    """Write the golden files."""
    events = make_events()
    windows, in_flight = replay(events, TOKENS)
    for event, flying in zip((e for e in events if e[0] == "window"), in_flight, strict=True):
        event[2] = flying
    lines = ",\n".join(f"    {json.dumps(e)}" for e in events)
    head = {"schema_hash": schema_hash(), "tokens": TOKENS, "features": len(FEATURES)}
    head |= {"event_schema_hash": event_schema_hash(), "event_inputs": len(INPUTS)}
    text = json.dumps(head, indent=2)[:-2] + f',\n  "events": [\n{lines}\n  ]\n}}\n'
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / "windows.json").write_text(text)
    (GOLDEN / "windows.bin").write_bytes(b"".join(windows))
    (GOLDEN / "events.bin").write_bytes(replay_stream(events))


if __name__ == "__main__":
    main()
