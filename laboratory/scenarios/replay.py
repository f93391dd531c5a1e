"""Turn a packet table's statistics into traffic: gaps between bursts, their sizes, flows' lengths.

A burst is the packets that a flow sends without a pause: a pause is longer than `PAUSE_NS`, far above the
spacing of packets within a window and below the pauses of an application. Within a burst the simulated
congestion control decides, as it did when the trace was captured.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from swiftqueue.feature_store.packets.schema import read_packets, traces_in
from swiftqueue.laboratory.scenarios.checked import LONGEST_S
from swiftqueue.laboratory.scenarios.traffic import Replay
from swiftqueue.pipelines.simulators import PROJECT

PAUSE_NS: Final = 10_000_000
HEADER_BYTES: Final = 52  # IPv4 and TCP with timestamps: the table's sizes are IP lengths
# Each distribution has pieces that are shorter at the ends: few bursts and gaps hold most bytes and waiting.
SHARES: Final = np.unique([*np.linspace(0, 1, 101), 5e-4, 1e-3, 5e-3, 0.995, 0.999, 0.9995])
LARGEST: Final = {"gaps_us": 1e9, "bytes": 1e9, "durations_s": LONGEST_S}
LEAST_PART: Final = 1e-6  # part of a piece in which a step may rise: two points have two shares


def replayed(traffic: Replay, key: str) -> dict[str, Any]:
    """Return the traffic of run.json for a packet table.

    Raises:
        ValueError: the folder or the trace is missing, damaged or too short; the line begins with `key`.
    """
    folder = PROJECT / traffic.packets
    if not folder.is_dir():
        raise ValueError(f"{key}.packets: {traffic.packets}: no such folder of packet tables")
    if not (known := traces_in(folder)):
        raise ValueError(f"{key}.packets: {traffic.packets} holds no packet table")
    if traffic.trace is None and len(known) > 1:
        raise ValueError(f"{key}.trace: {traffic.packets} has several, name one: {', '.join(known)}")
    trace = traffic.trace or known[0]
    if trace not in known:
        raise ValueError(f"{key}.trace: {trace!r} is not in {traffic.packets}; it has {', '.join(known)}")
    return _statistics(folder, trace, key)


@cache
def _statistics(folder: Path, trace: str, key: str) -> dict[str, Any]:
    try:
        table = read_packets(folder, trace)
    except ValueError as error:
        raise ValueError(f"{key}.packets: {error}") from None
    packets = (
        table.filter(~pl.col("retransmitted"))
        .select("flow_id", "sent_ns", "size_bytes")
        .sort("flow_id", "sent_ns")
        .with_columns(gap_ns=pl.col("sent_ns").diff().over("flow_id"))
    )
    bursts = (
        packets.with_columns(
            burst=(pl.col("gap_ns").is_null() | (pl.col("gap_ns") > PAUSE_NS)).cum_sum(),
            payload_bytes=(pl.col("size_bytes") - HEADER_BYTES).clip(lower_bound=1),
        )
        .group_by("flow_id", "burst")
        .agg(start_ns=pl.col("sent_ns").min(), payload_bytes=pl.col("payload_bytes").sum())
        .sort("flow_id", "start_ns")
        .with_columns(gap_ns=pl.col("start_ns").diff().over("flow_id"))
    )
    gaps = bursts["gap_ns"].drop_nulls()
    if gaps.is_empty():
        raise ValueError(
            f"{key}: trace {trace} has no pause of {PAUSE_NS / 1e6:g} ms in any flow, so no gaps to replay; "
            "give it as greedy traffic"
        )
    lasted = pl.col("sent_ns").max() - pl.col("sent_ns").min()
    lasted_s = packets.group_by("flow_id").agg(s=lasted / 1e9)["s"]
    described = {
        "gaps_us": distribution(gaps.to_numpy() / 1e3),
        "bytes": distribution(bursts["payload_bytes"].to_numpy()),
        "durations_s": distribution(lasted_s.clip(lower_bound=1e-3).to_numpy()),
    }
    for name, points in described.items():
        if (largest := points[-1][0]) > LARGEST[name]:
            raise ValueError(
                f"{key}: trace {trace} has {name} of {largest:g}, at most {LARGEST[name]:g} can be simulated"
            )
    return {"kind": "replay", **described}


def distribution(values: npt.NDArray[Any]) -> list[list[float]]:
    """Return the values' distribution as [[value, cumulative share], …] from share 0 to 1, linear in between.

    Each piece has the mean of its values; up to 100 values have a piece each.
    """
    ordered = np.sort(values).astype(np.float64)
    n = len(ordered)
    points = [[float(ordered[0]), 0.0]]
    for first, last in pairwise(np.unique(np.round(SHARES * n).astype(int)).tolist()):
        low, high = points[-1][0], float(ordered[last - 1])
        if low < high:
            # For two lines that meet at the mean, with this part of the piece below it,
            # part · (low + mean) / 2 + (1 - part) · (mean + high) / 2 is the mean.
            mean = min(max(float(ordered[first:last].mean()), low), high)
            part = min(max((high - mean) / (high - low), LEAST_PART), 1 - LEAST_PART)
            points.append([mean, (first + part * (last - first)) / n])
        points.append([high, last / n])
    return points
