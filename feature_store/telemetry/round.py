"""Change one sender's packets: take batches in, write files, replace the manifest.

Anything before the manifest is replaced can be repeated, and the replacement ends the change.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.common.atomic import sync_dir
from swiftqueue.feature_store.packets.table_writer import MINUTE_NS
from swiftqueue.feature_store.telemetry import tables
from swiftqueue.feature_store.telemetry.events import ACK, MAX_TIME_NS, BatchKey, Events
from swiftqueue.feature_store.telemetry.manifest import (
    Manifest,
    Partition,
    Session,
    save_manifest,
    sender_dir,
)
from swiftqueue.feature_store.telemetry.sessions import read_opening

SETTLED_NS: Final = 120_000_000_000  # a row waits for its ACK as long as in `extract` (docs/PACKETS.md)
MAX_WAITING: Final = 1 << 20  # ACKs without their SENDs per session or minute: two minutes of 100 Mbit/s
# Rows of a session's minute: eight times 100 Mbit/s. It is merged whole, and a clock may stand still.
MAX_MINUTE_ROWS: Final = 1 << 22
LATELY: Final = 2  # earlier parts of a minute, a second each, that may still get ACKs
MAX_PARTS: Final = 24  # files of a partition before they become one, settled or not
SET_BACK_NS: Final = 100_000_000  # a step back this large is a clock that was set (docs/PACKETS.md)
LEAST_MINUTES: Final = 3  # minutes of a sender that stay whatever their bytes: a live round needs two


class SenderCompaction:
    """One change of one sender's packets; an instance is used once."""

    def __init__(
        self,
        root: Path,
        manifest: Manifest,
        keep_minutes: int,
        keep_bytes: int,
        intake: int,
        before: Mapping[str, Columns] = MappingProxyType({}),
    ) -> None:
        """Prepare a change; `before` may hold files' packets without an ACK, to read fewer files."""
        self._root, self._manifest, self._intake = root, manifest, intake
        self._keep_minutes, self._keep_bytes = keep_minutes, keep_bytes
        self._folder = sender_dir(root, manifest.sender)
        self._files = 0
        self._written: set[Path] = set()  # folders written to
        self._before = before
        self.unacknowledged: dict[str, Columns] = {}  # unacknowledged packets of the files with new packets

    def take(self, batches: list[tuple[BatchKey, Events]]) -> None:
        """Take in batches, in any order and with duplicates, and replace the manifest.

        Raises:
            FileNotFoundError, ValueError: a file that the manifest names is missing or damaged.
            OSError: a file cannot be written.
        """
        manifest = self._manifest
        fresh: dict[int, tuple[list[Events], list[Events]]] = defaultdict(lambda: ([], []))
        for key, events in sorted(batches, key=lambda batch: (batch[0].session, batch[0].sequence)):
            session = manifest.sessions.get(key.session)
            if session is None:
                opening = read_opening(self._root, key.sender, key.session)
                session = Session.of(opening, time.time())
                manifest.sessions[key.session] = session
            follows = key.sequence > session.last_sequence
            if not session.take(key.sequence):
                manifest.counts.duplicate_batches += 1
                continue
            manifest.counts.batches += 1
            session.events += len(events)
            in_order, late = fresh[key.session]
            if follows:
                in_order.append(_on_one_clock(session, events))
            else:
                late.append(_late_on_one_clock(session, events))
        for number, (in_order, late) in fresh.items():
            self._take_events(number, in_order, late)
        for session in manifest.sessions.values():
            session.forget_old_gaps()
        self._settle()
        self._prune()
        for folder in {*self._written, self._folder, self._folder.parent}:  # names last as files do
            sync_dir(folder)
        save_manifest(self._root, manifest)

    def _take_events(self, number: int, in_order: list[Events], late: list[Events]) -> None:
        counts, session = self._manifest.counts, self._manifest.sessions[number]
        sends, acks = [], []
        if in_order:
            events = tables.event_frame(in_order)
            session.note_acks(np.concatenate([batch["time_ns"][batch["kind"] == ACK] for batch in in_order]))
            packets = tables.packets_of(self._manifest.sender, events)
            highest_before = pl.col("packet").cum_max().shift(1, fill_value=-1)
            grown = packets.filter(
                (pl.col("packet") > highest_before) & (pl.col("packet") > session.last_packet)
            )
            counts.sends += packets.height
            counts.repeated_sends += packets.height - grown.height
            if grown.height:
                session.last_packet = int(grown["packet"][-1])
                _note_flows(session, grown)
            sends.append(grown)
            acks.append(tables.acks_of(events))
        if late:  # these fill a gap; repeated packets are found when their minute is merged
            events = tables.event_frame(late)
            sends.append(tables.packets_of(self._manifest.sender, events))
            acks.append(tables.acks_of(events))
            counts.sends += sends[-1].height
            _note_flows(session, sends[-1])
        counts.acks += sum(table.height for table in acks)
        acks += [tables.read_part(self._folder, name) for name in self._orphans(number)]
        every_ack = pl.concat(acks)
        first = every_ack.unique("packet", keep="first", maintain_order=True)
        counts.repeated_acks += every_ack.height - first.height
        self._place_acks(number, self._write_packets(number, pl.concat(sends), first))

    def _write_packets(self, number: int, packets: pl.DataFrame, acks: pl.DataFrame) -> pl.DataFrame:
        """Write new packets to their minutes, with the ACKs that came; return the other ACKs."""
        if packets.is_empty():
            return acks
        packets = tables.with_acks(packets, acks)
        known = np.isfinite(packets["latency_us"].to_numpy())
        acked_ns = packets["acked_ns"].filter(pl.Series(known)).to_numpy()
        self._manifest.sessions[number].note_latencies(acked_ns, _columns(packets, known))
        minutes = packets.with_columns(minute=pl.col("sent_ns") // MINUTE_NS)
        for group in minutes.partition_by("minute"):
            minute = int(group["minute"][0])
            whole = group.drop("minute").sort("packet", maintain_order=True)
            known = self._partition(number, minute)
            part = whole.head(MAX_MINUTE_ROWS - known.rows if known else MAX_MINUTE_ROWS)
            self._manifest.counts.dropped_rows += whole.height - part.height
            if part.is_empty():
                continue
            first, last = int(part["packet"][0]), int(part["packet"][-1])
            partition = known or Partition(number, minute, first, last, 0, intake=self._intake)
            if known is None:
                self._manifest.partitions.append(partition)
            partition.first_packet = min(partition.first_packet, first)
            partition.last_packet = max(partition.last_packet, last)
            partition.rows += part.height
            name = self._write(f"minute={minute}/part-{number}", part)
            partition.packets.append(name)
            self.unacknowledged[name] = _unacknowledged(part)
        return acks.join(packets.select("packet"), on="packet", how="anti", maintain_order="left")

    def _place_acks(self, number: int, acks: pl.DataFrame) -> None:
        """Put ACKs beside the minutes of their packets; the others wait for packets still to come."""
        session = self._manifest.sessions[number]
        homeless = pl.lit(value=True)
        for partition in self._manifest.partitions if acks.height else ():
            if partition.session == number:
                inside = pl.col("packet").is_between(partition.first_packet, partition.last_packet)
                here = acks.filter(inside)
                if here.height:
                    if session.may_note(here["latency_us"].to_numpy()):
                        self._note_acknowledged(session, partition, here)
                    partition.acks.append(self._write(f"acks/minute-{partition.minute}-{number}", here))
                homeless &= ~inside
        orphans = acks.filter(homeless)
        # The sender's own clock orders them and may stand still, so the first, newest ones are enough.
        waiting = orphans.filter(pl.col("acked_ns") > session.newest_ns - SETTLED_NS).head(MAX_WAITING)
        self._manifest.counts.unmatched_acks += orphans.height - waiting.height
        kept = [name for name in self._manifest.orphans if name not in self._orphans(number)]
        self._manifest.orphans = kept + (
            [self._write(f"acks/orphans-{number}", waiting)] if waiting.height else []
        )

    def _note_acknowledged(self, session: Session, partition: Partition, acks: pl.DataFrame) -> None:
        """Note latencies of packets in a minute's last files whose first ACKs these are.

        Only these can show a new least latency; other ACKs belong to gaps or match no packet.
        """
        packet_N, acked_ns, us = (acks[name].to_numpy() for name in ("packet", "acked_ns", "latency_us"))
        earlier = [name for name in reversed(partition.packets) if name not in self.unacknowledged]
        for name in earlier[:LATELY]:
            waiting = self._before.get(name)
            if waiting is None:
                waiting = _unacknowledged(tables.read_part(self._folder, name))
            if not len(waiting["packet"]):
                continue
            place_N = np.minimum(np.searchsorted(waiting["packet"], packet_N), len(waiting["packet"]) - 1)
            here_N = (waiting["packet"][place_N] == packet_N) & np.isfinite(us)
            here_N &= acked_ns >= waiting["sent_ns"][place_N]
            columns = {key: values[place_N[here_N]] for key, values in waiting.items()}
            session.note_latencies(acked_ns[here_N], {**columns, "latency_us": us[here_N]})

    def _settle(self) -> None:
        """Make each minute one file when none of its ACKs can still come, or its files are many."""
        newest = max(self._manifest.sessions, default=0)
        for partition in self._manifest.partitions:
            end_ns = (partition.minute + 1) * MINUTE_NS
            settled = (
                partition.session < newest
                or self._manifest.sessions[partition.session].newest_ns > end_ns + SETTLED_NS
            )
            parts = len(partition.packets) + len(partition.acks)
            # Missing packets may still come, so a settled minute keeps one file of ACKs that wait for them.
            of_one = 2 if partition.acks and self._manifest.sessions[partition.session].gaps() else 1
            if parts > MAX_PARTS or (settled and parts > of_one):
                self._merge(partition)

    def _merge(self, partition: Partition) -> None:
        counts = self._manifest.counts
        packets = [tables.read_part(self._folder, name) for name in partition.packets]
        acks = [tables.read_part(self._folder, name) for name in partition.acks]
        table = tables.merged(packets, acks)
        counts.repeated_sends += partition.rows - table.height
        number, minute = partition.session, partition.minute
        partition.rows, partition.acks = table.height, []
        partition.packets = [self._write(f"minute={minute}/part-{number}", table)]
        if not acks:
            return
        every_ack = pl.concat(acks)
        of_none = every_ack.join(table, on="packet", how="anti").unique("packet", maintain_order=True)
        waiting = of_none.head(MAX_WAITING if self._manifest.sessions[number].gaps() else 0)
        news = table["acked_ns"].count() - pl.concat(packets)["acked_ns"].count()
        counts.unmatched_acks += of_none.height - waiting.height
        counts.repeated_acks += every_ack.height - of_none.height - news
        if waiting.height:
            partition.acks = [self._write(f"acks/minute-{minute}-{number}", waiting)]

    def _prune(self) -> None:
        """Drop the oldest minutes beyond the limits, and sessions without packets.

        The limit of bytes drops none of the newest LEAST_MINUTES. The last two sessions stay: the first one's
        packets show what is missing before the second.
        """
        manifest = self._manifest
        manifest.partitions.sort(key=lambda p: (p.session, p.minute))
        sizes = [
            sum((self._folder / name).stat().st_size for name in (*p.packets, *p.acks))
            for p in manifest.partitions
        ]
        stored = sum(sizes)
        while (left := len(manifest.partitions)) > self._keep_minutes or (
            stored > self._keep_bytes and left > LEAST_MINUTES
        ):
            stored -= sizes.pop(0)
            manifest.counts.dropped_rows += manifest.partitions.pop(0).rows
        alive = {p.session for p in manifest.partitions} | {*sorted(manifest.sessions)[-2:]}
        manifest.sessions = {number: s for number, s in manifest.sessions.items() if number in alive}
        manifest.orphans = [name for number in alive for name in self._orphans(number)]

    def _partition(self, session: int, minute: int) -> Partition | None:
        for partition in reversed(self._manifest.partitions):
            if (partition.session, partition.minute) == (session, minute):
                return partition
        return None

    def _orphans(self, session: int) -> list[str]:
        return [name for name in self._manifest.orphans if name.startswith(f"acks/orphans-{session}-")]

    def _write(self, stem: str, table: pl.DataFrame) -> str:
        self._files += 1
        name = f"{stem}-{self._manifest.generation}-{self._files}.parquet"
        tables.write_part(self._folder, name, table)
        self._written.add((self._folder / name).parent)
        return name


def _on_one_clock(session: Session, events: Events) -> Events:
    """Return the batch in the session's time, which continues when the clock is set back."""
    events = events.copy()
    time_ns = events["time_ns"]
    if time_ns[0] + session.shift_ns < session.newest_ns - SET_BACK_NS:
        session.shift_ns = session.newest_ns - int(time_ns[0])
    np.clip(time_ns + session.shift_ns, session.newest_ns, MAX_TIME_NS, out=time_ns)
    session.newest_ns = int(time_ns[-1])
    return events


def _late_on_one_clock(session: Session, events: Events) -> Events:
    """Return a batch that fills a gap in the session's time.

    Its events came before the session's newest. If the shift puts them after it, the clock was set later.
    """
    if int(events["time_ns"][0]) + session.shift_ns <= session.newest_ns + SET_BACK_NS:
        events = events.copy()
        events["time_ns"] = np.minimum(events["time_ns"] + session.shift_ns, MAX_TIME_NS)
    return events


Columns = dict[str, NDArray[Any]]


def _columns(packets: pl.DataFrame, chosen: NDArray[np.bool_]) -> Columns:
    """Return the columns of some packets by which their latencies are noted."""
    columns = {
        **{name: packets[name] for name in ("packet", "sent_ns", "latency_us")},
        **{"flow": packets["flow_id"], "receiver": packets["receiver_id"]},
        "queue": packets["queue"].to_physical(),  # the order of QUEUES: 0 classic, 1 l4s
    }
    return {name: column.to_numpy()[chosen] for name, column in columns.items()}


def _unacknowledged(packets: pl.DataFrame) -> Columns:
    """Return the columns of the packets without an ACK, in the order of their numbers."""
    return _columns(packets, np.isnan(packets["acked_ns"].cast(pl.Float64).to_numpy()))


def _note_flows(session: Session, packets: pl.DataFrame) -> None:
    flows = packets.group_by("flow_id", maintain_order=True).agg(pl.col("sent_ns").min())
    session.note_flows({str(flow): sent_ns for flow, sent_ns in flows.iter_rows()})
