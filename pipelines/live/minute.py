"""The arithmetic of one round: it takes the last minute of packets and returns a new head and its judgement.

It is pure but for time. The packets before `learn_from_ns` only fill the first windows' history. Windows
decided in [learn_from_ns, judge_from_ns) teach, with the latencies known at `judge_from_ns`. Later windows
judge, with the latencies known when the telemetry was read, and are encoded while the head is trained. The
slices that judged earlier rounds judge, too, and teach nothing. Champion, challenger and reference share one
encoder, so each window is encoded once; a re-trained challenger has its own, and each encodes what judges.

Shapes: B windows, W window tokens, F features, R tokens that the head reads, D model width, H horizon.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from feature_store.events import event_stream
from feature_store.events.beginning import Beginning
from feature_store.events.definition import EVENTS
from feature_store.packets.schema import HORIZON
from feature_store.quality.distribution_shift import input_shift, sample_inputs
from models.networks import artifact
from models.networks.artifact import Artifact
from models.networks.prediction import Encoded, latencies
from models.networks.query_network import QueryNetwork
from models.registry import gate
from models.registry.bars import Verdict
from models.scoring.baselines import Candidates, last_visible
from models.sharp import PAPERS, Change, sharp_changes
from models.training.head import FinetuneParams, Tuning, train_head_on
from pipelines.live.encoding import EncodedWindows, Encoding, WindowEncoder, encoder_for, joined
from pipelines.live.reservoir import EMPTY, PastWindows, Reservoir, stretches
from pipelines.live.rounds_log import DeclinedError
from pipelines.live.slices import JudgingSlice, due, encoder_of, usable

LEAD_IN_NS: Final = 5_000_000_000  # lead-in of a kept slice: more than the lead-in of docs/EVENTS.md


@dataclass(frozen=True)
class Minute:
    """The inputs of a round."""

    packets: pl.DataFrame  # a packet table: consecutive packets of one sender
    beginning: Beginning  # the sender's state before the packets
    learn_from_ns: int
    judge_from_ns: int
    champion: Mapping[str, bytes]  # artifact files by name
    params: FinetuneParams
    trained_on: NDArray[np.float32] | None  # inputs (N, F) of the encoder's training; None: this minute's
    least_windows: int
    retrained: Mapping[str, bytes] | None = None  # files of a re-train that is to replace the champion
    reference: Mapping[str, bytes] | None = None  # files of the version that brought the champion's encoder
    earlier: tuple[JudgingSlice, ...] = ()  # slices that judged earlier rounds
    reservoir: Reservoir = EMPTY  # stretches of earlier minutes, which teach too
    memory_windows: int = 0  # most windows of the reservoir; 0: it is neither kept nor taught from
    change: Change = PAPERS  # change of latency that the loss weights and the gate counts as late


@dataclass(frozen=True)
class TuningResult:
    """The challenger of a round and its judgement."""

    files: Mapping[str, bytes]  # artifact files by name
    verdict: Verdict
    figures: Mapping[str, Any]  # gate figures by predictor
    loss_before: float
    loss_after: float
    psi: Mapping[str, float]  # population stability index by input
    trained_on: NDArray[np.float32]  # inputs (N, F) that the index compares with
    slices: tuple[JudgingSlice, ...]  # slices to be kept, oldest first
    remembered: int  # windows of the reservoir that taught
    reservoir: Reservoir | None  # the new reservoir to be kept; None keeps the present one
    seconds: Mapping[str, float]  # seconds by step


def tune(minute: Minute) -> TuningResult:
    """Fine-tune the head of the champion or of a re-train on a minute, and judge it on what follows.

    Raises:
        DeclinedError: too few windows, no known latency, or telemetry with a gap; the line says which.
    """
    clock = _Clock()
    champion = Version.load(minute.champion)
    own = champion if minute.retrained is None else Version.load(minute.retrained)
    packets, beginning = aligned(minute.packets, minute.beginning)
    trace = str(packets["trace"][0])
    clock.lap("load")
    targets = event_stream.targets(packets)
    decision_ns_B = targets.decision_ns_B
    first, judge = (
        int(np.searchsorted(decision_ns_B, ns)) for ns in (minute.learn_from_ns, minute.judge_from_ns)
    )
    learn_B = (decision_ns_B >= minute.learn_from_ns) & (decision_ns_B < minute.judge_from_ns)
    for one in minute.earlier:
        learn_B &= ~one.holds(trace, decision_ns_B)
    judges = len(decision_ns_B) - judge
    for name, count in (("to learn from", int(learn_B.sum())), ("to judge on", judges)):
        if count < minute.least_windows:
            raise DeclinedError(f"{count} windows {name}, at least {minute.least_windows} are needed")
    with Encoding(packets, own.encodes, own.tokens, first, beginning=beginning) as encoding:
        taught = encoding.take(judge - first).chosen(learn_B[first:judge])
        clock.lap("encode")
        past = None
        if minute.memory_windows:
            past = minute.reservoir.beside(own.encoder, trace, minute.learn_from_ns, minute.judge_from_ns)
        tuned = _train(own.found.model, taught, targets, learn_B, minute, past)  # encoding goes on meanwhile
        clock.lap("train")
        judged = encoding.take(judges)
    cut = int(np.searchsorted(decision_ns_B, minute.judge_from_ns - LEAD_IN_NS)) * HORIZON
    newest = JudgingSlice.of(
        packets[cut:].with_columns(pl.col("packet") - cut),
        beginning.moved(packets, cut),
        minute.judge_from_ns,
        own.encoder,
        judged,
    )
    earlier = usable(minute.earlier, trace, newest.from_ns, newest.to_ns)
    slices = (*earlier, newest)
    seen = {own.encoder: [one.by(own.encoder, own.encodes, own.tokens) for one in slices]}

    def scored(version: Version, head: QueryNetwork | None = None) -> gate.Scored:
        if version.encoder not in seen:
            seen[version.encoder] = [
                one.by(version.encoder, version.encodes, version.tokens) for one in slices
            ]
        model = head or version.found.model
        parts = [latencies(model, as_seen(model, one.windows)) for one in seen[version.encoder]]
        return gate.score(np.concatenate(parts), held_out)

    held_out = _held_out(seen[own.encoder], minute.change)
    naive = gate.score_naive(held_out, tuned.median_us)
    scores = {"challenger": scored(own, tuned.model), "champion": scored(champion)}
    if minute.reference is not None:
        scores["reference"] = scored(Version.load(minute.reference))
    verdict = gate.judge(scores["challenger"], scores["champion"], naive, "", scores.get("reference"))
    served = own if verdict.passed else champion
    known = {id(one) for one in minute.earlier}
    kept = [one for one in seen[served.encoder] if id(one) not in known]  # the new or newly encoded ones
    sample = sample_inputs(np.concatenate([taught.candidates_BHF, judged.candidates_BHF]))
    reservoir = None
    if minute.memory_windows and minute.retrained is None:  # a re-trained challenger may fail
        candidates = Candidates(taught.candidates_BHF, held_out.features)
        last_us_BH = last_visible(candidates, "last_flow", tuned.median_us)
        new = stretches(trace, decision_ns_B[learn_B], taught, tuned.y_BH, last_us_BH)
        reservoir = minute.reservoir.with_minute(own.encoder, new, minute.memory_windows)
    trained_on = sample if minute.trained_on is None else minute.trained_on
    clock.lap("judge")
    return TuningResult(
        files=_files(Artifact(tuned.model, own.found.description)),
        verdict=verdict,
        figures={name: asdict(one.figures) for name, one in (scores | naive).items()},
        loss_before=tuned.tuning.loss[0],
        loss_after=tuned.tuning.loss[-1],
        psi=input_shift(trained_on, sample),
        trained_on=trained_on,
        remembered=len(past.windows.features_BRD) if past else 0,
        reservoir=reservoir,
        slices=tuple(kept if due(minute.earlier, newest) else kept[:-1]),
        seconds=clock.laps,
    )


@dataclass(frozen=True)
class Version:
    """A version's artifact and an encoder for it. Versions may have different architectures."""

    found: Artifact
    encodes: WindowEncoder
    encoder: str

    @property
    def tokens(self) -> int:
        """Return W, the number of window tokens."""
        return self.found.description.tokens

    @classmethod
    def load(cls, files: Mapping[str, bytes]) -> Self:
        """Load a version from its files by name."""
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            for name, content in files.items():
                (folder / name).write_bytes(content)
            found = artifact.load(folder)
            return cls(found, encoder_for(folder, found), encoder_of(found))


def _held_out(slices: Sequence[JudgingSlice], change: Change) -> gate.HeldOut:
    """Return the held-out windows of all slices together."""
    return gate.HeldOut(
        np.concatenate([one.windows.candidates_BHF for one in slices]),
        np.concatenate([one.y_BH for one in slices]),
        np.concatenate([one.decision_ns_B for one in slices]),
        tuple(feature.name for feature in EVENTS.features),
        change,
    )


def _files(tuned: Artifact) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "artifact"
        artifact.save(folder, tuned.model, tuned.description.protocol)
        return artifact.read_files(folder)


def aligned(packets: pl.DataFrame, beginning: Beginning) -> tuple[pl.DataFrame, Beginning]:
    """Return the packets from the first whole batch on, counted from 0, and the sender's state before them.

    Raises:
        DeclinedError: a packet is missing, or no packet was sent.
    """
    first = int(packets["packet"][0]) if packets.height else 0
    cut = -first % HORIZON
    if packets.height <= cut:
        raise DeclinedError("no packet was sent")
    rest = packets[cut:]
    counted = rest["packet"] - rest["packet"][0]
    gaps = counted != pl.int_range(rest.height, eager=True)
    if gaps.any():
        at = int(gaps.arg_max() or 0)
        raise DeclinedError(f"telemetry has a gap before packet {rest['packet'][at]}")
    return rest.with_columns(packet=counted), beginning.moved(packets, cut)


@dataclass(frozen=True)
class _TrainedHead:
    model: QueryNetwork
    tuning: Tuning
    median_us: float  # median latency of the minute
    y_BH: NDArray[np.float32]  # latencies of the minute in µs, as known then


def _train(
    model: QueryNetwork,
    taught: EncodedWindows,
    targets: event_stream.Targets,
    learn_B: NDArray[np.bool_],
    minute: Minute,
    past: PastWindows | None,
) -> _TrainedHead:
    """Train the head on the latencies known when the judging slice began."""
    y_BH = targets.known_at(minute.judge_from_ns)[learn_B]
    known = y_BH[np.isfinite(y_BH)]
    if not known.size:
        raise DeclinedError("no latency was known at the time of training")
    parts = [y_BH, *past.labels] if past else [y_BH]
    windows = joined([taught, past.windows]) if past else taught
    sharp_NH = np.concatenate([sharp_changes(part, minute.change) for part in parts])
    tuned = train_head_on(model, as_seen(model, windows), np.concatenate(parts), sharp_NH, minute.params)
    return _TrainedHead(*tuned, float(np.median(known)), y_BH)


def as_seen(model: QueryNetwork, windows: EncodedWindows) -> Encoded:
    """Return encoded windows as the model's head sees them."""
    anchor_BH = model.anchor(torch.from_numpy(windows.candidates_BHF))
    return Encoded(torch.from_numpy(windows.features_BRD), anchor_BH)


class _Clock:
    """A stopwatch for the seconds of each step."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, step: str) -> None:
        now = time.monotonic()
        self.laps[step], self._last = now - self._last, now
