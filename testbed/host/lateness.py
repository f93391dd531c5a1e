"""The lateness of the router: how late it writes packets to host b, without those in a stall of the host.

`bed selfcheck` and every run take it from here. They differ in when a packet is due: the self-check takes an
ideal link from the sender's own times, a run takes the log's virtual time, which begins when the router has
read the packet. So a run's lateness is the router's alone.

Shapes: N packets, K of them outside stalls, S stalls.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.testbed.host import router_log

LOAD: Final = 0.8  # load of the self-check's link
# A stall of D leaves a backlog of LOAD · D, which drains at 1 - LOAD: it is gone D · LOAD / (1 - LOAD) later.
RECOVERY: Final = LOAD / (1 - LOAD)
LEAST_PACKETS: Final = 100  # least packets outside stalls for quantiles
LEVELS: Final = {"late_p50_us": 0.5, "late_p99_us": 0.99, "late_p999_us": 0.999}
ALWAYS: Final = (0, 2**63 - 1)  # ns

Error = dict[str, float | None]
"""A run's own error: `LEVELS` in µs, and `stalled_share`."""


@dataclass(frozen=True)
class Lateness:
    """The lateness of some packets."""

    us_N: NDArray[np.float64]  # distance of each packet's write from its due time
    masked_N: NDArray[np.bool_]  # whether it fell into a stall

    @property
    def kept_us_K(self) -> NDArray[np.float64]:
        """Return the lateness of the packets outside stalls."""
        return self.us_N[~self.masked_N]

    def columns(self) -> Error:
        """Return quantiles, null where too few packets lie outside stalls, and the masked share."""
        share = float(self.masked_N.mean()) if len(self.masked_N) else None
        kept_us_K = self.kept_us_K
        found = np.quantile(kept_us_K, list(LEVELS.values())) if len(kept_us_K) >= LEAST_PACKETS else None
        levels = dict.fromkeys(LEVELS) if found is None else dict(zip(LEVELS, found.tolist(), strict=True))
        return {**levels, "stalled_share": share}


def in_stalls(
    due_ns_N: NDArray[Any], begin_ns_S: NDArray[np.int64], end_ns_S: NDArray[np.int64], delay_ns: float
) -> NDArray[np.bool_]:
    """Return whether each packet's queueing or delivery fell into a stall, or into the backlog that it left.

    Stalls are in the order of the log.
    """
    until_ns_S = end_ns_S + RECOVERY * (end_ns_S - begin_ns_S) + delay_ns
    latest_ns = np.concatenate(
        [[-np.inf], np.maximum.accumulate(until_ns_S)]
    )  # index in the first S stalls, from 0
    return np.asarray(due_ns_N <= latest_ns[np.searchsorted(begin_ns_S, due_ns_N, side="right")])


def lateness(
    written_ns_N: NDArray[Any], due_ns_N: NDArray[Any], records: NDArray[Any], delay_ns: float
) -> Lateness:
    """Return the lateness of packets; the stalls are those of the whole log."""
    stalls = records[records["kind"] == router_log.STALL]
    masked_N = in_stalls(due_ns_N, stalls["arrived_ns"], stalls["written_ns"], delay_ns)
    return Lateness(np.abs(written_ns_N - due_ns_N) / 1e3, masked_N)


def router_error(records: NDArray[Any], delay_ns: float, span_ns: tuple[int, int] = ALWAYS) -> Error:
    """Return the router's lateness for all packets that came in a time span, with the masked share."""
    forward = records[records["kind"] == router_log.FORWARD]
    ours = forward[(forward["arrived_ns"] >= span_ns[0]) & (forward["arrived_ns"] < span_ns[1])]
    return lateness(ours["written_ns"], ours["due_ns"], records, delay_ns).columns()


def errors_of(errors: Sequence[Error | None]) -> dict[str, Any]:
    """Return the number of runs with an error, and the median and worst of each figure."""
    measured = [one for one in errors if one is not None and one["stalled_share"] is not None]
    found: dict[str, Any] = {"runs": len(errors), "measured": len(measured)}
    for name in (*LEVELS, "stalled_share"):
        told = [value for one in measured if (value := one[name]) is not None]
        found[name] = {"median": statistics.median(told), "worst": max(told)} if told else None
    return found
