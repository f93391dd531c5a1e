"""What a run is measured by: each figure's column in the results, its unit and which way is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Measure:
    """A figure of a run. A column's value times `scale` is in `unit`."""

    column: str
    title: str
    unit: str
    scale: float
    digits: int
    lower_is_better: bool

    def text(self, value: float) -> str:
        """Format a column's value with its unit."""
        return f"{value * self.scale:,.{self.digits}f} {self.unit}".rstrip()


MS: Final = 1e-3  # ms/us
MBPS: Final = 1e-6  # Mbit/bit
PERCENT: Final = 100.0

QUEUEING_P50: Final = Measure("queueing_p50_us", "queueing P50", "ms", MS, 2, True)
QUEUEING_P90: Final = Measure("queueing_p90_us", "queueing P90", "ms", MS, 2, True)
QUEUEING_P99: Final = Measure("queueing_p99_us", "queueing P99", "ms", MS, 2, True)
ONE_WAY_P99: Final = Measure("one_way_p99_us", "one-way P99", "ms", MS, 1, True)
RTT_P99: Final = Measure("rtt_p99_us", "RTT P99", "ms", MS, 1, True)
L4S_GOODPUT: Final = Measure("s1_l4s_goodput_bps", "S1 L4S goodput", "Mbit/s", MBPS, 1, False)
S1_GOODPUT: Final = Measure("s1_goodput_bps", "S1 goodput", "Mbit/s", MBPS, 1, False)
CROSS_GOODPUT: Final = Measure("cross_goodput_bps", "cross goodput", "Mbit/s", MBPS, 1, False)
CLASSIC_SHARE: Final = Measure("classic_share", "classic flows' share", "%", PERCENT, 1, False)
MOVED: Final = Measure("moved_share", "moved", "%", PERCENT, 1, True)
RETRANSMITTED: Final = Measure("retransmitted_share", "retransmitted", "%", PERCENT, 2, True)
REORDERED: Final = Measure("reordered_share", "reordered", "%", PERCENT, 2, True)

TABLE: Final = (
    QUEUEING_P50,
    QUEUEING_P90,
    QUEUEING_P99,
    ONE_WAY_P99,
    RTT_P99,
    L4S_GOODPUT,
    S1_GOODPUT,
    CROSS_GOODPUT,
    CLASSIC_SHARE,
    MOVED,
    RETRANSMITTED,
    REORDERED,
)
"""Stands beside every gain."""
