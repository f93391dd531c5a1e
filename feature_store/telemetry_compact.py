"""Compaction: batches of the log become packet tables by sender and minute; readers never see half of one.

Each step can be cut short by a crash: files are staged and renamed, then the manifest that names them
replaces the old one, then what is no longer needed is removed. A run that finds a half-done one before it
removes the files that no manifest names and reads the segments again that no manifest has taken in.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import defaultdict
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa

from feature_store import telemetry_tables as tables
from feature_store.table_writer import MINUTE_NS
from feature_store.telemetry_events import BatchKey, RefusedError, decode
from feature_store.telemetry_log import adopt_segments, log_dir, read_segment, sync_dir
from feature_store.telemetry_manifest import (
    Counts,
    Manifest,
    Partition,
    Session,
    load_manifest,
    save_manifest,
    sender_dir,
)

ROUND_BYTES: Final = 64 << 20  # of segments taken in at once: what bounds the memory
KEEP_MINUTES: Final = 120  # partitions kept of a sender, by count: a clock that is set cannot age them
SETTLED_NS: Final = 120_000_000_000  # a row waits for its ACK as long as in `extract` (docs/PACKETS.md)
MAX_PARTS: Final = 24  # files of a partition before they become one, settled or not
SET_BACK_NS: Final = 100_000_000  # a step back this large is a clock that was set (docs/PACKETS.md)


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
        self, root: Path, *, keep_minutes: int = KEEP_MINUTES, round_bytes: int = ROUND_BYTES
    ) -> None:
        self._root, self._keep, self._round_bytes = root, keep_minutes, round_bytes
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
        return report

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
            _Round(self._root, manifest, self._keep).take(fresh)
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


class _Round:
    """One change of one sender's manifest: takes in batches, writes files, replaces the manifest."""

    def __init__(self, root: Path, manifest: Manifest, keep: int) -> None:
        self._root, self._manifest, self._keep = root, manifest, keep
        self._folder = sender_dir(root, manifest.sender)
        self._files = 0

    def take(self, batches: list[tuple[BatchKey, pa.RecordBatch]]) -> None:
        """Take in batches, in any order and with duplicates, and make the manifest the current one."""
        manifest = self._manifest
        missing = {number: session.missing() for number, session in manifest.sessions.items()}
        fresh: dict[int, tuple[list[pa.RecordBatch], list[pa.RecordBatch]]] = defaultdict(lambda: ([], []))
        for key, events in sorted(batches, key=lambda batch: (batch[0].session, batch[0].sequence)):
            session = manifest.sessions.setdefault(key.session, Session())
            follows = key.sequence > session.last_sequence
            if not session.take(key.sequence):
                manifest.counts.duplicate_batches += 1
                continue
            manifest.counts.batches += 1
            in_order, late = fresh[key.session]
            if follows:
                in_order.append(_on_one_clock(session, events))
            else:
                late.append(events)
        for number, (in_order, late) in fresh.items():
            self._take_events(number, in_order, late)
        for number, session in manifest.sessions.items():
            manifest.counts.gaps += max(session.missing() - missing.get(number, 0), 0)
            session.forget_old_gaps()
        self._settle()
        self._prune()
        for folder in {self._folder, *(self._folder / Path(name).parent for name in manifest.files())}:
            sync_dir(folder)
        sync_dir(self._folder.parent)
        save_manifest(self._root, manifest)

    def _take_events(self, number: int, in_order: list[pa.RecordBatch], late: list[pa.RecordBatch]) -> None:
        counts, session = self._manifest.counts, self._manifest.sessions[number]
        sends, acks = [], []
        if in_order:
            events = tables.event_frame(in_order)
            packets = tables.packets_of(self._manifest.sender, events)
            highest_before = pl.col("packet").cum_max().shift(1, fill_value=-1)
            grown = packets.filter(
                (pl.col("packet") > highest_before) & (pl.col("packet") > session.last_packet)
            )
            counts.sends += packets.height
            counts.repeated_sends += packets.height - grown.height
            if grown.height:
                session.last_packet = int(grown["packet"][-1])
            sends.append(grown)
            acks.append(tables.acks_of(events))
        if late:  # it fills a gap; what it repeats is found when its minute is merged
            events = tables.event_frame(late)
            sends.append(tables.packets_of(self._manifest.sender, events))
            acks.append(tables.acks_of(events))
            counts.sends += sends[-1].height
        counts.acks += sum(table.height for table in acks)
        acks += [tables.read_part(self._folder, name) for name in self._orphans(number)]
        every_ack = pl.concat(acks)
        first = every_ack.unique("packet", keep="first", maintain_order=True)
        counts.repeated_acks += every_ack.height - first.height
        self._place_acks(number, self._write_packets(number, pl.concat(sends), first))

    def _write_packets(self, number: int, packets: pl.DataFrame, acks: pl.DataFrame) -> pl.DataFrame:
        """Write new packets to their minutes, with the ACKs that are here; return the other ACKs."""
        if packets.is_empty():
            return acks
        packets = tables.with_acks(packets, acks)
        minutes = packets.with_columns(minute=pl.col("sent_ns") // MINUTE_NS)
        for group in minutes.partition_by("minute"):
            minute = int(group["minute"][0])
            part = group.drop("minute").sort("packet", maintain_order=True)
            first, last = int(part["packet"][0]), int(part["packet"][-1])
            partition = self._partition(number, minute, first, last)
            partition.first_packet = min(partition.first_packet, first)
            partition.last_packet = max(partition.last_packet, last)
            partition.rows += part.height
            partition.packets.append(self._write(f"minute={minute}/part-{number}", part))
        return acks.join(packets.select("packet"), on="packet", how="anti", maintain_order="left")

    def _place_acks(self, number: int, acks: pl.DataFrame) -> None:
        """Put ACKs beside the minutes of their packets; the rest waits for packets still to come."""
        session = self._manifest.sessions[number]
        homeless = pl.lit(value=True)
        for partition in self._manifest.partitions if acks.height else ():
            if partition.session == number:
                inside = pl.col("packet").is_between(partition.first_packet, partition.last_packet)
                here = acks.filter(inside)
                if here.height:
                    partition.acks.append(self._write(f"acks/minute-{partition.minute}-{number}", here))
                homeless &= ~inside
        orphans = acks.filter(homeless)
        waiting = orphans.filter(pl.col("acked_ns") > session.newest_ns - SETTLED_NS)
        self._manifest.counts.unmatched_acks += orphans.height - waiting.height
        kept = [name for name in self._manifest.orphans if name not in self._orphans(number)]
        self._manifest.orphans = kept + (
            [self._write(f"acks/orphans-{number}", waiting)] if waiting.height else []
        )

    def _settle(self) -> None:
        """Make each minute one file when no ACK of it can come any more, or when its files are many."""
        newest = max(self._manifest.sessions, default=0)
        for partition in self._manifest.partitions:
            end_ns = (partition.minute + 1) * MINUTE_NS
            settled = (
                partition.session < newest
                or self._manifest.sessions[partition.session].newest_ns > end_ns + SETTLED_NS
            )
            parts = len(partition.packets) + len(partition.acks)
            if parts > MAX_PARTS or (settled and parts > 1):
                self._merge(partition)

    def _merge(self, partition: Partition) -> None:
        counts = self._manifest.counts
        packets = [tables.read_part(self._folder, name) for name in partition.packets]
        acks = [tables.read_part(self._folder, name) for name in partition.acks]
        table = tables.merged(packets, acks)
        counts.repeated_sends += partition.rows - table.height
        if acks:
            of_none = pl.concat(acks).join(table, on="packet", how="anti").height
            acked_before = pl.concat(packets)["acked_ns"].count()
            news = table["acked_ns"].count() - acked_before
            counts.unmatched_acks += of_none
            counts.repeated_acks += sum(a.height for a in acks) - of_none - news
        partition.rows, partition.acks = table.height, []
        partition.packets = [self._write(f"minute={partition.minute}/part-{partition.session}", table)]

    def _prune(self) -> None:
        """Drop the oldest minutes beyond those kept, and sessions of which nothing is left."""
        manifest = self._manifest
        manifest.partitions.sort(key=lambda p: (p.session, p.minute))
        while len(manifest.partitions) > self._keep:
            manifest.counts.dropped_rows += manifest.partitions.pop(0).rows
        alive = {p.session for p in manifest.partitions} | {max(manifest.sessions, default=0)}
        manifest.sessions = {number: s for number, s in manifest.sessions.items() if number in alive}
        manifest.orphans = [name for number in alive for name in self._orphans(number)]

    def _partition(self, session: int, minute: int, first: int, last: int) -> Partition:
        for partition in reversed(self._manifest.partitions):
            if (partition.session, partition.minute) == (session, minute):
                return partition
        self._manifest.partitions.append(Partition(session, minute, first, last, 0))
        return self._manifest.partitions[-1]

    def _orphans(self, session: int) -> list[str]:
        return [name for name in self._manifest.orphans if name.startswith(f"acks/orphans-{session}-")]

    def _write(self, stem: str, table: pl.DataFrame) -> str:
        self._files += 1
        name = f"{stem}-{self._manifest.generation}-{self._files}.parquet"
        tables.write_part(self._folder, name, table)
        return name


def _on_one_clock(session: Session, events: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch in the session's time, which goes on from where it was when the clock is set back."""
    time_ns = events.column("time_ns").to_numpy()
    if time_ns[0] + session.shift_ns < session.newest_ns - SET_BACK_NS:
        session.shift_ns = session.newest_ns - int(time_ns[0])
    time_ns = np.maximum(time_ns + session.shift_ns, session.newest_ns)
    session.newest_ns = int(time_ns[-1])
    at = events.schema.get_field_index("time_ns")
    return events.set_column(at, events.schema.field(at), pa.array(time_ns))
