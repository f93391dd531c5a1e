"""Decode records outside the fast path with scapy: rare link types, MPLS, PPPoE, odd IPv6 headers."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftqueue.feature_store.packets import pcaplib

ETHERNET = (1, 113, 276)
RAW_IP = (12, 14, 101, 228, 229)
EXTENSIONS = (0, 43, 44, 60)  # IPv6 headers that may precede TCP, as in decode.cc


def address_bytes(text: str) -> bytes:
    """Return an IP address as 16 bytes, IPv4 mapped into IPv6 (RFC 4291, 2.5.5.2).

    Raises:
        ValueError: the text is not an IP address.
    """
    import ipaddress

    address = ipaddress.ip_address(text)
    return address.packed if address.version == 6 else b"\0" * 10 + b"\xff\xff" + address.packed


def address_text(packed: bytes) -> str:
    """Return the text of an address of 16 bytes, the inverse of `address_bytes`."""
    import ipaddress

    address = ipaddress.IPv6Address(packed)
    return str(address.ipv4_mapped or address)


class RareDecoder:
    """A decoder of segments that the fast path left open; it imports scapy on first use."""

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self._decoded: Counter[str] = Counter()

    def decode(self, data: npt.NDArray[np.uint8], segments: npt.NDArray[np.void]) -> None:
        """Decode every segment of kind `RARE` in place; `data` is the buffer they were found in."""
        for index in np.flatnonzero(segments["kind"] == pcaplib.RARE):
            segment = segments[index : index + 1]
            at, length = int(segment["record_offset"][0]), int(segment["record_bytes"][0])
            self._one(data[at : at + length].tobytes(), segment)

    def notes(self) -> list[str]:
        """Return lines about the records that went to scapy, and why."""
        return [
            f"{n:,} records decoded by scapy: {why} is not in the fast path"
            for why, n in self._decoded.items()
        ]

    def _one(self, record: bytes, segment: npt.NDArray[np.void]) -> None:
        segment["kind"] = pcaplib.NOTHING
        link_type = int(segment["link_type"][0])
        layers = load_scapy()
        if link_type in RAW_IP:
            first, why = layers.IPv6, "an IPv6 extension header"
        else:
            first = layers.link_types.get(link_type)
            if first is None:
                self.skipped[f"link type {link_type} unknown"] += 1
                return
            why = f"link type {link_type} ({first.__name__})"
            if link_type in ETHERNET:
                why = "PPPoE, MPLS or an IPv6 extension header"
        try:
            packet = first(record)
        except Exception:  # scapy raises anything on malformed bytes
            self.skipped["malformed header"] += 1
            return
        self._decoded[why] += 1
        reason = fill_segment(packet, int(segment["original_bytes"][0]) - len(record), segment)
        if reason:
            self.skipped[reason] += 1


@functools.cache
def load_scapy() -> Any:
    """Import the layers of scapy that can carry TCP, which takes about 1 s."""
    import logging
    from types import SimpleNamespace

    logging.getLogger("scapy").setLevel(logging.ERROR)  # scapy warns of missing routes and interfaces
    from scapy.config import conf
    from scapy.contrib import mpls
    from scapy.layers import all as _layers  # noqa: F401
    from scapy.layers.inet import IP, TCP
    from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment

    return SimpleNamespace(
        link_types=conf.l2types.num2layer, IP=IP, TCP=TCP, IPv6=IPv6, Fragment=IPv6ExtHdrFragment, mpls=mpls
    )


def fill_segment(packet: Any, cut_bytes: int, segment: npt.NDArray[np.void]) -> str | None:
    """Copy a packet that scapy decoded into a segment; `cut_bytes` of it were not captured.

    Returns:
        The reason why it holds no TCP segment, or None.
    """
    layers = load_scapy()
    if _is_damaged(packet):
        return "damaged frame"
    ip = next((one for one in packet.iterpayloads() if isinstance(one, layers.IP | layers.IPv6)), None)
    if ip is None:
        return "not IP"
    v4 = isinstance(ip, layers.IP)
    if ip.version != (4 if v4 else 6):
        return "malformed header"
    if v4 and (ip.frag or ip.flags.MF):
        return "IP fragment"
    last = ip  # header before TCP; the content of tunnels is skipped
    while not v4 and getattr(last, "nh", None) in EXTENSIONS:
        last = last.payload
        if isinstance(last, layers.Fragment) and (last.offset or last.m):
            return "IP fragment"
    tcp = last.payload
    if not isinstance(tcp, layers.TCP):
        return "not TCP"
    if v4:
        total, headers, ecn = ip.len or len(ip.original) + cut_bytes, ip.ihl * 4, ip.tos & 3
    else:
        total = 40 + ip.plen if ip.plen else len(ip.original) + cut_bytes
        # Scapy keeps a frame's padding in `ip.original`, but not in inner layers.
        headers, ecn = 40 + len(ip.payload.original) - len(tcp.original), ip.tc & 3
    if total > len(ip.original) + cut_bytes:
        return "IP length beyond the wire length"
    payload = total - headers - (tcp.dataofs or 0) * 4
    if payload < 0 or (tcp.dataofs or 0) < 5:
        return "malformed header"
    segment["source"] = np.void(address_bytes(ip.src))
    segment["destination"] = np.void(address_bytes(ip.dst))
    segment["source_port"], segment["destination_port"] = tcp.sport, tcp.dport
    segment["sequence"], segment["acknowledgment"] = tcp.seq, tcp.ack
    segment["payload_bytes"], segment["ip_bytes"] = payload, total
    segment["flags"], segment["ecn"] = int(tcp.flags) & 0xFF, ecn
    segment["ip_id"] = ip.id if v4 else 0
    segment["vlan"] = _vlan(packet)
    stamps = [value for kind, value in tcp.options if kind == "Timestamp" and len(value) == 2]
    segment["has_timestamps"] = bool(stamps)
    segment["timestamp_value"], segment["timestamp_echo"] = stamps[0] if stamps else (0, 0)
    sacks = next((value for kind, value in tcp.options if kind == "SAck"), ())
    blocks = list(zip(sacks[::2], sacks[1::2], strict=False))[: segment["sack"].shape[1]]
    segment["sacks"] = len(blocks)
    for place, block in enumerate(blocks):
        segment["sack"][:, place] = block
    segment["cut_options"] = len(tcp.original) < tcp.dataofs * 4 and not blocks
    segment["kind"] = pcaplib.TCP
    return None


def _is_damaged(packet: Any) -> bool:
    """Return whether the radio flagged a frame as damaged (radiotap: Flags, RX flags)."""
    if packet.name != "RadioTap":
        return False
    checksum, header = packet.Flags and packet.Flags.badFCS, packet.RXFlags and packet.RXFlags.BAD_PLCP
    return bool(checksum or header)


def _vlan(packet: Any) -> int:
    """Return a frame's tags as one number, as `Record::Tag` of decode.cc does."""
    mixed = 0
    for layer in packet.iterpayloads():
        if layer.name in ("802.1Q", "802_1AD"):
            mixed = (mixed * 4099 + layer.vlan) & 0xFFFF
    return mixed
