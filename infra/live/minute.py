"""One round's arithmetic: the last minute of packets in, a new head and its judgement out. Pure but for time.

The packets before `learn_from_ns` only fill the first windows' history. Windows decided in
[learn_from_ns, judge_from_ns) teach, with the latencies known at `judge_from_ns`; windows decided after it
judge, with those known when the telemetry was read. Champion and challenger have the same encoder, so each
window is encoded once; a re-trained challenger has its own, and the champion encodes what judges alone.

Shapes: B windows, W window tokens, F features, R tokens that the head reads, D model width, H horizon.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from feature_store import windows as fw
from feature_store.distribution_shift import NO_SHIFT_TEST, population_stability
from models import artifact, gate
from models.artifact import Artifact
from models.finetuning import Encoded, FinetuneParams, train_head
from models.loss import sharp_changes
from models.predictor import Predictor
from serving.engine import Engine

CHUNK: Final = 256  # windows encoded at once
SAMPLE: Final = 20_000  # candidate rows that stand for a minute's inputs


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
    reference: NDArray[np.float32] | None  # inputs (N, F) that the encoder is used to; None: this minute's
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
    sample: NDArray[np.float32]  # inputs (N, F) of this minute
    seconds: Mapping[str, float]  # by step


@dataclass(frozen=True)
class _Encoded:
    features_BRD: NDArray[np.float32]
    candidates_BHF: NDArray[np.float32]
    decision_ns_B: NDArray[np.int64]

    def part(self, chosen_B: NDArray[np.bool_]) -> _Encoded:
        """Some of the windows."""
        return _Encoded(
            self.features_BRD[chosen_B], self.candidates_BHF[chosen_B], self.decision_ns_B[chosen_B]
        )


def tune(minute: Minute, rank: int = 0, workers: int = 1) -> Tuned:
    """Fine-tune the head of the champion, or of a re-trained artifact, on a minute; judge it on what follows.

    Raises:
        DeclinedError: too few windows, no known latency, or telemetry with a gap; the line says which.
    """
    if workers != 1:
        raise ValueError("a minute's head is trained by one worker")  # half a second of work
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
    encoded = _encode(packets, own_engine, loaded.description.tokens, minute.learn_from_ns, targets)
    clock.lap("encode")

    y_BH = np.array(targets.y_BH)
    y_BH[targets.y_acked_ns_BH > minute.judge_from_ns] = np.nan  # not known when the head is trained
    y_learn_BH = y_BH[learn_B]
    if not np.isfinite(y_learn_BH).any():
        raise DeclinedError("no latency was known at the time of training")
    own_B = encoded.decision_ns_B < minute.judge_from_ns
    anchor = loaded.model.anchor(torch.from_numpy(encoded.candidates_BHF[own_B]))
    tuned = train_head(
        loaded.model,
        Encoded(torch.from_numpy(encoded.features_BRD[own_B]), anchor, y_learn_BH, sharp_changes(y_learn_BH)),
        minute.params,
    )
    clock.lap("train")

    judged = encoded.part(~own_B)
    if minute.retrained is None:
        champion_judged = judged
    else:
        champion_judged = _encode(packets, engine, champion.description.tokens, minute.judge_from_ns, targets)
    names = tuple(f.name for f in fw.FEATURES)
    held_out = gate.HeldOut(judged.candidates_BHF, targets.y_BH[judge_B], names)
    known = y_learn_BH[np.isfinite(y_learn_BH)]
    figures = {
        name: gate.score(_predict(model, slice_), held_out)
        for name, model, slice_ in (
            ("challenger", tuned.model, judged),
            ("champion", champion.model, champion_judged),
        )
    }
    naive = gate.score_naive(held_out, float(np.median(known)))
    verdict = gate.judge(figures["challenger"], figures["champion"], naive, "")
    sample = sample_inputs(encoded.candidates_BHF)
    reference = sample if minute.reference is None else minute.reference
    clock.lap("judge")
    return Tuned(
        files=_files(Artifact(tuned.model, loaded.description)),
        verdict=verdict,
        figures={name: asdict(f) for name, f in (figures | naive).items()},
        loss_before=tuned.loss[0],
        loss_after=tuned.loss[-1],
        learned=int(learn_B.sum()),
        judged=int(judge_B.sum()),
        psi=input_shift(reference, sample),
        sample=sample,
        seconds=clock.laps,
    )


def input_shift(reference_NF: NDArray[np.float32], now_NF: NDArray[np.float32]) -> dict[str, float]:
    """Population stability index of each input against what the encoder is used to."""
    return {
        feature.name: population_stability(reference_NF[:, i], now_NF[:, i])
        for i, feature in enumerate(fw.FEATURES)
        if feature.name not in NO_SHIFT_TEST
    }


def artifact_files(folder: Path) -> dict[str, bytes]:
    """Read the files of an artifact, as they travel to a worker."""
    names = (artifact.WEIGHTS_FILE, artifact.DESCRIPTION_FILE)
    return {name: (folder / name).read_bytes() for name in names}


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
        return artifact_files(folder)


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


def _encode(
    packets: pl.DataFrame, engine: Engine, tokens: int, from_ns: int, targets: fw.Targets
) -> _Encoded:
    """Encode every window decided from `from_ns` on, with a thread for each core that we may use."""
    begin = int(np.searchsorted(targets.decision_ns_B, from_ns))
    cores = len(os.sched_getaffinity(0))
    engines: SimpleQueue[Engine] = SimpleQueue()
    for _ in range(cores):
        engines.put(engine.share())

    def encode(x_BWF: NDArray[np.float32]) -> NDArray[np.float32]:
        own = engines.get()
        try:
            return own.features(x_BWF)
        finally:
            engines.put(own)

    features: list[Future[NDArray[np.float32]]] = []
    candidates, done = [], 0
    with ThreadPoolExecutor(cores, initializer=_give_way) as pool:
        for x_BWF in fw.iter_windows(packets, tokens, chunk=CHUNK):
            part = x_BWF[max(begin - done, 0) :]
            done += len(x_BWF)
            if not len(part):
                continue
            candidates.append(part[:, -fw.HORIZON :].copy())
            features.append(pool.submit(encode, part))
            wait(features[-cores - 1 : -cores])  # so that no more than a few chunks of windows lie in memory
    return _Encoded(
        np.concatenate([one.result() for one in features]),
        np.concatenate(candidates),
        targets.decision_ns_B[begin:],
    )


def _give_way() -> None:
    """Put the calling thread behind the other programs of its session, the ingest among them."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


def _predict(model: Predictor, encoded: _Encoded) -> NDArray[np.float32]:
    """Latencies in µs (B, H) of encoded windows."""
    with torch.inference_mode():
        head_BH = model.head(torch.from_numpy(encoded.features_BRD))
        anchor_BH = model.anchor(torch.from_numpy(encoded.candidates_BHF))
        return model.to_us(head_BH + anchor_BH).numpy()


def sample_inputs(candidates_BHF: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows (N, F) that stand for the inputs of many candidates."""
    rows_NF = candidates_BHF.reshape(-1, candidates_BHF.shape[-1])
    step = max(1, len(rows_NF) // SAMPLE)
    return np.ascontiguousarray(rows_NF[::step])


class _Clock:
    """Seconds of each step."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, step: str) -> None:
        now = time.monotonic()
        self.laps[step], self._last = now - self._last, now
