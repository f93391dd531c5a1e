"""The agent's rates between two looks at its metrics page: decisions, marks, errors of predictions."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from swiftqueue.infra.local.pages import samples

SECONDS: Final = 300  # seconds of history
LEAST_S: Final = 0.5  # seconds between two looks below which their difference says little
AGENT: Final = "swiftqueue_agent_"
PREDICTED: Final = f"{AGENT}predicted_latency_seconds"
ERROR: Final = f"{AGENT}prediction_error_seconds"
ROUND_TRIP: Final = f"{AGENT}round_trip_seconds"
OUTCOMES: Final = ("decided", "late", "error", "no_model")
QUEUES: Final = ("classic", "l4s")


@dataclass(frozen=True)
class Rates:
    """The agent's rates between two looks; None where nothing happened that could tell."""

    at_s: float
    batches_per_s: float
    in_time: float | None  # share of batches that were decided by a prediction before their deadline
    moved: float | None  # share of packets given to the classic queue
    predicted_median_ms: float | None  # latency predicted for the packets acknowledged meanwhile
    predicted_p99_ms: float | None
    error_median_ms: float | None  # |predicted - measured latency|
    error_p90_ms: float | None
    round_trip_p99_ms: float | None


class AgentRates:
    """The rates of the last minutes."""

    def __init__(self) -> None:
        self._points: deque[Rates] = deque()
        self._before: dict[str, float] = {}
        self._before_s = 0.0
        self.versions: list[int] = []  # versions that the agent's servers serve, as far as it knows
        self.senders = 0

    def look(self, text: str) -> None:
        """Take a metrics page that was read just now.

        Raises:
            ValueError: the text is no page of metrics.
        """
        now, now_s = samples(text), time.monotonic()
        before, before_s = self._before, self._before_s
        if before and now_s - before_s < LEAST_S:
            return
        self._before, self._before_s = now, now_s
        self.versions = sorted(
            {int(value) for name, value in now.items() if name.startswith(f"{AGENT}server_version")}
        )
        self.senders = int(now.get(f"{AGENT}senders", 0))
        grown = {name: value - before.get(name, 0.0) for name, value in now.items()}
        batches = [grown.get(f'{AGENT}batches_total{{outcome="{one}"}}', 0.0) for one in OUTCOMES]
        packets = [grown.get(f'{AGENT}packets_total{{queue="{one}"}}', 0.0) for one in QUEUES]
        if not before or min(batches + packets) < 0:  # the first look, or another agent counts now
            return
        self._points.append(
            Rates(
                at_s=time.time(),
                batches_per_s=sum(batches) / max(now_s - before_s, 1e-3),
                in_time=batches[0] / sum(batches) if sum(batches) else None,
                moved=packets[0] / sum(packets) if sum(packets) else None,
                predicted_median_ms=_quantile_ms(grown, PREDICTED, 0.5),
                predicted_p99_ms=_quantile_ms(grown, PREDICTED, 0.99),
                error_median_ms=_quantile_ms(grown, ERROR, 0.5),
                error_p90_ms=_quantile_ms(grown, ERROR, 0.9),
                round_trip_p99_ms=_quantile_ms(grown, ROUND_TRIP, 0.99),
            )
        )

    def forget(self) -> None:
        """Note that no agent answers."""
        self._before, self.versions, self.senders = {}, [], 0

    def columns(self) -> dict[str, list[float | None]]:
        """Return the last minutes, a list for each field of `Rates`."""
        while self._points and self._points[0].at_s < time.time() - SECONDS:
            self._points.popleft()
        return {one.name: [getattr(p, one.name) for p in self._points] for one in fields(Rates)}


def _quantile_ms(grown: Mapping[str, float], histogram: str, share: float) -> float | None:
    """Return a quantile of what a histogram counted, in ms, as Prometheus' histogram_quantile does."""
    begin = f'{histogram}_bucket{{le="'
    buckets = sorted(
        (float(name.removeprefix(begin).removesuffix('"}')), count)
        for name, count in grown.items()
        if name.startswith(begin)
    )
    if not buckets or buckets[-1][1] <= 0:
        return None
    wanted, low_s, below = share * buckets[-1][1], 0.0, 0.0
    for high_s, count in buckets:
        if count >= wanted:
            if high_s == float("inf"):
                break
            return 1e3 * (low_s + (high_s - low_s) * (wanted - below) / max(count - below, 1.0))
        low_s, below = high_s, count
    return 1e3 * low_s
