"""Compaction: batches of the log become packet tables by sender and minute; readers never see half of one.

Each step can be cut short by a crash: files are staged and renamed, then the manifest that names them
replaces the old one, then what is no longer needed is removed. A run that finds a half-done one before it
removes the files that no manifest names and reads the segments again that no manifest has taken in.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections import defaultdict
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from feature_store.telemetry_events import BatchKey, RefusedError, decode
from feature_store.telemetry_log import adopt_segments, log_dir, read_segment, sync_dir
from feature_store.telemetry_manifest import Counts, Manifest, load_manifest, save_manifest, sender_dir
from feature_store.telemetry_round import Round

ROUND_BYTES: Final = 64 << 20  # of segments taken in at once: what bounds the memory
GAP_S: Final = 5.0  # what is missing so long after a later batch is a gap: all segments were closed since
KEEP_MINUTES: Final = 120  # partitions kept of a sender, by count: a clock that is set cannot age them
KEEP_DAMAGED: Final = 16  # torn segments, the newest


@dataclass
class Report:
    """What one round did."""

    segments: int = 0
    counts: Counts = field(default_factory=Counts)  # what was added to them, over all senders
    damaged: list[str] = field(default_factory=list)  # segments read up to a tear and kept aside

    def add(self, now: Counts, before: Counts) -> None:
        """Add what one sender's counts grew by."""
        for name, value in asdict(now).items():
            setattr(self.counts, name, getattr(self.counts, name) + value - getattr(before, name))


class Compactor:
    """The one that compacts a telemetry store; a second one on the same store is refused.

    Raises:
        BlockingIOError: another compactor is at work there.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep_minutes: int = KEEP_MINUTES,
        round_bytes: int = ROUND_BYTES,
        gap_s: float = GAP_S,
    ) -> None:
        self._root, self._keep, self._round_bytes, self._gap_s = root, keep_minutes, round_bytes, gap_s
        for folder in (log_dir(root), root / "packets"):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(root / "compact.lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise BlockingIOError(f"{root}: another compactor is at work there") from None
        self._manifests: dict[str, Manifest] = {}
        for folder in (root / "packets").glob("trace=*"):
            self._sweep(self._manifest(folder.name.removeprefix("trace=")))

    def close(self) -> None:
        """Let another compactor have the store."""
        os.close(self._lock)

    def run(self) -> Report:
        """Take in every closed segment, some at a time.

        Raises:
            OSError: a file cannot be written; what was not taken in stays in the log for the next run.
        """
        report = Report()
        waiting = adopt_segments(self._root)
        while waiting:
            some: list[Path] = []
            size = 0
            while waiting and (not some or size < self._round_bytes):
                size += waiting[0].stat().st_size
                some.append(waiting.pop(0))
            self._take_in(some, report)
        for manifest in self._manifests.values():
            self._count_gaps(manifest, report)
        return report

    def _count_gaps(self, manifest: Manifest, report: Report) -> None:
        now_s = time.time()
        missing = sum(s.newly_missing(now_s, self._gap_s) for s in manifest.sessions.values())
        if missing:
            manifest.counts.gaps += missing
            report.counts.gaps += missing
            save_manifest(self._root, manifest)

    def _take_in(self, segments: list[Path], report: Report) -> None:
        batches: dict[str, list[tuple[str, BatchKey, pa.RecordBatch]]] = defaultdict(list)
        damaged = set()
        for path in segments:
            for body in read_segment(path):
                try:
                    key, events = decode(body or b"")
                except RefusedError:  # torn; or of another version of the event schema
                    damaged.add(path)
                else:
                    batches[key.sender].append((path.name, key, events))
        present = {path.name for path in log_dir(self._root).iterdir()}
        for sender, named in sorted(batches.items()):
            before = self._manifest(sender)
            manifest = deepcopy(before)
            manifest.generation += 1
            manifest.segments = sorted((present & set(before.segments)) | {path.name for path in segments})
            fresh = [(key, events) for name, key, events in named if name not in before.segments]
            Round(self._root, manifest, self._keep).take(fresh)
            self._manifests[sender] = manifest
            report.add(manifest.counts, before.counts)
        for path in segments:
            if path in damaged:
                self._keep_aside(path)
                report.damaged.append(path.name)
            else:
                path.unlink()
        sync_dir(log_dir(self._root))
        report.segments += len(segments)
        for sender in batches:
            self._sweep(self._manifests[sender])

    def _keep_aside(self, path: Path) -> None:
        folder = self._root / "damaged"
        folder.mkdir(exist_ok=True)
        path.rename(folder / path.name)
        for older in sorted(folder.iterdir(), key=lambda kept: kept.stat().st_mtime_ns)[:-KEEP_DAMAGED]:
            older.unlink()

    def _manifest(self, sender: str) -> Manifest:
        if sender not in self._manifests:
            self._manifests[sender] = load_manifest(self._root, sender)
        return self._manifests[sender]

    def _sweep(self, manifest: Manifest) -> None:
        """Remove a sender's files that its manifest does not name, and folders that they leave empty."""
        folder = sender_dir(self._root, manifest.sender)
        named = manifest.files()
        for path in folder.glob("*/*"):
            if str(path.relative_to(folder)) not in named:
                path.unlink(missing_ok=True)
        for minute in folder.glob("minute=*"):
            with contextlib.suppress(OSError):  # not empty
                minute.rmdir()
