"""Every limit that results are judged by: what a gain may cost, and the figures to reach.

docs/LABORATORY.md explains them. Shares are of default L4S marking with the same seed.
"""

from __future__ import annotations

from typing import Final

# The price that a gain may have.
MOST_RTT_CHANGE: Final = 0.05
LEAST_GOODPUT: Final = 0.98
LEAST_CROSS_GOODPUT: Final = 0.98
LEAST_CLASSIC_SHARE: Final = 0.90
NO_HARM: Final = 0.02  # P99, P99.9, the longest wait and messages' times may be that much worse
PACKET_BITS: Final = 12_000  # no limit of a delay is finer than this at the slowest bottleneck's rate

# When something is settled.
SETTLED: Final = 0.05  # the chance that it is chance, corrected for the places of the scenario
FEWEST_PACKETS: Final = 100  # packets that a quantile rests on
MOST_UNFINISHED: Final = 0.5  # mean share of S1's bytes; with more unfinished, messages' times say little
FEWEST_SEEDS: Final = 5
SEEDS_SHOWN: Final = 3  # fewest with an interval in a table; that of two is 3.6 times as wide as of three

# The figures to reach, beside the limits above.
JUDGED: Final = "figure8"
SERVED: Final = "fresh-figure8"  # the same traffic with the network that the loop serves; the headline
LONG_S: Final = 300.0  # simulated; shorter runs count for no target
LEAST_P99_FALL: Final = 0.36  # in `uncoupled`; the paper says 36 to 45 %
ORACLE_PART: Final = 0.5  # in `rfc9332`, of whatever gain the oracle shows
LEAST_GAIN_KEPT: Final = 0.8  # in `uncoupled`, with the guard
MOST_CPU: Final = 3.0  # times the run without the model
MANY_FLOWS: Final = "many-flows"  # 500
MOST_CPU_S: Final = 600.0  # CPU time of its runs, on one core
