"""The router's log of packets as NumPy records (`Record` in `testbed/router/records.h`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

RECORD: Final = np.dtype(
    [
        ("arrived_ns", "<i8"),  # read from the device; of a stall its beginning
        ("started_ns", "<i8"),  # on the link
        ("due_ns", "<i8"),  # at the other device; -1 of a drop
        ("written_ns", "<i8"),  # there; of a stall its end
        ("packet", "<i8"),  # number in `swiftqueue udp`'s packets, else -1
        ("bytes", "<u4"),  # IP length
        ("source_port", "<u2"),
        ("destination_port", "<u2"),
        ("kind", "u1"),
        ("queue", "u1"),  # 0 L4S, 1 classic; 255 of what comes back
        ("verdict", "u1"),  # `Verdict` of testbed/router/dual_pi2.h
        ("ecn", "u1"),  # as it arrived
        ("protocol", "u1"),
        ("moved", "u1"),  # 1: the router's rule took it to the classic queue; `ecn` is then ECT(0)
        ("headers", "u1"),  # bytes of IP and TCP; 0: no TCP
        ("zero", "u1"),
        ("sequence", "<u4"),  # of TCP, as is the next
        ("acknowledged", "<u4"),
    ]
)
FORWARD, BACK, DROPPED, REFUSED, STALL, CROSS = range(6)  # kinds
FIRST_MARK = 1  # verdicts from there on


def read(path: Path) -> NDArray[Any]:
    """Read a log, of which the last record may be half written.

    Raises:
        OSError: it cannot be read.

    """
    data = path.read_bytes()
    return np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)
