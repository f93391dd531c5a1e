"""The latencies that a sender's telemetry brought, second by second, from the files of the store.

Only files that are new since the last look are read, so that a look costs what one second's packets cost.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from swiftqueue.feature_store.telemetry.manifest import FILE, load_manifest, sender_dir
from swiftqueue.feature_store.telemetry.tables import read_part

SECONDS: Final = 300  # seconds of history
SAME_CLOCK_S: Final = 5.0  # largest change of a clock that delays of the store explain
OPEN_S: Final = 5  # newest seconds that further ACKs may still reach
MOST_FILES: Final = 240  # files read in one look: two minutes of them, when the page is first opened
LOOK_BACK_MINUTES: Final = 1  # whole minutes before the newest one that are read then


@dataclass(frozen=True)
class Second:
    """The latencies that became known in one second."""

    at_s: float  # end of the second
    median_ms: float
    p99_ms: float
    packets: int


class LatencySeries:
    """The last seconds of one sender, by the time when its packets were acknowledged."""

    def __init__(self, root: Path, sender: str) -> None:
        self._root, self.sender = root, sender
        self._read: set[str] = set()
        self._session = -1
        self._highest_packet = -1
        self._open: dict[int, list[np.ndarray]] = {}  # latencies of seconds that are not settled
        self._settled: deque[Second] = deque(maxlen=SECONDS)
        self._settled_until = -1
        self._ahead_s = 0.0  # this machine's clock minus the sender's, and the least delay of the store
        self._stamp_ns = -1

    def look(self) -> None:
        """Read what the store has got since the last look.

        Raises:
            OSError, ValueError: a file cannot be read, or is damaged; the next look goes on after it.
        """
        manifest_file = sender_dir(self._root, self.sender) / FILE
        stamp_ns = manifest_file.stat().st_mtime_ns
        if stamp_ns == self._stamp_ns:
            return
        self._stamp_ns = stamp_ns
        manifest = load_manifest(self._root, self.sender)
        if (newest := manifest.newest()) is None:
            return
        number, session = newest
        if number != self._session:  # its packets count from 0 again, and so may its clock
            self._session, self._highest_packet, self._settled_until = number, -1, -1
            self._open.clear()
            self._read.clear()
        ahead_s = (stamp_ns - session.newest_ns) / 1e9
        same = abs(ahead_s - self._ahead_s) < SAME_CLOCK_S
        self._ahead_s = min(ahead_s, self._ahead_s) if same else ahead_s
        recent = [p for p in manifest.partitions if p.session == number]
        recent = sorted(recent, key=lambda p: p.minute)[-1 - LOOK_BACK_MINUTES :]
        names = [name for p in recent for name in (*p.packets, *p.acks)]
        news = [name for name in names if name not in self._read][-MOST_FILES:]
        self._read = set(names)
        problem: Exception | None = None
        for name in news:
            try:
                self._take(name)
            except (OSError, ValueError) as error:  # the others are read all the same
                problem = error
        self._settle(session.newest_ns // 10**9)
        if problem:
            raise problem

    def _take(self, name: str) -> None:
        table = read_part(sender_dir(self._root, self.sender), name)
        if "sent_ns" in table.columns:  # packets; others are ACKs that came later than their packets
            # A file into which a minute was merged repeats what was read before.
            table = table.filter(table["packet"] > self._highest_packet)
            if table.height:
                self._highest_packet = int(table["packet"][-1])
        known = table.drop_nulls(["acked_ns", "latency_us"])
        second_N = known["acked_ns"].to_numpy() // 10**9
        latency_ms_N = known["latency_us"].to_numpy() / 1e3
        for second in np.unique(second_N):
            if second > self._settled_until:
                self._open.setdefault(int(second), []).append(latency_ms_N[second_N == second])

    def _settle(self, newest_second: int) -> None:
        for second in sorted(self._open):
            if second < newest_second - OPEN_S:
                self._settled.append(self._figures(second, self._open.pop(second)))
                self._settled_until = second

    def _figures(self, second: int, latencies_ms: list[np.ndarray]) -> Second:
        all_ms = np.concatenate(latencies_ms)
        median, p99 = np.percentile(all_ms, [50, 99])
        return Second(second + 1.0, float(median), float(p99), len(all_ms))

    def seconds(self) -> list[Second]:
        """Return the last complete seconds by this machine's clock, oldest first."""
        complete = sorted(self._open)[:-1]
        found = [*self._settled, *(self._figures(second, self._open[second]) for second in complete)]
        ours = [replace(one, at_s=one.at_s + self._ahead_s) for one in found]
        oldest_s = time.time() - SECONDS
        return [one for one in ours if one.at_s > oldest_s]
