"""Captures that odd hosts, cards and tools write are read as far as possible, and the rest is said.

Each is a transfer of a few packets whose ACKs come after 20 ms, so every latency is known in advance.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from captures.make_captures import START_NS, block, pcap, pcapng

from swiftqueue.feature_store.packets import captures
from swiftqueue.feature_store.packets.captures import CaptureFile
from swiftqueue.feature_store.packets.extract import ExtractJob, extract_trace
from swiftqueue.feature_store.packets.extract_many import run_extract
from swiftqueue.feature_store.packets.schema import scan_packets

MS = 1_000_000
SIZE = 1_000  # payload of a packet
SENDER, RECEIVER = (192, 0, 2, 1), (198, 51, 100, 1)
ETHERNET, RAW, SLL, SLL2, LOOP, RADIOTAP = 1, 101, 113, 276, 108, 127
SYN, ACK = 2, 16
MACS = bytes.fromhex("020000000002020000000001")

Record = tuple[int, bytes]  # time in ns, a frame


def ns(ms: float) -> int:
    return START_NS + round(ms * MS)


def packet(
    out: bool,
    seq: int,
    ack: int,
    payload: int,
    *,
    ip_id: int = 0,
    flags: int = ACK,
    options: bytes = b"",
    ports: tuple[int, int] = (40_000, 443),
    length: int | None = None,
) -> bytes:
    """Return an IPv4 packet from or to the sender; `length` replaces the true one in its header."""
    source, destination = (SENDER, RECEIVER) if out else (RECEIVER, SENDER)
    ends = ports if out else ports[::-1]
    size = 40 + len(options) + payload if length is None else length
    ip = struct.pack(">BBHHHBBH", 0x45, 0, size, ip_id, 0, 64, 6, 0) + bytes(source) + bytes(destination)
    tcp = struct.pack(">HHIIBBHHH", *ends, seq % 2**32, ack, (20 + len(options)) << 2, flags, 65_535, 0, 0)
    return ip + tcp + options + b"x" * payload


def packet6(out: bool, seq: int, ack: int, payload: int) -> bytes:
    """Return the same over IPv6, which has no IP id."""
    four = packet(out, seq, ack, payload)
    ends = [b"\x20\x01\x0d\xb8" + bytes(11) + bytes([end]) for end in ((1, 2) if out else (2, 1))]
    return struct.pack(">IHBB", 6 << 28, len(four) - 20, 6, 64) + ends[0] + ends[1] + four[20:]


def data(seq: int, payload: int = SIZE, **rest: Any) -> bytes:
    return packet(True, seq, 9_001, payload, **rest)


def ack(number: int, **rest: Any) -> bytes:
    return packet(False, 9_001, number, 0, **rest)


def ethernet(ip: bytes, *tags: int, kind: int = 0x0800) -> bytes:
    return MACS + b"".join(struct.pack(">HH", 0x8100, tag) for tag in tags) + kind.to_bytes(2, "big") + ip


def sll(ip: bytes, direction: int = 4) -> bytes:
    return struct.pack(">HHH8xH", direction, 1, 6, 0x0800) + ip


def sll2(ip: bytes, interface: int, direction: int = 4) -> bytes:
    return struct.pack(">HHIHBB8x", 0x0800, 0, interface, 1, direction, 6) + ip


class Extraction:
    """The summary, the table and the lines of an extraction."""

    def __init__(self, capture: bytes, folder: Path, said: Callable[[], str], **options: Any) -> None:
        path = folder / "odd.pcap"
        path.write_bytes(capture)
        self.summary = extract_trace(ExtractJob(path, "odd", **options), folder / "out")
        self.said = said()
        self.table = scan_packets(folder / "out", "odd").collect()

    @property
    def latencies_ms(self) -> list[float | None]:
        return (self.table["latency_us"] / 1000).round(3).to_list()

    @property
    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of packets with data, of known latencies, and of retransmitted packets."""
        names = ("data_packets", "latency_known", "retransmitted")
        return tuple(self.summary[name] for name in names)  # type: ignore[return-value]


@pytest.fixture
def extracted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Extraction]:
    def extract(capture: bytes, **options: Any) -> Extraction:
        return Extraction(capture, tmp_path, lambda: capsys.readouterr().err, **options)

    return extract


Extract = Callable[..., Extraction]


def transfer(
    link: Callable[[bytes, int], list[tuple[float, bytes]]], six: bool = False, packets: int = 2
) -> list[Record]:
    """Return packets, each acknowledged after 20 ms; `link` gives the frames (ms later) of each."""
    make = packet6 if six else packet
    number: dict[str, Any] = {}
    records: list[Record] = []
    for turn in range(packets):
        for later, out, ip_id in ((0, True, 7 + turn), (20, False, 70 + turn)):
            if not six:
                number = {"ip_id": ip_id}
            seq, acked = (1 + turn * SIZE, 9_001) if out else (9_001, 1 + (turn + 1) * SIZE)
            ip = make(out, seq, acked, SIZE if out else 0, **number)
            records += [(ns(30 * turn + later + more), frame) for more, frame in link(ip, turn)]
    return records


TWICE = {  # each packet of a transfer of two, recorded twice
    "span port": (ETHERNET, False, lambda ip, _: [(0, ethernet(ip)), (0.001, ethernet(ip))]),
    "span port, equal stamps": (ETHERNET, False, lambda ip, _: [(0, ethernet(ip)), (0, ethernet(ip))]),
    "bridge, 3 ms later": (ETHERNET, False, lambda ip, _: [(0, ethernet(ip)), (3, ethernet(ip))]),
    "IPv6 without numbers": (
        ETHERNET,
        True,
        lambda ip, _: [(0, ethernet(ip, kind=0x86DD)), (0.001, ethernet(ip, kind=0x86DD))],
    ),
    "cooked": (SLL, False, lambda ip, _: [(0, sll(ip)), (0.01, sll(ip))]),
    "any, two interfaces": (SLL2, False, lambda ip, _: [(0, sll2(ip, 5)), (0.01, sll2(ip, 2))]),
    "any of loopback": (SLL, False, lambda ip, _: [(0, sll(ip, 4)), (0.002, sll(ip, 0))]),
    "two VLANs": (ETHERNET, False, lambda ip, _: [(0, ethernet(ip, 5)), (0.2, ethernet(ip, 6))]),
    "with and without a tag": (ETHERNET, False, lambda ip, _: [(0, ethernet(ip)), (0.2, ethernet(ip, 6))]),
    "raw IP": (RAW, False, lambda ip, _: [(0, ip), (0.001, ip)]),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_packet_seen_twice_is_one(name: str, extracted: Extract) -> None:
    link_type, six, link = TWICE[name]
    got = extracted(pcap(sorted(transfer(link, six), key=lambda record: record[0]), link_type))
    assert got.latencies_ms == [20, 20]
    assert got.counts == (2, 2, 0)
    assert got.summary["skipped"] == {"copy": 2}
    assert got.said.splitlines() == [
        "odd: 2 copies of packets were left out: the capture host saw them more than once; capture on one "
        "interface to have each once"
    ]


def super_segments(frame: Callable[[bytes, int], bytes], first: Callable[[int], int]) -> bytes:
    """Return a capture of two super-segments, each before its three pieces; `first` gives a piece's IP id."""
    records: list[Record] = []
    for turn in range(2):
        at = 1 + 3 * SIZE * turn
        records.append((ns(30 * turn), frame(data(at, 3 * SIZE, ip_id=7 + 3 * turn), 5)))
        for piece in range(3):
            segment = data(at + piece * SIZE, ip_id=first(7 + 3 * turn) + piece)
            records.append((ns(30 * turn + 0.02), frame(segment, 2)))
        records.append((ns(30 * turn + 20), frame(ack(at + 3 * SIZE), 2)))
    return pcap(records, SLL2 if frame is sll2 else SLL)


@pytest.mark.parametrize("first", [0, 1], ids=["numbered from its own", "numbered behind it"])
@pytest.mark.parametrize("cooked", [1, 2])
def test_a_super_segment_and_its_pieces_are_one(cooked: int, first: int, extracted: Extract) -> None:
    frame = sll2 if cooked == 2 else lambda ip, _: sll(ip)
    got = extracted(super_segments(frame, lambda number: number + first))
    assert got.latencies_ms == [20, 20]
    assert (got.counts, got.summary["skipped"]) == ((2, 2, 0), {"copy": 6})


def test_pieces_before_their_whole_are_what_was_sent(extracted: Extract) -> None:
    pieces = [(ns(0.001 * n), sll2(data(1 + n * SIZE, ip_id=7 + n), 2)) for n in range(3)]
    whole = (ns(0.02), sll2(data(1, 3 * SIZE, ip_id=7), 5))
    got = extracted(pcap([*pieces, whole, (ns(20), sll2(ack(1 + 3 * SIZE), 2))], SLL2))
    assert (got.counts, got.summary["skipped"]) == ((3, 3, 0), {"copy": 1})


@pytest.mark.parametrize(
    ("later_ms", "ip_id", "acked"),
    [(0.2, 8, False), (6, 7, False), (0.2, 0, True)],
    ids=["another number", "a round trip later", "no number, but an ACK between"],
)
def test_what_was_sent_again_is_no_copy(later_ms: float, ip_id: int, acked: bool, extracted: Extract) -> None:
    sent, again = ((ns(ms), data(1, ip_id=number)) for ms, number in ((0, ip_id and 7), (later_ms, ip_id)))
    between = [(ns(later_ms / 2), ack(1))] if acked else []
    got = extracted(pcap([sent, *between, again, (ns(20), ack(1 + SIZE))], RAW))
    assert got.counts == (2, 0, 1)
    assert "copy" not in got.summary["skipped"]


def test_equal_ends_in_two_vlans_are_two_connections(extracted: Extract) -> None:
    """Address plans overlap: each connection has numbers of its own, and its ACKs come in its VLAN."""
    records: list[Record] = []
    for turn in range(10):
        for vlan, first, ip_id in ((5, 1, 100), (6, 5_000_001, 900)):
            at, ms = first + turn * SIZE, 5 * turn + vlan / 10
            records.append((ns(ms), ethernet(data(at, ip_id=ip_id + turn), vlan)))
            records.append((ns(ms + 20), ethernet(ack(at + SIZE), vlan)))
    got = extracted(pcap(sorted(records), ETHERNET))
    assert (got.counts, got.summary["flows"]) == ((20, 20, 0), 2)
    assert set(got.latencies_ms) == {20}
    assert got.said == ""


def test_acks_may_come_in_another_vlan(extracted: Extract) -> None:
    records = [(ns(0), ethernet(data(1, ip_id=7), 5)), (ns(20), ethernet(ack(1 + SIZE), 6))]
    assert extracted(pcap(records, ETHERNET)).latencies_ms == [20]
    back_first = [(ns(-5), ethernet(ack(1), 6)), *records]
    assert extracted(pcap(back_first, ETHERNET)).latencies_ms == [20]


# Records out of the order of their stamps.


def test_an_ack_written_before_its_data(extracted: Extract) -> None:
    sent = [(ns(30 * n), data(1 + n * SIZE)) for n in range(3)]
    acks = [(ns(30 * n + 20), ack(1 + (n + 1) * SIZE)) for n in range(3)]
    got = extracted(pcap([sent[0], acks[0], acks[1], sent[1], sent[2], acks[2]], RAW))
    assert got.latencies_ms == [20, 20, 20]
    assert (got.summary["sharp_changes"], got.said) == (0, "")
    assert got.table["sent_ns"].to_list() == [time_ns for time_ns, _ in sent]


def test_an_ack_before_its_data_in_one_tick(extracted: Extract) -> None:
    records = [
        (ns(0), data(1)),
        (ns(20), ack(1 + SIZE)),
        (ns(30), ack(1 + 2 * SIZE)),
        (ns(30), data(1 + SIZE)),
    ]
    got = extracted(pcap([*records, (ns(60), ack(1 + 2 * SIZE))], RAW))
    assert got.latencies_ms == [20, 0]


@pytest.mark.parametrize("batch_ms", [50, 250])
def test_interfaces_written_in_batches(batch_ms: int, extracted: Extract) -> None:
    """Data leave by one interface, ACKs come by another, and each is written when its buffer is full."""
    sent = [(0, ns(10 * n), data(1 + n * SIZE, ip_id=n + 1)) for n in range(200)]
    acks = [(1, ns(10 * n + 20), ack(1 + (n + 1) * SIZE)) for n in range(200)]
    written = sorted([*sent, *acks], key=lambda one: ((one[1] - START_NS) // (batch_ms * MS), one[0], one[1]))
    assert written != sorted(written, key=lambda one: one[1])
    got = extracted(pcapng(written, [(RAW, 9), (RAW, 9)]))
    assert (got.counts, set(got.latencies_ms), got.said) == ((200, 200, 0), {20}, "")


def test_order_does_not_depend_on_how_the_file_is_cut(
    extracted: Extract, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of a few segments, pieces of a few bytes, and a clock set back in the middle."""
    sent = [(ns(3 * n), data(1 + n * SIZE, ip_id=n + 1)) for n in range(300)]
    acks = [(ns(3 * n + 20), ack(1 + (n + 1) * SIZE)) for n in range(300)]
    records = sorted([*sent, *acks])
    for at in range(0, 600, 7):  # neighbours within 100 ms change places
        records[at : at + 7] = records[at : at + 7][::-1]
    records = [*records[:301], *((time_ns - 500 * MS, frame) for time_ns, frame in records[301:])]
    whole = extracted(pcap(records, RAW, ns=True))
    assert "clock set back 1 times" in whole.said
    monkeypatch.setattr(captures, "BATCH", 5)
    monkeypatch.setattr(captures, "PIECE_BYTES", 700)
    cut = extracted(pcap(records, RAW, ns=True))
    assert cut.table.equals(whole.table)
    assert (cut.summary, cut.said) == (whole.summary, whole.said)
    assert whole.summary["latency_known"] > 280
    assert set(whole.table["latency_us"].drop_nulls()) == {20_000}


def test_segments_come_in_the_order_of_their_stamps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "BATCH", 16)
    stamps = [ns(n * 7 % 90 + n // 90 * 90) for n in range(2_000)]
    (tmp_path / "a.pcap").write_bytes(pcap([(stamp, data(1)) for stamp in stamps], RAW))
    read = [stamp for segments in CaptureFile(tmp_path / "a.pcap") for stamp in segments["time_ns"].tolist()]
    assert read == sorted(stamps)


# Connections.


def test_a_syn_sent_again_is_the_same_connection(extracted: Extract) -> None:
    """Fast open: the SYN carries data, so a second one is a retransmission (Karn)."""
    syns = [(ns(ms), data(1_000, 500, flags=SYN, ip_id=ms + 1)) for ms in (0, 1_000)]
    rest = [(ns(1_030), data(1_501, 500, ip_id=9)), (ns(1_050), ack(2_001))]
    answer = (ns(1_020), ack(1_501, flags=SYN | ACK))
    got = extracted(pcap([*syns, answer, *rest], RAW))
    assert (got.latencies_ms, got.counts) == ([None, None, 20], (3, 1, 1))
    # Linux sends it again without the data, and these after the handshake: they are sent again all the same.
    bare = [(ns(1_000), data(1_000, 0, flags=SYN)), (ns(1_020), ack(1_001, flags=SYN | ACK))]
    later = [(ns(1_021), data(1_001, 500, ip_id=9)), (ns(1_041), ack(1_501))]
    got = extracted(pcap([syns[0], *bare, *later], RAW))
    assert (got.latencies_ms, got.counts) == ([None, None], (2, 0, 1))


@pytest.mark.parametrize("jump", [-(2**31 - 10**6), -(2**30 + 10**6), 2**30 + 10**6])
def test_a_jump_of_numbers_is_a_new_connection(jump: int, extracted: Extract) -> None:
    """The ports are used again, and the SYN is not in the capture."""
    first = 2**31 + 5
    old = [(ns(0), data(first)), (ns(1), data(first + SIZE)), (ns(20), ack(first + SIZE))]
    new = [(ns(100), data(first + jump)), (ns(120), ack((first + jump + SIZE) % 2**32))]
    got = extracted(pcap([*old, *new], RAW))
    assert (got.latencies_ms, got.counts) == ([20, None, 20], (3, 2, 0))


# Frames and headers.


@pytest.mark.parametrize("six", [False, True])
def test_a_length_beyond_the_wire_is_not_believed(six: bool, extracted: Extract) -> None:
    """It would make the sender of a few packets seem that of most bytes."""
    records = transfer(lambda ip, _: [(0, ip)], six, packets=4)
    damaged = bytearray((packet6 if six else packet)(False, 20_001, 1, 100))
    at = 4 if six else 2
    damaged[at : at + 2] = struct.pack(">H", 60_000)
    got = extracted(pcap([*records, (ns(500), bytes(damaged))], RAW))
    assert got.counts == (4, 4, 0)
    assert got.summary["skipped"] == {"IP length beyond the wire length": 1}


def test_scapy_believes_no_length_either(extracted: Extract) -> None:
    def mpls(ip: bytes) -> bytes:
        return ethernet(struct.pack(">I", 7 << 12 | 1 << 8 | 64) + ip, kind=0x8847)

    records = [(ns(0), mpls(data(1))), (ns(20), mpls(ack(1 + SIZE)))]
    got = extracted(pcap([*records, (ns(30), mpls(data(1 + SIZE, 10, length=60_000)))], ETHERNET))
    assert got.counts == (1, 1, 0)
    assert got.summary["skipped"] == {"IP length beyond the wire length": 1}


def radiotap(ip: bytes, flags: int = 0, rx_flags: int = 0) -> bytes:
    present = 1 << 1 | 1 << 14
    radio = struct.pack("<BBHIBxH", 0, 0, 12, present, flags, rx_flags)
    dot11 = struct.pack("<HH", 0x0008, 0) + MACS + MACS[:6] + b"\0\0"
    return radio + dot11 + bytes.fromhex("aaaa030000000800") + ip


@pytest.mark.parametrize("marks", [{"flags": 0x40}, {"rx_flags": 2}], ids=["bad checksum", "bad header"])
def test_frames_that_the_radio_marks_as_damaged(marks: dict[str, int], extracted: Extract) -> None:
    records = [(ns(30 * n), radiotap(data(1 + n * SIZE))) for n in range(2)]
    records += [(ns(30 * n + 20), radiotap(ack(1 + (n + 1) * SIZE))) for n in range(2)]
    damaged = (ns(35), radiotap(data(900_000_001), **marks))
    got = extracted(pcap(sorted([*records, damaged]), RADIOTAP))
    assert (got.latencies_ms, got.summary["skipped"]) == ([20, 20], {"damaged frame": 1})


def test_frames_that_a_pcapng_marks_as_damaged(extracted: Extract) -> None:
    def enhanced(time_ns: int, frame: bytes, flags: int) -> bytes:
        head = struct.pack("<IIIII", 0, time_ns >> 32, time_ns & 0xFFFFFFFF, len(frame), len(frame))
        options = struct.pack("<HHIHH", 2, 4, flags, 0, 0)
        return block(6, head + frame + b"\0" * (-len(frame) % 4) + options)

    good = [(ns(0), data(1)), (ns(20), ack(1 + SIZE))]
    inbound, bad_checksum = 1, 1 << 24
    file = pcapng([], [(RAW, 9)]) + b"".join(enhanced(*one, inbound) for one in good)
    got = extracted(file + enhanced(ns(30), data(900_000_001), bad_checksum))
    assert (got.counts, got.summary["skipped"]) == ((1, 1, 0), {"damaged frame": 1})


@pytest.mark.parametrize("link_type", [0, LOOP])
@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("family", [2, 10, 23, 24, 28, 30])
def test_loopback_of_every_system(family: int, order: Any, link_type: int, extracted: Extract) -> None:
    head = family.to_bytes(4, order)
    records = transfer(lambda ip, _: [(0, head + ip)], six=family != 2)
    got = extracted(pcap(records, link_type))
    assert (got.latencies_ms, got.said) == ([20, 20], "")


@pytest.mark.parametrize("head", ["aaaa030000000800", "aaaa030000f80800", "060603"])
def test_ip_in_802_2(head: str, extracted: Extract) -> None:
    def framed(ip: bytes) -> bytes:
        return ethernet(bytes.fromhex(head) + ip, kind=len(ip) + len(head) // 2)

    got = extracted(pcap(transfer(lambda ip, _: [(0, framed(ip))]), ETHERNET))
    assert (got.latencies_ms, got.summary["skipped"]) == ([20, 20], {})


SACK_BLOCKS = struct.pack(">BBBBIIII", 1, 1, 5, 18, 1 + 2 * SIZE, 1 + 3 * SIZE, 1 + SIZE, 1 + 2 * SIZE)


@pytest.mark.parametrize(("kept", "known"), [(96, [60, 19, 18]), (66, [60, 59, 58])])
def test_a_selective_ack_that_the_snapshot_cuts_is_said(
    kept: int, known: list[float], extracted: Extract
) -> None:
    stamps = struct.pack(">BBBBII", 1, 1, 8, 10, 1, 1)
    sent = [(ns(n), data(1 + n * SIZE)) for n in range(3)]
    selective = (ns(20), ack(1, options=stamps + SACK_BLOCKS))
    capture = pcap([*sent, selective, (ns(60), ack(1 + 3 * SIZE))], RAW, snap=kept)
    got = extracted(capture, latency="selective")
    assert got.latencies_ms == known
    cut = "odd: WARNING: the snapshot length cut the selective blocks off 1 of 2 ACKs"
    assert (cut in got.said) == (kept == 66)
    assert got.summary["skipped"].get("selective ACK cut by the snapshot length") == (
        1 if kept == 66 else None
    )
    assert "selective" not in extracted(capture).said  # nobody asked for them


# Lines about a table.


def test_a_clock_that_stands_still_gives_no_latency(extracted: Extract) -> None:
    records = [(ns(0), frame) for n in range(20) for frame in (data(1 + n * SIZE), ack(1 + (n + 1) * SIZE))]
    got = extracted(pcap(records, RAW))
    assert got.counts == (20, 0, 0)
    assert "all stamps are equal: the capture's clock stands still" in got.said
    assert "receiver" not in got.said


def bulk(*, at_sender: bool, handshake: bool, round_trip_ms: float = 20) -> bytes:
    """Return a transfer at 1,000 packets/s with an ACK for every second packet, seen from either end."""
    ack_later, start = (round_trip_ms if at_sender else 0.02), 100.0
    records = []
    if handshake:
        first, second = (round_trip_ms, 0.03) if at_sender else (0.03, round_trip_ms)
        records.append((ns(0), data(1_000, 0, flags=SYN)))
        records.append((ns(first), packet(False, 9_000, 1_001, 0, flags=SYN | ACK)))
        records.append((ns(first + second), data(1_001, 0)))
    for n in range(200):
        records.append((ns(start + n), data(1_001 + n * SIZE)))
        if n % 2:
            records.append((ns(start + n + ack_later), ack(1_001 + (n + 1) * SIZE)))
    return pcap(sorted(records), RAW)


@pytest.mark.parametrize("handshake", [False, True])
def test_bulk_data_at_the_receiver_is_said(handshake: bool, extracted: Extract) -> None:
    got = extracted(bulk(at_sender=False, handshake=handshake))
    assert got.summary["latency_ms"]["p50"] == 1.02
    assert "odd: WARNING: the median latency is 1.02 ms" in got.said
    assert "`--latency timestamps`, or capture at the sender" in got.said


@pytest.mark.parametrize("round_trip_ms", [0.3, 20])
def test_bulk_data_at_the_sender_is_not_taken_for_the_receivers(
    round_trip_ms: float, extracted: Extract
) -> None:
    """On a fast network the handshake tells that the far end is far."""
    got = extracted(bulk(at_sender=True, handshake=True, round_trip_ms=round_trip_ms))
    assert got.said == ""
    assert extracted(bulk(at_sender=True, handshake=False)).said == ""


def few_known(reason: str) -> Iterable[Record]:
    yield ns(0), data(1_000, 0, flags=SYN)
    yield ns(20), packet(False, 9_000, 1_001, 0, flags=SYN | ACK)
    yield ns(21), data(1_001, ip_id=1)
    yield ns(41), ack(1_001 + SIZE)
    for n in range(20):
        at, ms = 1_001 + SIZE + n * SIZE, 50 + 100 * n
        if reason == "retransmitted":
            yield ns(ms), data(1_001, ip_id=2 + n)
        elif reason == "again":
            yield ns(ms), data(at, ip_id=100 + 2 * n)
            yield ns(ms + 30), data(at, ip_id=101 + 2 * n)
            yield ns(ms + 50), ack(at + SIZE)
        elif reason == "one way":
            yield ns(ms), data(1 + n * SIZE, ip_id=2 + n, ports=(40_001, 443))
        else:
            yield ns(ms), data(at, ip_id=2 + n)


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("retransmitted", "1 of 21 latencies are known: 20 are retransmitted"),
        ("again", "1 of 41 latencies are known: 20 were sent again before their ACK, 20 are retransmitted"),
        (
            "one way",
            "1 of 21 latencies are known: 20 belong to flows of which only one direction was captured",
        ),
        ("no ACK", "1 of 21 latencies are known: 20 no ACK covers"),
    ],
)
def test_a_table_of_few_latencies_says_why(reason: str, says: str, extracted: Extract) -> None:
    got = extracted(pcap(few_known(reason), RAW))
    assert got.summary["latency_known"] == 1
    assert f"odd: WARNING: {says}" in got.said
    begun = "1 of 2 flows began before the capture (mid-connection)"
    assert (begun in got.said) == (reason == "one way")


# Files that are no captures.


@pytest.mark.parametrize("magic", captures.OTHER_FORMATS)
def test_other_formats_are_named(magic: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.pcap").write_bytes(magic + b"\0" * 200)
    name, remedy = captures.OTHER_FORMATS[magic]
    with pytest.raises(ValueError, match=r"a\.pcap: not a capture that is read here, but ") as refused:
        extract_trace(ExtractJob(tmp_path / "a.pcap", "a"), tmp_path / "out")
    assert name in str(refused.value)
    assert remedy.split("FILE")[0] in str(refused.value)


def test_a_pipe_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody writes to the first, so whoever opens it waits; the second is the shell's `<(cat FILE)`."""
    os.mkfifo(tmp_path / "named.pcap")
    end, other = os.pipe()
    writer = threading.Thread(target=os.write, args=(other, b"\xd4\xc3\xb2\xa1" * 6))
    writer.start()
    pipes = [tmp_path / "named.pcap", Path(f"/dev/fd/{end}")]
    status = run_extract(pipes, tmp_path / "out", sender=None, latency="acks", as_json=False)
    writer.join()
    os.close(end)
    os.close(other)
    said = capsys.readouterr().err.splitlines()
    assert (status, len(said)) == (1, 2)
    for line, pipe in zip(said, pipes, strict=True):
        assert line.startswith(f"swiftqueue: {pipe}: a pipe, and a capture may have to be read twice")


def test_what_is_not_there_is_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "nofile.pcap", tmp_path, Path("/dev/null")]
    assert run_extract(files, tmp_path / "out", sender=None, latency="acks", as_json=False) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"swiftqueue: {tmp_path}/nofile.pcap: no such file",
        f"swiftqueue: {tmp_path}: a folder; name the captures in it",
        "swiftqueue: /dev/null: a device or socket; give a file",
    ]
