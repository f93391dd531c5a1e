"""A group's DSCP: every packet that its sender sends carries it, and the ECN field is what it is without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.utils import rdpcap

from swiftqueue.laboratory.runs import execution, programs

pytestmark = pytest.mark.slow  # ns-3 programs are compiled and run

EF: Final = 46
NOT_ECT, ECT1, ECT0 = 0, 1, 2
S1: Final = "10.0.0.1"
GREEDY: Final = {"kind": "greedy"}
CALL: Final = {"kind": "real_time", "frames_per_s": 50, "least_bps": 1e5, "most_bps": 5e6}
CBR: Final = {"kind": "cbr", "rate_bps": 1e6, "packet_bytes": 1000}


def sent(folder: Path, traffic: dict[str, Any], dscp: int, control: dict[str, Any], **group: Any) -> list[IP]:
    """All packets that S1 sends in two seconds of one flow."""
    own = {"flows": 1, "receiver": "R1", "start_s": [0, 0], "dupack_threshold": 3, "traffic": traffic}
    labelled = {"dscp": dscp} if dscp else {}
    run = {
        "format": 1,
        "name": "dscp",
        "seed": 1,
        "seconds": 2,
        "warmup_s": 1,
        "profile": "rfc9332",
        "bottlenecks": [{"rate_bps": 5e6, "delay_ms": 10, "buffer_bytes": 30_000}],
        "receivers": [{"name": "R1", "router": 1, "delay_ms": 0.1}],
        "senders": [{"name": "S1", "router": 0, "delay_ms": 0.1, "groups": [own | group | labelled]}],
        "control": control,
        "moved_ecn": "not_ect",
        "acks": "cumulative",
        "explore": {"share": 0, "burst_packets": 8, "seed": 1},
        "finetune": None,
        "outputs": ["pcap"],
    }
    (folder / execution.RUNS).mkdir(exist_ok=True)
    name = f"run-{dscp}"
    problem = execution.execute(programs.build()[0], folder, execution.Job(name, run))
    assert problem is None, problem
    out = folder / execution.RUNS / name
    assert json.loads((out / execution.SUMMARY).read_text())["run"] == run
    return [packet for packet in rdpcap(str(out / "s1.pcap")) if packet[IP].src == S1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("tcp", "ecn", "traffic", "fields"),
    [
        ("prague", "ect1", GREEDY, {ECT1}),
        ("prague", "ect1", CALL, {ECT1}),
        ("cubic", "ect1", GREEDY, {ECT1}),
        ("cubic", "ect0", GREEDY, {ECT0}),
        ("cubic", "not_ect", GREEDY, {NOT_ECT}),
        ("gcc", "not_ect", CALL, {NOT_ECT}),
        ("udp", "ect1", CBR, {ECT1}),
    ],
)
def test_every_packet_has_the_label_and_keeps_its_ecn_field(
    tmp_path: Path, tcp: str, ecn: str, traffic: dict[str, Any], fields: set[int]
) -> None:
    default = {"kind": "default"}
    with_it = sent(tmp_path, traffic, EF, default, tcp=tcp, ecn=ecn)
    without = sent(tmp_path, traffic, 0, default, tcp=tcp, ecn=ecn)
    assert {packet.tos >> 2 for packet in with_it} == {EF}  # the handshake too
    assert {packet.tos >> 2 for packet in without} == {0}
    # DualPI2 does not look at the label, so nothing else is another
    assert [(p.time, p.tos & 3, p.len) for p in with_it] == [(p.time, p.tos & 3, p.len) for p in without]
    data = [packet for packet in with_it if payload_bytes(packet) > 0]
    assert len(data) >= 100
    assert {packet.tos & 3 for packet in first_sent(data)} == fields


def test_a_moved_packet_keeps_its_label(tmp_path: Path) -> None:
    control = {"kind": "random", "share": 0.5, "burst_packets": 1, "seed": 1}
    packets = sent(tmp_path, GREEDY, EF, control, tcp="prague", ecn="ect1")
    assert {packet.tos >> 2 for packet in packets} == {EF}
    data = first_sent([packet for packet in packets if payload_bytes(packet) > 0])
    moved = sum(packet.tos & 3 == NOT_ECT for packet in data)
    assert 0.4 < moved / len(data) < 0.6


def payload_bytes(packet: IP) -> int:
    if UDP in packet:
        return int(packet[UDP].len) - 8
    headers = 4 * int(packet[IP].ihl) + 4 * int(packet[TCP].dataofs)
    return int(packet[IP].len) - headers


def first_sent(data: list[IP]) -> list[IP]:
    """Without retransmissions, which are not ECT (RFC 3168, 6.1.5)."""
    if UDP in data[0]:
        return data
    found: list[IP] = []
    for packet in data:
        if not found or packet[TCP].seq > found[-1][TCP].seq:
            found.append(packet)
    return found
