"""`--latency timestamps` is right on a capture made at the receiver of a transfer with known times."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from swiftqueue.feature_store.packets import captures
from swiftqueue.feature_store.packets.extract import ExtractJob, extract_trace
from swiftqueue.feature_store.packets.schema import scan_packets

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
PAYLOAD = 1_000
WINDOW = 40  # packets in flight
PACKETS = 3_000
SENDER, RECEIVER = bytes((192, 0, 2, 1)), bytes((198, 51, 100, 1))
RAW_IP = 101


def ip_packet(
    source: bytes, destination: bytes, *, sequence: int, ack: int, stamps: tuple[int, int], payload: int
) -> bytes:
    """Return IPv4 and TCP headers with timestamps (RFC 7323, 3.2); the payload itself was not captured."""
    ports = (40_000, 443) if source == SENDER else (443, 40_000)
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 1, 52 + payload, 0, 0, 64, 6, 0, source, destination)
    tcp = struct.pack(">HHIIBBHHH", *ports, sequence % 2**32, ack % 2**32, 8 << 4, 0x10, 65_535, 0, 0)
    return ip + tcp + struct.pack(">BBBBII", 1, 1, 8, 10, *(value % 2**32 for value in stamps))


def record(time_ns: int, packet: bytes, payload: int) -> bytes:
    """Return one record of a pcap with nanoseconds."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return struct.pack("<IIII", seconds, rest, len(packet), len(packet) + payload) + packet


def write_transfer(
    capture: Path, sender_tick_ns: int, receiver_tick_ns: int, jitter_ns: int, packets: int = PACKETS
) -> list[int]:
    """Write what the receiver of a window-limited transfer sees; return each packet's true latency in ns.

    `jitter_ns`: how much longer than 5 ms an ACK may take back.

    An ACK's arrival lets the sender send at once, so the wait for a packet to echo it is nothing, except for
    the first `WINDOW` packets and the last. Both ends' clocks start anywhere, the sender's near its wrap.
    """
    chance = random.Random(sender_tick_ns + receiver_tick_ns)
    sender_phase, receiver_phase = chance.randrange(10**9), chance.randrange(10**9)
    sent = [START_NS + n * MS // 10 for n in range(WINDOW)]
    latency: list[int] = []
    records: list[tuple[int, bytes]] = []
    arrival = back = START_NS
    echo = [0] * packets  # the receiver's clock in the newest ACK that a packet's sender has had
    queue_ns = 0
    for n in range(packets):
        queue_ns = min(max(queue_ns + chance.randrange(-2 * MS, 2 * MS), 0), 60 * MS)
        arrival = max(sent[n] + 10 * MS + queue_ns, arrival + MS // 5)  # one way, in order
        value = (sent[n] - START_NS + sender_phase) // sender_tick_ns + 2**32 - 500
        data = ip_packet(
            SENDER, RECEIVER, sequence=n * PAYLOAD, ack=1, stamps=(value, echo[n]), payload=PAYLOAD
        )
        records.append((arrival, record(arrival, data, PAYLOAD)))
        clock = (arrival - START_NS + receiver_phase) // receiver_tick_ns + 7
        ack = ip_packet(RECEIVER, SENDER, sequence=1, ack=(n + 1) * PAYLOAD, stamps=(clock, value), payload=0)
        records.append((arrival + 1_000, record(arrival + 1_000, ack, 0)))
        back = max(arrival + 5 * MS + chance.randint(0, jitter_ns), back + 1)  # the ACK's way, in order
        latency.append(back - sent[n])
        if n + WINDOW < packets:
            sent.append(back)
            echo[n + WINDOW] = clock
    records.sort(key=lambda timed: timed[0])
    header = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 96, RAW_IP)
    capture.write_bytes(header + b"".join(data for _, data in records))
    return latency


def test_a_capture_made_at_the_receiver_is_recognised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_transfer(tmp_path / "away.pcap", MS, MS, 0, packets=500)
    extract_trace(ExtractJob(tmp_path / "away.pcap", "away", latency="acks"), tmp_path / "acks")
    said = capsys.readouterr().err
    assert "away: WARNING: the median latency is 0.001 ms" in said
    assert "--latency timestamps" in said
    extract_trace(ExtractJob(tmp_path / "away.pcap", "away", latency="timestamps"), tmp_path / "timestamps")
    assert "WARNING" not in capsys.readouterr().err


def test_who_seems_to_send_most_at_first_needs_no_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = tmp_path / "away.pcap"
    write_transfer(capture, MS, MS, 0, packets=500)
    whole = capture.read_bytes()
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 1, 140, 0, 0, 64, 6, 0, bytes((203, 0, 113, 1)), RECEIVER)
    upload = ip + struct.pack(">HHIIBBHHH", 1, 2, 0, 0, 5 << 4, 0x10, 65_535, 0, 0)  # no timestamps
    capture.write_bytes(whole[:24] + record(START_NS, upload, 100) * 10 + whole[24:])
    monkeypatch.setattr(captures, "BATCH", 10)
    summary = extract_trace(ExtractJob(capture, "away", latency="timestamps"), tmp_path)
    assert summary["data_packets"] == 500


@pytest.mark.parametrize("sender_tick_ms", [1, 4])
@pytest.mark.parametrize("receiver_tick_ms", [1, 4])
@pytest.mark.parametrize("jitter_ms", [0, 3])
def test_latencies_are_true_to_the_tick(
    sender_tick_ms: int, receiver_tick_ms: int, jitter_ms: int, tmp_path: Path
) -> None:
    capture = tmp_path / "receiver.pcap"
    truth = write_transfer(capture, sender_tick_ms * MS, receiver_tick_ms * MS, jitter_ms * MS)
    summary = extract_trace(ExtractJob(capture, "receiver", latency="timestamps"), tmp_path)
    table = scan_packets(tmp_path, "receiver").collect()
    assert (len(table), summary["retransmitted"], summary["skipped"]) == (PACKETS, 0, {})
    latency_ms = table["latency_us"].to_numpy() / 1e3
    # The last window's ACKs come after the last packet: nothing echoes them.
    known = ~np.isnan(latency_ms)
    assert known[: PACKETS - WINDOW - 1].all()
    error_ms = latency_ms[known] - np.array(truth)[known] / 1e6
    # Two readings of the sender's clock are off by less than a tick. ACKs within one tick of the receiver's
    # clock look alike, and the echo of the first speaks for all: early by what lies between their arrivals.
    assert error_ms.max() < sender_tick_ms
    assert error_ms.min() > -sender_tick_ms - receiver_tick_ms - jitter_ms
    assert abs(np.median(error_ms)) < max(sender_tick_ms, receiver_tick_ms) / 2 + 0.1
    # The clock of `sent_ns` is the sender's, too.
    assert (np.diff(table["sent_ns"].to_numpy()) % (sender_tick_ms * MS) == 0).all()
