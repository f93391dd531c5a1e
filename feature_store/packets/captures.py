"""Capture files as a stream of TCP segments: plain or gzip, decoded in bounded pieces."""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from feature_store.packets import pcaplib

PIECE_BYTES: Final = 4 << 20  # of the file, read at once
BATCH: Final = 1 << 16  # segments decoded at once: 6 MB
GZIP_MAGIC: Final = b"\x1f\x8b"
SUFFIXES: Final = (".gz", ".pcap", ".pcapng", ".cap", ".dmp", ".ntar")


def trace_name(path: Path) -> str:
    """Name a trace after its file, without the suffixes of captures: `a.b.pcap.gz` is `a.b`."""
    name = path.name
    while (suffix := Path(name).suffix.lower()) in SUFFIXES:
        name = name[: -len(suffix)]
    return name


def say(line: str) -> None:
    """Print a line for people: on standard error, because standard output may be JSON."""
    print(line, file=sys.stderr)


class CaptureFile:
    """A capture being read. Iterating gives arrays of `pcaplib.SEGMENT` in the capture's order.

    An array is valid until the next one is asked for. `records` and `skipped` are complete once the
    iteration has ended.

    Raises (while iterating):
        ValueError: the file is empty or is not a capture.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, progress: Callable[[int], None] = lambda _: None) -> None:
        self.path = path
        self.records = 0
        self.skipped: Counter[str] = Counter()
        self.notes: list[str] = []
        self._progress = progress

    def __iter__(self) -> Iterator[npt.NDArray[np.void]]:
        from feature_store.packets.rare import RareDecoder

        capture = pcaplib.Capture()
        rare = RareDecoder()
        out = np.empty(BATCH, pcaplib.SEGMENT)
        rest = np.empty(0, np.uint8)
        for piece in self._pieces():
            data = np.frombuffer(piece, np.uint8)
            if len(rest):
                data = np.concatenate([rest, data])
            while capture.state == pcaplib.READING:
                consumed, n = capture.feed(data, last=not piece, out=out)
                if n:
                    rare.decode(data, out[:n])
                    yield out[:n]
                data = data[consumed:]
                if n < BATCH:
                    break
            if capture.state != pcaplib.READING:
                break
            rest = data
        if capture.state == pcaplib.NOT_A_CAPTURE:
            raise ValueError(f"{self.path}: not a capture (pcap or pcapng, plain or gzip)")
        self.records, skipped = capture.counts()
        self.skipped = Counter(skipped) + rare.skipped
        self.notes += rare.notes()
        for reason, done in (("truncated", "ends within"), ("absurd length", "is broken at")):
            if skipped.get(reason):
                self.notes.append(f"the capture {done} record {self.records:,}; those before it were kept")

    def _pieces(self) -> Iterator[bytes]:
        """Give the capture's bytes piece by piece, then an empty piece."""
        with self.path.open("rb") as file:
            head = file.read(PIECE_BYTES)
            if not head:
                raise ValueError(f"{self.path}: empty file")
            compressed = head.startswith(GZIP_MAGIC)
            unpack = zlib.decompressobj(wbits=31)
            while head:
                self._progress(len(head))
                if not compressed:
                    yield head
                    head = file.read(PIECE_BYTES)
                    continue
                try:
                    while head:
                        if piece := unpack.decompress(head, PIECE_BYTES):
                            yield piece
                        head = unpack.unconsumed_tail
                        if unpack.eof:
                            head = unpack.unused_data.lstrip(b"\0")  # padding between members is legal
                            unpack = zlib.decompressobj(wbits=31)
                except zlib.error as error:
                    self.notes.append(f"the gzip data is broken ({error}); the records before that were kept")
                    break
                head = file.read(PIECE_BYTES)
        yield b""
