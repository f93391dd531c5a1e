"""Compares two heads on live traffic that neither learned from: before a switch, and after it.

Telemetry says what was sent and how late it was, so a head's predictions of it can be computed here, away
from the senders' requests (docs/decisions/0008). One decision of several is encoded, for both heads at once.

Shapes: B decisions, H horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from swiftqueue.feature_store.events import event_stream
from swiftqueue.feature_store.events.beginning import Beginning
from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.models.forecasters.traces import TracePart
from swiftqueue.models.registry import gate
from swiftqueue.models.sharp import PAPERS, Change
from swiftqueue.models.training.protocol import Slice
from swiftqueue.pipelines.live.encoding import Decisions, load
from swiftqueue.pipelines.live.minute import Minute, TuningResult, aligned, tune
from swiftqueue.pipelines.live.slices import encoder_of

MOST_DECISIONS: Final = 2048


@dataclass(frozen=True)
class HeadPair:
    """Two heads and the packets to compare them on."""

    packets: pl.DataFrame  # a packet table: consecutive packets of one sender, with a lead-in
    beginning: Beginning  # the sender's state before them
    from_ns: int  # decisions before it only fill the history
    head: Mapping[str, bytes]  # artifact files by name
    other: Mapping[str, bytes]
    change: Change = PAPERS  # change of latency above which a packet is late


@dataclass(frozen=True)
class HeadComparison:
    """The result of comparing a head with another."""

    batches: int
    seconds: float  # from the first decision to the last
    figures: Mapping[str, Any]  # gate figures of `head` and `other`
    inferior: str  # figure in which it may be worse by more than the gate's margin; empty if none
    worse: Mapping[str, float]  # by figure, how much worse it surely is


def compare(pair: HeadPair) -> HeadComparison:
    """Judge both heads on the same decisions.

    Raises:
        DeclinedError: the telemetry has a gap.
    """
    head, other = load(pair.head), load(pair.other)
    packets, beginning = aligned(pair.packets, pair.beginning)
    targets = event_stream.targets(packets)
    first = int(np.searchsorted(targets.decision_ns_B, pair.from_ns))
    batches = len(targets.decision_ns_B) - first
    if not batches:
        return HeadComparison(0, 0.0, {}, "", {})
    every = -(-batches // MOST_DECISIONS)
    decided = Slice(first, first + batches)
    part = TracePart(str(packets["trace"][0]), packets, decided, every=every, beginning=beginning)
    decision_ns_B = targets.decision_ns_B[first::every]
    ours = Decisions.of(head, part)
    theirs = ours if encoder_of(other) == encoder_of(head) else Decisions.of(other, part)
    held_out = gate.HeldOutDecisions(
        ours.candidates_BHF,
        targets.y_BH[first::every],
        decision_ns_B,
        tuple(feature.name for feature in EVENTS.features),
        pair.change,
    )
    own_score, other_score = (
        gate.score(found.answer(decisions.encoded), held_out)
        for found, decisions in ((head, ours), (other, theirs))
    )
    return HeadComparison(
        batches,
        float(decision_ns_B[-1] - decision_ns_B[0]) / 1e9,
        {"head": asdict(own_score.figures), "other": asdict(other_score.figures)},
        gate.inferior(own_score, other_score),
        gate.surely_worse(own_score, other_score),
    )


def work(what: Minute | HeadPair) -> TuningResult | HeadComparison:
    """Run the warm worker's task."""
    return compare(what) if isinstance(what, HeadPair) else tune(what)
