"""The router's log of packets as NumPy records (`Record` in `testbed/router/records.h`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

RECORD: Final = np.dtype(
    [
        ("arrived_ns", "<i8"),  # read from the device; for a stall its beginning
        ("started_ns", "<i8"),  # start on the link
        ("due_ns", "<i8"),  # due time at the other device; -1 for a drop
        ("written_ns", "<i8"),  # write at the other device; for a stall its end
        ("packet", "<i8"),  # number in `swiftqueue udp`'s packets, else -1
        ("bytes", "<u4"),  # IP length
        ("source_port", "<u2"),
        ("destination_port", "<u2"),
        ("kind", "u1"),
        ("queue", "u1"),  # 0 L4S, 1 classic; 255 for the way back
        ("verdict", "u1"),  # `Verdict` of testbed/router/dual_pi2.h
        ("ecn", "u1"),  # codepoint on arrival
        ("protocol", "u1"),
        ("moved", "u1"),  # 1: the router's rule took it to the classic queue; `ecn` is then ECT(0)
        ("headers", "u1"),  # bytes of IP and TCP; 0: no TCP
        ("dscp", "u1"),  # DSCP on arrival
        ("sequence", "<u4"),  # TCP's number, like the next field
        ("acknowledged", "<u4"),
        ("link", "u1"),  # number of the link that it took
        ("zero", "u1", 7),
    ]
)
FORWARD, BACK, DROPPED, REFUSED, STALL, CROSS = range(6)  # kinds
FIRST_MARK = 1  # verdicts from this one on mark


def read(path: Path) -> NDArray[Any]:
    """Read a log, whose last record may be half written.

    Raises:
        OSError: the file cannot be read.

    """
    data = path.read_bytes()
    return np.frombuffer(data[: len(data) // RECORD.itemsize * RECORD.itemsize], RECORD)
