"""Made-up flows: paths whose rate the first ACKs tell, and windows that grow until they are full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import torch

from studies.rate.model import networks
from studies.rate.model.network import RateNetwork, fit_scaling
from studies.rate.samples.definition import HORIZONS, MOST_SAMPLES, NAMES, inputs
from studies.rate.samples.tables import write_path

SIZE = 1440


def samples_of(rate: float, rtt_us: int, n: int = MOST_SAMPLES) -> list[dict[str, int]]:
    """Samples of a flow at `rate` bytes/s: ten ACKs at the bottleneck's distance, then twenty, and so on."""
    rows, ts, burst, left = [], rtt_us, 10, 10
    gap = max(1, round(SIZE / rate * 1e6))
    for i in range(n):
        if left == 0:
            burst, ts = 2 * burst, ts + rtt_us
            left = burst
        left, ts = left - 1, ts + gap
        row = dict.fromkeys(NAMES, 0) | {
            "ts": ts, "rtt": rtt_us, "min_rtt": rtt_us, "bbr_minrtt": rtt_us, "rto": 2 * rtt_us,
            "snd_cwnd": 10 + i, "bytes_acked": (i + 1) * SIZE, "delivered": i + 1, "segs_out": 10 + 2 * i,
            "bytes_sent": (10 + 2 * i) * SIZE, "bbr_bw": (i + 1) * SIZE * 1_000_000 // ts,
            "delivery_rate": (i + 1) * SIZE * 1_000_000 // ts, "busy_time": ts,
        }  # fmt: skip
        rows.append(row)
    return rows


def untrained(kind: str, seed: int) -> RateNetwork:
    """A network of that kind, scaled to flows of a slow and a fast path."""
    torch.manual_seed(seed)
    raw = [np.array([list(row.values()) for row in samples_of(rate, 50_000)]) for rate in (1e6, 9e6)]
    return networks.KINDS[kind](fit_scaling(np.concatenate([inputs(one) for one in raw])))


def saved_once(root: Path, make: Callable[[int], RateNetwork]) -> Callable[[int], Path]:
    """Networks by seed, each made and saved when it is first asked for."""

    def saved(seed: int) -> Path:
        folder = root / str(seed)
        if not folder.exists():
            networks.save(folder, make(seed).eval(), {"seed": seed})
        return folder

    return saved


def write_flows(folder: Path, *, train: int = 6, held_out: int = 2, flows: int = 12, short: int = 0) -> None:
    """Write paths of several rates and round trips; the first `short` flows of each end after three ACKs."""
    for place in range(train + held_out):
        draw = np.random.default_rng(place)
        capacity, rtt_us = float(draw.uniform(1e6, 1e7)), int(draw.uniform(20e3, 200e3))
        samples, rows = [], []
        for flow in range(flows):
            n = 3 if flow < short else MOST_SAMPLES
            rate = capacity * float(draw.uniform(0.95, 1.05))
            own = samples_of(rate, rtt_us, n)
            samples += [{"flow": flow, "sample": i} | row for i, row in enumerate(own)]
            started = flow * 5_000_000_000
            row = {
                "flow": flow,
                "receiver": flow % 2,
                "started_ns": started,
                "samples": 3 if n == 3 else 2222,
            }
            for k in HORIZONS:
                growing = k / 2 * SIZE / rtt_us * 1e6
                row[f"rate_{k}_bytes_per_s"] = None if n == 3 else round(min(rate, growing))
                row[f"at_{k}_ns"] = None if n == 3 else started + k * 1_000_000
            rows.append(row)
        kind = "train" if place < train else "held-out"
        options = {"rate-bps": 8 * capacity, "rtt-ms": rtt_us / 1e3, "buffer-bdp": 1.0}
        about = {"format": 1, "kind": kind, "options": options}
        types = {name: pl.Int64 for name in rows[0]}
        write_path(folder, f"p{place}", about, pl.DataFrame(samples), pl.DataFrame(rows, schema=types))
