"""Tiny captures of our own making, and real ones, give the expected packet tables."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from swiftqueue.feature_store.packets import pcaplib
from swiftqueue.feature_store.packets.captures import CaptureFile, trace_name
from swiftqueue.feature_store.packets.extract import ExtractJob, extract_trace
from swiftqueue.feature_store.packets.rare import address_bytes, fill_segment, load_scapy
from swiftqueue.feature_store.packets.schema import PACKET_SCHEMA, scan_packets

OWN = Path(__file__).parent / "captures"
START_NS = 1_700_000_000_000_000_000
MS = 1_000_000

# Rows of conversation() in make_captures.py: sent ms, acked ms, flow, payload, ECN, resent, lost, known.
EXPECTED = [
    (21, 42, 0, 100, 1, False, False, True),
    (22, 42, 0, 100, 1, False, False, True),
    (50, 95, 0, 100, 1, False, True, False),
    (51, 95, 0, 100, 1, False, False, True),
    (52, 77, 1, 500, 2, False, False, True),
    (75, 95, 0, 100, 1, True, False, False),
    (100, 130, 0, 200, 3, False, False, True),
    (101, None, 1, 500, 0, False, False, False),
]
GOOD = sorted(p.name for p in OWN.iterdir() if p.name.endswith((".pcap", ".gz", ".pcapng")))
GOOD = [name for name in GOOD if not name.startswith(("broken_", "no_"))]
# Read by scapy, or by no layer of it: the IPv6 families of other systems, 802.1ah.
OWN_LINKS = ("rare_", "loopback_ipv6", "mac_in_mac")


def extracted(capture: Path, output: Path, **options: Any) -> tuple[dict[str, Any], pl.DataFrame]:
    name = trace_name(capture)
    summary = extract_trace(ExtractJob(capture, name, **options), output)
    return summary, scan_packets(output, name).collect()


@pytest.mark.slow
@pytest.mark.parametrize("name", GOOD)
def test_every_container_and_link_gives_the_same_table(name: str, tmp_path: Path) -> None:
    summary, table = extracted(OWN / name, tmp_path)
    assert table.schema == PACKET_SCHEMA
    headers = 72 if "ipv6" in name else 52
    if "extensions" in name:
        headers += 8 + 16
    assert table.rows() == [
        (
            trace_name(Path(name)),
            index,
            START_NS + sent * MS,
            flow,
            flow,
            headers + payload,
            ecn,
            "l4s" if ecn in (1, 3) else "classic",
            None if acked is None else START_NS + acked * MS,
            float((acked or 0) - sent) * 1000 if known else None,
            retransmitted,
            lost,
        )
        for index, (sent, acked, flow, payload, ecn, retransmitted, lost, known) in enumerate(EXPECTED)
    ]
    assert {key: summary[key] for key in ("data_packets", "latency_known", "retransmitted")} == {
        "data_packets": 8,
        "latency_known": 5,
        "retransmitted": 1,
    }
    assert (summary["flows"], summary["receivers"]) == (2, 2)
    assert summary["latency_ms"] == {"min": 20.0, "p50": 25.0, "p90": 44.0, "p99": 44.0, "max": 44.0}
    assert summary["sharp_changes"] == 1  # 20 -> 44 ms; 44 -> 25 is 19 ms, 25 -> 30 is 5 ms


@pytest.mark.slow
def test_the_committed_captures_are_what_the_script_makes() -> None:
    spec = importlib.util.spec_from_file_location("make_captures", OWN / "make_captures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.captures()
    assert set(made) == {p.name for p in OWN.iterdir() if p.suffix != ".py" and p.is_file()}
    for name, data in made.items():
        assert (OWN / name).read_bytes() == data, name


def scapy_segments(capture: Path, limit: int | None = None) -> np.ndarray:
    """Return a capture's segments, decoded by scapy alone."""
    from scapy.utils import PcapNgReader, PcapReader

    load_scapy()
    reader = PcapNgReader(str(capture)) if capture.suffix == ".pcapng" else PcapReader(str(capture))
    segments = []
    for number, packet in enumerate(reader):
        if limit is not None and number >= limit:
            break
        segment = np.zeros(1, pcaplib.SEGMENT)
        cut = (packet.wirelen or len(packet.original)) - len(packet.original)
        if fill_segment(packet, cut, segment) is None:
            segment["time_ns"] = int(packet.time * 10**9)
            segments.append(segment)
    found = np.concatenate(segments)
    return found[np.argsort(found["time_ns"], kind="stable")]


def our_segments(capture: Path) -> np.ndarray:
    segments = np.concatenate([batch.copy() for batch in CaptureFile(capture)])
    return segments[segments["kind"] == pcaplib.TCP]


FIELDS = [
    name
    for name in pcaplib.SEGMENT.names or ()
    if name not in ("link", "record_offset", "record_bytes", "original_bytes", "link_type", "kind", "padding")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in GOOD if not n.startswith(OWN_LINKS)])
def test_decode_equals_scapy_on_own_captures(name: str) -> None:
    ours, oracle = our_segments(OWN / name), scapy_segments(OWN / name)
    assert len(ours) == len(oracle)
    for field in FIELDS:
        assert (ours[field] == oracle[field]).all(), field


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["wifi-l4s/prague_dualpi2_wifi", "ndt/ndt-363A84", "ndt/ndt-5BA77"])
def test_decode_equals_scapy_on_slices_of_real_captures(name: str, captures: Path) -> None:
    capture = captures / f"{name}.pcap.gz"
    oracle = scapy_segments(capture, 5690)  # all of ndt-363A84
    ours = our_segments(capture)
    ours = ours[: len(oracle)]
    for field in FIELDS:
        assert (ours[field] == oracle[field]).all(), field


# The table of that folder's README: data packets, known, min, median, p90, p99, max, retransmitted, sharp.
REAL = {
    "wifi-l4s/cubic_dualpi2_wifi": (43_519, 43_485, 22.8, 40.1, 54.7, 166.6, 244.4, 0, 130),
    "wifi-l4s/cubic_fq_codel_wifi": (44_713, 44_693, 21.9, 29.8, 41.7, 132.2, 210.2, 0, 112),
    "wifi-l4s/prague_dualpi2_wifi": (30_810, 30_794, 21.8, 25.1, 31.7, 58.0, 266.7, 0, 148),
    "ndt/ndt-121C1A0": (8_840, 8_785, 42.9, 82.1, 115.3, 140.7, 223.5, 39, 9),
    "ndt/ndt-363A84": (2_841, 2_684, 13.2, 18.2, 32.5, 75.0, 295.2, 101, 28),
    "ndt/ndt-5BA77": (15_557, 8_466, 21.5, 55.5, 104.6, 171.1, 437.6, 4_213, 107),
    "ndt/ndt-C2E15": (3_415, 3_309, 13.1, 28.1, 44.3, 305.8, 482.5, 74, 16),
}


@pytest.mark.parametrize("name", REAL)
def test_real_captures_give_their_published_figures(name: str, captures: Path, tmp_path: Path) -> None:
    summary, table = extracted(captures / f"{name}.pcap.gz", tmp_path)
    packets, known, *quantiles, retransmitted, sharp = REAL[name]
    counts = ("data_packets", "latency_known", "retransmitted", "sharp_changes")
    assert [summary[key] for key in counts] == [packets, known, retransmitted, sharp]
    ours = list(summary["latency_ms"].values())
    if name.startswith("wifi"):
        assert [round(value, 1) for value in ours] == quantiles
    else:
        assert ours == pytest.approx(quantiles, rel=0.01)
    # The summary says what the table holds.
    latency = table["latency_us"].drop_nulls()
    assert (len(table), len(latency)) == (packets, known)
    assert ours[0] == pytest.approx(latency.min() / 1000, abs=1e-3)
    assert ours[2] == pytest.approx(latency.sort()[int(0.9 * known)] / 1000, abs=2e-3)
    assert table["sent_ns"].is_sorted()
    assert (table["acked_ns"] >= table["sent_ns"]).all()
    changes = latency.diff().abs()
    assert ((changes >= 20_000) & (changes >= 0.2 * latency.shift(1))).sum() == sharp


@pytest.mark.parametrize("name", ["cubic_dualpi2_wifi", "cubic_fq_codel_wifi", "prague_dualpi2_wifi"])
def test_timestamps_give_the_latencies_that_acks_give(
    name: str, captures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = captures / "wifi-l4s" / f"{name}.pcap.gz"
    _, acks = extracted(capture, tmp_path / "acks")
    assert "near the sender" not in capsys.readouterr().err
    _, stamps = extracted(capture, tmp_path / "stamps", latency="timestamps")
    assert "its handshakes show that it was captured near the sender" in capsys.readouterr().err
    assert stamps["size_bytes"].to_list() == acks["size_bytes"].to_list()
    difference = (stamps["latency_us"] - acks["latency_us"]).drop_nulls()
    assert len(difference) > 0.999 * acks["latency_us"].count()
    # One tick of 1 ms at each end, and the wait of an ACK for a packet that echoes it (Prague paces).
    assert difference.min() > -1_100
    assert difference.median() < 1_000
    assert difference.quantile(0.9) < 4_000


def test_summary_of_own_captures_is_json(tmp_path: Path) -> None:
    summary, _ = extracted(OWN / "ethernet_us_le.pcap", tmp_path)
    assert json.loads(json.dumps(summary)) == summary
    assert summary["packets"] == 19
    assert summary["skipped"] == {"not IP": 1, "not TCP": 1}


def test_sender_can_be_chosen(tmp_path: Path) -> None:
    summary, table = extracted(OWN / "ethernet_us_le.pcap", tmp_path, sender="198.51.100.2")
    assert summary["data_packets"] == 1
    assert table["size_bytes"].to_list() == [82]


def test_a_tunnel_is_not_looked_into() -> None:
    from scapy.layers.inet import IP, TCP, UDP
    from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
    from scapy.layers.l2 import GRE, Ether
    from scapy.layers.vxlan import VXLAN

    v4, v6 = IP(src="192.0.2.1", dst="198.51.100.1"), IPv6(src="2001:db8::1", dst="2001:db8::2")
    inner = IP(src="10.0.0.1", dst="10.0.0.2") / TCP(sport=1, dport=2)
    inner_v6 = IPv6(src="fd00::1", dst="fd00::2") / TCP(sport=1, dport=2)
    segment = np.zeros(1, pcaplib.SEGMENT)
    for tunnel in (
        v4 / GRE() / inner,
        v4 / UDP() / VXLAN() / Ether() / inner,
        v4 / inner,
        v4 / inner_v6,
        v6 / inner,
        v6 / IPv6ExtHdrHopByHop() / inner_v6,
    ):
        assert fill_segment(type(tunnel)(bytes(tunnel)), 0, segment) == "not TCP", tunnel.summary()
    options = IPv6ExtHdrHopByHop() / IPv6ExtHdrFragment() / IPv6ExtHdrDestOpt()
    assert fill_segment(IPv6(bytes(v6 / options / TCP())), 0, segment) is None
    later = v6 / IPv6ExtHdrHopByHop() / IPv6ExtHdrFragment(offset=4) / TCP()
    assert fill_segment(IPv6(bytes(later)), 0, segment) == "IP fragment"


def test_addresses_have_one_form() -> None:
    assert address_bytes("192.0.2.1") == address_bytes("::ffff:192.0.2.1")
