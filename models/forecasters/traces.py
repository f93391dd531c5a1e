"""Divide packet tables by time into slices for learning and for predicting.

Training data are cut before a forecaster gets them, so that nothing later can leak into them.

Shapes: B decisions, H horizon (8 packets), N packets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.common.json_file import read_object
from swiftqueue.feature_store.events.beginning import NOTHING, Beginning
from swiftqueue.feature_store.packets.schema import HORIZON, read_packets
from swiftqueue.feature_store.packets.truth import Waits, read_waits
from swiftqueue.models.sharp import PAPERS, Change
from swiftqueue.models.training.protocol import Round, Slice, TraceSlices, together

VALIDATION_SHARE: Final = 0.1  # the last tenth, in time, of a training slice chooses the epoch
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TracePart:
    """Some decisions of a trace, with the sender's log before them.

    Decision k is about the packets 8k … 8k + 7, at the time when the first of them is sent.
    """

    trace: str
    packets: pl.DataFrame  # the trace's packet table from its first packet on, in send order
    decisions: Slice
    visibility: str = "acked"  # visibility of earlier latencies at a decision; `previous`: all are visible
    told: str = "all"  # attributes known of packets 2 to 8 of a batch at its decision (`replay_events`)
    change: Change = PAPERS  # least change of latency that the loss weights and the scores count
    every: int = 1  # stride: only each `every`-th decision counts
    beginning: Beginning = NOTHING  # knowledge of the sender from before the table's first packet

    def __len__(self) -> int:
        return -(-len(self.decisions) // self.every)

    @property
    def first_packets(self) -> NDArray[np.int64]:
        """Return the first packet of each decision, (B,)."""
        return np.arange(self.decisions.lo, self.decisions.hi, self.every, dtype=np.int64) * HORIZON

    def latencies_us(self, phase: int = 0) -> Floats:
        """Return the latencies of the packets decided, (B, H) in µs; NaN where unknown.

        With a `phase` the decisions lie that many packets later, as far as the table goes.
        """
        end = min(self.decisions.hi * HORIZON + phase, self.packets.height)
        decided = self.packets[self.decisions.lo * HORIZON + phase : end]
        latency_N = decided["latency_us"].cast(pl.Float32).fill_null(float("nan")).to_numpy()
        latency_BH: Floats = latency_N[: len(latency_N) // HORIZON * HORIZON].reshape(-1, HORIZON)
        return latency_BH[:: self.every]

    def to_learn(self) -> TracePart:
        """Return the part as known at its end, without later packets or later ACKs."""
        end = self.decisions.hi * HORIZON
        if end >= self.packets.height:  # the whole table
            return self
        known = pl.col("acked_ns") <= int(self.packets["sent_ns"][end])
        packets = self.packets.head(end).with_columns(
            acked_ns=pl.when(known).then("acked_ns"), latency_us=pl.when(known).then("latency_us")
        )
        return replace(self, packets=packets)

    def held_out(self, share: float = VALIDATION_SHARE) -> tuple[TracePart, TracePart]:
        """Divide the part by time: the training part, as known at its end, and the last `share`.

        Where no latency of the last `share` is known, as at the end of a short part whose last round trip is
        long, it is the last `share` of the decisions with a known latency, and what comes after them.
        """
        lo, hi = self.decisions.lo, self.decisions.hi
        middle = hi - max(1, round((hi - lo) * share))
        known = np.flatnonzero(np.isfinite(replace(self, every=1).latencies_us()).any(1))
        if len(known) and lo + known[-1] < middle:
            middle = lo + int(known[-max(1, round(len(known) * share))])
        earlier = replace(self, decisions=Slice(lo, middle)).to_learn()
        return earlier, replace(self, decisions=Slice(middle, hi))


@dataclass(frozen=True)
class Trace:
    """A packet table divided by time."""

    name: str
    packets: pl.DataFrame
    slices: TraceSlices
    visibility: str = "acked"
    told: str = "all"
    waits: Waits | None = None  # None: unknown
    change: Change = PAPERS

    def to_learn(self, part: Slice) -> TracePart:
        """Return a slice to learn from, as known at its end."""
        return self.to_predict(part).to_learn()

    def to_predict(self, part: Slice) -> TracePart:
        """Return a slice to predict."""
        return TracePart(self.name, self.packets, part, self.visibility, self.told, self.change)

    def with_waits(self, truth: Path) -> Trace:
        """Return the trace with the waits in both queues that its simulator wrote to `truth`, if it did."""
        known = truth / f"{self.name}.parquet"
        return replace(self, waits=read_waits(known, self.packets)) if known.is_file() else self


def decision_times(packets: pl.DataFrame) -> NDArray[np.int64]:
    """Return the decision times of a packet table's whole batches of 8, (B,)."""
    decided = packets.height // HORIZON * HORIZON
    return packets["sent_ns"].to_numpy()[:decided:HORIZON]


def name_of(table: pl.DataFrame) -> str:
    """Return the name of a packet table's trace."""
    return str(table["trace"][0])


def read_traces(packets: Path, split: Path, change: Change) -> dict[str, Trace]:
    """Read the packet tables of the traces that the stage `split` divided.

    Raises:
        FileNotFoundError: a stage has not run.
        ValueError: the tables do not match their division; the line names the trace.
    """
    if not split.is_file():
        raise FileNotFoundError(f"{split}: no such file; run the stage `split` first (dvc repro split)")
    try:
        divided = dict(read_object(split)["traces"])
        found = {}
        for name, described in divided.items():
            table = read_packets(packets, name)
            found[name] = Trace(
                name, table, TraceSlices.from_json(described, table.height // HORIZON, name), change=change
            )
        return found
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"{split}: malformed ({type(error).__name__}: {error}); run the stage `split` again"
        ) from error


def lessons(traces: Sequence[Trace], also: Sequence[pl.DataFrame] = ()) -> list[TracePart]:
    """Return the training data: the traces' training slices, and other packet tables from end to end.

    Raises:
        ValueError: a training slice holds no decision.
    """
    own = [trace.to_learn(trace.slices.pretrain) for trace in traces]
    if empty := [part.trace for part in own if not len(part)]:
        raise ValueError(f"trace {empty[0]}: its training slice holds no decision; use a longer protocol")
    whole = [Slice(0, table.height // HORIZON) for table in also]
    return own + [
        TracePart(name_of(table), table, decisions, traces[0].visibility, traces[0].told, traces[0].change)
        for table, decisions in zip(also, whole, strict=True)
    ]


def fingerprint(parts: Sequence[TracePart]) -> str:
    """Return a name of the training data; other packets, slices or knowledge have other names."""
    digest = hashlib.sha256()
    for part in parts:
        decided = part.decisions.lo, part.decisions.hi
        how = [part.trace, decided, part.visibility, part.told, part.change.model_dump()]
        digest.update(json.dumps(how).encode() + part.packets.hash_rows(seed=1).to_numpy().tobytes())
    return digest.hexdigest()[:16]


def within_training(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces' training slices alone, with their last third to predict and no test slice."""
    chosen = []
    for trace in traces:
        lo, hi = trace.slices.pretrain.lo, trace.slices.pretrain.hi
        middle = hi - (hi - lo) // 3
        # As in the protocols, a fifth of the training data tunes.
        tune = Slice(max(lo, middle - (hi - lo) // 5), middle)
        slices = TraceSlices(
            trace.slices.protocol,
            trace.slices.duration_s,
            Slice(lo, middle),
            (Round(tune, Slice(middle, hi)),),
        )
        packets = trace.to_learn(trace.slices.pretrain).packets
        chosen.append(replace(trace, packets=packets, slices=slices))
    return chosen


def tested(traces: Mapping[str, Trace]) -> list[Trace]:
    """Return the traces that have a test slice; the others only train."""
    return [trace for trace in traces.values() if trace.slices.rounds]


def about(traces: Mapping[str, Trace]) -> dict[str, Any]:
    """Return the protocol that the traces with test slices share; only the names if there are several."""
    return together(trace.slices.protocol for trace in tested(traces))
