"""A packet table as a sender's log: its packets in send order and its first ACKs in time order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.feature_store.packets.schema import HORIZON, QUEUES, read_packets, traces_in

PACKETS: Final = Path("data/packets")


@dataclass(frozen=True)
class PacketLog:
    """A packet table as arrays, and its first ACKs in time order."""

    trace: str
    sent_ns: NDArray[np.int64]
    size_bytes: NDArray[np.int32]
    flow_id: NDArray[np.int32]
    receiver_id: NDArray[np.int32]
    queue: NDArray[np.uint8]
    ecn: NDArray[np.uint8]
    retransmitted: NDArray[np.uint8]
    latency_us: NDArray[np.float32]  # NaN where unknown
    acked_ns: NDArray[np.int64]  # ACK times of the packets in `ack_packet`, never falling
    ack_packet: NDArray[np.int64]
    first_batch: int  # first batch that is decided; packets before it only fill the window

    @property
    def batches(self) -> range:
        """Return the batches of 8 to decide; an incomplete last one is not decided."""
        return range(self.first_batch, len(self.sent_ns) // HORIZON)


def open_log(trace: str, start: float, seconds: float | None) -> PacketLog:
    """Read a trace by its name in `data/packets`, or a packet-table folder.

    Args:
        trace: name of the trace, or folder.
        start: second of the trace from which on batches are decided.
        seconds: length in seconds from there; None means all.

    Raises:
        FileNotFoundError: there is no such trace and no such folder.
        ValueError: the folder holds several traces, its table is damaged, or has less than one
            batch from `start` on.

    """
    folder, name = _find(trace)
    packets = read_packets(folder, name)
    clock_ns = packets["sent_ns"].cum_max().to_numpy()  # `sent_ns` may step back with the capture's clock
    if packets.height and seconds is not None:
        kept = int(np.searchsorted(clock_ns, clock_ns[0] + round((start + seconds) * 1e9), side="right"))
        packets, clock_ns = packets[:kept], clock_ns[:kept]
    begin = int(np.searchsorted(clock_ns, clock_ns[0] + round(start * 1e9))) if packets.height else 0
    first_batch = -(-begin // HORIZON)
    if packets.height // HORIZON <= first_batch:
        raise ValueError(
            f"trace {name}: {packets.height - begin} packets from second {start:g} on are less than one "
            f"batch of {HORIZON}"
        )
    acks = (
        packets.select("acked_ns", pl.int_range(pl.len()).alias("packet"), clock=clock_ns)
        .drop_nulls("acked_ns")
        .with_columns(acked_ns=pl.max_horizontal("acked_ns", "clock"))  # never before the packet's own send
        .sort("acked_ns", "packet")
    )
    return PacketLog(
        trace=name,
        sent_ns=packets["sent_ns"].to_numpy(),
        size_bytes=packets["size_bytes"].to_numpy(),
        flow_id=packets["flow_id"].to_numpy(),
        receiver_id=packets["receiver_id"].to_numpy(),
        queue=(packets["queue"].cast(pl.String) == QUEUES[1]).cast(pl.UInt8).to_numpy(),
        ecn=packets["ecn"].to_numpy(),
        retransmitted=packets["retransmitted"].cast(pl.UInt8).to_numpy(),
        latency_us=packets["latency_us"].fill_null(math.nan).to_numpy(),
        acked_ns=acks["acked_ns"].to_numpy(),
        ack_packet=acks["packet"].to_numpy(),
        first_batch=first_batch,
    )


def _find(trace: str) -> tuple[Path, str]:
    """Return the folder and the name of a trace."""
    if PACKETS.is_dir() and trace in traces_in(PACKETS):
        return PACKETS, trace
    folder = Path(trace)
    if not folder.is_dir():
        known = ", ".join(traces_in(PACKETS)) if PACKETS.is_dir() else ""
        raise FileNotFoundError(
            f"{trace!r} is neither a packet-table folder nor a trace of {PACKETS} "
            f"(traces there: {known or 'none'})"
        )
    if folder.name.startswith("trace="):
        return folder.parent, folder.name.removeprefix("trace=")
    names = traces_in(folder)
    if len(names) != 1:
        which = (
            "holds no packet table" if not names else f"holds {len(names)} traces: name {folder}/trace=NAME"
        )
        raise ValueError(f"{folder} {which}")
    return folder, names[0]
