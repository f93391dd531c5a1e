"""Whatever bytes come to the ingest or lie in its store are read or refused: no crash, no standstill."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import zlib
from dataclasses import asdict
from pathlib import Path

import event_rows
import mutants
import pytest

from swiftqueue.feature_store.telemetry.compact import Compactor
from swiftqueue.feature_store.telemetry.events import (
    ACK,
    HEADER,
    SEND,
    BatchKey,
    RefusedError,
    checked,
    encode,
    sealed,
)
from swiftqueue.feature_store.telemetry.log import (
    FRAME,
    MAGIC,
    MAX_BATCH_BYTES,
    SegmentWriter,
    adopt_segments,
    read_frames,
)
from swiftqueue.feature_store.telemetry.manifest import Manifest, load_manifest, read_manifest, sender_dir
from swiftqueue.feature_store.telemetry.sessions import read_asked
from swiftqueue.serving.ingest.senders import hashed, may_speak

SENT = {"kind": SEND, "time_ns": 10**18, "packet": 0, "size_bytes": 1500, "flow_id": 1, "queue": 1}
ACKED = {"kind": ACK, "time_ns": 10**18 + 10**6, "packet": 0, "latency_us": 1000.0}
ROWS = [SENT, ACKED, {**SENT, "time_ns": 10**18 + 10**6, "packet": 1}, {**ACKED, "latency_us": None}]
BATCHES = [encode(BatchKey("a", 1, n), event_rows.batch(ROWS[:length])) for n, length in enumerate((1, 2, 4))]
FOLDER = Path(tempfile.gettempdir())


def with_checksum(body: bytes) -> None:
    """As `checked`, of a stranger who knows how the checksum is made."""
    checked(sealed(body) if len(body) >= HEADER.itemsize else body)


def segment(content: bytes) -> None:
    """Read a segment's bytes as the compaction does, and what is in it."""
    for body in read_frames(io.BytesIO(content)):
        with contextlib.suppress(RefusedError):  # a damaged one ends nothing
            checked(body or b"")


def segment_with_checksums(content: bytes) -> None:
    """As `segment`, with the checksum of each frame put right."""
    fixed, at = bytearray(content), 0
    while at + FRAME.size <= len(fixed):
        _, size, _ = FRAME.unpack_from(fixed, at)
        body = bytes(fixed[at + FRAME.size : at + FRAME.size + min(size, MAX_BATCH_BYTES)])
        body = sealed(body) if len(body) >= HEADER.itemsize else body
        fixed[at : at + FRAME.size + len(body)] = FRAME.pack(MAGIC, size, zlib.crc32(body)) + body
        at += FRAME.size + max(len(body), 1)
    segment(bytes(fixed))


def whole_compaction(content: bytes) -> None:
    """Take a segment in, whatever its batch says: a refused one is kept aside, the store can be read."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        root = Path(temporary)
        writer = SegmentWriter(root)
        writer.append([sealed(content) if len(content) >= HEADER.itemsize else content])
        writer.close()
        compactor = Compactor(root, gap_s=0)
        compactor.run()
        compactor.close()
        assert not adopt_segments(root)
        for folder in (root / "packets").iterdir():
            load_manifest(root, folder.name.removeprefix("trace="))


def authorization(header: bytes) -> None:
    """Ask with a header as Starlette gives it; only the right one is taken."""
    text = header.decode("latin-1")
    allowed = may_speak(FOLDER, hashed("0123456789abcdef"), "nobody-has-this-name", text)
    assert allowed == (text == "Bearer 0123456789abcdef")


def frames(*bodies: bytes) -> bytes:
    return b"".join(FRAME.pack(MAGIC, len(b), zlib.crc32(b)) + b for b in bodies)


def a_manifest() -> bytes:
    """One that the compaction wrote."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        writer = SegmentWriter(root)
        writer.append(BATCHES[:1] + BATCHES[2:])
        writer.close()
        Compactor(root).run()
        return (sender_dir(root, "a") / "manifest.json").read_bytes()


@pytest.mark.slow
def test_damaged_batches() -> None:
    taken, refused = mutants.survive("test_telemetry_fuzz:checked", BATCHES, mutants.COUNT // 4)
    assert refused > taken
    taken, refused = mutants.survive("test_telemetry_fuzz:with_checksum", BATCHES)
    assert min(taken, refused) > mutants.COUNT // 100  # it comes behind the checksum


@pytest.mark.long
@pytest.mark.slow
def test_damaged_segments() -> None:
    mutants.survive("test_telemetry_fuzz:segment", [frames(*BATCHES)], mutants.COUNT // 4)
    mutants.survive("test_telemetry_fuzz:segment_with_checksums", [frames(*BATCHES), frames(BATCHES[0])])


@pytest.mark.slow
def test_batches_that_pass_are_compacted_whatever_they_say() -> None:
    """Far fewer: each writes a store. The events' own values are what is left to do harm."""
    mutants.survive("test_telemetry_fuzz:whole_compaction", BATCHES, mutants.COUNT // 200)


@pytest.mark.slow
def test_damaged_manifests() -> None:
    empty = json.dumps(asdict(Manifest("a"))).encode()
    taken, refused = mutants.survive("test_telemetry_fuzz:read_manifest", [a_manifest(), empty])
    assert min(taken, refused) > 0


@pytest.mark.slow
def test_damaged_requests() -> None:
    good = [b'{"events_before": 17}', b"{}", b'{"events_before": 0}', b"[" * 1000]
    mutants.survive("test_telemetry_fuzz:read_asked", good)
    mutants.survive("test_telemetry_fuzz:authorization", [b"Bearer 0123456789abcdef"], mutants.COUNT // 10)


def test_the_numbers_of_a_frame_are_bounded() -> None:
    """A frame that says 4 GiB is damage, not an allocation."""
    assert list(read_frames(io.BytesIO(FRAME.pack(MAGIC, 2**32 - 1, 0) + b"x" * 100))) == [None]


__all__ = ["read_asked", "read_manifest"]  # by name, for the child process
