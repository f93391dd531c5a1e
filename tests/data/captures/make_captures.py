"""Write the tiny captures of this folder: one conversation in every container and link, and broken ones.

python tests/data/captures/make_captures.py

The conversation is written once, in `conversation()`; tests/data/test_extract_captures.py states the packet
table that must come out of it. All addresses are documentation addresses (RFC 5737, RFC 3849).
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
SENDER4, SENDER6 = "192.0.2.1", "2001:db8::1"
RECEIVERS4, RECEIVERS6 = ("198.51.100.1", "198.51.100.2"), ("2001:db8:1::1", "2001:db8:1::2")
ISN = 0xFFFFFF00  # 256 bytes before the sequence numbers wrap
FIRST = ISN + 1

Packet = tuple[int, Any]  # capture time in ns, scapy packet from the IP header on


def conversation(version: int = 4) -> list[Packet]:
    """Return one sender's two flows, both ways, as seen at the sender."""
    from scapy.layers.inet import IP, TCP, UDP
    from scapy.layers.inet6 import IPv6
    from scapy.packet import Raw

    sender = SENDER4 if version == 4 else SENDER6
    receivers = RECEIVERS4 if version == 4 else RECEIVERS6

    def ip(source: str, destination: str, ecn: int) -> Any:
        if version == 4:
            return IP(src=source, dst=destination, tos=ecn, id=1)
        return IPv6(src=source, dst=destination, tc=ecn)

    def out(
        ms: float, seq: int, payload: int, flow: int = 0, flags: str = "PA", ecn: int = 1, ack: int = 9001
    ) -> Packet:
        stamps = [("NOP", None), ("NOP", None), ("Timestamp", (1000 + int(ms), 5000))]
        tcp = TCP(sport=40000 + flow, dport=443, seq=seq % 2**32, ack=ack, flags=flags, options=stamps)
        return START_NS + int(ms * MS), ip(sender, receivers[flow], ecn) / tcp / Raw(b"x" * payload)

    def back(
        ms: float, ack: int, payload: int = 0, flow: int = 0, flags: str = "A", seq: int = 9001
    ) -> Packet:
        stamps = [("Timestamp", (5000 + int(ms), 1000))]
        tcp = TCP(sport=443, dport=40000 + flow, seq=seq, ack=ack % 2**32, flags=flags, options=stamps)
        return START_NS + int(ms * MS), ip(receivers[flow], sender, 0) / tcp / Raw(b"y" * payload)

    return [
        out(0, ISN, 0, flags="S"),
        back(20, ISN + 1, flags="SA", seq=9000),
        out(20.1, FIRST, 0, flags="A"),
        out(21, FIRST, 100),  # packet 0: acknowledged after 21 ms
        out(22, FIRST + 100, 100),  # 1: by the same ACK, after 20 ms
        back(42, FIRST + 200),
        out(50, FIRST + 200, 100),  # 2: its last byte ends behind the wrap; lost
        out(51, FIRST + 300, 100),  # 3
        out(52, 70_000, 500, flow=1, ecn=2),  # 4: another flow that starts in its middle; a piggybacked ACK
        back(71, FIRST + 200),
        out(75, FIRST + 200, 100),  # 5: packet 2 once more
        back(77, 70_500, payload=30, flow=1, flags="PA"),
        back(95, FIRST + 400),
        (START_NS + 96 * MS, ip(sender, receivers[0], 0) / UDP(sport=1, dport=2) / Raw(b"z")),
        out(100, FIRST + 400, 200, ecn=3),  # 6: CE
        back(99, 100_000, flow=1),  # the capture's clock runs backwards; acknowledges nothing new
        out(101, 70_500, 500, flow=1, ecn=0),  # 7: never acknowledged
        back(130, FIRST + 600),
    ]


def pcap(
    packets: Iterable[tuple[int, bytes]], link: int, *, order: str = "<", ns: bool = False, snap: int = 0
) -> bytes:
    """Return a pcap of records (time in ns, bytes)."""
    out = struct.pack(order + "IHHiIII", 0xA1B23C4D if ns else 0xA1B2C3D4, 2, 4, 0, 0, snap or 65535, link)
    for time_ns, data in packets:
        seconds, rest = divmod(time_ns, 1_000_000_000)
        kept = data[: snap or None]
        out += struct.pack(order + "IIII", seconds, rest if ns else rest // 1000, len(kept), len(data)) + kept
    return out


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    """Return one pcapng block."""
    body += b"\0" * (-len(body) % 4)
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def pcapng(
    packets: Iterable[tuple[int, int, bytes]], links: list[tuple[int, int]], *, order: str = "<"
) -> bytes:
    """Return a pcapng of records (interface, time in ns, bytes); `links` has type and if_tsresol exponent."""
    out = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)
    for link, digits in links:
        option = struct.pack(order + "HHB3x", 9, 1, digits) + struct.pack(order + "HH", 0, 0)
        out += block(1, struct.pack(order + "HHI", link, 0, 0) + option, order)
    for interface, time_ns, data in packets:
        ticks = time_ns // 10 ** (9 - links[interface][1])
        head = struct.pack(order + "IIIII", interface, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
        out += block(6, head + data, order)
    return out


def captures() -> dict[str, bytes]:
    """Return every capture of this folder by its file name."""
    from scapy.contrib.mpls import MPLS
    from scapy.layers.dot11 import Dot11, RadioTap
    from scapy.layers.inet6 import IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, PadN
    from scapy.layers.l2 import (
        ARP,
        LLC,
        SNAP,
        CookedLinux,
        CookedLinuxV2,
        Dot1AD,
        Dot1Q,
        Dot3,
        Ether,
        Loopback,
    )

    v4, v6 = conversation(4), conversation(6)

    def over(packets: list[Packet], link: Callable[[Any], Any] = lambda p: p) -> list[tuple[int, bytes]]:
        return [(time_ns, bytes(link(packet))) for time_ns, packet in packets]

    def ethernet(packet: Any) -> Any:
        return Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / packet

    def ethernet_of(*tags: Any) -> Callable[[Any], Any]:
        def link(packet: Any) -> Any:
            frame = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
            for tag in tags:
                frame = frame / tag
            return frame / packet

        return link

    def snap(packet: Any) -> Any:
        return Dot3(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / LLC() / SNAP() / packet

    def backbone(packet: Any) -> bytes:  # 802.1ah: a service's number before a whole Ethernet header
        outer = bytes(Ether(src="02:00:00:00:00:03", dst="02:00:00:00:00:04", type=0x88E7))
        return outer + (5).to_bytes(4, "big") + bytes(ethernet(packet))

    def radio(packet: Any) -> Any:
        return RadioTap() / Dot11(type=2) / LLC() / SNAP() / packet

    def extended(packet: Any) -> Any:
        options = IPv6ExtHdrHopByHop(options=[PadN(optdata=b"\0" * 4)]) / IPv6ExtHdrDestOpt(
            options=[PadN(optdata=b"\0" * 12)]
        )
        upper = packet.payload
        packet = packet.copy()
        packet.remove_payload()
        return ethernet(packet / options / upper)

    plain = over(v4, ethernet)
    arp = (START_NS, bytes(ethernet(ARP(pdst="192.0.2.9"))))
    whole = pcap([arp, *plain], 1)
    return {
        "ethernet_us_le.pcap": whole,
        "ethernet_us_be.pcap": pcap([arp, *plain], 1, order=">"),
        "ethernet_ns_le.pcap": pcap([arp, *plain], 1, ns=True),
        "ethernet_ns_be.pcap": pcap([arp, *plain], 1, order=">", ns=True),
        "ethernet_snap96.pcap": pcap([arp, *plain], 1, snap=96),
        "ethernet.pcap.gz": gzip.compress(whole, mtime=0),
        "vlan.pcap": pcap(over(v4, ethernet_of(Dot1Q(vlan=5))), 1),
        "qinq.pcap": pcap(over(v4, ethernet_of(Dot1AD(vlan=5), Dot1Q(vlan=6))), 1),
        "sll.pcap": pcap(over(v4, lambda p: CookedLinux(pkttype=4) / p), 113),
        "sll2.pcap": pcap(over(v4, lambda p: CookedLinuxV2(pkttype=4, ifindex=3) / p), 276),
        "raw.pcap": pcap(over(v4), 101),
        "ipv6.pcap": pcap(over(v6, ethernet), 1),
        "raw_ipv6.pcap": pcap(over(v6), 101),
        "ipv6_extensions.pcap": pcap(over(v6, extended), 1),
        "loopback.pcap": pcap(over(v4, lambda p: Loopback(type=2) / p), 0),
        "loopback_ipv6.pcap": pcap(over(v6, lambda p: (30).to_bytes(4, "little") + bytes(p)), 0),
        "llc_snap.pcap": pcap(over(v4, snap), 1),
        "mac_in_mac.pcap": pcap(over(v4, backbone), 1),
        "rare_radiotap.pcap": pcap(over(v4, radio), 127),
        "rare_mpls.pcap": pcap(over(v4, ethernet_of(MPLS(label=7, s=1))), 1),
        "le.pcapng": pcapng([(0, *record) for record in plain], [(1, 6)]),
        "be.pcapng": pcapng([(0, *record) for record in plain], [(1, 9)], order=">"),
        "two_links.pcapng": pcapng(
            [
                (number % 2, time_ns, bytes(packet if number % 2 else ethernet(packet)))
                for number, (time_ns, packet) in enumerate(v4)
            ],
            [(1, 6), (101, 9)],
        ),
        "broken_empty.pcap": b"",
        "broken_not_a_capture.pcap": b"This is a text file, and a capture it is not.\n" * 4,
        "broken_file_header.pcap": whole[:20],
        "broken_record_header.pcap": whole[: len(whole) - 90 - 8],
        "broken_packet.pcap": whole[:-20],
        "broken_length.pcap": whole
        + struct.pack("<IIII", 1_700_000_001, 0, 0xFFFFFFF0, 0xFFFFFFF0)
        + b"x" * 99,
        "broken_gzip.pcap.gz": gzip.compress(whole, mtime=0)[:-60],
        "broken_block.pcapng": pcapng([(0, *record) for record in plain], [(1, 6)])
        + b"\x06\0\0\0\x07\0\0\0" * 3,
        "no_tcp.pcap": pcap([arp, plain[13]], 1),
        "no_payload.pcap": pcap(plain[:3], 1),
        "no_acks.pcap": pcap(
            [record for record, (_, p) in zip(plain, v4, strict=True) if p.src == SENDER4], 1
        ),
    }


if __name__ == "__main__":
    for name, data in captures().items():
        (HERE / name).write_bytes(data)
