"""Choices that several commands offer."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

Overrides = Annotated[list[str] | None, typer.Option("--set", help="parameter to change, SECTION.KEY=VALUE")]


class LatencySource(StrEnum):
    """The source of latencies: cumulative ACKs or any ACKs seen at the sender, or TCP timestamps."""

    acks = "acks"
    selective = "selective"
    timestamps = "timestamps"


class SliceProtocol(StrEnum):
    """Lengths of pre-training, fine-tuning and test slices: 2.5/0.5/1 s, 30/6/10 s, 300/60/300 s."""

    short = "short"
    small = "small"
    paper = "paper"


class TraceProtocol(StrEnum):
    """The slice lengths of one trace; `teach` pre-trains on the whole trace and tests nothing."""

    short = "short"
    small = "small"
    paper = "paper"
    teach = "teach"


class AgentRule(StrEnum):
    """Rules that the agent knows: the alternative whose last latency is less."""

    last_latency = "last-latency"


class BatchKnowledge(StrEnum):
    """The sender's knowledge of packets 2 to 8 of a batch; `replay_events` checks the same names."""

    all = "all"
    flows = "flows"
    first = "first"


class Visibility(StrEnum):
    """The earlier latencies known at a decision: the acknowledged ones, or all (the paper's protocol)."""

    acked = "acked"
    previous = "previous"
