"""The arithmetic of one round: it takes the last minute of packets and returns a new head and its judgement.

It is pure but for time. The packets before `learn_from_ns` only fill the first decisions' history. Decisions
decided in [learn_from_ns, judge_from_ns) teach, with the latencies known at `judge_from_ns`. Later decisions
judge, with the latencies known when the telemetry was read, and are encoded while the head is trained. The
slices that judged earlier rounds judge, too, and teach nothing. Champion, challenger and reference share one
encoder, so each decision is encoded once; a re-trained challenger has its own, and each encodes what judges.

Shapes: B decisions, W window tokens, F features, R tokens that the head reads, D model width, H horizon.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.feature_store.events import event_stream
from swiftqueue.feature_store.events.beginning import Beginning
from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.feature_store.quality.distribution_shift import input_shift, sample_inputs
from swiftqueue.models.forecasters.forecaster import name_of_kind
from swiftqueue.models.forecasters.network import NetworkForecaster
from swiftqueue.models.forecasters.traces import TracePart
from swiftqueue.models.networks import artifact
from swiftqueue.models.registry import gate
from swiftqueue.models.registry.bars import Verdict
from swiftqueue.models.scoring.baselines import Candidates, last_visible
from swiftqueue.models.sharp import PAPERS, Change
from swiftqueue.models.training.head import FinetuneParams, TuningReport
from swiftqueue.models.training.protocol import Slice
from swiftqueue.pipelines.live.encoding import Decisions, load
from swiftqueue.pipelines.live.reservoir import EMPTY, PastDecisions, Reservoir, stretches
from swiftqueue.pipelines.live.rounds_log import DeclinedError
from swiftqueue.pipelines.live.slices import JudgingSlice, due, encoder_of, usable

MOST_STEPS: Final = 500  # steps of a tuning; a fast sender's minute needs few passes over its decisions
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
    least_decisions: int
    retrained: Mapping[str, bytes] | None = None  # files of a re-train that is to replace the champion
    reference: Mapping[str, bytes] | None = None  # files of the version that brought the champion's encoder
    earlier: tuple[JudgingSlice, ...] = ()  # slices that judged earlier rounds
    reservoir: Reservoir = EMPTY  # stretches of earlier minutes, which teach too
    memory_decisions: int = 0  # most decisions of the reservoir; 0: it is neither kept nor taught from
    change: Change = PAPERS  # change of latency that the loss weights and the gate counts as late


@dataclass(frozen=True)
class TuningResult:
    """The challenger of a round and its judgement."""

    files: Mapping[str, bytes]  # artifact files by name
    verdict: Verdict
    figures: Mapping[str, Any]  # gate figures by predictor
    loss: tuple[float, float] | None  # before and after the tuning; None: there is no head to tune
    psi: Mapping[str, float]  # population stability index by input
    trained_on: NDArray[np.float32]  # inputs (N, F) that the index compares with
    slices: tuple[JudgingSlice, ...]  # slices to be kept, oldest first
    remembered: int  # decisions of the reservoir that taught
    reservoir: Reservoir | None  # the new reservoir to be kept; None keeps the present one
    seconds: Mapping[str, float]  # seconds by step


def tune(minute: Minute) -> TuningResult:
    """Fine-tune the head of the champion or of a re-train on a minute, and judge it on the packets after it.

    Raises:
        DeclinedError: too few decisions, no known latency, or telemetry with a gap; the line says which.
    """
    clock = _Clock()
    champion = load(minute.champion)
    own = champion if minute.retrained is None else load(minute.retrained)
    encoder = encoder_of(own)
    packets, beginning = aligned(minute.packets, minute.beginning)
    trace = str(packets["trace"][0])
    clock.lap("load")
    targets = event_stream.targets(packets)
    decision_ns_B = targets.decision_ns_B
    first, judge = np.searchsorted(decision_ns_B, [minute.learn_from_ns, minute.judge_from_ns]).tolist()
    learn_B = (decision_ns_B >= minute.learn_from_ns) & (decision_ns_B < minute.judge_from_ns)
    for one in minute.earlier:
        learn_B &= ~one.holds(trace, decision_ns_B)
    judges = len(decision_ns_B) - judge
    for name, count in (("to learn from", int(learn_B.sum())), ("to judge on", judges)):
        if count < minute.least_decisions:
            raise DeclinedError(f"{count} decisions {name}, at least {minute.least_decisions} are needed")
    learnt = TracePart(trace, packets, Slice(first, judge), change=minute.change, beginning=beginning)
    with ThreadPoolExecutor(1) as meanwhile:
        taught = Decisions.of(own, learnt).chosen(learn_B[first:judge])
        clock.lap("encode")
        rest = replace(learnt, decisions=Slice(judge, len(decision_ns_B)))
        judging = meanwhile.submit(Decisions.of, own, rest)  # while the head is trained
        past = None
        if minute.memory_decisions:
            past = minute.reservoir.beside(encoder, trace, minute.learn_from_ns, minute.judge_from_ns)
        lesson = _train(own, taught, targets, learn_B, minute, past)
        clock.lap("train")
        judged = judging.result()
    cut = int(np.searchsorted(decision_ns_B, minute.judge_from_ns - LEAD_IN_NS)) * HORIZON
    newest = JudgingSlice.of(
        packets[cut:].with_columns(pl.col("packet") - cut),
        beginning.moved(packets, cut),
        minute.judge_from_ns,
        encoder,
        judged,
    )
    earlier = usable(minute.earlier, trace, newest.from_ns, newest.to_ns)
    slices = (*earlier, newest)
    seen = {encoder: [one.by(encoder, own) for one in slices]}

    def scored(version: NetworkForecaster) -> gate.ScoreTable:
        if (named := encoder_of(version)) not in seen:
            seen[named] = [one.by(named, version) for one in slices]
        answers = [version.answer(one.decisions.encoded) for one in seen[named]]
        return gate.score(np.concatenate(answers), held_out)

    held_out = _held_out(seen[encoder], minute.change)
    naive = gate.score_naive(held_out, lesson.median_us)
    scores = {"challenger": scored(lesson.tuned), "champion": scored(champion)}
    if minute.reference is not None:
        scores["reference"] = scored(load(minute.reference))
    verdict = gate.judge(scores["challenger"], scores["champion"], naive, "", scores.get("reference"))
    if lesson.tuned is champion:
        name = name_of_kind(type(champion))
        verdict = Verdict(False, f"{name} has no head to tune, so the champion stays", verdict.loses_to)
    served = own if verdict.passed else champion
    known = {id(one) for one in minute.earlier}
    kept = [one for one in seen[encoder_of(served)] if id(one) not in known]  # new or newly encoded ones
    sample = sample_inputs(np.concatenate([taught.candidates_BHF, judged.candidates_BHF]))
    reservoir = None
    if minute.memory_decisions and minute.retrained is None:  # a re-trained challenger may fail
        candidates = Candidates(taught.candidates_BHF, held_out.features)
        last_us_BH = last_visible(candidates, "last_flow", lesson.median_us)
        new = stretches(trace, decision_ns_B[learn_B], taught, lesson.y_BH, last_us_BH)
        reservoir = minute.reservoir.with_minute(encoder, new, minute.memory_decisions)
    trained_on = sample if minute.trained_on is None else minute.trained_on
    clock.lap("judge")
    return TuningResult(
        files=_files(lesson.tuned),
        verdict=verdict,
        figures={name: asdict(one.figures) for name, one in (scores | naive).items()},
        loss=None if lesson.tuning is None else (lesson.tuning.loss[0], lesson.tuning.loss[-1]),
        psi=input_shift(trained_on, sample),
        trained_on=trained_on,
        remembered=len(past.decisions) if past else 0,
        reservoir=reservoir,
        slices=tuple(kept if due(minute.earlier, newest) else kept[:-1]),
        seconds=clock.laps,
    )


def _held_out(slices: Sequence[JudgingSlice], change: Change) -> gate.HeldOutDecisions:
    """Return the held-out decisions of all slices together."""
    return gate.HeldOutDecisions(
        np.concatenate([one.decisions.candidates_BHF for one in slices]),
        np.concatenate([one.y_BH for one in slices]),
        np.concatenate([one.decision_ns_B for one in slices]),
        tuple(feature.name for feature in EVENTS.features),
        change,
    )


def _files(tuned: NetworkForecaster) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tuned.write(folder)
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
class _Lesson:
    tuned: NetworkForecaster
    tuning: TuningReport | None  # None: it has no head to tune
    median_us: float  # median latency of the minute
    y_BH: NDArray[np.float32]  # latencies of the minute in µs, as known then


def _train(
    own: NetworkForecaster,
    taught: Decisions,
    targets: event_stream.Targets,
    learn_B: NDArray[np.bool_],
    minute: Minute,
    past: PastDecisions | None,
) -> _Lesson:
    """Train the head, if there is one, on what was known when the judging slice began."""
    y_BH = targets.known_at(minute.judge_from_ns)[learn_B]
    known = y_BH[np.isfinite(y_BH)]
    if not known.size:
        raise DeclinedError("no latency was known at the time of training")
    came = [y_BH, *past.labels] if past else [y_BH]
    lesson = Decisions.joined([taught, past.decisions]) if past else taught
    starts = np.cumsum([len(one) for one in came])[:-1].tolist()
    steps = -(-len(lesson) // minute.params.batch_size)
    how = minute.params.model_copy(update={"epochs": min(minute.params.epochs, max(1, MOST_STEPS // steps))})
    tuned = own.tuned_on(lesson.encoded, np.concatenate(came), minute.change, how, starts)
    return _Lesson(tuned, tuned.tuning, float(np.median(known)), y_BH)


class _Clock:
    """A stopwatch for the seconds of each step."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, step: str) -> None:
        now = time.monotonic()
        self.laps[step], self._last = now - self._last, now
