"""What a packet costs in the queue discs that look at flows, beside ns-3's FqCoDel in the same run.

A packet's cost is its dequeue and the next one's enqueue (`simulation/programs/disc-cost.cc`), the median of
50,000. FqCoDel drops what has waited too long, so it comes to hold fewer packets. Whether a cost grows with
the flows is each disc against itself with ten times as many. LFQ's network answers at every tenth packet, so
its mean stands beside its median.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.rows import Row, interleaved_medians
from pipelines.simulators import PROJECT, build_simulator
from pipelines.stage import StageError

REFERENCE: Final = "ns3::FqCoDelQueueDisc"
DISCS: Final = ("Confucius", "Fair", "Class", "HeavyHitter", "ShortestFirst", "Lfq")
WEIGHTS: Final = PROJECT / "docs" / "laboratory" / "models" / "lfq" / "counterfactual-10.safetensors"
LFQ: Final = "swiftqueue::LfqQueueDisc"
# No decision is out of range, since one that is costs nothing.
ATTRIBUTES: Final = {LFQ: f"Weights={WEIGHTS};Beyond=1e9"}
FLOWS: Final = 100
PACKETS: Final = 50_000


def measure(rounds: int) -> list[Row]:
    """Return a row for each disc at 100 flows, and one for ten times as many.

    Raises:
        ValueError: the program cannot be built.
    """
    try:
        program = build_simulator(program="disc-cost")
    except StageError as error:
        raise ValueError(str(error)) from None
    types = {f"swiftqueue::{name}QueueDisc": name for name in DISCS}
    asked: list[Callable[[], float]] = [
        partial(cost_ns, program, disc, flows)
        for disc in (REFERENCE, *types)
        for flows in (FLOWS, 10 * FLOWS)
    ]
    *medians, mean = interleaved_medians(rounds, *asked, partial(cost_ns, program, LFQ, FLOWS, of="mean_ns"))
    reference = medians[0]
    rows = []
    for i, name in enumerate((REFERENCE, *types.values())):
        few, many = medians[2 * i : 2 * i + 2]
        if i > 0:
            rows.append(
                Row(f"{name}, {FLOWS} flows", few, reference, REFERENCE, reference / few, "ns/packet", rounds)
            )
        rows.append(
            Row(f"{name}, {10 * FLOWS} flows", many, few, f"{FLOWS} flows", few / many, "ns/packet", rounds)
        )
    few = medians[2 * [REFERENCE, *types].index(LFQ)]
    rows.append(Row(f"Lfq, {FLOWS} flows, mean", mean, few, "median", few / mean, "ns/packet", rounds))
    return rows


def cost_ns(program: Path, disc: str, flows: int, packets: int = PACKETS, of: str = "p50_ns") -> float:
    """Cost of a packet, ns: the median, or the mean (`mean_ns`).

    Raises:
        ValueError: there is no such disc.
    """
    done = subprocess.run(
        [
            program,
            f"--type={disc}",
            f"--flows={flows}",
            f"--packets={packets}",
            *([f"--attributes={ATTRIBUTES[disc]}"] if disc in ATTRIBUTES else []),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    return float(json.loads(done.stdout)[of])
