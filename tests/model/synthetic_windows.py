"""Writes windows in the layout of `data/windows`, of a made-up sender whose latency swings slowly.

The latencies are predictable (the next is near the last visible one), so training must lower the loss.
"""

import json
from pathlib import Path

import numpy as np

NEVER = np.iinfo(np.int64).max
FEATURES = [
    ("age_us", "us"),
    ("latency_us", "us"),
    ("latency_visible", "flag"),
    ("candidate", "flag"),
    ("size_bytes", "bytes"),
    ("queue_l4s", "flag"),
    ("in_flight", "packets"),
    ("last_latency_us", "us"),
]
SCHEMA_HASH = "5e" * 32
HORIZON = 8
GAP_NS = 1_000_000


def write_trace(folder: Path, name: str, windows: int, tokens: int, seed: int) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    packets = windows * HORIZON
    sent_ns = np.arange(packets, dtype=np.int64) * GAP_NS + rng.integers(0, GAP_NS, packets)
    swing = np.sin(np.arange(packets) / 40) + rng.normal(0, 0.05, packets)
    jumps = np.where(rng.random(packets) < 0.01, 1.5, 0.0)  # lone sharp rises
    latency_us = (20e3 * np.exp(swing + jumps)).astype(np.float32)
    acked_ns = sent_ns + (latency_us * 1e3).astype(np.int64)
    unknown = rng.random(packets) < 0.02
    latency_us[unknown], acked_ns[unknown] = np.nan, NEVER
    decision_ns = sent_ns[::HORIZON].copy()
    x_BWF = np.zeros((windows, tokens, len(FEATURES)), dtype=np.float32)
    history = tokens - HORIZON
    for k in range(windows):
        first = k * HORIZON
        shown = np.arange(max(0, first - history), first + HORIZON)
        rows = x_BWF[k, tokens - len(shown) :]
        visible = (shown < first) & ~unknown[shown] & (acked_ns[shown] <= decision_ns[k])
        rows[:, 0] = np.where(shown < first, (decision_ns[k] - sent_ns[shown]) / 1e3, 0)
        rows[:, 1] = np.where(visible, latency_us[shown], 0)
        rows[:, 2] = visible
        rows[:, 3] = shown >= first
        rows[:, 4] = 1500
        rows[:, 5] = shown % 2
        rows[:, 6] = (shown < first).sum() - visible.sum()
        rows[:, 7] = latency_us[shown[visible][-1]] if visible.any() else 0
    part = folder / name
    part.mkdir(parents=True)
    np.save(part / "x_acked.npy", x_BWF)
    np.save(part / "y_us.npy", latency_us.reshape(-1, HORIZON))
    np.save(part / "y_acked_ns.npy", acked_ns.reshape(-1, HORIZON))
    np.save(part / "decision_ns.npy", decision_ns)
    a, b, c = windows // 2, windows // 2 + windows // 8, windows // 2 + windows // 4
    return {
        "windows": windows,
        "bdp_packets": tokens,
        "duration_s": float(sent_ns[-1] / 1e9),
        "pretrain": [0, a],
        "rounds": [
            {"finetune": [a - windows // 8, a], "test": [a, b]},
            {"finetune": [a, b], "test": [b, c]},
            {"finetune": [b, c], "test": [c, windows]},
        ],
    }


def write_windows(folder: Path, windows: int = 480, tokens: int = 16, traces: int = 2) -> Path:
    """Write `traces` traces of `windows` windows each and their `meta.json`; return the folder."""
    described = {f"t{i}": write_trace(folder, f"t{i}", windows, tokens, seed=i) for i in range(traces)}
    meta = {
        "schema_hash": SCHEMA_HASH,
        "tokens": tokens,
        "horizon": HORIZON,
        "features": [{"name": name, "unit": unit} for name, unit in FEATURES],
        "protocol": {"name": "short", "pretrain_s": 2, "finetune_s": 1, "test_s": 1},
        "visibility": ["acked"],
        "traces": described,
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder
