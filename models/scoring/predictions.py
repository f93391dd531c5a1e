"""Walk-forward predictions: every method on every test slice, with what was known at each decision.

Round K of a trace fine-tunes the head on the slice before its test slice. Its head answers once the round has
ended, as a sender would have it; until then an earlier one does. All methods see what `acked` shows.

Shapes: `B` windows, `W` window tokens, `F` features, `H` horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feature_store.events.event_stream import AS_SENT, as_asked, replay_events
from feature_store.packets.schema import QUEUES, scan_packets
from feature_store.packets.truth import Waits, read_waits
from models.scoring import baselines
from models.scoring.baselines import BoostedTrees, Candidates
from models.scoring.metrics import Bools, Floats, Ints
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
class Choice:
    """What a trace's packets would have waited in either queue, and the candidates asked for each."""

    waits: Waits
    asked_QBHF: tuple[NDArray[np.float32], NDArray[np.float32]]  # all in the classic queue, all in the other


@dataclass(frozen=True)
class EvaluatedTrace:
    """One trace's windows, and the flow of each packet they decide."""

    windows: TraceWindows
    features: tuple[str, ...]
    flow_BH: NDArray[np.int32]
    choice: Choice | None = None  # where the truth is known; without, nothing is asked for a queue

    @property
    def horizon(self) -> int:
        """Packets decided at once."""
        return int(self.flow_BH.shape[1])

    def candidates(self, part: Slice, queue: int = AS_SENT) -> Candidates:
        """Tokens of the packets about to be sent in the windows of a slice, as asked for a queue."""
        if queue == AS_SENT or self.choice is None:
            x_BHF = np.ascontiguousarray(self.windows.x_BWF[part.lo : part.hi, -self.horizon :])
        else:
            x_BHF = self.choice.asked_QBHF[queue][part.lo : part.hi]
        return Candidates(x_BHF, self.features)

    def inputs(self, part: Slice, queue: int = AS_SENT) -> NDArray[np.float32]:
        """Windows (B, W, F) of a slice, as asked for a queue."""
        x_BWF = self.windows.x_BWF[part.lo : part.hi]
        if queue == AS_SENT:
            return x_BWF
        asked_BWF = np.array(x_BWF)
        asked_BWF[:, -self.horizon :] = self.candidates(part, queue).x_BHF
        return asked_BWF

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
    waits: Waits | None = None  # of the packets predicted, (B * H,); None: the truth is not known
    classic_BH: dict[str, Bools] = field(default_factory=dict)  # by method: which are faster there, it says


def load_traces(
    windows_dir: Path,
    split: Path,
    change: Change = PAPERS,
    *,
    packets: Path | None = None,
    truths: Path | None = None,
) -> tuple[WindowSet, dict[str, EvaluatedTrace]]:
    """Open the windows of the stage `windows`, all traces.

    Args:
        windows_dir: of the stage `windows`.
        split: of the stage `split`.
        change: of latency that counts.
        packets: the packet tables; given where `truths` is.
        truths: a folder; the truth of a tested trace is TRACE.parquet there, where it is known.

    Raises:
        FileNotFoundError: as `load_windows`.
        ValueError: as `load_windows`, or a truth is of other packets.
    """
    windows = load_windows(windows_dir, split, change=change)
    traces = {}
    for name, trace in windows.traces.items():
        flow_BH = _flows(windows_dir / name / "features.parquet", trace.y_us_BH.shape)
        found = EvaluatedTrace(trace, windows.feature_names, flow_BH)
        truth = None if truths is None else truths / f"{name}.parquet"
        if trace.rounds and packets is not None and truth is not None and truth.is_file():
            found = replace(found, choice=_choice(found, scan_packets(packets, name).collect(), truth))
        traces[name] = found
    return windows, traces


def _choice(trace: EvaluatedTrace, packets: pl.DataFrame, truth: Path) -> Choice:
    """Read a trace's truth, and what its packets' inputs would be in either queue."""
    as_sent = trace.candidates(Slice(0, len(trace.flow_BH)))

    def asked(queue: int) -> NDArray[np.float32]:
        return as_asked(as_sent.x_BHF, trace.features, replay_events(packets, queue=queue))

    return Choice(read_waits(truth, packets), (asked(0), asked(1)))


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
    heads, continued = models.heads(windows.name, len(tests)), _continued(trace, trees)

    def shown_for(queue: int) -> Candidates:
        return Candidates(np.concatenate([trace.candidates(t, queue).x_BHF for t in tests]), trace.features)

    def said(shown: Candidates, queue: int) -> dict[str, Floats]:
        us = {name: baselines.last_visible(shown, name, otherwise_us) for name in baselines.LAST_VISIBLE}
        us["ewma"] = ewma_BH
        us |= _predict_trees(trace, continued, pieces, queue)
        progress(f"{windows.name}: baselines")
        us |= models.predict(trace, heads, pieces, queue)
        progress(f"{windows.name}: predictor")
        return {method: us[method] for method in METHODS}

    shown = shown_for(AS_SENT)
    otherwise_BH = baselines.last_visible(shown, "last_flow", otherwise_us)
    ewma_BH = _ewma(trace, rows, otherwise_BH)  # of the flow: the same in either queue
    waits, classic_BH = None, {}
    if trace.choice is not None:
        classic, l4s = (said(shown_for(queue), queue) for queue in range(len(QUEUES)))
        classic_BH = {method: classic[method] < l4s[method] for method in METHODS}
        waits = trace.choice.waits.of((rows[:, None] * trace.horizon + np.arange(trace.horizon)).ravel())
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
        us_BH=said(shown, AS_SENT),
        change=windows.change,
        waits=waits,
        classic_BH=classic_BH,
    )


class ModelRounds:
    """The pre-trained artifact and the heads fine-tuned from it, per trace and round."""

    def __init__(self, pretrained: Path, finetuned: Path, windows: WindowSet) -> None:
        """Load the pre-trained artifact; raises as `models.networks.artifact.load` does."""
        self._windows, self._finetuned = windows, finetuned
        self._base = self._load(pretrained)

    def heads(self, name: str, rounds: int) -> dict[int, Any]:
        """The models of a trace by round; -1: the pre-trained one.

        Raises:
            ValueError: a round's encoder is not the pre-trained one: then it is not the head that was tuned.
        """
        return {-1: self._base, **{k: self._tuned(name, k) for k in range(rounds)}}

    def predict(
        self,
        trace: EvaluatedTrace,
        heads: Mapping[int, Any],
        pieces: Sequence[Sequence[Answered]],
        queue: int = AS_SENT,
    ) -> dict[str, Floats]:
        """Predict the test slices, (B, H) in µs: by the head that answers, the round's, the pre-trained one.

        Fine-tuning leaves the encoder as it is, so its output is computed once for all heads.
        """
        from models.networks.prediction import encode, latencies

        said: dict[str, list[NDArray[np.float32]]] = {FINETUNED: [], AT_ONCE: [], PRETRAINED: []}
        for k, parts in enumerate(pieces):
            for piece in parts:
                for encoded in encode(self._base, trace.inputs(piece.part, queue), BATCH):
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


def _continued(trace: EvaluatedTrace, trees: BoostedTrees) -> dict[int, BoostedTrees]:
    """Trees by round: those of pre-training (-1), then with what a round adds from its tuning slice."""
    found = {-1: trees}
    for k, round_ in enumerate(trace.windows.rounds):
        tuning = baselines.tree_inputs(trace.candidates(round_.finetune))
        found[k] = found[k - 1].continued(tuning, trace.known_by_slice_end(round_.finetune))
    return found


def _predict_trees(
    trace: EvaluatedTrace,
    trees: Mapping[int, BoostedTrees],
    pieces: Sequence[Sequence[Answered]],
    queue: int,
) -> dict[str, Floats]:
    """Trees of pre-training alone, and those that rounds continued.

    What a round adds answers when that round's head does.
    """
    said: dict[str, list[Floats]] = {TREES: [], TREES_CONTINUED: []}
    for piece in (piece for parts in pieces for piece in parts):
        x_NF = baselines.tree_inputs(trace.candidates(piece.part, queue))
        for method, head in ((TREES, -1), (TREES_CONTINUED, piece.head)):
            said[method].append(trees[head].predict(x_NF))
    return {method: np.concatenate(each).reshape(-1, trace.horizon) for method, each in said.items()}


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
