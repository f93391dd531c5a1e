"""Write captures of any length for benchmarks: a few TCP uploads as a sender sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

SNAP_BYTES: Final = 96
FLOWS: Final = 8
RECEIVERS: Final = 3
SEGMENT_BYTES: Final = 1448  # payload with timestamps on a 1,500-byte MTU
ROUND_NS: Final = 80_000  # time of one round, two data packets of a flow and an ACK for it: 290 Mbit/s in all
IN_FLIGHT_ROUNDS: Final = 25  # rounds of a flow in flight: 25 · 8 flows · 80 us = 16 ms
ROUNDS_AT_ONCE: Final = 1 << 16  # rounds written together: 20 MB

# Record header of a pcap, Ethernet, IPv4, TCP with the options NOP NOP timestamps.
_HEADERS: Final = [
    ("seconds", "<u4"),
    ("microseconds", "<u4"),
    ("captured", "<u4"),
    ("original", "<u4"),
    ("macs", "V12"),
    ("ether_type", ">u2"),
    ("version", "u1"),
    ("tos", "u1"),
    ("ip_bytes", ">u2"),
    ("ip_id", ">u2"),
    ("fragment", ">u2"),
    ("ttl", "u1"),
    ("protocol", "u1"),
    ("ip_checksum", ">u2"),
    ("source", ">u4"),
    ("destination", ">u4"),
    ("source_port", ">u2"),
    ("destination_port", ">u2"),
    ("sequence", ">u4"),
    ("acknowledgment", ">u4"),
    ("data_offset", "u1"),
    ("flags", "u1"),
    ("window", ">u2"),
    ("tcp_checksum", ">u2"),
    ("urgent", ">u2"),
    ("options", ">u4"),
    ("timestamp", ">u4"),
    ("echo", ">u4"),
]
ACK_RECORD: Final = np.dtype(_HEADERS)
DATA_RECORD: Final = np.dtype([*_HEADERS, ("payload", f"V{SNAP_BYTES - (ACK_RECORD.itemsize - 16)}")])
ROUND: Final = np.dtype([("data", DATA_RECORD, 2), ("ack", ACK_RECORD)])

SENDER: Final = 0x0A000001  # 10.0.0.1
START_S: Final = 1_700_000_000


def write_capture(path: Path, packets: int) -> int:
    """Write a pcap of about `packets` packets (2 of 3 with data); return the exact number."""
    rounds = packets // 3
    with path.open("wb") as file:
        header = np.array([0xA1B2C3D4, 4 << 16 | 2, 0, 0, SNAP_BYTES, 1], "<u4")
        file.write(header.tobytes())
        for first in range(0, rounds, ROUNDS_AT_ONCE):
            file.write(_rounds(np.arange(first, min(first + ROUNDS_AT_ONCE, rounds))).tobytes())
    return rounds * 3


def _rounds(number: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the records of rounds: round n is the (n div FLOWS)th of flow n mod FLOWS."""
    records = np.zeros(len(number), ROUND)
    flow, turn = number % FLOWS, number // FLOWS
    receiver = 0x0A000100 + flow % RECEIVERS
    for part in (records["data"][:, 0], records["data"][:, 1], records["ack"]):
        part["ether_type"], part["version"], part["ttl"], part["protocol"] = 0x0800, 0x45, 64, 6
        part["data_offset"], part["flags"], part["options"] = 0x80, 0x10, 0x0101080A
        part["tos"] = np.where(flow % 2, 1, 2)  # ECT(1) and ECT(0)
    for i in range(2):
        data = records["data"][:, i]
        _stamp(data, number * ROUND_NS + i * 12_000)
        data["captured"], data["original"], data["ip_bytes"] = (
            SNAP_BYTES,
            SEGMENT_BYTES + 66,
            SEGMENT_BYTES + 52,
        )
        data["source"], data["destination"] = SENDER, receiver
        data["source_port"], data["destination_port"] = 40_000 + flow, 443
        data["sequence"] = (2 * turn + i) * SEGMENT_BYTES & 0xFFFFFFFF
    ack = records["ack"]
    jitter_ns = number * 2_654_435_761 % 40_000
    _stamp(ack, number * ROUND_NS + 30_000 + jitter_ns)
    ack["captured"] = ack["original"] = ACK_RECORD.itemsize - 16
    ack["ip_bytes"] = 52
    ack["source"], ack["destination"] = receiver, SENDER
    ack["source_port"], ack["destination_port"] = 443, 40_000 + flow
    ack["acknowledgment"] = np.maximum(turn - IN_FLIGHT_ROUNDS, 0) * 2 * SEGMENT_BYTES & 0xFFFFFFFF
    return records


def _stamp(records: npt.NDArray[Any], time_ns: npt.NDArray[np.int64]) -> None:
    microseconds = time_ns // 1000
    records["seconds"] = START_S + microseconds // 1_000_000
    records["microseconds"] = microseconds % 1_000_000
    records["timestamp"] = records["echo"] = microseconds // 1000
