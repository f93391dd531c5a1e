"""`swiftqueue bed selfcheck`: compares the router with an ideal queue, on this machine, now.

Packets leave host a at random times, at 0.8 of the link's rate. Their times on an ideal link follow from the
sender's own times: a packet's last bit is on the link one transmission after the packet came or after its
predecessor had left, whichever is later, and arrives one delay later. The error is the distance of the
router's write from that, so it holds the lateness of the sender, the kernel and the router.

Shapes: N packets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.testbed.host import router_log
from swiftqueue.testbed.host.checks import capability
from swiftqueue.testbed.host.hosts import Bed, run_folder
from swiftqueue.testbed.host.lateness import LEAST_PACKETS, LOAD, lateness
from swiftqueue.testbed.host.run import send

OVERLOAD: Final = 1.3
DELAY_MS: Final = 5.0
BYTES: Final = 1200  # bytes of payload
HOW: Final = ("--bytes", BYTES, "--poisson", "--classic")
WANTED: Final = {  # upper limits of the figures in `SelfCheckFigures`
    "error_p50_us": 50.0,
    "error_p99_us": 250.0,
    "error_p999_us": 1000.0,
    "rate_error": 0.002,
    "masked_share": 0.005,
}
NO_AQM: Final = {"alpha_hz": 0, "beta_hz": 0}  # a plain queue


@dataclass(frozen=True)
class SelfCheckFigures:
    """The figures of one rate."""

    rate_mbps: float
    packets: int
    error_p50_us: float
    error_p99_us: float
    error_p999_us: float
    unmasked_p999_us: float  # including the packets of stalls
    masked_share: float
    stalls: int
    stalled_ms: float
    rate_error: float  # relative error of an overloaded link's throughput
    priority: str  # whether the router had a real-time priority, or why not

    @property
    def held(self) -> bool:
        """Return whether every figure is within its limit."""
        return all(abs(getattr(self, name)) <= most for name, most in WANTED.items())


def ideal_due_ns(
    sent_ns_N: NDArray[np.int64], bytes_N: NDArray[np.int64], rate_bps: float, delay_ns: float
) -> NDArray[np.float64]:
    """Return when each packet would arrive over an ideal link with one queue, in the order sent."""
    transmission_N = bytes_N * 8 / rate_bps * 1e9
    # left_i = max(sent_i, left_{i-1}) + tx_i. With T_i the sum of tx up to i that is
    # left_i = T_i + max over j <= i of (sent_j - T_{j-1}).
    total_N = np.cumsum(transmission_N)
    left_N = total_N + np.maximum.accumulate(sent_ns_N - (total_N - transmission_N))
    return np.asarray(left_N + delay_ns)


def selfcheck(rate_mbps: float, seconds: float) -> SelfCheckFigures:
    """Measure the router at one rate: at 0.8 of it for `seconds`, and above it for a third of that.

    Raises:
        RuntimeError: this machine cannot run it; the line says why.

    """
    if reason := capability("router").why_not:
        raise RuntimeError(reason)
    with run_folder() as folder:
        log, sent_log = Path(folder) / "router", Path(folder) / "sent.csv"
        with Bed(rate_mbps=rate_mbps, delay_ms=DELAY_MS, log=log, queue=NO_AQM) as bed:
            send(bed, rate_mbps * LOAD, seconds, *HOW, "--log", sent_log)
        records = router_log.read(log)
        sent_ns = np.loadtxt(sent_log, delimiter=",", skiprows=1, usecols=2, dtype=np.int64)
        over_log = Path(folder) / "over"
        with Bed(rate_mbps=rate_mbps, delay_ms=DELAY_MS, log=over_log, queue=NO_AQM) as over:
            send(over, rate_mbps * OVERLOAD, seconds / 3, *HOW)
        over_records = router_log.read(over_log)
    ours = records[(records["kind"] == router_log.FORWARD) & (records["packet"] >= 0)]
    if len(ours) < LEAST_PACKETS:
        raise RuntimeError(f"{rate_mbps:g} Mbit/s: {len(ours)} packets are too few; give more --seconds")
    sizes = np.full(len(sent_ns), BYTES + 28)
    due_ns = ideal_due_ns(sent_ns, sizes, rate_mbps * 1e6, DELAY_MS * 1e6)[ours["packet"]]
    late = lateness(ours["written_ns"], due_ns, records, DELAY_MS * 1e6)
    p50, p99, p999, masked = late.columns().values()
    if p50 is None or p99 is None or p999 is None or masked is None:
        raise RuntimeError(
            f"{len(late.kept_us_K)} of {len(ours)} packets lie outside stalls: the machine is too busy "
            f"(real-time priority: {bed.ready['priority']})"
        )
    stalls = records[records["kind"] == router_log.STALL]
    return SelfCheckFigures(
        rate_mbps,
        len(ours),
        p50,
        p99,
        p999,
        float(np.quantile(late.us_N, 0.999)),
        masked,
        len(stalls),
        float((stalls["written_ns"] - stalls["arrived_ns"]).sum() / 1e6),
        _throughput(over_records) / (rate_mbps * 1e6) - 1,
        str(bed.ready["priority"]),
    )


def _throughput(records: NDArray[Any]) -> float:
    """Return the bit/s of an overloaded link, from the first packet's arrival to the last one's."""
    ours = records[(records["kind"] == router_log.FORWARD) & (records["packet"] >= 0)]
    # The first tenth, in which the queue fills, and the last, in which it drains, are left out.
    ours = ours[len(ours) // 10 : -max(len(ours) // 10, 1)]
    seconds = (ours["written_ns"][-1] - ours["written_ns"][0]) / 1e9
    return float(ours["bytes"][1:].sum() * 8 / seconds)
