"""The measures of a run: each figure's column in the results, its title and its unit."""

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


MS: Final = 1e-3  # ms/us
MBPS: Final = 1e-6  # Mbit/bit
PERCENT: Final = 100.0

QUEUEING_P50: Final = Measure("queueing_p50_us", "queueing P50", "ms", MS, 2)
QUEUEING_P90: Final = Measure("queueing_p90_us", "queueing P90", "ms", MS, 2)
QUEUEING_P99: Final = Measure("queueing_p99_us", "queueing P99", "ms", MS, 2)
QUEUEING_P999: Final = Measure("queueing_p999_us", "queueing P99.9", "ms", MS, 2)
QUEUEING_MAX: Final = Measure("queueing_max_us", "longest wait", "ms", MS, 1)
ONE_WAY_P90: Final = Measure("one_way_p90_us", "one-way P90", "ms", MS, 1)
ONE_WAY_P99: Final = Measure("one_way_p99_us", "one-way P99", "ms", MS, 1)
RTT_P90: Final = Measure("rtt_p90_us", "RTT P90", "ms", MS, 1)
RTT_P99: Final = Measure("rtt_p99_us", "RTT P99", "ms", MS, 1)
L4S_GOODPUT: Final = Measure("s1_l4s_goodput_bps", "S1 L4S goodput", "Mbit/s", MBPS, 1)
CLASSIC_GOODPUT: Final = Measure("s1_classic_goodput_bps", "S1 classic goodput", "Mbit/s", MBPS, 1)
S1_GOODPUT: Final = Measure("s1_goodput_bps", "S1 goodput", "Mbit/s", MBPS, 1)
CROSS_GOODPUT: Final = Measure("cross_goodput_bps", "cross goodput", "Mbit/s", MBPS, 1)
CLASSIC_SHARE: Final = Measure("classic_share", "classic flows' share", "%", PERCENT, 1)
S1_MESSAGE: Final = Measure("s1_message_us", "S1 message", "s", 1e-6, 2)  # weighted by bytes, as the next
CROSS_MESSAGE: Final = Measure("cross_message_us", "cross message", "s", 1e-6, 2)
UNFINISHED: Final = Measure("unfinished_share", "S1 bytes unfinished", "%", PERCENT, 1)
MESSAGES: Final = (S1_MESSAGE, CROSS_MESSAGE)  # older rows do not have these
MOVED: Final = Measure("moved_share", "moved", "%", PERCENT, 1)
RETRANSMITTED: Final = Measure("retransmitted_share", "retransmitted", "%", PERCENT, 2)
REORDERED: Final = Measure("reordered_share", "reordered", "%", PERCENT, 2)
UNFORESEEN: Final = Measure("unforeseen_share", "not foreseen", "%", PERCENT, 1)
CPU: Final = Measure("cpu_s", "CPU", "s", 1.0, 1)  # with the processes that fine-tune

CHOICE_RIGHT: Final = Measure("choice_right_share", "right choices", "%", PERCENT, 1)
REGRET: Final = Measure("choice_regret_mean_us", "regret", "ms", MS, 2)

DELAYS: Final = (
    QUEUEING_P50,
    QUEUEING_P90,
    QUEUEING_P99,
    QUEUEING_P999,
    QUEUEING_MAX,
    ONE_WAY_P90,
    ONE_WAY_P99,
    RTT_P90,
    RTT_P99,
)
TAILS: Final = {QUEUEING_P99: 0.01, QUEUEING_P999: 0.001, RTT_P99: 0.01}
"""Share of the packets that a quantile rests on."""
TRAFFIC: Final = (
    L4S_GOODPUT,
    CLASSIC_GOODPUT,
    S1_GOODPUT,
    CROSS_GOODPUT,
    CLASSIC_SHARE,
    S1_MESSAGE,
    CROSS_MESSAGE,
    UNFINISHED,
    MOVED,
    RETRANSMITTED,
    REORDERED,
    UNFORESEEN,
    CHOICE_RIGHT,
    REGRET,
    CPU,
)
"""Stand beside every gain."""
