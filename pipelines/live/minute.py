"""One round's arithmetic: the last minute of packets in, a new head and its judgement out. Pure but for time.

The packets before `learn_from_ns` only fill the first windows' history. Windows decided in
[learn_from_ns, judge_from_ns) teach, with the latencies known at `judge_from_ns`; windows decided after it
judge, with those known when the telemetry was read, and are encoded while the head is trained. Champion and
challenger have the same encoder, so each window is encoded once; a re-trained challenger has its own, and the
champion encodes what judges alone.

Shapes: B windows, W window tokens, F features, R tokens that the head reads, D model width, H horizon.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from feature_store.events import windows as fw
from feature_store.quality.distribution_shift import input_shift, sample_inputs
from models.networks import artifact
from models.networks.artifact import Artifact
from models.networks.prediction import Encoded, latencies
from models.networks.transformer import Predictor
from models.registry import gate
from models.training.finetuning import Finetuned, FinetuneParams, train_head
from models.training.sharp import sharp_changes
from pipelines.live.encoding import EncodedWindows, Encoding
from serving.engine import Engine


class DeclinedError(ValueError):
    """The round is not run; the line says why."""


@dataclass(frozen=True)
class Minute:
    """What a round works on."""

    packets: pl.DataFrame  # a packet table: consecutive packets of one sender
    flow_starts_ns: Mapping[int, int]  # of flows that began before them
    learn_from_ns: int
    judge_from_ns: int
    champion: Mapping[str, bytes]  # artifact files by name
    params: FinetuneParams
    trained_on: NDArray[np.float32] | None  # inputs (N, F) of the encoder's training; None: this minute's
    least_windows: int
    retrained: Mapping[str, bytes] | None = None  # of an artifact that is to take the champion's place


@dataclass(frozen=True)
class Tuned:
    """A challenger and how it was judged."""

    files: Mapping[str, bytes]  # artifact files by name
    verdict: gate.Verdict
    figures: Mapping[str, Any]  # gate figures by predictor
    loss_before: float
    loss_after: float
    learned: int  # windows
    judged: int
    psi: Mapping[str, float]  # population stability index by input
    trained_on: NDArray[np.float32]  # inputs (N, F) that the index compares with
    seconds: Mapping[str, float]  # by step


def tune(minute: Minute) -> Tuned:
    """Fine-tune the head of the champion, or of a re-trained artifact, on a minute; judge it on what follows.

    Raises:
        DeclinedError: too few windows, no known latency, or telemetry with a gap; the line says which.
    """
    clock = _Clock()
    champion, engine = _load(minute.champion)
    loaded, own_engine = (champion, engine) if minute.retrained is None else _load(minute.retrained)
    packets = _with_flow_starts(_aligned(minute.packets), minute.flow_starts_ns)
    clock.lap("load")
    targets = fw.targets(packets)
    learn_B = (targets.decision_ns_B >= minute.learn_from_ns) & (targets.decision_ns_B < minute.judge_from_ns)
    judge_B = targets.decision_ns_B >= minute.judge_from_ns
    for name, chosen_B in (("to learn from", learn_B), ("to judge on", judge_B)):
        if (count := int(chosen_B.sum())) < minute.least_windows:
            raise DeclinedError(f"{count} windows {name}, at least {minute.least_windows} are needed")
    learns, judges = int(learn_B.sum()), int(judge_B.sum())
    first = int(np.searchsorted(targets.decision_ns_B, minute.learn_from_ns))
    with Encoding(packets, own_engine, loaded.description.tokens, first) as encoding:
        taught = encoding.take(learns)
        clock.lap("encode")
        tuned = _train(loaded.model, taught, targets, learn_B, minute)  # while the rest is encoded
        clock.lap("train")
        judged = encoding.take(judges)

    if minute.retrained is None:
        champion_judged = judged
    else:
        with Encoding(packets, engine, champion.description.tokens, first + learns) as encoding:
            champion_judged = encoding.take(judges)
    names = tuple(f.name for f in fw.FEATURES)
    held_out = gate.HeldOut(judged.candidates_BHF, targets.y_BH[judge_B], names)
    figures = {
        name: gate.score(latencies(model, _seen(model, slice_)), held_out)
        for name, model, slice_ in (
            ("challenger", tuned.head.model, judged),
            ("champion", champion.model, champion_judged),
        )
    }
    naive = gate.score_naive(held_out, tuned.median_us)
    verdict = gate.judge(figures["challenger"], figures["champion"], naive, "")
    sample = sample_inputs(np.concatenate([taught.candidates_BHF, judged.candidates_BHF]))
    trained_on = sample if minute.trained_on is None else minute.trained_on
    clock.lap("judge")
    return Tuned(
        files=_files(Artifact(tuned.head.model, loaded.description)),
        verdict=verdict,
        figures={name: asdict(f) for name, f in (figures | naive).items()},
        loss_before=tuned.head.loss[0],
        loss_after=tuned.head.loss[-1],
        learned=learns,
        judged=judges,
        psi=input_shift(trained_on, sample),
        trained_on=trained_on,
        seconds=clock.laps,
    )


def _load(files: Mapping[str, bytes]) -> tuple[Artifact, Engine]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return artifact.load(folder, fw.schema_hash()), Engine(folder)


def _files(tuned: Artifact) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "artifact"
        artifact.save(folder, tuned.model, tuned.description)
        return artifact.read_files(folder)


def _aligned(packets: pl.DataFrame) -> pl.DataFrame:
    """The packets from the first whole batch on, counted from 0; batches keep their borders.

    Raises:
        DeclinedError: a packet is missing.
    """
    first = int(packets["packet"][0]) if packets.height else 0
    packets = packets[-first % fw.HORIZON :]
    if packets.is_empty():
        raise DeclinedError("no packet was sent")
    first = int(packets["packet"][0])
    counted = packets["packet"] - first
    gaps = counted != pl.int_range(packets.height, eager=True)
    if gaps.any():
        at = int(gaps.arg_max() or 0)
        raise DeclinedError(f"telemetry has a gap before packet {packets['packet'][at]}")
    return packets.with_columns(packet=counted)


def _with_flow_starts(packets: pl.DataFrame, flow_starts_ns: Mapping[int, int]) -> pl.DataFrame:
    """Put before the packets, in whole batches, a packet of each flow that began earlier, sent when it began.

    So the windows know the flows' ages as the sender does. These packets are never acknowledged: they change
    no latency, are given up after 2 s, and the lead-in moves them out of every window's history.
    """
    begin_ns = int(packets["sent_ns"][0])
    starts = pl.DataFrame(
        [(flow, start_ns) for flow, start_ns in flow_starts_ns.items() if start_ns < begin_ns],
        schema={"flow_id": packets.schema["flow_id"], "start_ns": pl.Int64},
        orient="row",
    )
    first = packets.unique("flow_id", keep="first", maintain_order=True).join(starts, on="flow_id")
    if first.is_empty():
        return packets
    unknown = {"acked_ns": None, "latency_us": None, "retransmitted": False, "lost": False}
    early = first.with_columns(sent_ns="start_ns", **{k: pl.lit(v) for k, v in unknown.items()})
    padding = -early.height % fw.HORIZON
    early = pl.concat([early[:1]] * padding + [early]).sort("sent_ns").select(packets.columns)
    whole = pl.concat([early.cast(packets.schema), packets])
    return whole.with_columns(packet=pl.int_range(whole.height, dtype=pl.Int64))


@dataclass(frozen=True)
class _Taught:
    head: Finetuned
    median_us: float  # of the latencies it learned


def _train(
    model: Predictor, taught: EncodedWindows, targets: fw.Targets, learn_B: NDArray[np.bool_], minute: Minute
) -> _Taught:
    """Train the head on what was known when the judging slice began."""
    y_BH = targets.known_at(minute.judge_from_ns)[learn_B]
    known = y_BH[np.isfinite(y_BH)]
    if not known.size:
        raise DeclinedError("no latency was known at the time of training")
    head = train_head(model, _seen(model, taught), y_BH, sharp_changes(y_BH), minute.params)
    return _Taught(head, float(np.median(known)))


def _seen(model: Predictor, windows: EncodedWindows) -> Encoded:
    """What the engine encoded, as the model's head sees it."""
    anchor_BH = model.anchor(torch.from_numpy(windows.candidates_BHF))
    return Encoded(torch.from_numpy(windows.features_BRD), anchor_BH)


class _Clock:
    """Seconds of each step."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, step: str) -> None:
        now = time.monotonic()
        self.laps[step], self._last = now - self._last, now
