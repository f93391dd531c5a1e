"""Apply the event stream's rules (docs/EVENTS.md) by brute force: each row from the whole log before it.

None of event_stream.h's bookkeeping is used. Sums are taken anew for each row, so averages and rates agree to
float32's digits, and all else bit for bit.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import polars as pl
from window_oracle import SECOND_NS, code, us
from window_tables import events

ROUNDED = ("mean8", "mean2", "send_rate", "ack_rate")
SCOPES = ("", "_queue", "_flow")


class EventOracle:
    """A packet table's events in time order; a time before the last event's counts as that event's."""

    def __init__(self, packets: pl.DataFrame) -> None:
        self.log: list[tuple[str, int, dict[str, Any]]] = []
        latest, sent = 0, {}
        for kind, row in events(packets):
            latest = max(latest, row["sent_ns" if kind == "sent" else "acked_ns"])
            if kind == "sent":
                sent[row["packet"]] = latest
            elif latest - sent[row["packet"]] > 60 * SECOND_NS:
                continue  # forgotten
            self.log.append((kind, latest, row))

    def inputs(self, upto: int, t: int, packet: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs about `packet`, its queue and its flow at `t`, after `upto` events."""
        seen = self.log[:upto]
        acks = [at for kind, at, _ in seen if kind == "acked"]
        holes = [(b, b - a) for a, b in itertools.pairwise(acks) if b - a >= 5_000_000]
        flow_sends = [at for kind, at, r in seen if kind == "sent" and r["flow_id"] == packet["flow_id"]]
        row: dict[str, Any] = {
            "size_bytes": packet["size_bytes"],
            "queue_l4s": int(packet["queue"] == "l4s"),
            **{f"flow_code_{i}": v for i, v in enumerate(code(packet["flow_id"], 4))},
            **{f"receiver_code_{i}": v for i, v in enumerate(code(packet["receiver_id"], 2))},
            "flow_age_us": us(t - flow_sends[0]) if flow_sends else 0,
            "hole_us": us(min(holes[-1][1], SECOND_NS)) if holes else 0,
            "hole_age_us": us(min(t - holes[-1][0], 10 * SECOND_NS)) if holes else us(10 * SECOND_NS),
        }
        heard = self._queueing(seen)
        least = [r["latency_us"] for r, _ in heard if r["receiver_id"] == packet["receiver_id"]]
        queued = [us for r, us in heard if r["queue"] == packet["queue"]]
        row["min_latency_receiver_us"] = min(least, default=0)
        row["expected_latency_us"] = (
            np.float32(min(least)) + np.float32(queued[-1] if queued else 0) if least else 0
        )
        for suffix in SCOPES:
            key = {"": None, "_queue": "queue", "_flow": "flow_id"}[suffix]
            scope = [e for e in seen if key is None or e[2][key] == packet[key]]
            row.update({n.replace("@", suffix): v for n, v in self._scope(scope, t).items()})
            waits = [us for r, us in heard if key is None or r[key] == packet[key]]
            mean2 = waits[0] if waits else 0.0
            for value in waits[1:]:
                mean2 += (value - mean2) / 2
            row[f"last_queueing{suffix}_us"] = waits[-1] if waits else 0
            row[f"mean2_queueing{suffix}_us"] = mean2
        return row

    @staticmethod
    def _queueing(seen: list[tuple[str, int, dict[str, Any]]]) -> list[tuple[dict[str, Any], float]]:
        """Return each known latency less the least one of its receiver up to then."""
        known = [r for kind, _, r in seen if kind == "acked" and r["latency_us"] is not None]
        return [
            (
                r,
                float(
                    np.float32(r["latency_us"])
                    - np.float32(
                        min(e["latency_us"] for e in known[: i + 1] if e["receiver_id"] == r["receiver_id"])
                    )
                ),
            )
            for i, r in enumerate(known)
        ]

    @staticmethod
    def _scope(scope: list[tuple[str, int, dict[str, Any]]], t: int) -> dict[str, Any]:
        sends = [(at, r) for kind, at, r in scope if kind == "sent"]
        acks = [(at, r) for kind, at, r in scope if kind == "acked"]
        settled = {r["packet"] for _, r in acks}
        flying = [at for at, r in sends if r["packet"] not in settled and t - at < 2 * SECOND_NS]
        known = [r["latency_us"] for _, r in acks if r["latency_us"] is not None]
        mean8 = mean2 = known[0] if known else 0.0
        for value in known[1:]:
            mean8, mean2 = mean8 + (value - mean8) / 8, mean2 + (value - mean2) / 2
        since = acks[-1][0] if acks else sends[0][0] if sends else t
        return {
            "in_flight@": len(flying),
            "last_latency@_us": known[-1] if known else 0,
            "mean8_latency@_us": mean8,
            "mean2_latency@_us": mean2,
            "min_latency@_us": min(known, default=0),
            "ack_silence@_us": us(t - since),
            "oldest_unacked@_us": us(t - flying[0]) if flying else 0,
            "send_rate@": sum(math.exp(-(t - at) / 20e6) for at, _ in sends),
            "ack_rate@": sum(math.exp(-(t - at) / 20e6) for at, _ in acks),
        }

    def event(self, number: int) -> dict[str, Any]:
        """Return the inputs of an event, the state just after it."""
        kind, t, packet = self.log[number]
        before = [(at, r) for k, at, r in self.log[:number] if k == kind]
        row = self.inputs(number + 1, t, packet) | {
            "gap_us": us(t - before[-1][0]) if before else 0,
            "place": 0,
        }
        ack = kind == "acked"
        known = ack and packet["latency_us"] is not None
        heard = [r for k, _, r in self.log[:number] if k == "acked" and r["flow_id"] == packet["flow_id"]]
        seen = [r["latency_us"] for r in heard if r["latency_us"] is not None]
        return row | {
            "latency_us": packet["latency_us"] if known else 0,
            "latency_visible": int(known),
            "previous_latency_flow_us": seen[-1] if ack and seen else 0,
        }

    def cut(self, packet: int) -> int:
        """Return the number of events before the SEND of a packet."""
        return next(i for i, (kind, _, r) in enumerate(self.log) if kind == "sent" and r["packet"] == packet)

    def query(self, first: int, place: int, packet: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of a packet of the batch that begins with packet `first`."""
        cut = self.cut(first)
        t = self.log[cut][1]
        sends = [at for kind, at, _ in self.log[:cut] if kind == "sent"]
        gap = us(t - sends[-1]) if sends and place == 0 else 0
        event_only = {"latency_us": 0, "latency_visible": 0, "previous_latency_flow_us": 0}
        return self.inputs(cut, t, packet) | {"gap_us": gap, "place": place} | event_only
