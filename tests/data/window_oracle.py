"""Apply the rules of models/window/windows.py by brute force: slow, stateless, independent.

Every value is computed 'as of t' from the whole table, with none of that module's bookkeeping.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

SECOND_NS = 1_000_000_000
NEVER = math.inf


def us(ns: float) -> np.float32:
    return np.float32(float(ns) / 1000.0)


def code(identity: int, bits: int) -> list[float]:
    digest = (identity * 2654435761) % 2**32
    return [1.0 if digest & (1 << (31 - i)) else -1.0 for i in range(bits)]


class WindowOracle:
    def __init__(self, packets: pl.DataFrame, visibility: str) -> None:
        self.rows: list[dict[str, Any]] = packets.to_dicts()
        latest = 0
        for row in self.rows:
            latest = row["sent"] = max(latest, row["sent_ns"])
            row["l4s"] = int(row["queue"] == "l4s")
            acked = row["acked_ns"]
            known = row["latency_us"] is not None and acked is not None
            if acked is None:
                row["acked"] = NEVER
            else:
                row["acked"] = row["sent"] if visibility == "previous" and known else max(acked, row["sent"])
            if row["acked"] - row["sent"] > 60 * SECOND_NS:
                row["acked"] = NEVER

    def past(self, batch: int) -> list[dict[str, Any]]:
        return self.rows[: 8 * batch]

    def in_flight(self, batch: int, t: int) -> list[dict[str, Any]]:
        return [r for r in self.past(batch) if r["acked"] > t and t - r["sent"] < 2 * SECOND_NS]

    def last_latency(self, batch: int, t: int, **where: int) -> float:
        seen = [
            r
            for r in self.past(batch)
            if r["acked"] <= t and r["latency_us"] is not None and all(r[k] == v for k, v in where.items())
        ]
        return max(seen, key=lambda r: (r["acked"], r["packet"]))["latency_us"] if seen else 0.0

    def derived(self, batch: int, t: int, flow: int, l4s: int) -> dict[str, Any]:
        flying = self.in_flight(batch, t)
        past = self.past(batch)
        acks = sorted({r["acked"] for r in past if r["acked"] <= t})
        holes = [(b, b - a) for a, b in itertools.pairwise(acks) if b - a >= 5_000_000]
        since = acks[-1] if acks else past[0]["sent"] if past else t
        return {
            "in_flight": len(flying),
            "in_flight_flow": sum(r["flow_id"] == flow for r in flying),
            "in_flight_queue": sum(r["l4s"] == l4s for r in flying),
            "last_latency_us": self.last_latency(batch, t),
            "last_latency_flow_us": self.last_latency(batch, t, flow_id=flow),
            "last_latency_queue_us": self.last_latency(batch, t, l4s=l4s),
            "ack_silence_us": us(t - since),
            "oldest_unacked_us": us(t - flying[0]["sent"]) if flying else 0,
            "hole_us": us(min(holes[-1][1], SECOND_NS)) if holes else 0,
            "hole_age_us": us(min(t - holes[-1][0], 10 * SECOND_NS)) if holes else us(10 * SECOND_NS),
        }

    def token(self, row: dict[str, Any], batch: int, t: int) -> dict[str, Any]:
        """Return the token of `row` in the window of `batch`, decided at `t`."""
        packet = row["packet"]
        candidate = packet >= 8 * batch
        own_batch = packet // 8
        own_t = self.rows[8 * own_batch]["sent"]
        first = min(r["sent"] for r in self.rows if r["flow_id"] == row["flow_id"])
        new_flow = all(r["flow_id"] != row["flow_id"] for r in self.past(batch))
        visible = not candidate and row["acked"] <= t and row["latency_us"] is not None
        if candidate:
            flow_age = 0 if new_flow else t - first
            gap = t - self.rows[packet - 1]["sent"] if packet == 8 * batch and batch else 0
        else:
            flow_age = row["sent"] - first
            gap = row["sent"] - self.rows[packet - 1]["sent"] if packet else 0
        return {
            "flow_age_us": us(flow_age),
            "age_us": 0 if candidate else us(t - row["sent"]),
            "latency_us": row["latency_us"] if visible else 0,
            "latency_visible": int(visible),
            "candidate": int(candidate),
            "size_bytes": row["size_bytes"],
            **{f"flow_code_{i}": v for i, v in enumerate(code(row["flow_id"], 4))},
            **{f"receiver_code_{i}": v for i, v in enumerate(code(row["receiver_id"], 2))},
            "queue_l4s": row["l4s"],
            "gap_us": us(gap),
            **self.derived(own_batch, own_t, row["flow_id"], row["l4s"]),
        }

    def window(self, batch: int, tokens: int, names: list[str]) -> npt.NDArray[np.float32]:
        t = self.rows[8 * batch]["sent"]
        flying = self.in_flight(batch, t)
        packets = {r["packet"] for r in flying}
        settled = [r for r in self.past(batch) if r["packet"] not in packets]
        places = tokens - 8
        u = min(len(flying), max(places // 2, places - len(settled)))
        a = min(len(settled), places - u)
        shown = flying[len(flying) - u :] + settled[len(settled) - a :]
        shown.sort(key=lambda r: r["packet"])
        shown += self.rows[8 * batch : 8 * batch + 8]
        x_WF = np.zeros((tokens, len(names)), np.float32)
        for place, row in enumerate(reversed(shown)):
            token = self.token(row, batch, t)
            assert sorted(token) == sorted(names)
            x_WF[tokens - 1 - place] = [token[n] for n in names]
        return x_WF

    def windows(self, tokens: int, names: list[str]) -> npt.NDArray[np.float32]:
        batches = len(self.rows) // 8
        shape = (batches, tokens, len(names))
        return np.array([self.window(b, tokens, names) for b in range(batches)], np.float32).reshape(shape)
