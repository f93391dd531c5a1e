"""Windows of real captures: the brute-force reading of the definition agrees bit for bit."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from window_oracle import Oracle

from feature_store.events.windows import FEATURES, VISIBILITIES, build_windows
from feature_store.packets.extract import Job, extract_trace
from feature_store.packets.schema import scan_packets

PACKETS = 400


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ndt/ndt-C2E15", "ndt/ndt-363A84"])
def test_windows_of_a_real_capture_are_the_oracles(captures: Path, tmp_path: Path, name: str) -> None:
    extract_trace(Job(captures / f"{name}.pcap.gz", "real"), tmp_path)
    table = scan_packets(tmp_path).collect()
    names = [f.name for f in FEATURES]
    # The packets with most retransmissions around them, renumbered as a trace of their own.
    middle = int(table.filter(pl.col("retransmitted"))["packet"].median() or 0)  # type: ignore[arg-type]
    start = max(0, middle - PACKETS // 2)
    part = table[start : start + PACKETS].with_columns(packet=pl.int_range(pl.len(), dtype=pl.Int64))
    for visibility in VISIBILITIES:
        expected_BWF = Oracle(part, visibility).windows(64, names)
        assert build_windows(part, 64, visibility).x_BWF.tobytes() == expected_BWF.tobytes()
