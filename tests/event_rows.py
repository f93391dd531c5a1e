"""Events for tests, from a dictionary each; what it does not name is 0, or an unknown latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from swiftqueue.feature_store.telemetry.events import ACK, EVENT, UNKNOWN_US, Events


def batch(rows: Sequence[Mapping[str, Any]]) -> Events:
    events = np.zeros(len(rows), EVENT)
    for event, row in zip(events, rows, strict=True):
        if row["kind"] == ACK and row.get("latency_us") is None:
            row = {**row, "latency_us": UNKNOWN_US}
        for name, value in row.items():
            event[name] = value
    return events
