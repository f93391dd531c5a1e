"""Read capture files, plain or gzip, as a stream of TCP segments, in pieces of bounded size."""

from __future__ import annotations

import stat
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from swiftqueue.feature_store.packets import pcaplib

PIECE_BYTES: Final = 4 << 20  # bytes of the file read at once
BATCH: Final = 1 << 16  # segments decoded at once: 8 MB
GZIP_MAGIC: Final = b"\x1f\x8b"
# First bytes and names of other formats. Wireshark's wiretap reads the captures among them, and its editcap
# turns each into pcap.
_CONVERT: Final = "turn it into pcap with `editcap -F pcap FILE NEW.pcap`"
_UNPACK: Final = "unpack it first"
OTHER_FORMATS: Final = {
    **dict.fromkeys((b"\xa1\xb2\xcd\x34", b"\x34\xcd\xb2\xa1"), ("pcap as modified by Kuznetzov", _CONVERT)),
    **dict.fromkeys((b"\xa1\xb2\x34\xcd", b"\xcd\x34\xb2\xa1"), ("pcap as modified by IXIA", _CONVERT)),
    **dict.fromkeys((b"\x1c\x00\x01\xac", b"\xac\x01\x00\x1c"), ("an IXIA capture of hardware", _CONVERT)),
    **dict.fromkeys((b"\x1c\x00\x01\xab", b"\xab\x01\x00\x1c"), ("an IXIA capture of software", _CONVERT)),
    **dict.fromkeys((b"\xa1\xe2\xcb\x12", b"\x12\xcb\xe2\xa1"), ("pcap as modified by Navtel", _CONVERT)),
    b"snoop\0\0\0": ("a capture of Solaris' snoop", _CONVERT),
    b"btsnoop\0": ("a Bluetooth capture (btsnoop), which has no IP packets", "capture a network interface"),
    b"iptrace ": ("a capture of AIX's iptrace", _CONVERT),
    b"GMBU": ("a capture of Microsoft's Network Monitor", _CONVERT),
    b"RTSS": ("a capture of Microsoft's Network Monitor 1", _CONVERT),
    b"TRSNIFF data": ("a capture of Network General's Sniffer", _CONVERT),
    b"XCP\0": ("a capture of NetXRay", _CONVERT),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", _UNPACK),
    b"\x04\x22\x4d\x18": ("compressed by LZ4", _UNPACK),
    b"\xfd7zXZ\0": ("compressed by xz", _UNPACK),
    b"BZh": ("compressed by bzip2", _UNPACK),
    b"PK\x03\x04": ("a ZIP archive", _UNPACK),
}
SUFFIXES: Final = (".gz", ".pcap", ".pcapng", ".cap", ".dmp", ".ntar")


def trace_name(path: Path) -> str:
    """Return a trace's name from its file, without the suffixes of captures: `a.b.pcap.gz` is `a.b`."""
    name = path.name
    while (suffix := Path(name).suffix.lower()) in SUFFIXES:
        name = name[: -len(suffix)]
    return name


def check_capture(path: Path) -> None:
    """Refuse a file that cannot be read as a capture, before anything waits for it.

    Raises:
        ValueError: it is missing, or is not a file that can be read twice.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    if stat.S_ISDIR(mode):
        raise ValueError(f"{path}: a folder; name the captures in it")
    if stat.S_ISFIFO(mode):
        raise ValueError(
            f"{path}: a pipe, and a capture may have to be read twice: write it into a file first "
            "(`cat > capture.pcap`)"
        )
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path}: a device or socket; give a file")


def print_note(line: str) -> None:
    """Print a line on standard error, because standard output may be JSON."""
    print(line, file=sys.stderr)


class CaptureFile:
    """A reader of a capture that yields arrays of `pcaplib.SEGMENT` in the order of their stamps.

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
        self._head = b""

    def __iter__(self) -> Iterator[npt.NDArray[np.void]]:
        from swiftqueue.feature_store.packets.rare import RareDecoder

        capture = pcaplib.Capture()
        rare = RareDecoder()
        ordered = SegmentOrder(capture)
        rest = np.empty(0, np.uint8)
        for piece in self._pieces():
            self._head = self._head or piece[:16]
            data = np.frombuffer(piece, np.uint8)
            if len(rest):
                data = np.concatenate([rest, data])
            while capture.state == pcaplib.READING:
                out = ordered.room()
                consumed, n = capture.feed(data, last=not piece, out=out)
                if n:
                    rare.decode(data, out[:n])
                    yield from ordered.take(n)
                data = data[consumed:]
                if n < BATCH:
                    break
            if capture.state != pcaplib.READING:
                break
            rest = data
        if capture.state == pcaplib.NOT_A_CAPTURE:
            raise ValueError(f"{self.path}: {self._what_it_is()}")
        yield from ordered.rest()
        self.records, skipped = capture.counts()
        self.skipped = Counter(skipped) + rare.skipped
        self.notes += rare.notes()
        for reason, done in (("truncated", "ends within"), ("absurd length", "is broken at")):
            if skipped.get(reason):
                self.notes.append(f"the capture {done} record {self.records:,}; those before it were kept")

    def _what_it_is(self) -> str:
        """Return the format that a file seems to have that is no capture, and what to do."""
        for magic, (name, remedy) in OTHER_FORMATS.items():
            if self._head.startswith(magic):
                do = remedy.replace("FILE", str(self.path))
                return f"not a capture that is read here, but {name}: {do}"
        return "not a capture (pcap or pcapng, plain or gzip)"

    def _pieces(self) -> Iterator[bytes]:
        """Yield the capture's bytes piece by piece, then an empty piece."""
        check_capture(self.path)
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


class SegmentOrder:
    """A buffer of decoded segments that gives them on once no earlier one can still come."""

    def __init__(self, capture: pcaplib.Capture) -> None:
        self._capture = capture
        self._order = pcaplib.StampOrder()
        self._buffer = np.empty(2 * BATCH, pcaplib.SEGMENT)
        self._start = self._end = 0  # bounds of the held segments

    def room(self) -> npt.NDArray[np.void]:
        """Return the part of the buffer that the next batch is decoded into."""
        held = self._buffer[self._start : self._end]
        if len(self._buffer) < len(held) + BATCH:
            self._buffer = np.empty(2 * len(held) + BATCH, pcaplib.SEGMENT)
        self._buffer[: len(held)] = held
        self._start, self._end = 0, len(held)
        return self._buffer[self._end : self._end + BATCH]

    def take(self, n: int, *, last: bool = False) -> Iterator[npt.NDArray[np.void]]:
        """Take `n` segments that were written into `room`, and yield those that are ready."""
        end = self._end + n
        while True:
            waiting = self._buffer[self._start : end]
            held = self._end - self._start
            fresh, ready = self._order.take(waiting, held, self._capture, last=last)
            self._start, self._end = self._start + ready, self._end + fresh
            if ready:
                yield waiting[:ready]
            if self._end == end:
                return

    def rest(self) -> Iterator[npt.NDArray[np.void]]:
        """Yield the remaining segments at the capture's end."""
        return self.take(0, last=True)
