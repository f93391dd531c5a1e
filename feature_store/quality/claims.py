"""What a sender claims and cannot be: telemetry both teaches and judges, so nobody's word is taken for it.

    latency_below_path    shorter than any path is, or than half of what all but one in a hundred packets to
                          that receiver claim
    latency_above_times   longer than from the packet's SEND to its ACK
    rate                  more bytes in 10 ms than any line carries
    ack_of_nothing        an ACK of a packet that was never sent

A latency that cannot be is unknown from then on; what is left decides whether the rest is believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from common.settings import settings

KINDS: Final = ("latency_below_path", "latency_above_times", "rate", "ack_of_nothing")
MOST_REFUSED: Final = 0.01  # share of the packets: beyond that the sender is wrong, or lies
LOW_QUANTILE: Final = 0.01  # of a receiver's latencies: so many lies do not move it
LOW_SHARE: Final = 0.5
CLOCK_US: Final = 1_000.0  # by which a latency may be above its times: the agent reads its clock twice
BIN_NS: Final = 10_000_000


@dataclass(frozen=True)
class PlausiblePackets:
    """A sender's packets without what cannot be."""

    packets: pl.DataFrame
    refused: Mapping[str, int]  # claims by kind, those that there were

    def line(self) -> str:
        """Why the telemetry as a whole is not believed; empty if it is."""
        count = sum(self.refused.values())
        if count <= MOST_REFUSED * self.packets.height:
            return ""
        said = ", ".join(f"{number} {kind}" for kind, number in self.refused.items())
        name = self.packets["trace"][0]
        return f"sender {name} claims what cannot be: {said} among {self.packets.height} packets"


def believed(packets: pl.DataFrame, unmatched_acks: int) -> PlausiblePackets:
    """Judge a packet table's claims, and so many ACKs of packets that the sender never sent."""
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
