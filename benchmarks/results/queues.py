"""What a packet costs in each queue disc: the published rows of `swiftqueue bench queues`."""

from __future__ import annotations

from swiftqueue.benchmarks.published import Published
from swiftqueue.benchmarks.queues import FLOWS, judged
from swiftqueue.laboratory.report import tables as lab


def costs(published: Published) -> list[str]:
    """What a packet costs in each disc, and whether that grows with the flows."""
    lines = lab.head_of(
        ["rule", *(f"{flows:,} flow{'s' * (flows > 1)}" for flows in FLOWS), "growth", "verdict"]
    )
    for one in judged(published.rows):
        cells = [f"{one.ns[flows] * 1e-3:.2f}" for flows in FLOWS]
        lines.append(lab.row_of([one.rule, *cells, f"{one.growth:.2f}", "held" if one.held else "not held"]))
    origin = f"{published.date}, commit {published.commit}, {published.machine}."
    return [*lines, "", f"Medians in µs, {published.rows[0].rounds} rounds; {origin}"]
