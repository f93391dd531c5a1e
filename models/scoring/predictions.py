"""Walk-forward predictions: every method on every test slice, with what was known at each decision.

Round K of a trace fine-tunes the head on the slice before its test slice; the model of round K predicts
that slice only. Shapes: `B` windows, `W` window tokens, `F` features, `H` horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from models.scoring import baselines
from models.scoring.baselines import BoostedTrees, Candidates
from models.scoring.metrics import Floats, Ints
from models.training.protocol import Protocol, Slice
from models.training.windows import TraceWindows, WindowSet, load_windows

BATCH: Final = 1024  # windows per forward pass
FINETUNED, PRETRAINED = "finetuned", "pretrained"  # the model, and the same without fine-tuning (ablation)
TREES, TREES_CONTINUED = "xgboost", "xgboost_continued"
BASELINES: Final = (TREES, TREES_CONTINUED, "ewma", *baselines.LAST_VISIBLE)
METHODS: Final = (FINETUNED, PRETRAINED, *BASELINES)
SEND_GAP: Final = "send_gap"  # gives a direction only: it has a sharp-change score and no other

Progress = Callable[[str], None]


@dataclass(frozen=True)
class EvaluatedTrace:
    """One trace's windows under every visibility, and the flow of each packet they decide."""

    by_visibility: dict[str, TraceWindows]
    features: tuple[str, ...]
    flow_BH: NDArray[np.int32]

    @property
    def labels(self) -> TraceWindows:
        """Labels, decision times and slices, which are the same under every visibility."""
        return next(iter(self.by_visibility.values()))

    @property
    def horizon(self) -> int:
        """Packets decided at once."""
        return int(self.flow_BH.shape[1])

    def candidates(self, visibility: str, part: Slice) -> Candidates:
        """Tokens of the packets about to be sent in the windows of a slice."""
        x_BWF = self.by_visibility[visibility].x_BWF
        return Candidates(np.ascontiguousarray(x_BWF[part.lo : part.hi, -self.horizon :]), self.features)

    def known_by_slice_end(self, part: Slice) -> Floats:
        """Latencies of a training slice acknowledged when the next one begins, (N,); the others NaN."""
        labels = self.labels
        return labels.labels_known_at(part, labels.time_ns(part.hi)).astype(np.float64).ravel()


@dataclass
class TracePredictions:
    """Predictions of all test slices of one trace, in send order, by visibility and method."""

    trace: str
    protocol: Protocol
    round_B: Ints
    decision_ns_B: Ints
    y_BH: Floats
    last_flow_BH: dict[str, Floats] = field(default_factory=dict)  # by visibility; 0: none visible
    gap_BH: dict[str, NDArray[np.int8]] = field(default_factory=dict)  # direction by the send-gap rule
    us_BH: dict[str, dict[str, Floats]] = field(default_factory=dict)


def load_traces(windows_dir: Path, split: Path) -> tuple[WindowSet, dict[str, EvaluatedTrace]]:
    """Open the windows of the stage `windows`, all traces and visibilities; raises as `load_windows`."""
    acked = load_windows(windows_dir, split)
    sets = {v: acked if v == "acked" else load_windows(windows_dir, split, v) for v in acked.visibilities}
    return acked, {
        name: EvaluatedTrace(
            {v: windows.traces[name] for v, windows in sets.items()},
            acked.feature_names,
            _flows(windows_dir / name / "features.parquet", acked.traces[name].y_us_BH.shape),
        )
        for name in acked.traces
    }


def _flows(path: Path, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """Flow of each decided packet, (B, H)."""
    flows = pl.read_parquet(path, columns=["packet", "flow_id"]).sort("packet")["flow_id"]
    if len(flows) != np.prod(shape):
        raise ValueError(f"{path}: {len(flows)} packets, but the windows decide {np.prod(shape)}")
    return flows.to_numpy().reshape(shape)


def fit_trees(
    traces: Iterable[EvaluatedTrace], visibility: str, *, rounds: int, seed: int
) -> tuple[BoostedTrees, float]:
    """Fit the trees to the pre-training slices of all traces, as the predictor is.

    Also gives the median latency there (µs): what is predicted while nothing at all is visible.
    """
    inputs, labels = [], []
    for trace in traces:
        inputs.append(baselines.tree_inputs(trace.candidates(visibility, trace.labels.pretrain)))
        labels.append(trace.known_by_slice_end(trace.labels.pretrain))
    y_N = np.concatenate(labels)
    trees = BoostedTrees.fit(np.concatenate(inputs), y_N, rounds=rounds, seed=seed)
    return trees, float(np.nanmedian(y_N))


def predict_trace(
    trace: EvaluatedTrace,
    *,
    models: ModelRounds,
    trees: dict[str, tuple[BoostedTrees, float]],
    progress: Progress = lambda _: None,
) -> TracePredictions:
    """Predict all test slices of a trace with every method, under every visibility of its windows.

    `trees` holds, by visibility, what `fit_trees` gives.
    """
    labels = trace.labels
    tests = [r.test for r in labels.rounds]
    rows = np.concatenate([np.arange(t.lo, t.hi) for t in tests])
    result = TracePredictions(
        trace=labels.name,
        protocol=labels.slices.protocol,
        round_B=np.repeat(np.arange(len(tests)), [len(t) for t in tests]),
        decision_ns_B=labels.decision_ns_B[rows],
        y_BH=labels.y_us_BH[rows].astype(np.float64),
    )
    for visibility in trace.by_visibility:
        booster, otherwise_us = trees[visibility]
        slices = [trace.candidates(visibility, t) for t in tests]
        shown = Candidates(np.concatenate([c.x_BHF for c in slices]), trace.features)
        us = {name: baselines.last_visible(shown, name, otherwise_us) for name in baselines.LAST_VISIBLE}
        us["ewma"] = _ewma(trace, rows, visibility, us["last_flow"])
        us |= _predict_trees(trace, visibility, booster)
        progress(f"{labels.name}, {visibility}: baselines")
        us |= models.predict(trace, visibility)
        progress(f"{labels.name}, {visibility}: predictor")
        result.us_BH[visibility] = {method: us[method] for method in METHODS}
        result.last_flow_BH[visibility] = shown.column(baselines.LAST_VISIBLE["last_flow"])
        result.gap_BH[visibility] = baselines.send_gap_direction(shown)
    return result


class ModelRounds:
    """The pre-trained artifact and the heads fine-tuned from it, per trace and round."""

    def __init__(self, pretrained: Path, finetuned: Path, windows: WindowSet) -> None:
        """Load the pre-trained artifact; raises as `models.networks.artifact.load` does."""
        self._windows, self._finetuned = windows, finetuned
        self._base = self._load(pretrained)

    def predict(self, trace: EvaluatedTrace, visibility: str) -> dict[str, Floats]:
        """Predict the test slices, (B, H) in µs: with each round's head, and with the pre-trained one.

        Fine-tuning leaves the encoder as it is, so its output is computed once for both heads; a round
        whose encoder differs is an error, because then it is not the head that was fine-tuned.
        """
        import torch

        from models.networks.prediction import encode, latencies

        base_state = self._base.encoder_state()
        before, after = [], []
        windows = trace.by_visibility[visibility]
        for k, round_ in enumerate(windows.rounds):
            folder = self._finetuned / windows.name / f"round-{k}"
            tuned = self._load(folder)
            for name, value in tuned.encoder_state().items():
                if not torch.equal(value, base_state[name]):
                    raise ValueError(f"{folder}: encoder weight {name} is not that of the pre-trained model")
            x_BWF = windows.x_BWF[round_.test.lo : round_.test.hi]
            for part in encode(self._base, x_BWF, BATCH):
                before.append(latencies(self._base, part))
                after.append(latencies(tuned, part))
        return {
            FINETUNED: np.concatenate(after).astype(np.float64),
            PRETRAINED: np.concatenate(before).astype(np.float64),
        }

    def _load(self, folder: Path) -> Any:
        from models.networks import artifact

        loaded = artifact.load(folder, self._windows.schema_hash)
        if loaded.description.tokens != self._windows.tokens:
            raise ValueError(
                f"{folder}: made for windows of {loaded.description.tokens} tokens, "
                f"these have {self._windows.tokens}; run dvc repro"
            )
        return loaded.model


def _predict_trees(trace: EvaluatedTrace, visibility: str, trees: BoostedTrees) -> dict[str, Floats]:
    """Trees of pre-training alone, and with trees added per round from the slice the head is tuned on."""
    continued, fixed_us, continued_us = trees, [], []
    for round_ in trace.labels.rounds:
        tuning = baselines.tree_inputs(trace.candidates(visibility, round_.finetune))
        continued = continued.continued(tuning, trace.known_by_slice_end(round_.finetune))
        x_NF = baselines.tree_inputs(trace.candidates(visibility, round_.test))
        fixed_us.append(trees.predict(x_NF))
        continued_us.append(continued.predict(x_NF))
    return {
        TREES: np.concatenate(fixed_us).reshape(-1, trace.horizon),
        TREES_CONTINUED: np.concatenate(continued_us).reshape(-1, trace.horizon),
    }


def _ewma(trace: EvaluatedTrace, rows: Ints, visibility: str, otherwise_BH: Floats) -> Floats:
    """Per-flow EWMA of the latencies visible at each decision of the windows `rows`; (B, H) in µs.

    `acked`: a latency is known from its ACK on. `previous`: from the batch after its own on.
    """
    labels = trace.labels
    if visibility == "acked":
        known_at_BH, asked_at_B = labels.y_acked_ns_BH, labels.decision_ns_B
    else:
        batch_B = np.arange(len(labels.y_us_BH))
        known_at_BH, asked_at_B = np.repeat(batch_B[:, None], trace.horizon, axis=1), batch_B - 1
    log = pl.DataFrame(
        {
            "flow_id": trace.flow_BH.ravel(),
            "at": known_at_BH.ravel(),
            "latency_us": labels.y_us_BH.ravel(),
        }
    ).filter(pl.col("latency_us").is_finite())
    asked = pl.DataFrame(
        {"flow_id": trace.flow_BH[rows].ravel(), "at": np.repeat(asked_at_B[rows], trace.horizon)}
    )
    return baselines.ewma(log, asked, otherwise_BH.ravel()).reshape(-1, trace.horizon)
