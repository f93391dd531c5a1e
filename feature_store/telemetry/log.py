"""Write and read the write-ahead log of telemetry, which holds acknowledged batches until their compaction.

A segment is a file of frames, each one batch as it was sent. Each writer has segments of its own, so several
may write at once. A segment is `NAME.open` while its writer holds a lock on it, `NAME.wal` when it is whole.
The lock ends with its process: an open segment that can be locked belonged to a writer that was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from swiftqueue.common.atomic import sync_dir
from swiftqueue.feature_store.telemetry.events import is_other_format

FRAME: Final = struct.Struct("<4sII")  # magic, bytes of the batch, CRC-32 of the batch
MAGIC: Final = b"SQT2"
OLDER: Final = b"SQT1"  # magic of older logs, whose batches were Arrow streams
MAX_BATCH_BYTES: Final = 4 << 20  # a larger size is damage
SEGMENT_BYTES: Final = 32 << 20
SEGMENT_S: Final = 1.0  # age at which an open segment is closed and can be compacted
OPEN: Final = ".open"
CLOSED: Final = ".wal"


def log_dir(root: Path) -> Path:
    """Return the folder of the segments of a telemetry store."""
    return root / "log"


class SegmentWriter:
    """A durable writer of batches to segments of its own, for one thread."""

    def __init__(self, root: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = log_dir(root)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writer = f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}"
        self._segment_bytes = segment_bytes
        self._number = 0
        self._file: int | None = None
        self._path = Path()
        self._durable = 0  # acknowledged bytes of the open segment
        self._opened_s = 0.0

    def append(self, batches: Sequence[bytes]) -> None:
        """Append all batches; when it returns, they survive a crash.

        Raises:
            OSError: none of them counts as stored (disk full, no permission); earlier ones are safe.
        """
        frames = b"".join(part for b in batches for part in (FRAME.pack(MAGIC, len(b), zlib.crc32(b)), b))
        if self._file is None:
            self._open()
        assert self._file is not None  # noqa: S101 - `_open` sets it or raises
        try:
            view = memoryview(frames)
            while view:
                view = view[os.write(self._file, view) :]
            os.fdatasync(self._file)
        except OSError:
            self._take_back()
            raise
        self._durable += len(frames)
        self.close_if_due()

    def close_if_due(self) -> None:
        """Close the open segment if it is large or old enough, so that it can be compacted."""
        large = self._durable >= self._segment_bytes
        if large or time.monotonic() - self._opened_s >= SEGMENT_S:
            self.close()

    def close(self) -> None:
        """Close the open segment, if any; the next append begins another."""
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            self._path.rename(self._path.with_suffix(CLOSED))
        finally:
            os.close(file)

    def _open(self) -> None:
        """Make the next segment and lock it; a compactor that locks it first takes it."""
        while True:
            self._number += 1
            path = self._folder / f"{self._writer}-{self._number:06d}{OPEN}"
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                ours = path.exists()
            except BlockingIOError:
                ours = False
            if not ours:
                os.close(file)
                continue
            try:
                sync_dir(self._folder)  # otherwise a power cut leaves data without a name
            except OSError:
                os.close(file)
                raise
            self._file, self._path, self._durable, self._opened_s = file, path, 0, time.monotonic()
            return

    def _take_back(self) -> None:
        """Cut off the remains of a failed append; if that fails, the segment ends here, torn."""
        assert self._file is not None  # noqa: S101 - called by `append` alone
        try:
            os.ftruncate(self._file, self._durable)
        except OSError:
            with contextlib.suppress(OSError):
                self.close()


def adopt_segments(root: Path) -> list[Path]:
    """Close the segments of writers that have ended; return all closed ones, oldest first."""
    folder = log_dir(root)
    for path in folder.glob(f"*{OPEN}"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            file = os.open(path, os.O_RDWR)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.rename(path.with_suffix(CLOSED))
            finally:
                os.close(file)
    return sorted(folder.glob(f"*{CLOSED}"))


def check_format(root: Path) -> None:
    """Refuse a log with segments or events of another version of this program.

    Raises:
        ValueError: the log has such segments; the message says what to do.
    """
    older = []
    for path in adopt_segments(root):
        with path.open("rb") as file:
            if file.read(len(OLDER)) == OLDER:
                older.append(path)
                continue
        if is_other_format(next(read_segment(path), None) or b""):
            older.append(path)
    if older:
        raise ValueError(
            f"{log_dir(root)}: {len(older)} segment(s) as {older[0].name} are of an older format "
            "that this version does not read: let the one that wrote them compact them, or rm them"
        )


def read_segment(path: Path) -> Iterator[bytes | None]:
    """Yield a segment's batches in the order of appending, then None if its end is torn.

    A tear is the rest of an append that a killed writer never acknowledged, or damage by the disk.
    """
    with path.open("rb") as file:
        yield from read_frames(file)


def read_frames(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield the batches of an open file, as `read_segment` does."""
    while header := file.read(FRAME.size):
        if len(header) == FRAME.size:
            magic, size, crc = FRAME.unpack(header)
            is_ours = magic == MAGIC and size <= MAX_BATCH_BYTES
            if is_ours and len(body := file.read(size)) == size and zlib.crc32(body) == crc:
                yield body
                continue
        yield None
        return
