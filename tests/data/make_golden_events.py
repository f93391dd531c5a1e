"""Write tests/data/golden/events.bin: the rows of the event stream, bit for bit, for the log in windows.json.

Any implementation, in any language and on any machine, must turn the log into these bytes. Run it only
when the definition changes on purpose, which changes the schema hash too:
`python tests/data/make_golden_events.py`.

The JSON holds `event_schema_hash`, `event_inputs` and `events` in time order, each one of
  ["sent", packet, sent_ns, size_bytes, flow_id, receiver_id, queue]
  ["acked", packet, acked_ns, latency_us or null]
  ["window", decision_ns, in_flight, [size_bytes x 8], [flow_id x 8], [receiver_id x 8], [queue x 8]]
and events.bin rows of `event_inputs` float32, little-endian: one for a "sent" or an "acked", eight queries
for a "window". The log has a hole, a long pause, losses, given-up packets, retransmissions and ties. Its
other fields are of windows.bin, which test_python_windows.py compares with.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from swiftqueue.feature_store.events.event_stream import INPUTS, EventStream, event_schema_hash

GOLDEN = Path(__file__).parent / "golden"


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
    """Write the rows, and their definition into the JSON."""
    path = GOLDEN / "windows.json"
    head = json.loads(path.read_text())
    events = head.pop("events")
    head |= {"event_schema_hash": event_schema_hash(), "event_inputs": len(INPUTS)}
    lines = ",\n".join(f"    {json.dumps(event)}" for event in events)
    path.write_text(json.dumps(head, indent=2)[:-2] + f',\n  "events": [\n{lines}\n  ]\n}}\n')
    (GOLDEN / "events.bin").write_bytes(replay_stream(events))


if __name__ == "__main__":
    main()
