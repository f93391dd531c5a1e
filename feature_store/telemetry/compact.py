"""Compact the log's batches to packet tables by sender and minute; readers never see half a table.

A crash may cut each step short: files are staged and renamed, then the manifest that names them replaces the
old one, then unneeded files are removed. The next run removes files that no manifest names, and reads
segments again that no manifest has taken in.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import shutil
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from swiftqueue.common.atomic import sync_dir
from swiftqueue.feature_store.telemetry.events import BatchKey, Events, RefusedError, checked, is_other_format
from swiftqueue.feature_store.telemetry.log import adopt_segments, check_format, log_dir, read_segment
from swiftqueue.feature_store.telemetry.manifest import (
    FILE,
    Manifest,
    OlderFormatError,
    TelemetryCounts,
    load_manifest,
    save_manifest,
    sender_dir,
)
from swiftqueue.feature_store.telemetry.round import LEAST_MINUTES, Columns, SenderCompaction

ROUND_BYTES: Final = 64 << 20  # bytes of segments taken in at once, which bounds the memory
GAP_S: Final = 5.0  # a batch missing so long after a later one is a gap: all segments were closed since
KEEP_MINUTES: Final = 120  # partitions kept per sender, by count: a clock that is set cannot age them
KEEP_BYTES: Final = 4 << 30  # bytes kept per sender: 4 to 8 hours at 100 Mbit/s
KEEP_TOTAL_BYTES: Final = 64 << 30  # bytes kept of all senders together, stopped ones included
FREE_BYTES: Final = 2 << 30  # free bytes of the disk left to other programs
FREE_SHARE: Final = 20  # on a small disk, one part in FREE_SHARE of it stays free
REMEMBERED_PARTS: Final = 4  # parts remembered for each sender
ROOM_S: Final = 60.0  # seconds between looks at the free space
DAMAGED: Final = "damaged"
OLDER: Final = "older"
KEEP_DAMAGED: Final = 16  # newest torn segments and damaged senders' folders that are kept


@dataclass
class CompactionReport:
    """The results of one compaction round."""

    segments: int = 0
    counts: TelemetryCounts = field(default_factory=TelemetryCounts)  # counts added over all senders
    damaged: list[str] = field(default_factory=list)  # a line for each segment or sender that was put aside

    def add(self, now: TelemetryCounts, before: TelemetryCounts) -> None:
        """Add the growth of one sender's counts."""
        for name, value in asdict(now).items():
            setattr(self.counts, name, getattr(self.counts, name) + value - getattr(before, name))


class Compactor:
    """The compactor of a telemetry store, which refuses to run beside another one.

    Raises:
        BlockingIOError: another compactor works on the store.
        ValueError: an earlier version wrote the log.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep_minutes: int = KEEP_MINUTES,
        keep_bytes: int = KEEP_BYTES,
        keep_total_bytes: int = KEEP_TOTAL_BYTES,
        free_bytes: int = FREE_BYTES,
        round_bytes: int = ROUND_BYTES,
        gap_s: float = GAP_S,
    ) -> None:
        self._root, self._round_bytes, self._gap_s = root, round_bytes, gap_s
        self._keep_minutes, self._keep_bytes = keep_minutes, keep_bytes
        self._keep_total_bytes, self._free_bytes, self._room_s = keep_total_bytes, free_bytes, -math.inf
        for folder in (log_dir(root), root / "packets"):
            folder.mkdir(parents=True, exist_ok=True)
        check_format(root)
        self._lock = os.open(root / "compact.lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise BlockingIOError(f"{root}: another compactor is at work there") from None
        self._manifests: dict[str, Manifest] = {}
        self._lost: list[str] = []  # lines about senders that begin anew
        # The newest tables by sender and file, so that the next ACKs need not read them again.
        self._unacknowledged: dict[str, dict[str, Columns]] = {}
        for folder in (root / "packets").glob("trace=*"):
            self._sweep(self._manifest(folder.name.removeprefix("trace=")))
        self._intake = max((p.intake for m in self._manifests.values() for p in m.partitions), default=0)

    def close(self) -> None:
        """Release the store for another compactor."""
        os.close(self._lock)

    def run(self) -> CompactionReport:
        """Take in every closed segment, some at a time.

        Raises:
            OSError: a file cannot be written; the other segments stay in the log for the next run.
        """
        report = CompactionReport()
        # A sender whose folder was removed begins anew: its manifest would name missing files.
        self._manifests = {
            sender: manifest
            for sender, manifest in self._manifests.items()
            if (sender_dir(self._root, sender) / FILE).exists()
        }
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
        if time.monotonic() - self._room_s >= ROOM_S:
            self._make_room(report)
            self._room_s = time.monotonic()
        report.damaged += self._lost
        self._lost = []
        return report

    def _count_gaps(self, manifest: Manifest, report: CompactionReport) -> None:
        now_s = time.time()
        missing = sum(s.newly_missing(now_s, self._gap_s) for s in manifest.sessions.values())
        events = manifest.newly_missing_events(now_s, self._gap_s)
        if missing or events:
            manifest.counts.gaps += missing
            manifest.counts.missing_events += events
            report.counts.gaps += missing
            report.counts.missing_events += events
            save_manifest(self._root, manifest)

    def _make_room(self, report: CompactionReport) -> None:
        """Drop the minutes that were stored first, of any sender, until the limits hold.

        Each sender's newest minutes stay: if another program fills the disk, dropping them would not help.
        """
        ages: list[tuple[int, str, int, int]] = []  # intake, sender, place among its minutes, bytes
        for sender, manifest in list(self._manifests.items()):
            folder = sender_dir(self._root, sender)
            try:
                ages += [
                    (p.intake, sender, n, sum((folder / f).stat().st_size for f in (*p.packets, *p.acks)))
                    for n, p in enumerate(manifest.partitions)
                ]
            except FileNotFoundError as error:  # some of its files were removed
                self._begin_anew(sender, error)
        disk = shutil.disk_usage(self._root)
        over = max(
            sum(size for *_, size in ages) - self._keep_total_bytes,
            min(self._free_bytes, disk.total // FREE_SHARE) - disk.free,
        )
        gone: dict[str, set[int]] = defaultdict(set)
        for _, sender, place, size in sorted(ages):
            if over <= 0:
                break
            if place < len(self._manifests[sender].partitions) - LEAST_MINUTES:
                gone[sender].add(place)
                over -= size
        for sender, places in gone.items():
            manifest = self._manifests[sender].copy()
            manifest.generation += 1
            dropped = sum(manifest.partitions[place].rows for place in places)
            manifest.partitions = [p for n, p in enumerate(manifest.partitions) if n not in places]
            manifest.counts.dropped_rows += dropped
            report.counts.dropped_rows += dropped
            save_manifest(self._root, manifest)
            self._manifests[sender] = manifest
            self._sweep(manifest)

    def _take_in(self, segments: list[Path], report: CompactionReport) -> None:
        self._intake += 1
        batches: dict[str, list[tuple[str, BatchKey, Events]]] = defaultdict(list)
        damaged = set()
        for path in segments:
            for body in read_segment(path):
                try:
                    key, events = checked(body or b"")
                except RefusedError:  # the segment is torn
                    if is_other_format(body or b""):
                        check_format(self._root)  # raises if a replica of another version wrote it
                    damaged.add(path)
                else:
                    batches[key.sender].append((path.name, key, events))
        present = {path.name for path in log_dir(self._root).iterdir()}
        for sender, named in sorted(batches.items()):
            before = self._manifest(sender)
            try:
                manifest = self._changed(before, named, segments, present)
            except (FileNotFoundError, ValueError) as error:
                if not before.files():  # not a file of this sender
                    raise
                before = self._begin_anew(sender, error)
                manifest = self._changed(before, named, segments, present)
            self._manifests[sender] = manifest
            report.add(manifest.counts, before.counts)
        for path in segments:
            if path in damaged:
                aside = self._put_aside(path)
                report.damaged.append(f"segment {path.name} is torn; kept as {aside}")
            else:
                path.unlink()
        sync_dir(log_dir(self._root))
        report.segments += len(segments)
        for sender in batches:
            self._sweep(self._manifests[sender])

    def _changed(
        self,
        before: Manifest,
        named: list[tuple[str, BatchKey, Events]],
        segments: list[Path],
        present: set[str],
    ) -> Manifest:
        """Return a sender's manifest with the batches of these segments, `named` by their segment's name."""
        manifest = before.copy()
        manifest.generation += 1
        manifest.segments = sorted((present & set(before.segments)) | {path.name for path in segments})
        fresh = [(key, events) for name, key, events in named if name not in before.segments]
        known = self._unacknowledged.get(before.sender, {})
        change = SenderCompaction(
            self._root, manifest, self._keep_minutes, self._keep_bytes, self._intake, known
        )
        change.take(fresh)
        newest = [*known.items(), *change.unacknowledged.items()][-REMEMBERED_PARTS:]
        self._unacknowledged[before.sender] = dict(newest)
        return manifest

    def _manifest(self, sender: str) -> Manifest:
        if sender not in self._manifests:
            try:
                self._manifests[sender] = load_manifest(self._root, sender)
            except OlderFormatError as error:
                self._begin_anew(sender, error, OLDER)
            except ValueError as error:
                self._begin_anew(sender, error)
        return self._manifests[sender]

    def _begin_anew(self, sender: str, error: Exception, where: str = DAMAGED) -> Manifest:
        """Put aside the files of a sender that are damaged, or of an older format; it alone loses its past.

        Files of an older format are all kept.
        """
        aside = self._put_aside(sender_dir(self._root, sender), where)
        self._lost.append(f"{error}; its minutes lie in {aside} now, and it begins anew")
        self._manifests[sender] = Manifest(sender)
        return self._manifests[sender]

    def _put_aside(self, path: Path, where: str = DAMAGED) -> Path:
        """Move damaged or older files out of the store; keep only the newest damaged ones."""
        folder = self._root / where
        folder.mkdir(exist_ok=True)
        target = folder / path.name
        if target.exists():
            target = folder / f"{path.name}-{time.time_ns()}"
        newest_ns = max((kept.stat().st_mtime_ns for kept in folder.iterdir()), default=0)
        path.rename(target)
        os.utime(target, ns=(max(time.time_ns(), newest_ns + 1),) * 2)  # the clock may have been set back
        if where == OLDER:
            return target
        for older in sorted(folder.iterdir(), key=lambda kept: kept.stat().st_mtime_ns)[:-KEEP_DAMAGED]:
            shutil.rmtree(older) if older.is_dir() else older.unlink()
        return target

    def _sweep(self, manifest: Manifest) -> None:
        """Remove a sender's files that its manifest does not name, and folders left empty."""
        folder = sender_dir(self._root, manifest.sender)
        named = manifest.files()
        for path in folder.glob("*/*"):
            if str(path.relative_to(folder)) not in named:
                path.unlink(missing_ok=True)
        for minute in folder.glob("minute=*"):
            with contextlib.suppress(OSError):  # the folder is not empty
                minute.rmdir()
