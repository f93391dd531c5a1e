"""Read a sender's last minutes from telemetry as a packet table, while the compactor works.

Only compacted files that a manifest names are read.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.common.settings import variable
from swiftqueue.feature_store.events.beginning import NOTHING, Beginning
from swiftqueue.feature_store.packets.schema import HORIZON, PACKET_SCHEMA
from swiftqueue.feature_store.packets.table_writer import MINUTE_NS
from swiftqueue.feature_store.telemetry.events import check_sender
from swiftqueue.feature_store.telemetry.manifest import FILE as MANIFEST
from swiftqueue.feature_store.telemetry.manifest import Manifest, load_manifest, sender_dir
from swiftqueue.feature_store.telemetry.tables import merged, read_part, write_part

# With several replicas a batch may still lie in an open segment: for SEGMENT_S, for twice that if its replica
# is idle, and for a batch's own span.
OPEN_NS: Final = 3_000_000_000
LIVE_NS: Final = 60_000_000_000  # senders whose packets were stored within this time still send
TRIES: Final = 20  # a minute's parts may be merged away after the manifest was read
_GAP_NUMBERS: Final = ("session", "first_sequence", "last_sequence", "batches", "events")
GAP_SCHEMA: Final = pl.Schema({"sender": pl.String(), **dict.fromkeys(_GAP_NUMBERS, pl.Int64())})


@dataclass(frozen=True)
class RecentPackets:
    """The last minutes of a sender's newest session."""

    packets: pl.DataFrame  # PACKET_SCHEMA: whole batches of 8, `packet` counted from 0 in this table
    newest_ns: int  # time of the session's last event, by the sender's clock
    session: int
    missing_packets: int  # packet numbers in the span without a SEND, whose telemetry was lost
    beginning: Beginning  # knowledge of the sender from before these packets
    unmatched_acks: int = 0  # ACKs of packets that it never sent, over all its time in the store
    damaged: str = ""  # a line that names a damaged file; earlier packets are left out


def senders(root: Path) -> list[str]:
    """Return the ids of the senders with stored packets, sorted."""
    return sorted(p.name.removeprefix("trace=") for p in (root / "packets").glob("trace=*"))


def next_sender(root: Path, weights: Mapping[str, float], turns: Sequence[str]) -> str:
    """Return the sender whose turn it is to teach: the live one furthest behind its share.

    No sender dominates by sending most, and its heads are judged on the slices of the others as well.

    Args:
        root: folder of the store.
        weights: relative share of each sender that may teach; empty: all have the same.
        turns: senders that taught the last rounds.

    Raises:
        FileNotFoundError: no packet of these senders is stored.
    """
    stored_ns = {}
    for name in senders(root):
        if not weights or name in weights:
            with contextlib.suppress(FileNotFoundError):  # its first packets are being written
                stored_ns[name] = (sender_dir(root, name) / MANIFEST).stat().st_mtime_ns
    if not stored_ns:
        of = f" of {', '.join(weights)} ({variable('senders')})" if weights else ""
        raise FileNotFoundError(f"no telemetry{of} under {root} yet")
    ahead_ns = time.time_ns() + LIVE_NS  # later times mean that the clock was set back
    newest_ns = max([at_ns for at_ns in stored_ns.values() if at_ns < ahead_ns] or stored_ns.values())
    live = [name for name, at_ns in stored_ns.items() if abs(at_ns - newest_ns) < LIVE_NS]
    whole = [name for name in live if len(live) == 1 or _has_manifest(root, name)] or live
    return min(whole, key=lambda name: ((turns.count(name) + 1) / weights.get(name, 1.0), name))


def _has_manifest(root: Path, sender: str) -> bool:
    """Return whether a sender's manifest can be read; the compaction puts damaged ones aside."""
    try:
        load_manifest(root, sender)
    except ValueError:
        return False
    return True


def sender_weights(text: str) -> dict[str, float]:
    """Read SWIFTQUEUE_SENDERS: NAME,NAME=WEIGHT.

    Raises:
        ValueError: a name or a weight is invalid.
    """
    weights: dict[str, float] = {}
    for one in filter(None, (part.strip() for part in text.split(","))):
        name, _, weight = one.partition("=")
        try:
            check_sender(name)
            weights[name] = float(weight or 1)
            if not 0 < weights[name] < math.inf:
                raise ValueError
        except ValueError:
            raise ValueError(
                f"{variable('senders')}={text!r}: {one!r} must be a sender, or SENDER=WEIGHT above 0"
            ) from None
    return weights


def latest_minutes(root: Path, sender: str, minutes: float, *, settled: bool = False) -> RecentPackets:
    """Return a sender's packets of the last `minutes` before its newest event.

    With `settled`, leave out the newest seconds while an earlier batch may still come: they have holes while
    replicas close their segments at different times. The batches of 8 are those that the sender decided, and
    incomplete ones are left out.

    Raises:
        FileNotFoundError: no packet of this sender is stored.
        ValueError: `minutes` is not above 0, or the manifest or the newest minute is damaged.
    """
    if not minutes > 0:
        raise ValueError(f"latest_minutes: {minutes!r} minutes: must be above 0")
    for _ in range(TRIES):
        manifest = load_manifest(root, sender)
        if (newest := manifest.newest()) is None:
            raise FileNotFoundError(
                f"no telemetry of sender {sender!r} under {root}: {', '.join(senders(root))}"
            )
        number, session = newest
        awaited = settled and any(last >= session.checked for _, last in session.gaps())
        until_ns = session.newest_ns - (OPEN_NS if awaited else 0)
        since_ns = until_ns - round(minutes * MINUTE_NS)
        try:
            packets, damaged = _read(sender_dir(root, sender), manifest, number, since_ns, until_ns)
        except FileNotFoundError:
            continue
        batch = pl.col("packet") // HORIZON
        whole = packets.filter(pl.len().over(batch) == HORIZON)
        return RecentPackets(
            whole.with_columns(packet=pl.int_range(whole.height, dtype=pl.Int64)),
            session.newest_ns,
            number,
            _missing(packets),
            session.beginning(int(whole["sent_ns"][0])) if whole.height else NOTHING,
            manifest.counts.unmatched_acks,
            damaged,
        )
    raise FileNotFoundError(f"the packets of sender {sender!r} under {root} vanished {TRIES} times")


def write_trace(latest: RecentPackets, folder: Path) -> None:
    """Write the packets for the stages as `extract` writes a trace: `folder/trace=NAME/minute=M/`.

    Raises:
        OSError: they cannot be written.
    """
    packets = latest.packets
    if packets.is_empty():
        return
    name = packets["trace"][0]
    since_start = packets.with_columns(minute=(pl.col("sent_ns") - pl.col("sent_ns").first()) // MINUTE_NS)
    for (minute,), part in since_start.partition_by("minute", as_dict=True).items():
        write_part(folder, f"trace={name}/minute={minute}/part-0.parquet", part.drop("minute"))


def gaps(root: Path) -> pl.DataFrame:
    """Return one row for each gap in a sender's session (`GAP_SCHEMA`).

    A gap is a run of batches that never came, or `events` that a forwarder held when it was killed, before
    the session's first batch; the other columns are null.
    """
    rows: list[tuple[str, int, int | None, int | None, int | None, int | None]] = []
    for sender in senders(root):
        for number, session in load_manifest(root, sender).sessions.items():
            if session.missing_before:
                rows.append((sender, number, None, None, None, session.missing_before))
            rows += [(sender, number, first, last, last - first + 1, None) for first, last in session.gaps()]
    return pl.DataFrame(rows, schema=GAP_SCHEMA, orient="row")


def _read(
    folder: Path, manifest: Manifest, session: int, since_ns: int, until_ns: int
) -> tuple[pl.DataFrame, str]:
    """Return a session's packets between two times, after any damaged file, and a line about that file."""
    tables, damaged = [pl.DataFrame(schema=PACKET_SCHEMA)], ""
    wanted = [p for p in manifest.partitions if p.session == session and p.minute >= since_ns // MINUTE_NS]
    for p in sorted(wanted, key=lambda p: p.minute, reverse=True):
        try:
            packets, acks = ([read_part(folder, name) for name in names] for names in (p.packets, p.acks))
        except ValueError as error:
            if len(tables) == 1:
                raise
            damaged = str(error)
            break
        tables.append(merged(packets, acks))
    found = (
        pl.concat(reversed(tables))
        .filter((pl.col("sent_ns") > since_ns) & (pl.col("sent_ns") <= until_ns))
        .unique("packet", keep="first", maintain_order=True)
        .sort("packet")
        .with_columns(pl.col("sent_ns").cum_max())
    )
    return found, damaged


def _missing(packets: pl.DataFrame) -> int:
    if packets.is_empty():
        return 0
    return int(packets["packet"][-1]) - int(packets["packet"][0]) + 1 - packets.height
