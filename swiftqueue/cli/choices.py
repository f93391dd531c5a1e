"""Choices that several commands offer."""

from __future__ import annotations

from enum import StrEnum


class LatencySource(StrEnum):
    """Where latencies come from: cumulative ACKs, or any, seen at the sender; or TCP timestamps."""

    acks = "acks"
    selective = "selective"
    timestamps = "timestamps"


class Protocol(StrEnum):
    """Lengths of pre-training, fine-tuning and test slices: 2.5/0.5/1 s, 30/6/10 s, 300/60/300 s."""

    short = "short"
    small = "small"
    paper = "paper"


class TraceProtocol(StrEnum):
    """The same, of one trace: with `teach` the whole of it is pre-trained on, and nothing tests it."""

    short = "short"
    small = "small"
    paper = "paper"
    teach = "teach"


class Told(StrEnum):
    """What a sender says of packets 2 to 8 of a batch; `replay_events` checks the same names."""

    all = "all"
    flows = "flows"
    first = "first"


class Visibility(StrEnum):
    """Which earlier latencies are known at a decision: those acknowledged, or all (the paper's)."""

    acked = "acked"
    previous = "previous"
