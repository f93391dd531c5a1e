"""Two heads beside each other on live traffic that neither has learned from: before a switch, and after it.

Telemetry says what was sent and what came of it, so what a head would have said of it can be computed here,
away from the senders' requests (docs/decisions/0008). Every so many windows are encoded, for both at once.

Shapes: B windows, H horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from feature_store.events import event_stream
from feature_store.events.beginning import Beginning
from feature_store.events.definition import EVENTS
from models.networks.prediction import latencies
from models.registry import gate
from models.sharp import PAPERS, Change
from pipelines.live.encoding import Encoding
from pipelines.live.minute import Minute, Tuned, Version, aligned, as_seen, tune

MOST_WINDOWS: Final = 2048


@dataclass(frozen=True)
class Pair:
    """What is to be compared."""

    packets: pl.DataFrame  # a packet table: consecutive packets of one sender, with a lead-in
    beginning: Beginning  # what was known of the sender before them
    from_ns: int  # decisions before it are only history
    head: Mapping[str, bytes]  # artifact files by name
    other: Mapping[str, bytes]
    change: Change = PAPERS  # from which on a packet is late


@dataclass(frozen=True)
class Compared:
    """How a head did beside another."""

    batches: int
    seconds: float  # from the first decision to the last
    figures: Mapping[str, Any]  # gate figures of `head` and `other`
    inferior: str  # what it may be worse in, by more than the gate's margin; empty if it is not
    worse: Mapping[str, float]  # by figure, how much worse it surely is


def compare(pair: Pair) -> Compared:
    """Judge both heads on the same windows.

    Raises:
        DeclinedError: the telemetry has a gap.
    """
    head, other = Version.load(pair.head), Version.load(pair.other)
    packets, beginning = aligned(pair.packets, pair.beginning)
    targets = event_stream.targets(packets)
    first = int(np.searchsorted(targets.decision_ns_B, pair.from_ns))
    batches = len(targets.decision_ns_B) - first
    if not batches:
        return Compared(0, 0.0, {}, "", {})
    every = -(-batches // MOST_WINDOWS)
    decision_ns_B = targets.decision_ns_B[first::every]
    encoded = {}
    for one in (head, other):
        if one.encoder not in encoded:
            with Encoding(packets, one.encodes, one.tokens, first, every, beginning=beginning) as encoding:
                encoded[one.encoder] = encoding.take(len(decision_ns_B))
    held_out = gate.HeldOutDecisions(
        encoded[head.encoder].candidates_BHF,
        targets.y_BH[first::every],
        decision_ns_B,
        tuple(feature.name for feature in EVENTS.features),
        pair.change,
    )
    ours, theirs = (
        gate.score(latencies(one.found.model, as_seen(one.found.model, encoded[one.encoder])), held_out)
        for one in (head, other)
    )
    return Compared(
        batches,
        float(decision_ns_B[-1] - decision_ns_B[0]) / 1e9,
        {"head": asdict(ours.figures), "other": asdict(theirs.figures)},
        gate.inferior(ours, theirs),
        gate.surely_worse(ours, theirs),
    )


def work(what: Minute | Pair) -> Tuned | Compared:
    """Do what the warm worker is given."""
    return compare(what) if isinstance(what, Pair) else tune(what)
