"""Measure what a packet costs in each queue disc, at 1 to 1,000 flows, beside ns-3's FqCoDel.

A packet's cost is its dequeue and the next one's enqueue (`simulation/programs/disc-cost.cc`), the median of
50,000. FqCoDel drops what has waited too long, so it comes to hold fewer packets. LFQ's network answers at a
flow's tenth packet, or after 100 ms, so its mean stands beside its median. On this link of 100 Mbit/s each of
1,000 flows has a packet every 120 ms, and the network answers at all of them. Whether the disc itself grows
with flows is seen without the network, whose answer costs the same at any number of flows.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from swiftqueue.benchmarks.rows import Row, interleaved_medians
from swiftqueue.pipelines.simulators import PROJECT, build_simulator
from swiftqueue.pipelines.stage import StageError

WEIGHTS: Final = PROJECT / "docs" / "laboratory" / "models" / "lfq" / "counterfactual-10.safetensors"
REFERENCE: Final = "FqCoDel"
LFQ: Final = "LFQ"
LFQ_ALONE: Final = "LFQ, no network"  # LFQ's signals and queue without the network
# Each rule's ns-3 type and attributes, by its name in who-picks. No decision of LFQ's is out of range: that
# costs nothing.
DISCS: Final = {
    REFERENCE: ("ns3::FqCoDelQueueDisc", ""),
    "FIFO": ("ns3::FifoQueueDisc", ""),
    "FQ+FIFO": ("swiftqueue::FairQueueDisc", ""),
    "DualPI2": ("ns3::DualPi2QueueDisc", ""),
    "DualPI2, weights by age": ("ns3::DualPi2QueueDisc", "CWeightBy=Age"),
    "Confucius": ("swiftqueue::ConfuciusQueueDisc", ""),
    "CBQ 1:1": ("swiftqueue::ClassQueueDisc", ""),
    "priority": ("swiftqueue::ClassQueueDisc", "Service=Strict"),
    "HHF": ("swiftqueue::HeavyHitterQueueDisc", ""),
    "SJF": ("swiftqueue::ShortestFirstQueueDisc", ""),
    LFQ: ("swiftqueue::LfqQueueDisc", f"Weights={WEIGHTS};Beyond=1e9"),
    LFQ_ALONE: ("swiftqueue::LfqQueueDisc", ""),
}
FLOWS: Final = (1, 10, 100, 1000)
PACKETS: Final = 50_000
# The figures to reach: a packet's median at JUDGED_FLOWS flows, and the growth with more flows.
JUDGED_FLOWS: Final = 100
MOST_NS: Final = 2000
GROWN_FLOWS: Final = (10, 1000)
MOST_GROWTH: Final = 2.0  # factor allowed for 100 times the flows; a cost linear in them would be 100


@dataclass(frozen=True)
class RuleMedians:
    """A rule's median cost in ns by the number of flows, and whether it meets the targets."""

    rule: str
    ns: dict[int, float]

    @property
    def growth(self) -> float:
        """Return how many times as much a packet costs with 1,000 flows as with 10."""
        few, many = GROWN_FLOWS
        return self.ns[many] / self.ns[few]

    @property
    def held(self) -> bool:
        """Return whether it is at most 2 us at 100 flows and does not grow with their number."""
        return self.ns[JUDGED_FLOWS] <= MOST_NS and self.growth <= MOST_GROWTH


def judged(rows: Sequence[Row]) -> Iterator[RuleMedians]:
    """Return each rule's medians in a run of this benchmark."""
    ours = {row.name: row.ours for row in rows}
    for rule in DISCS:
        if name_of(rule, JUDGED_FLOWS) in ours:  # older results have fewer rules
            yield RuleMedians(rule, {flows: ours[name_of(rule, flows)] for flows in FLOWS})


def name_of(rule: str, flows: int) -> str:
    """Return the name of a row."""
    return f"{rule}; flows: {flows}"


def measure(rounds: int) -> list[Row]:
    """Return a row for each disc and number of flows, and rows with LFQ's mean.

    Raises:
        ValueError: the program cannot be built.
    """
    try:
        program = build_simulator(program="disc-cost")
    except StageError as error:
        raise ValueError(str(error)) from None
    places = [(rule, flows) for rule in DISCS for flows in FLOWS]
    asked: list[Callable[[], float]] = [
        partial(cost_ns, program, *DISCS[rule], flows) for rule, flows in places
    ]
    *medians, mean = interleaved_medians(
        rounds, *asked, partial(cost_ns, program, *DISCS[LFQ], JUDGED_FLOWS, of="mean_ns")
    )
    ns = dict(zip(places, medians, strict=True))
    rows = [
        Row(
            name_of(rule, flows),
            ns[rule, flows],
            ns[REFERENCE, flows],
            REFERENCE,
            ns[REFERENCE, flows] / ns[rule, flows],
            "ns/packet",
            rounds,
        )
        for rule, flows in places
    ]
    few = ns[LFQ, JUDGED_FLOWS]
    return [
        *rows,
        Row(f"{LFQ}, mean; flows: {JUDGED_FLOWS}", mean, few, "median", few / mean, "ns/packet", rounds),
    ]


def cost_ns(
    program: Path, disc: str, attributes: str, flows: int, packets: int = PACKETS, of: str = "p50_ns"
) -> float:
    """Return the cost of a packet in ns: the median, or the mean (`mean_ns`).

    Raises:
        ValueError: there is no such disc.
    """
    done = subprocess.run(
        [
            program,
            f"--type={disc}",
            f"--flows={flows}",
            f"--packets={packets}",
            *([f"--attributes={attributes}"] if attributes else []),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    return float(json.loads(done.stdout)[of])
