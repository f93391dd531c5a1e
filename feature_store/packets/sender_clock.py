"""Estimate how fast a sender's TCP timestamp clock ticks; RFC 7323, 5.4, allows 1 ms to 1 s."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import numpy as np

from swiftqueue.feature_store.packets import pcaplib
from swiftqueue.feature_store.packets.captures import CaptureFile
from swiftqueue.feature_store.packets.rare import address_text

TICKS_NS: Final = tuple(round(ms * 1e6) for ms in (0.001, 0.01, 0.1, 1, 2, 4, 10, 100, 500))
ENOUGH_NS: Final = 2_000_000_000  # length of a flow that tells ticks of 1, 2 and 4 ms apart despite queueing


class NoClockError(ValueError):
    """The error for a sender whose segments carry no timestamps, or constant ones."""


def sender_tick_ns(capture: Path, sender: bytes) -> int:
    """Return the nanoseconds of one TSval count, from the longest flow at the head of a capture.

    Raises:
        NoClockError: no flow has a moving timestamp clock.
    """
    first: dict[bytes, tuple[int, int]] = {}  # capture time and TSval of each flow's first segment
    span_ns, ticks = 0, 0
    sender_void = np.frombuffer(sender, "V16")[0]
    for segments in CaptureFile(capture):
        own = segments[
            (segments["kind"] == pcaplib.TCP)
            & (segments["has_timestamps"] == 1)
            & (segments["source"] == sender_void)
        ]
        if not len(own):
            continue
        flow = own[["destination", "source_port", "destination_port"]]
        keys = (
            np.ascontiguousarray(flow)
            .astype([(n, flow.dtype[n]) for n in flow.dtype.names or ()])
            .view("V20")
        )
        for key in np.unique(keys):
            rows = own[keys == key]
            start = first.setdefault(
                key.tobytes(), (int(rows["time_ns"][0]), int(rows["timestamp_value"][0]))
            )
            elapsed_ns = int(rows["time_ns"][-1]) - start[0]
            counts = (int(rows["timestamp_value"][-1]) - start[1]) % 2**32
            if elapsed_ns > span_ns and 0 < counts < 2**31:
                span_ns, ticks = elapsed_ns, counts
        if span_ns >= ENOUGH_NS:
            break
    if not ticks:
        raise NoClockError(
            f"{capture}: {address_text(sender)} sends no running TCP timestamps, which `--latency "
            "timestamps` needs; use `--latency acks` on a capture made at the sender"
        )
    return min(TICKS_NS, key=lambda tick_ns: abs(math.log(span_ns / ticks / tick_ns)))
