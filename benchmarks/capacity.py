"""Compute what 10, 1,000 and 1,000,000 senders need, from measured costs: cores by part, disk, heads.

Measured here: the compaction of a second's telemetry, the choice of whose turn it is, and bytes on the disk,
with up to LOADED senders in one store. The other costs are those that are published
(docs/results/bench.json). A sender is the default trace's: 16 Mbit/s. Costs are CPU seconds, so other work on
the machine changes them little.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import published
from benchmarks.rows import Row
from common.settings import Settings, variable

SENDERS: Final = (10, 1_000, 1_000_000)
LOADED: Final = (10, 30, 100)  # numbers of senders in one store of this machine
BATCHES_S: Final = 145  # decisions of 8 packets: 17,669 windows in 12 slices of 10 s (docs/results/gate.md)
EVENTS_S: Final = 2 * 8 * BATCHES_S  # one SEND and one ACK for each packet
POSTS_S: Final = 4  # the forwarder posts a batch each 0.25 s
POST_CORE_S: Final = 0.009  # one request to Ray Serve with any body up to 60 kB (docs/results/ingest.md)
KEPT_S: Final = 7_200  # seconds of telemetry kept with the default SWIFTQUEUE_INGEST_* settings
EVERY_S: Final = 300  # seconds from one round to the next
PASSES: Final = 3  # compactions per store; the first makes the folders and is not counted
BEHIND_S: Final = 10  # seconds of telemetry that a late compaction finds
MACHINE_CORES: Final = 2


@dataclass(frozen=True)
class StoreCost:
    """The costs of a store of `senders` senders, per second."""

    senders: int
    compaction_core_s: float
    turn_core_s: float
    bytes_per_event: float


def measure(rounds: int) -> list[Row]:
    """Load stores with telemetry, then multiply.

    Raises:
        ValueError: bench.json is not here, or lacks a figure.
    """
    stores = []
    for senders in LOADED:
        tried = [_load(senders) for _ in range(rounds)]
        stores.append(
            StoreCost(
                senders,
                statistics.median(one.compaction_core_s for one in tried),
                statistics.median(one.turn_core_s for one in tried),
                statistics.median(one.bytes_per_event for one in tried),
            )
        )
    behind_s = statistics.median(_load(LOADED[-1], BEHIND_S).compaction_core_s for _ in range(rounds))
    return [*_measured(stores, behind_s, rounds), *_computed(stores, behind_s, rounds)]


def _load(senders: int, pass_s: int = 1) -> StoreCost:
    """Return the costs of a store of `senders` senders, compacted each `pass_s` seconds of their time."""
    from feature_store.telemetry.compact import Compactor
    from feature_store.telemetry.log import SegmentWriter
    from feature_store.telemetry.recent import next_sender

    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        sources = [_second_by_second(number) for number in range(senders)]
        log, compactor = SegmentWriter(root), Compactor(root)
        spent_s = []
        for _ in range(PASSES):
            for source in sources:
                for _ in range(pass_s):
                    log.append(next(source))
            log.close()
            begin_s = time.process_time()
            compactor.run()
            spent_s.append(time.process_time() - begin_s)
        compactor.close()
        begin_s = time.process_time()
        next_sender(root, {}, [])
        turn_s = time.process_time() - begin_s
        stored = sum(file.stat().st_size for file in root.rglob("*.parquet"))
        return StoreCost(
            senders, statistics.mean(spent_s[1:]), turn_s, stored / (senders * EVENTS_S * PASSES * pass_s)
        )


def _second_by_second(number: int) -> Iterator[list[bytes]]:
    """Yield a sender's batches; those of one second come together."""
    import numpy as np

    from feature_store.telemetry.events import BatchKey, encode, event_batch

    packets = EVENTS_S // 2 // POSTS_S
    rng, sequence = np.random.default_rng(number), 0
    start_ns = 1_700_000_040_000_000_000
    gap_ns = 10**9 // (packets * POSTS_S)
    kind = np.tile(np.array([0, 1], np.uint8), packets)
    while True:
        bodies = []
        for _ in range(POSTS_S):
            packet = np.repeat(np.arange(packets, dtype=np.int64) + sequence * packets, 2)
            time_ns = start_ns + packet * gap_ns
            packet[1::2] = np.maximum(packet[1::2] - 24, 0)  # 20 ms in flight
            sent: dict[str, np.ndarray[Any, Any]] = {
                "size_bytes": np.full(2 * packets, 1500, np.int32),
                "flow_id": (packet % 8).astype(np.int32),
                "receiver_id": np.zeros(2 * packets, np.int32),
                "queue": (packet % 2).astype(np.uint8),
                "ecn": 2 - (packet % 2).astype(np.uint8),  # ECT(1) to the L4S queue, ECT(0) to the other
                "retransmitted": np.zeros(2 * packets, np.uint8),
            }
            latency_us = (20_000 + 5_000 * rng.random(2 * packets)).astype(np.float32)
            key = BatchKey(f"sender-{number}", 1, sequence)
            bodies.append(encode(key, event_batch(kind, time_ns, packet, sent, latency_us)))
            sequence += 1
        yield bodies


def _measured(stores: list[StoreCost], behind_s: float, rounds: int) -> Iterator[Row]:
    for one in stores:
        name = f"compaction of a second's telemetry of {one.senders:,} senders"
        yield _row(name, one.compaction_core_s, 1.0, "the one process that it has", "s", rounds)
    late = f"compaction of {BEHIND_S} s of {LOADED[-1]} senders at once"
    yield _row(late, behind_s, BEHIND_S, "the one process that it has", "s", rounds)
    largest = stores[-1]
    turn = f"choosing whose turn it is among {largest.senders:,} senders"
    yield _row(turn, largest.turn_core_s, EVERY_S, "a round's five minutes", "s", rounds)


def _computed(stores: list[StoreCost], behind_s: float, rounds: int) -> Iterator[Row]:
    costs = published.load(published.FILE)
    through_triton = _found(costs, "linerate", "packets decided in a second, local").reference
    triton = MACHINE_CORES * 8 * BATCHES_S / through_triton
    largest = stores[-1]
    compaction = largest.compaction_core_s / largest.senders
    late = behind_s / BEHIND_S / largest.senders
    disk_gb = largest.bytes_per_event * EVENTS_S * KEPT_S / 1e9
    kept_gb = Settings.model_fields["ingest_mb"].default * 2**20 / 1e9
    round_s = _round_s(costs)
    here = f"this machine's {MACHINE_CORES}"
    for senders in SENDERS:
        who = f"{senders:,} senders"
        for what, each, most, beside, unit in (
            ("Triton", triton, MACHINE_CORES, here, "cores"),
            ("ingest replicas", POSTS_S * POST_CORE_S, MACHINE_CORES, here, "cores"),
            ("compaction each second", compaction, 1, "one process has a store", "cores"),
            (f"compaction each {BEHIND_S} s", late, 1, "one process has a store", "cores"),
            ("two hours of telemetry", disk_gb, kept_gb, f"{variable('ingest_mb')}, its default", "GB"),
            ("schedulers, a head each", round_s / EVERY_S, 1, "one head for all", "machines"),
        ):
            yield _row(f"{who}: {what}", senders * each, most, beside, unit, rounds)


def _round_s(costs: dict[str, published.Published]) -> float:
    """Return the seconds of a round on a minute of such a sender; encoding and training grow with packets."""
    share = 60 * 8 * BATCHES_S / 620_000
    total = _found(costs, "live", "trigger to the first answer").ours
    grows = _found(costs, "live", "step encode").ours + _found(costs, "live", "step train").ours
    return total - grows + share * grows


def _found(costs: dict[str, published.Published], bench: str, name: str) -> Row:
    for row in costs[bench].rows if bench in costs else []:
        if row.name.startswith(name):
            return row
    raise ValueError(f"{published.FILE} has no figure {name!r} of bench {bench}")


def _row(name: str, ours: float, reference: float, beside: str, unit: str, rounds: int) -> Row:
    return Row(name, ours, reference, beside, reference / ours, unit, rounds)
