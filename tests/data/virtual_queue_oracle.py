"""The virtual queue's rules (virtual_queue.h) by brute force: each row from the whole log before it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
from window_oracle import SECOND_NS
from window_tables import events

from swiftqueue.feature_store.events.virtual_queue import COLUMNS

RATES = ("us_per_byte", "drained")
MEMORY, PRIOR = 4096, 1e4  # packets; ms², or kB²
BUSY_US, STALE_NS = 1, 100_000_000


class VirtualQueueOracle:
    """A packet table's events in time order; none of virtual_queue.h's bookkeeping is used."""

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
        self.sent_ns = sent
        self.known_rates: dict[tuple[int, str], tuple[float, float]] = {}

    def row(self, packet: int, receiver: int, queue: str, ahead_bytes: int) -> dict[str, float]:
        """Return the row of a packet to `receiver`, in `queue`, when `packet` is about to be sent."""
        cut = next(i for i, (kind, _, r) in enumerate(self.log) if kind == "sent" and r["packet"] == packet)
        seen = self.log[:cut]
        least = self._least(seen)
        row = dict.fromkeys(COLUMNS, 0.0)
        row["least_us"] = least.get(receiver, min(least.values(), default=math.nan))
        row["ahead_bytes"] = ahead_bytes
        row |= self._numbers(seen, self.sent_ns[packet], queue)
        row["us_per_byte"], row["drained"] = self._rates(seen, queue)
        return row

    @staticmethod
    def _least(seen: list[tuple[str, int, dict[str, Any]]]) -> dict[int, float]:
        least: dict[int, float] = {}
        for kind, _, r in seen:
            if kind == "acked" and r["latency_us"] is not None:
                least[r["receiver_id"]] = min(least.get(r["receiver_id"], math.inf), r["latency_us"])
        return least

    def _numbers(
        self, seen: list[tuple[str, int, dict[str, Any]]], now_ns: int, queue: str
    ) -> dict[str, float]:
        """The four numbers of a queue."""
        own = [(i, kind, r) for i, (kind, _, r) in enumerate(seen) if r["queue"] == queue]
        sends = [r for _, kind, r in own if kind == "sent"]
        acks = [(i, r) for i, kind, r in own if kind == "acked"]
        left = max((r["packet"] for _, r in acks), default=-1)
        least = self._least(seen)
        waiting = [r for r in sends if r["packet"] > left]
        waiting = [r for r in waiting if now_ns - self.sent_ns[r["packet"]] < 2 * SECOND_NS]
        numbers = dict.fromkeys(("queueing_us", "bytes", "since_us", "overdue_us"), 0.0)
        if waiting and least:
            oldest = waiting[0]
            age_us = (now_ns - self.sent_ns[oldest["packet"]]) / 1000
            known = least.get(oldest["receiver_id"], min(least.values()))
            numbers["overdue_us"] = max(0.0, age_us - known)
        heard = [(i, r) for i, r in acks if r["latency_us"] is not None]
        last_ack_ns = max((seen[i][1] for i, _ in acks), default=0)
        if heard and (waiting or now_ns - last_ack_ns <= STALE_NS):
            at, newest = max(heard, key=lambda one: one[1]["packet"])
            then = self._least(seen[: at + 1])  # the least when its ACK came
            numbers["queueing_us"] = newest["latency_us"] - then[newest["receiver_id"]]
            numbers["bytes"] = sum(r["size_bytes"] for r in sends if r["packet"] >= newest["packet"])
            numbers["since_us"] = (now_ns - self.sent_ns[newest["packet"]]) / 1000
        return numbers

    def _rates(self, seen: list[tuple[str, int, dict[str, Any]]], queue: str) -> tuple[float, float]:
        """The rates that fit best what each packet of a busy queue showed."""
        if (len(seen), queue) in self.known_rates:
            return self.known_rates[len(seen), queue]
        lessons = []
        for i, (kind, _, r) in enumerate(seen):
            if kind != "acked" or r["queue"] != queue or r["latency_us"] is None:
                continue
            sent_at = next(
                k for k, (what, _, s) in enumerate(seen) if what == "sent" and s["packet"] == r["packet"]
            )
            before = seen[:sent_at]
            then = self._numbers(before, self.sent_ns[r["packet"]], queue)
            us_per_byte, drained = self._rates(before, queue)
            if then["queueing_us"] + us_per_byte * then["bytes"] - drained * then["since_us"] <= BUSY_US:
                continue  # the queue had run empty
            queueing_us = r["latency_us"] - self._least(seen[: i + 1])[r["receiver_id"]]
            change = queueing_us - then["queueing_us"]
            lessons.append((then["bytes"] / 1e3, -then["since_us"] / 1e3, change / 1e3))
        rates = self.known_rates[len(seen), queue] = fitted(np.array(lessons).reshape(-1, 3))
        return rates


def fitted(lessons_N3: np.ndarray[Any, Any]) -> tuple[float, float]:
    """The bounded least squares of change = a · kB + b · −ms, with weights that fall by age and a prior."""
    from scipy.optimize import lsq_linear

    weight_N = (1 - 1 / MEMORY) ** np.arange(len(lessons_N3))[::-1]
    scaled = lessons_N3 * np.sqrt(weight_N)[:, None]
    x = np.vstack([scaled[:, :2], np.eye(2) * math.sqrt(PRIOR)])
    y = np.concatenate([scaled[:, 2], [0, 0]])
    found = lsq_linear(x, y, bounds=([0, 0], [np.inf, 1]), method="bvls", tol=1e-14).x
    return float(found[0]), float(found[1])
