"""Replay of a small packet table against a real Triton."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from swiftqueue.feature_store.packets.schema import PACKET_SCHEMA
from swiftqueue.serving.agent.replay import replay_trace

pytestmark = pytest.mark.slow

SPACING_NS = 1_000_000
LATENCY_NS = 20_000_000
PACKETS = 1_600


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A packet every millisecond of two flows, acknowledged 20 ms later."""
    sent_ns = 10**9 + np.arange(PACKETS) * SPACING_NS
    flow = np.arange(PACKETS) % 2
    table = pl.DataFrame(
        {
            "trace": "even",
            "packet": range(PACKETS),
            "sent_ns": sent_ns,
            "flow_id": flow,
            "receiver_id": 0,
            "size_bytes": 1500,
            "ecn": np.where(flow == 0, 0, 1),
            "queue": np.where(flow == 0, "classic", "l4s"),
            "acked_ns": sent_ns + LATENCY_NS,
            "latency_us": LATENCY_NS / 1e3,
            "retransmitted": False,
            "lost": False,
        },
    ).select(pl.col(name).cast(kind) for name, kind in PACKET_SCHEMA.items())
    part = tmp_path / "trace=even" / "minute=0"
    part.mkdir(parents=True)
    table.write_parquet(part / "part-0.parquet")
    return tmp_path


def test_replay_in_real_time(
    champion: int, folder: Path, triton: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = time.monotonic()
    code = replay_trace(str(folder), speed=1, deadline_us=1_000_000, seconds=None, as_json=True)
    took_s = time.monotonic() - begin
    summary = json.loads(capsys.readouterr().out)
    assert code == 0
    assert summary["batches"] == PACKETS // 8
    assert summary["batches"] == summary["decided"] + summary["late"] + summary["failed"]
    assert summary["decided"] >= 0.9 * summary["batches"]
    assert list(summary["versions"]) == [str(champion)]
    assert took_s >= (PACKETS - 8) * SPACING_NS / 1e9

    recorded = pl.read_parquet(triton / "replay" / "even.parquet")
    assert recorded.height == PACKETS
    decided = recorded.filter(pl.col("outcome") == "decided")
    error_us = (decided["predicted_us"] - decided["latency_us"]).abs().mean()
    assert summary["mae_us"] == pytest.approx(error_us, abs=0.1)
    moved = decided.filter(pl.col("queue_chosen") != pl.col("queue_sent"))
    assert (moved["queue_sent"] == "l4s").all()
    l4s = decided.filter(pl.col("queue_sent") == "l4s").height
    assert summary["moved_share"] == pytest.approx(moved.height / l4s, abs=1e-4)


def test_replay_as_fast_as_possible_shows_a_summary(
    champion: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = replay_trace(str(folder), speed=0, deadline_us=100_000, seconds=0.4, as_json=False)
    shown = capsys.readouterr().out
    assert code == 0
    assert "decided in time" in shown
    assert re.search(rf"{champion} \((4\d|50) batches\)", shown)
