"""Made-up rows of the laboratory's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from swiftqueue.laboratory.runs.results import COMPLETE, SCHEMA

NO_NOISE = (0.98, 1.0, 1.01, 1.02, 0.99)  # how seeds differ


def run_row(
    control: str,
    seed: int,
    p99_us: float = 10_000.0,
    *,
    scenario: str = "mine",
    point: str = "",
    at: float | None = None,
    profile: str = "uncoupled",
    **figures: Any,
) -> dict[str, Any]:
    quantiles_us = [float(q) for q in np.linspace(0, p99_us, 101)]
    row: dict[str, Any] = dict.fromkeys(SCHEMA) | {
        "scenario": scenario,
        "point": point,
        "at": at,
        "about": "What it is",
        "figure": "7b" if scenario == "figure8" else None,
        "axis_label": "load" if point else None,
        "axis_log": False if point else None,
        "profile": profile,
        "control": control,
        "seed": seed,
        "status": COMPLETE,
        "run": f"{control}-{seed}",
        "program": "p",
        "seconds": 10.0,
        "warmup_s": 2.0,
        "parameters": "{}",
        "reordering": "3 duplicate ACKs",
        "queueing_p50_us": p99_us / 4,
        "queueing_p90_us": p99_us / 2,
        "queueing_p99_us": p99_us,
        "one_way_p90_us": 21_000.0,
        "one_way_p99_us": 25_000.0,
        "rtt_p90_us": 30_000.0,
        "rtt_p99_us": 40_000.0,
        "queueing_cdf_us": quantiles_us,
        "rtt_cdf_us": [40_000 + q for q in quantiles_us],
        "moved_share": 0.0,
        "retransmitted_share": 0.001,
        "reordered_share": 0.0,
        "s1_l4s_goodput_bps": 3e7,
        "s1_classic_goodput_bps": 2e7,
        "s1_goodput_bps": 5e7,
        "cross_goodput_bps": 4e7,
        "classic_share": 0.2,
        "cpu_s": 1.0,
    }
    return row | figures


def runs_of(controls: dict[str, float], **common: Any) -> list[dict[str, Any]]:
    """Five seeds of each control; a control's value is its P99 relative to default's."""
    more = {k: v for k, v in common.items() if not isinstance(v, dict)}
    return [
        run_row(c, seed, 10_000 * share * noise, **more, **common.get(c, {}))
        for c, share in controls.items()
        for seed, noise in enumerate(NO_NOISE, 1)
    ]


def table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA)
