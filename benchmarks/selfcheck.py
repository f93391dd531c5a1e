"""Compare the test bed's router with an ideal queue, at 20, 50 and 100 Mbit/s (docs/TESTBED.md)."""

from __future__ import annotations

from statistics import median
from typing import Final

from benchmarks.rows import Row, UnsupportedMachineError
from testbed.host.checks import capability
from testbed.host.selfcheck import WANTED, selfcheck

RATES_MBPS: Final = (20.0, 50.0, 100.0)
SECONDS: Final = 10.0
MOST_RATIO: Final = 1000.0  # ratio of a run in which nothing was masked
NAMES: Final = {  # a check's figures: name in a row, unit, factor
    "error_p50_us": ("delivery, p50", "µs", 1),
    "error_p99_us": ("delivery, p99", "µs", 1),
    "error_p999_us": ("delivery, p99.9", "µs", 1),
    "rate_error": ("throughput is off by", "%", 100),
    "masked_share": ("masked for stalls", "%", 100),
}


def measure(rounds: int) -> list[Row]:
    """Measure the router's error; the ratio is the wanted value divided by the measured one.

    Raises:
        UnsupportedMachineError: this machine cannot run it.

    """
    if reason := capability("router").why_not:
        raise UnsupportedMachineError(reason)
    rows = []
    for rate_mbps in RATES_MBPS:
        found = [selfcheck(rate_mbps, SECONDS) for _ in range(rounds)]
        for key, (name, unit, scale) in NAMES.items():
            ours, most = float(median(abs(getattr(one, key)) for one in found)), WANTED[key]
            ratio = most / max(ours, most / MOST_RATIO)
            said = f"{rate_mbps:g} Mbit/s: {name}"
            rows.append(Row(said, scale * ours, scale * most, "wanted", ratio, unit, rounds))
    return rows
