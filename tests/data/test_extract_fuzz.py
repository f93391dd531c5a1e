"""Mutated captures never crash, hang, show a traceback, or give a latency below zero."""

from __future__ import annotations

import random
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import mutants
import numpy as np
import pytest
from test_extract_receiver import write_transfer

from swiftqueue import feature_store
from swiftqueue.feature_store.packets import captures, pcaplib
from swiftqueue.feature_store.packets.extract import ExtractJob, extract_trace
from swiftqueue.feature_store.packets.schema import scan_packets

OWN = Path(__file__).parent / "captures"
TIMES = 10 if mutants.ALL else 1


def good_captures() -> list[bytes]:
    seeds = [p.read_bytes() for p in sorted(OWN.iterdir()) if p.suffix in (".pcap", ".pcapng", ".gz")]
    with tempfile.TemporaryDirectory() as folder:  # those hold no echo of an ACK's timestamp; this does
        receiver = Path(folder) / "receiver.pcap"
        write_transfer(receiver, 1_000_000, 1_000_000, 0, packets=60)
        return [seed for seed in seeds if len(seed) > 100] + [receiver.read_bytes()] * 4


def feed(data: bytes) -> None:
    """Push a capture through the decoder and the matcher in pieces of any length; refuse one without rows."""
    pieces = random.Random(zlib.crc32(data))
    captures.BATCH = 7  # type: ignore[misc]
    capture, traffic = pcaplib.Capture(), pcaplib.Traffic()
    ordered = captures.SegmentOrder(capture)
    batches = []
    rest, at = b"", 0
    while capture.state == pcaplib.READING:
        size = pieces.choice((1, 3, 24, 100, 5_000))
        rest += data[at : at + size]
        at += size
        last = at >= len(data)
        while True:
            consumed, n = capture.feed(np.frombuffer(rest, np.uint8), last=last, out=ordered.room())
            rest = rest[consumed:]
            batches += [batch.copy() for batch in ordered.take(n)]
            if n < captures.BATCH:
                break
        if last:
            break
    batches += [batch.copy() for batch in ordered.rest()]
    for batch in batches:
        traffic.add(batch)
    drained = 0
    if (sender := traffic.heaviest()) is not None:
        at_receiver = pcaplib.SenderView(sender, tick_ns=pieces.choice((1_000, 1_000_000, 2**40)))
        for source, view in zip(pcaplib.LATENCIES, (None, None, at_receiver), strict=True):
            matcher = pcaplib.Matcher(sender, source, view, sharp_ns=20_000_000, sharp_share=0.2)
            rows = pcaplib.Rows(100_000)
            for batch in batches:
                matcher.push(batch)
                matcher.drain(rows)
            matcher.finish()
            matcher.drain(rows)
            latency = rows.columns["latency_us"][: rows.used]
            sent, acked = rows.columns["sent_ns"][: rows.used], rows.columns["acked_ns"][: rows.used]
            assert not (latency < 0).any()
            assert ((acked == -1) | (acked >= sent)).all()
            assert (np.diff(sent) >= 0).all()
            assert matcher.stats().known == np.isfinite(latency).sum() == matcher.latency_buckets().sum()
            drained += rows.used
    if not drained:
        raise ValueError("no rows")


def feed_sanitized(data: bytes) -> None:
    """Run `feed` through the build that stops at the first bad address or undefined operation."""
    pcaplib.LIBRARY = feature_store.FOLDER / "_build" / "libpcapdecode-asan.so"  # type: ignore[misc]
    feed(data)


def tables_of(latency: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "mutant.pcap"
        capture.write_bytes(data)
        try:
            summary = extract_trace(ExtractJob(capture, "mutant", latency=latency), Path(folder))
        except (ValueError, OSError) as error:
            if str(capture) not in str(error) or "\n" in str(error):
                raise AssertionError(f"not one clear line: {error}") from error
            raise
        least = summary["latency_ms"]["min"]
        assert least is None or least >= 0
        if zlib.crc32(data) % 50 == 0:
            table = scan_packets(Path(folder), "mutant").collect()
            assert len(table) == summary["data_packets"]
            assert table["latency_us"].count() == summary["latency_known"]


def acks(data: bytes) -> None:
    tables_of("acks", data)


def timestamps(data: bytes) -> None:
    tables_of("timestamps", data)


# So many must get as far as rows that this tests more than refusals. With ACKs half do; by timestamps only
# those of the one seed that was made at a receiver.
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("reader", "count", "least"), [(feed, 500, 4), (acks, 1_000, 3), (timestamps, 1_000, 25)]
)
def test_mutants_become_tables_or_one_clear_line(
    reader: Callable[[bytes], None], count: int, least: int
) -> None:
    taken, refused = mutants.survive(f"{__name__}:{reader.__name__}", good_captures(), count * TIMES)
    assert taken > count * TIMES / least
    assert refused
