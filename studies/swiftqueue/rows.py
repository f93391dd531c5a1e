"""One row: a forecaster trained on a trace, walked forward, and what the exhibits ask of it.

Shapes: B decisions, H horizon (8 packets), N packets, D model width.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.common.section import read
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.laboratory.learning.packet_table import packets_of
from swiftqueue.models.forecasters.forecaster import Forecaster, variants
from swiftqueue.models.forecasters.kept import fit
from swiftqueue.models.forecasters.traces import Trace, TracePart, decision_times
from swiftqueue.models.scoring.metrics import score_errors, score_sharp
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.training.protocol import EvaluationProtocol, Slice, divide
from swiftqueue.models.window.forecaster import WindowForecaster
from swiftqueue.pipelines.simulators import PROJECT
from swiftqueue.studies.swiftqueue.asked import BATCHES, DRAWN_SEED, LSTM, OURS, PREVIOUS, SHOWN, RowRequest

STRETCH: Final = 150  # packets of figure 14
POINTS: Final = 240  # decisions drawn in figure 3
DECISIONS: Final = 1200  # decisions of figure 3's measure
NEIGHBOURS: Final = 10
ENCODED_AT_ONCE: Final = 256
TAILS: Final = (25.0, 75.0)  # percentiles below and above which a latency is low, high
CHANGES: Final = ("prediction_change", "truth_change")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Work:
    """The inputs of a row."""

    asked: RowRequest
    run: Path  # folder of the simulated run
    protocol: EvaluationProtocol
    sections: Path  # the variants


@dataclass(frozen=True)
class TestSlice:
    """A test slice with the forecaster that predicts it."""

    part: TracePart
    tuned: Forecaster


def compute(work: Work) -> dict[str, Any]:
    """Compute a row: plain JSON, without NaN.

    Raises:
        ValueError: the trace is too short or teaches nothing; the line says so.
    """
    import torch

    torch.set_num_threads(1)  # seconds are of one core
    asked = work.asked
    table = packets_of(work.run, asked.trace)
    protocol = replace(work.protocol, test_s=work.protocol.test_s * asked.every)
    slices = divide(decision_times(table), protocol, asked.trace)
    trace = Trace(asked.trace, table, slices, asked.visibility)
    (variant,) = variants(work.sections, [asked.method])
    fitted, fit_cpu_s = fit(variant, asked.seed, [trace.to_learn(slices.pretrain)], lambda _: None)
    walked, seconds = _walk(fitted, trace, read(PROJECT / "params.yaml", FinetuneParams))
    came_N = np.concatenate([each.part.latencies_us().ravel() for each in walked]).astype(np.float64)
    by_form = {
        "tuned": np.concatenate([each.tuned.predict(each.part).ravel() for each in walked]),
        "pretrained": np.concatenate([fitted.predict(each.part).ravel() for each in walked]),
    }
    found: dict[str, Any] = {
        "trace": asked.trace,
        "method": asked.method,
        "seed": asked.seed,
        "every": asked.every,
        "visibility": asked.visibility,
        "test_s": protocol.test_s,
        "fit_cpu_s": fit_cpu_s,
        "tune_s": seconds,
        "about": _about(table),
        **{form: scores(us_N.astype(np.float64), came_N) for form, us_N in by_form.items()},
    }
    if (asked.trace, asked.every, asked.visibility) == (SHOWN, 1, PREVIOUS):
        if asked.method in (OURS, LSTM) and asked.seed == DRAWN_SEED:
            found["stretch"] = _stretch(by_form["tuned"].astype(np.float64), came_N)
        if asked.method == OURS:
            found["batches"] = _by_batch(walked)
            found["apart"] = _apart(fitted, walked, drawn=asked.seed == DRAWN_SEED)
    return found


def scores(pred_N: Floats, came_N: Floats) -> dict[str, Any]:
    """Return F1 of sharp changes in both variants, their number, and the mean error; None where none."""
    known = np.isfinite(came_N)
    sharp = score_sharp(pred_N[known], came_N[known])
    return {
        "n": int(known.sum()),
        "n_sharp": sharp["truth_change"]["all"]["n_true"],
        **{f"f1_{name}": _rounded(sharp[name]["all"]["f1"]) for name in CHANGES},
        "mae_ms": _rounded(score_errors(pred_N[known], came_N[known])["mae_ms"]),
    }


def _walk(fitted: Forecaster, trace: Trace, how: FinetuneParams) -> tuple[list[TestSlice], dict[str, float]]:
    """Tune round by round; with the mean seconds of a round.

    `cached`: the encoder runs once, then the head is trained on what it gave. `uncached`: it runs in every
    pass over the slice, as where nothing is kept; its one pass is measured and taken as often. Of what has no
    encoder both are the seconds of its tuning.
    """
    walked, cached, uncached = [], [], []
    tuned = fitted
    for each in trace.slices.rounds:
        if len(each.finetune):
            part = trace.to_learn(each.finetune)
            started = time.monotonic()
            encoded = tuned.encode(part)
            once_s = time.monotonic() - started
            tuned = tuned.tuned_on(encoded, part.latencies_us(), part.change, how)
            whole_s = time.monotonic() - started
            again = how.epochs - 1 if tuned.tuning else 0  # passes in which nothing is kept
            cached.append(whole_s)
            uncached.append(whole_s + again * once_s)
        walked.append(TestSlice(trace.to_predict(each.test), tuned))
    mean = {"cached": cached, "uncached": uncached}
    return walked, {name: round(float(np.mean(values or [0.0])), 4) for name, values in mean.items()}


def _about(table: pl.DataFrame) -> dict[str, Any]:
    """Return a trace's figures in the paper's table 1."""
    lasts_s = (
        table.group_by("flow_id")
        .agg(((pl.col("sent_ns").max() - pl.col("sent_ns").min()) / 1e9).alias("s"))["s"]
        .to_numpy()
    )
    duration_ns = int(table["sent_ns"][-1]) - int(table["sent_ns"][0])
    median_us = table["latency_us"].drop_nulls().to_numpy()
    return {
        "packets": table.height,
        "seconds": round(duration_ns / 1e9, 1),
        "median_ms": round(float(np.median(median_us)) / 1e3, 2),
        "flows": len(lasts_s),
        "flow_s": [round(float(end), 1) for end in (lasts_s.min(), lasts_s.max())],
    }


def _stretch(pred_N: Floats, came_N: Floats) -> dict[str, list[float]]:
    """Return truth and prediction of the first 150 packets in a row with the most sharp changes."""
    from swiftqueue.models.sharp import change_direction

    known = np.isfinite(came_N)
    came, pred = came_N[known], pred_N[known]
    changes = np.abs(change_direction(came[1:], came[:-1])).astype(np.int64)
    sums = np.concatenate([[0], np.cumsum(changes)])
    first = int(np.argmax(sums[STRETCH:] - sums[:-STRETCH])) if len(sums) > STRETCH else 0
    return {
        name: [round(float(us) / 1e3, 2) for us in some[first : first + STRETCH]]
        for name, some in (("came_ms", came), ("predicted_ms", pred))
    }


def _by_batch(walked: Sequence[TestSlice]) -> dict[str, float | None]:
    """Return F1 by the number of packets that are decided together, of a model's 8 answers.

    Decisions are asked anew after each such batch; larger ones need another horizon than 8.
    """
    by_size: dict[int, list[Floats]] = {size: [] for size in BATCHES}
    came = []
    for each in walked:
        part = each.part
        by_phase = [each.tuned.predict(_later(part, phase)) for phase in range(HORIZON)]
        came_BH = part.latencies_us()
        for size, found in by_size.items():
            us_BH = np.full(came_BH.shape, np.nan)
            for phase in range(0, HORIZON, size):
                asked_BH = by_phase[phase]
                us_BH[: len(asked_BH), phase : phase + size] = asked_BH[:, :size]
            found.append(us_BH.ravel())
        came.append(came_BH.ravel())
    came_N = np.concatenate(came).astype(np.float64)
    came_N[np.isnan(np.concatenate(by_size[1]))] = np.nan  # packets of the trace's last batch
    return {
        str(size): scores(np.nan_to_num(np.concatenate(found)), came_N)["f1_truth_change"]
        for size, found in by_size.items()
    }


def _later(part: TracePart, phase: int) -> TracePart:
    """Return the decisions that many packets later: those of the table without its first ones."""
    if not phase:
        return part
    table = part.packets[phase:].with_columns(packet=pl.col("packet") - phase)
    last = min(part.decisions.hi, table.height // HORIZON)
    return replace(part, packets=table, decisions=Slice(part.decisions.lo, last))


def _apart(fitted: Forecaster, walked: Sequence[TestSlice], *, drawn: bool) -> dict[str, Any]:
    """Return how far low and high latencies lie apart in the head's input and in the network's.

    The measure: of decisions in the later half, the share of the 10 nearest in the earlier half whose first
    packet is as low, or as high; both kinds count alike. Packets of one moment are near copies: hence halves.
    """
    import torch

    from swiftqueue.models.networks.prediction import encode

    assert isinstance(fitted, WindowForecaster)  # noqa: S101 - of `OURS` alone
    x_BWF = np.concatenate([fitted.windows(each.part)[:] for each in walked])
    first_B = np.concatenate([each.part.latencies_us()[:, 0] for each in walked])
    low, high = np.nanpercentile(first_B, TAILS)
    far_B = np.flatnonzero((first_B <= low) | (first_B >= high))
    far_B = far_B[np.unique(np.linspace(0, len(far_B) - 1, DECISIONS).astype(np.int64))]
    high_B = first_B[far_B] >= high
    encoded = encode(fitted.model, x_BWF[far_B], ENCODED_AT_ONCE)
    read_BD = torch.cat([part.read_BRD for part in encoded]).flatten(1).numpy()
    with torch.no_grad():
        given_BD = fitted.model.scale(torch.from_numpy(x_BWF[far_B])).flatten(1).numpy()
    found: dict[str, Any] = {
        "features": _rounded(_alike(read_BD, high_B)),
        "inputs": _rounded(_alike(given_BD, high_B)),
    }
    if drawn:
        found["points"] = _plane(read_BD, high_B)
    return found


def _alike(x_BD: NDArray[np.float32], high_B: NDArray[np.bool_]) -> float:
    from sklearn.neighbors import KNeighborsClassifier

    half = len(x_BD) // 2
    nearest = KNeighborsClassifier(min(NEIGHBOURS, half)).fit(x_BD[:half], high_B[:half])
    _, index = nearest.kneighbors(x_BD[half:])
    same_B = (high_B[:half][index] == high_B[half:, None]).mean(1)
    return float(np.mean([same_B[high_B[half:] == side].mean() for side in np.unique(high_B[half:])]))


def _plane(x_BD: NDArray[np.float32], high_B: NDArray[np.bool_]) -> list[list[float]]:
    """Return some decisions in the plane (t-SNE, as the paper's figure): x, y, and 1 for a high latency."""
    from sklearn.manifold import TSNE

    some = np.unique(np.linspace(0, len(x_BD) - 1, POINTS).astype(np.int64))
    spread = min(30.0, (len(some) - 1) / 3)
    xy = TSNE(perplexity=spread, random_state=1).fit_transform(x_BD[some])
    return [
        [round(float(x), 1), round(float(y), 1), int(high)]
        for (x, y), high in zip(xy, high_B[some], strict=True)
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else round(float(value), 5)
