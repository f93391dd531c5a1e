"""Walk-forward predictions: every method on every test slice, with what was known at each decision.

Round K of a trace fine-tunes the head on the slice before its test slice. Its head answers once the round has
ended, as a sender would have it; until then an earlier one does. All methods see what `acked` shows.

Shapes: `B` windows, `W` window tokens, `F` features, `H` horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from models.scoring import baselines
from models.scoring.baselines import BoostedTrees, Candidates
from models.scoring.metrics import Floats, Ints
from models.sharp import PAPERS, Change
from models.training.protocol import Answered, Protocol, Slice, answered
from models.training.windows import TraceWindows, WindowSet, load_windows

BATCH: Final = 1024  # windows per forward pass
FINETUNED, PRETRAINED = "finetuned", "pretrained"  # the model, and the same without fine-tuning (ablation)
AT_ONCE: Final = "finetuned_at_once"  # as if a round took no time
TREES, TREES_CONTINUED = "xgboost", "xgboost_continued"
BASELINES: Final = (TREES, TREES_CONTINUED, "ewma", *baselines.LAST_VISIBLE)
METHODS: Final = (FINETUNED, AT_ONCE, PRETRAINED, *BASELINES)
SEND_GAP: Final = "send_gap"  # gives a direction only: it has a sharp-change score and no other

Progress = Callable[[str], None]


@dataclass(frozen=True)
class EvaluatedTrace:
    """One trace's windows, and the flow of each packet they decide."""

    windows: TraceWindows
    features: tuple[str, ...]
    flow_BH: NDArray[np.int32]

    @property
    def horizon(self) -> int:
        """Packets decided at once."""
        return int(self.flow_BH.shape[1])

    def candidates(self, part: Slice) -> Candidates:
        """Tokens of the packets about to be sent in the windows of a slice."""
        x_BWF = self.windows.x_BWF[part.lo : part.hi, -self.horizon :]
        return Candidates(np.ascontiguousarray(x_BWF), self.features)

    def known_by_slice_end(self, part: Slice) -> Floats:
        """Latencies of a training slice acknowledged when the next one begins, (N,); the others NaN."""
        windows = self.windows
        return windows.labels_known_at(part, windows.time_ns(part.hi)).astype(np.float64).ravel()

    def answered(self, round_s: float) -> list[list[Answered]]:
        """Each round's test slice by whose head answers, where a round on a minute takes so long."""
        windows = self.windows
        after_s = windows.slices.protocol.answers_after_s(round_s)
        return answered(windows.rounds, windows.decision_ns_B, after_s)


@dataclass
class TracePredictions:
    """Predictions of all test slices of one trace, in send order, by method."""

    trace: str
    protocol: Protocol
    round_B: Ints
    head_B: Ints  # round whose head answered; -1: that of pre-training
    decision_ns_B: Ints
    y_BH: Floats
    flow_BH: NDArray[np.int32]
    last_flow_BH: Floats  # last visible latency of the packet's flow; 0: none
    gap_BH: NDArray[np.int8]  # direction by the send-gap rule
    us_BH: dict[str, Floats] = field(default_factory=dict)
    change: Change = PAPERS  # of latency that counts


def load_traces(
    windows_dir: Path, split: Path, change: Change = PAPERS
) -> tuple[WindowSet, dict[str, EvaluatedTrace]]:
    """Open the windows of the stage `windows`, all traces; raises as `load_windows`."""
    windows = load_windows(windows_dir, split, change=change)
    return windows, {
        name: EvaluatedTrace(
            trace,
            windows.feature_names,
            _flows(windows_dir / name / "features.parquet", trace.y_us_BH.shape),
        )
        for name, trace in windows.traces.items()
    }


def _flows(path: Path, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """Flow of each decided packet, (B, H)."""
    flows = pl.read_parquet(path, columns=["packet", "flow_id"]).sort("packet")["flow_id"]
    if len(flows) != np.prod(shape):
        raise ValueError(f"{path}: {len(flows)} packets, but the windows decide {np.prod(shape)}")
    return flows.to_numpy().reshape(shape)


def fit_trees(traces: Iterable[EvaluatedTrace], *, rounds: int, seed: int) -> tuple[BoostedTrees, float]:
    """Fit the trees to the pre-training slices of all traces, as the predictor is.

    Also gives the median latency there (µs): what is predicted while nothing at all is visible.
    """
    inputs, labels = [], []
    for trace in traces:
        inputs.append(baselines.tree_inputs(trace.candidates(trace.windows.pretrain)))
        labels.append(trace.known_by_slice_end(trace.windows.pretrain))
    y_N = np.concatenate(labels)
    trees = BoostedTrees.fit(np.concatenate(inputs), y_N, rounds=rounds, seed=seed)
    return trees, float(np.nanmedian(y_N))


def predict_trace(
    trace: EvaluatedTrace,
    *,
    models: ModelRounds,
    trees: BoostedTrees,
    otherwise_us: float,
    round_s: float,
    progress: Progress = lambda _: None,
) -> TracePredictions:
    """Predict all test slices of a trace with every method.

    Args:
        trace: what is predicted.
        models: the predictor's heads.
        trees: of pre-training.
        otherwise_us: said while nothing is visible, µs; with the trees from `fit_trees`.
        round_s: seconds that a live round on a minute takes.
        progress: told of each step.
    """
    windows = trace.windows
    tests = [r.test for r in windows.rounds]
    rows = np.concatenate([np.arange(t.lo, t.hi) for t in tests])
    pieces = trace.answered(round_s)
    flat = [piece for some in pieces for piece in some]
    slices = [trace.candidates(t) for t in tests]
    shown = Candidates(np.concatenate([c.x_BHF for c in slices]), trace.features)
    us = {name: baselines.last_visible(shown, name, otherwise_us) for name in baselines.LAST_VISIBLE}
    us["ewma"] = _ewma(trace, rows, us["last_flow"])
    us |= _predict_trees(trace, trees, pieces)
    progress(f"{windows.name}: baselines")
    us |= models.predict(trace, pieces)
    progress(f"{windows.name}: predictor")
    return TracePredictions(
        trace=windows.name,
        protocol=windows.slices.protocol,
        round_B=np.repeat(np.arange(len(tests)), [len(t) for t in tests]),
        head_B=np.repeat([piece.head for piece in flat], [len(piece.part) for piece in flat]),
        decision_ns_B=windows.decision_ns_B[rows],
        y_BH=windows.y_us_BH[rows].astype(np.float64),
        flow_BH=trace.flow_BH[rows],
        last_flow_BH=shown.column(baselines.LAST_VISIBLE["last_flow"]),
        gap_BH=baselines.send_gap_direction(shown),
        us_BH={method: us[method] for method in METHODS},
        change=windows.change,
    )


class ModelRounds:
    """The pre-trained artifact and the heads fine-tuned from it, per trace and round."""

    def __init__(self, pretrained: Path, finetuned: Path, windows: WindowSet) -> None:
        """Load the pre-trained artifact; raises as `models.networks.artifact.load` does."""
        self._windows, self._finetuned = windows, finetuned
        self._base = self._load(pretrained)

    def predict(self, trace: EvaluatedTrace, pieces: Sequence[Sequence[Answered]]) -> dict[str, Floats]:
        """Predict the test slices, (B, H) in µs: by the head that answers, the round's, the pre-trained one.

        Fine-tuning leaves the encoder as it is, so its output is computed once for all heads; a round
        whose encoder differs is an error, because then it is not the head that was fine-tuned.
        """
        from models.networks.prediction import encode, latencies

        windows = trace.windows
        heads = {-1: self._base}
        said: dict[str, list[NDArray[np.float32]]] = {FINETUNED: [], AT_ONCE: [], PRETRAINED: []}
        for k, parts in enumerate(pieces):
            heads[k] = self._tuned(windows.name, k)
            for piece in parts:
                x_BWF = windows.x_BWF[piece.part.lo : piece.part.hi]
                for encoded in encode(self._base, x_BWF, BATCH):
                    for method, head in ((FINETUNED, piece.head), (AT_ONCE, k), (PRETRAINED, -1)):
                        said[method].append(latencies(heads[head], encoded))
        return {method: np.concatenate(each).astype(np.float64) for method, each in said.items()}

    def _tuned(self, name: str, k: int) -> Any:
        import torch

        folder = self._finetuned / name / f"round-{k}"
        tuned, base_state = self._load(folder), self._base.encoder_state()
        for weight, value in tuned.encoder_state().items():
            if not torch.equal(value, base_state[weight]):
                raise ValueError(f"{folder}: encoder weight {weight} is not that of the pre-trained model")
        return tuned

    def _load(self, folder: Path) -> Any:
        from models.networks import artifact

        loaded = artifact.load(folder, self._windows.schema_hash)
        if loaded.description.tokens != self._windows.tokens:
            raise ValueError(
                f"{folder}: made for windows of {loaded.description.tokens} tokens, "
                f"these have {self._windows.tokens}; run dvc repro"
            )
        return loaded.model


def _predict_trees(
    trace: EvaluatedTrace, trees: BoostedTrees, pieces: Sequence[Sequence[Answered]]
) -> dict[str, Floats]:
    """Trees of pre-training alone, and with trees added per round from the slice the head is tuned on.

    What a round adds answers when that round's head does.
    """
    continued, fixed_us, continued_us = {-1: trees}, [], []
    for k, (round_, parts) in enumerate(zip(trace.windows.rounds, pieces, strict=True)):
        tuning = baselines.tree_inputs(trace.candidates(round_.finetune))
        continued[k] = continued[k - 1].continued(tuning, trace.known_by_slice_end(round_.finetune))
        for piece in parts:
            x_NF = baselines.tree_inputs(trace.candidates(piece.part))
            fixed_us.append(trees.predict(x_NF))
            continued_us.append(continued[piece.head].predict(x_NF))
    return {
        TREES: np.concatenate(fixed_us).reshape(-1, trace.horizon),
        TREES_CONTINUED: np.concatenate(continued_us).reshape(-1, trace.horizon),
    }


def _ewma(trace: EvaluatedTrace, rows: Ints, otherwise_BH: Floats) -> Floats:
    """Per-flow EWMA of the latencies acknowledged at each decision of the windows `rows`; (B, H) in µs."""
    windows = trace.windows
    log = pl.DataFrame(
        {
            "flow_id": trace.flow_BH.ravel(),
            "at": windows.y_acked_ns_BH.ravel(),
            "latency_us": windows.y_us_BH.ravel(),
        }
    ).filter(pl.col("latency_us").is_finite())
    asked = pl.DataFrame(
        {
            "flow_id": trace.flow_BH[rows].ravel(),
            "at": np.repeat(windows.decision_ns_B[rows], trace.horizon),
        }
    )
    return baselines.ewma(log, asked, otherwise_BH.ravel()).reshape(-1, trace.horizon)
