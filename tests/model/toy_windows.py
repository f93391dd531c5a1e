"""A small `data/windows` folder and artifacts for it, made from a known toy sender.

Every feature is computed from its definition by brute force, so a test can say what a baseline may know.
Shapes: B windows, W tokens, F features, H horizon.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

H, W = 8, 16
NEVER = np.iinfo(np.int64).max
SCHEMA_HASH = "0123abcd"
FEATURES = [
    *("flow_age_us", "age_us", "latency_us", "latency_visible", "candidate", "size_bytes"),
    *("flow_code_0", "flow_code_1", "flow_code_2", "flow_code_3", "receiver_code_0", "receiver_code_1"),
    *("queue_l4s", "in_flight", "in_flight_flow", "in_flight_queue", "last_latency_us"),
    *("last_latency_flow_us", "last_latency_queue_us", "gap_us", "ack_silence_us", "oldest_unacked_us"),
    *("hole_us", "hole_age_us"),
]
PROTOCOL = {"name": "short", "pretrain_s": 5, "finetune_s": 1, "test_s": 2}


def make_packets(seed: int, seconds: float = 10.0, late: bool = True) -> pl.DataFrame:
    """Three flows at 400 packets/s; a latency of 20-25 ms, in episodes (if `late`) around 80 ms."""
    rng = np.random.default_rng(seed)
    n = int(seconds * 400) // H * H
    sent = (np.cumsum(rng.exponential(1 / 400, n)) * 1e9).astype(np.int64) + 10**12
    latency = rng.uniform(20e3, 25e3, n)
    if late:
        starts = np.cumsum(rng.exponential(0.8, int(seconds * 3))) * 1e9 + sent[0]
        for start in starts:
            latency[(sent >= start) & (sent < start + 0.15e9)] += 60e3
    unknown = rng.random(n) < 0.02
    flow = rng.integers(0, 3, n)
    return pl.DataFrame(
        {
            "packet": np.arange(n),
            "sent_ns": sent,
            "flow_id": flow.astype(np.int32),
            "queue": np.where(flow == 0, "classic", "l4s"),
            "acked_ns": np.where(unknown, NEVER, sent + (latency * 1e3).astype(np.int64)),
            "latency_us": np.where(unknown, np.nan, latency).astype(np.float32),
        }
    )


def make_tokens(packets: pl.DataFrame, visibility: str) -> tuple[Any, Any]:
    """Windows (B, W, F) and decision times (B,): only the candidates' tokens carry the derived inputs."""
    n = packets.height
    sent, acked, latency = (packets[c].to_numpy() for c in ("sent_ns", "acked_ns", "latency_us"))
    flow, l4s = packets["flow_id"].to_numpy(), (packets["queue"] == "l4s").to_numpy()
    x_BWF = np.zeros((n // H, W, len(FEATURES)), dtype=np.float32)
    decision = sent[::H].copy()

    def put(token: Any, name: str, value: float) -> None:
        token[FEATURES.index(name)] = value

    for b, now in enumerate(decision):
        first = b * H
        earlier = slice(max(0, first - 400), first)  # over 80 ms of packets: nothing older is still unseen
        known = np.isfinite(latency[earlier])
        if visibility == "acked":
            known &= acked[earlier] <= now
            order = np.argsort(acked[earlier], kind="stable")
        else:
            order = np.arange(len(known))
        order = order[known[order]] + earlier.start
        for w in range(W):
            p = first + w - (W - H)
            if p < 0:
                continue
            token = x_BWF[b, w]
            put(token, "size_bytes", 1500)
            put(token, "queue_l4s", float(l4s[p]))
            put(token, "flow_code_0", 1.0 if flow[p] == 0 else -1.0)
            if w < W - H:
                put(token, "age_us", (now - sent[p]) / 1e3)
                continue
            put(token, "candidate", 1)
            put(token, "in_flight", float(len(known) - known.sum()))
            if w == W - H and p:
                put(token, "gap_us", (now - sent[p - 1]) / 1e3)
            same = {"": order, "_flow": order[flow[order] == flow[p]], "_queue": order[l4s[order] == l4s[p]]}
            for suffix, seen in same.items():
                if len(seen):
                    put(token, f"last_latency{suffix}_us", float(latency[seen[-1]]))
    return x_BWF, decision


def write_windows(folder: Path, traces: dict[str, pl.DataFrame], visibility: tuple[str, ...]) -> None:
    """Write `folder` in the format of the stage `windows`, under protocol `short`."""
    about: dict[str, Any] = {}
    for name, packets in traces.items():
        target = folder / name
        target.mkdir(parents=True)
        for kind in visibility:
            x_BWF, decision = make_tokens(packets, kind)
            np.save(target / f"x_{kind}.npy", x_BWF)
            if kind == "acked":
                tokens = x_BWF[:, -H:].reshape(-1, len(FEATURES))
        y_BH, acked_BH = (packets[c].to_numpy().reshape(-1, H) for c in ("latency_us", "acked_ns"))
        np.save(target / "y_us.npy", y_BH)
        np.save(target / "y_acked_ns.npy", acked_BH)
        np.save(target / "decision_ns.npy", decision)
        np.save(target / "first_packet.npy", packets["packet"].to_numpy()[::H])
        pl.DataFrame(
            {
                "trace": [name] * packets.height,
                "packet": packets["packet"],
                "horizon": (packets["packet"] % H).cast(pl.Int8),
                "decision_ns": np.repeat(decision, H),
                **{f: tokens[:, i] for i, f in enumerate(FEATURES) if f != "latency_us"},
                "latency_us": packets["latency_us"].fill_nan(None),
                "acked_ns": packets["acked_ns"].replace(NEVER, None),
                "queue": packets["queue"],
                "flow_id": packets["flow_id"],
            }
        ).write_parquet(target / "features.parquet")
        seconds = (decision - decision[0]) / 1e9

        def windows(low: float, high: float, seconds: Any = seconds) -> list[int]:
            return [int(np.searchsorted(seconds, low)), int(np.searchsorted(seconds, high))]

        rounds = [
            {"finetune": windows(at - 1, at), "test": windows(at, at + 2)}
            for at in range(5, int(seconds[-1]) + 1, 2)
        ]
        about[name] = {
            "windows": len(decision),
            "bdp_packets": 8,
            "duration_s": float(seconds[-1]),
            "pretrain": windows(0, 5),
            "rounds": rounds,
        }
    meta = {
        "schema_hash": SCHEMA_HASH,
        "tokens": W,
        "horizon": H,
        "features": [{"name": f, "unit": "us" if f.endswith("_us") else "flag"} for f in FEATURES],
        "protocol": PROTOCOL,
        "visibility": list(visibility),
        "traces": about,
    }
    (folder / "meta.json").write_text(json.dumps(meta))


def write_artifacts(folder: Path, rounds: dict[str, int], schema_hash: str = SCHEMA_HASH) -> None:
    """Write untrained artifacts: `folder`/pretrained and `folder`/finetuned/NAME/round-K (other heads)."""
    import torch

    from models import artifact
    from models.predictor import Predictor
    from models.scaling import Feature, Target

    torch.manual_seed(1)
    features = [
        Feature(f, "us", "log1p", 8.0, 3.0) if f.endswith("_us") else Feature(f, "flag", "identity", 0.0, 1.0)
        for f in FEATURES
    ]
    model = Predictor(features, Target("log", float(np.log(25e3)), 0.4))
    described = artifact.Description(W, schema_hash, "acked", PROTOCOL)
    artifact.save(folder / "pretrained", model, described)
    for name, count in rounds.items():
        for k in range(count):
            with torch.no_grad():
                model.head[2].bias += 0.01
            artifact.save(folder / "finetuned" / name / f"round-{k}", model, described)
