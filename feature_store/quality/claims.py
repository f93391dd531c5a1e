"""Remove impossible claims from a sender's telemetry, which both trains and judges models.

    latency_below_path    shorter than any path, or than half of the latency that all but one in a hundred
                          packets to that receiver exceed
    latency_above_times   longer than from the packet's SEND to its ACK
    rate                  more bytes in 10 ms than any line carries
    ack_of_nothing        an ACK of a packet that was never sent

An impossible latency becomes unknown; the number of such claims decides whether the rest is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from swiftqueue.common.settings import settings

KINDS: Final = ("latency_below_path", "latency_above_times", "rate", "ack_of_nothing")
MOST_REFUSED: Final = 0.01  # share of packets with such claims above which the sender is not believed
LOW_QUANTILE: Final = 0.01  # quantile of a receiver's latencies; fewer false ones do not move it
LOW_SHARE: Final = 0.5
CLOCK_US: Final = 1_000.0  # margin of a latency above its times: the agent reads its clock twice
BIN_NS: Final = 10_000_000


@dataclass(frozen=True)
class PlausiblePackets:
    """A sender's packets without impossible claims."""

    packets: pl.DataFrame
    refused: Mapping[str, int]  # number of refused claims by kind

    def line(self) -> str:
        """Return why the telemetry as a whole is refused; empty if it is accepted."""
        count = sum(self.refused.values())
        if count <= MOST_REFUSED * self.packets.height:
            return ""
        said = ", ".join(f"{number} {kind}" for kind, number in self.refused.items())
        name = self.packets["trace"][0]
        return f"sender {name} makes impossible claims: {said} among {self.packets.height} packets"


def believed(packets: pl.DataFrame, unmatched_acks: int) -> PlausiblePackets:
    """Check a packet table's claims, given the number of ACKs of packets that were never sent."""
    limits = settings()
    latency_us = pl.col("latency_us")
    usual_us = latency_us.quantile(LOW_QUANTILE).over("receiver_id")
    low = (latency_us < limits.least_rtt_us) | (latency_us < LOW_SHARE * usual_us)
    high = latency_us > (pl.col("acked_ns") - pl.col("sent_ns")) / 1e3 + CLOCK_US
    most_bytes = limits.most_mbps * 1e6 / 8 * BIN_NS / 1e9  # bytes = bits/s / (bits/byte) · s
    fast = pl.col("size_bytes").sum().over(pl.col("sent_ns") // BIN_NS) > most_bytes
    judged = packets.with_columns(
        low.fill_null(False).alias(KINDS[0]), high.fill_null(False).alias(KINDS[1]), fast.alias(KINDS[2])
    )
    counts = {kind: int(judged[kind].sum()) for kind in KINDS[:3]} | {KINDS[3]: unmatched_acks}
    known_us = pl.when(pl.col(KINDS[0]) | pl.col(KINDS[1])).then(None).otherwise(latency_us)
    return PlausiblePackets(
        judged.with_columns(latency_us=known_us).select(packets.columns),
        {kind: count for kind, count in counts.items() if count},
    )
