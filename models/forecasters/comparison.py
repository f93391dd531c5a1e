"""Score a forecaster with one seed on the packets of all test slices, which are the same for each forecaster.

Shapes: B decisions, H horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.feature_store.events.event_stream import AS_SENT
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.feature_store.packets.truth import Waits
from swiftqueue.models.forecasters.forecaster import Forecaster, Say, Variant
from swiftqueue.models.forecasters.kept import fit, key_of
from swiftqueue.models.forecasters.queries import column, replayed
from swiftqueue.models.forecasters.traces import Trace, lessons
from swiftqueue.models.forecasters.walk import (
    PRETRAINED,
    TUNED,
    DecisionForecasts,
    Floats,
    flows_of,
    forecasts,
    learning_from,
    tune_heads,
)
from swiftqueue.models.scoring.choice import score_choice
from swiftqueue.models.scoring.evaluation import TRACE_OFFSET_NS
from swiftqueue.models.scoring.metrics import (
    DRAWN,
    late_from,
    score_predictions,
    score_sharp,
    score_with_replicates,
)
from swiftqueue.models.sharp import Change
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.training.protocol import Slice

FORMS: Final = (TUNED, PRETRAINED)
TRACE_FLOWS: Final = 2**32  # more flows than one trace has
DRAWS_SEED: Final = 1  # seed of the drawn blocks of time, the same for all so that differences are paired


@dataclass(frozen=True)
class JudgingParams:
    """Parameters of judging forecasts, from sections `evaluate` and `finetune` of params.yaml."""

    round_s: float  # seconds of a live round on a minute until its head answers
    false_alarm_rate: float  # rate at which the recall of late packets is reported
    finetune: FinetuneParams

    def as_json(self) -> dict[str, Any]:
        """Return the parameters as plain JSON."""
        how = {"round_s": self.round_s, "false_alarm_rate": self.false_alarm_rate}
        return how | {"finetune": self.finetune.model_dump()}


@dataclass(frozen=True)
class HeldOutPackets:
    """The packets of all test slices: their outcomes, and the visible latency of each packet's flow."""

    came_BH: NDArray[np.float64]
    last_flow_BH: NDArray[np.float64]  # visible with `acked`, whatever the forecaster
    flow_BH: NDArray[np.int64]  # distinct numbers of the flows of all traces
    change: Change  # change of latency that counts
    trace_B: NDArray[np.int64]  # number of the trace
    time_ns_B: NDArray[np.int64]
    waits_BH3: NDArray[np.float64] | None  # waits in classic and L4S in µs, and 1 if the packet is movable

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> HeldOutPackets:
        """Return the packets of some traces, one after the other."""
        came, last, flows, numbers, times, waits = [], [], [], [], [], []
        changes = {trace.change for trace in traces}
        if len(changes) > 1:
            raise ValueError("the traces do not have one definition of a sharp change")
        for number, trace in enumerate(traces):
            sent_ns = trace.packets["sent_ns"].to_numpy()
            for each in trace.slices.rounds:
                part = trace.to_predict(each.test)
                came.append(part.latencies_us().astype(np.float64))
                shown = replayed(replace(part, told="all", visibility="acked"))
                last.append(column(shown.x_DHF, "last_latency_flow_us"))
                flows.append(flows_of(part) + number * TRACE_FLOWS)
                numbers.append(np.full(len(part), number, np.int64))
                if trace.waits:
                    waits.append(_waits(trace.waits, each.test))
                times.append(sent_ns[part.first_packets] - sent_ns[0] + number * TRACE_OFFSET_NS)
        return cls(
            np.concatenate(came),
            np.concatenate(last),
            np.concatenate(flows),
            changes.pop(),
            np.concatenate(numbers),
            np.concatenate(times),
            np.concatenate(waits) if all(trace.waits for trace in traces) else None,
        )


def _waits(waits: Waits, part: Slice) -> NDArray[np.float64]:
    here = slice(part.lo * HORIZON, part.hi * HORIZON)
    columns = waits.classic_us_N[here], waits.l4s_us_N[here], waits.movable_N[here]
    return np.stack([each.astype(np.float64).reshape(-1, HORIZON) for each in columns], -1)


def key_of_run(variant: Variant, seed: int, work: str) -> str:
    """Return the name of `run`'s result for some work; other sizes or code have other names."""
    return key_of(variant, seed, work, __name__)


def run(
    variant: Variant,
    seed: int,
    traces: Sequence[Trace],
    asked: HeldOutPackets,
    judging: JudgingParams,
    say: Say,
    also: Sequence[pl.DataFrame] = (),
    kept: Path | None = None,
) -> dict[str, Any]:
    """Fit, tune, predict and score one variant with one seed; plain JSON, without NaN.

    Packet tables of `also` are learned from as well (`lessons`), but not scored. The folder `kept` holds
    forecasters that were fitted before (kept.py).

    Raises:
        ValueError: there are no training data, or training diverged; the line names the traces.
    """
    learned = lessons(traces, also)
    with learning_from(part.trace for part in learned):
        fitted, fit_cpu_s = fit(variant, seed, learned, say, kept)
    walked = _walked(fitted, traces, judging, both=asked.waits_BH3 is not None)
    found: dict[str, Any] = {
        "variant": variant.name,
        "seed": seed,
        "fit_cpu_s": fit_cpu_s,
        "multiply_adds": fitted.multiply_adds(),
    }
    for form in FORMS:
        said = walked[form]
        scores, drawn = score_with_replicates(
            said.us_BH,
            asked.came_BH,
            asked.last_flow_BH,
            time_ns_B=asked.time_ns_B,
            false_alarm_rate=judging.false_alarm_rate,
            seed=DRAWS_SEED,
            lateness_BH=_lateness(said, asked),
            change=asked.change,
        )
        replicates = {} if drawn is None else {name: getattr(drawn, name) for name in DRAWN}
        parts: dict[str, Any] = {}
        if said.spread is not None:
            parts["spread"] = said.spread.scores(asked.came_BH)
        if said.both is not None and asked.waits_BH3 is not None:
            parts["choice"], regrets = _choice(*said.both, asked.waits_BH3, asked.time_ns_B)
            replicates |= {} if regrets is None else {"regret_ms": regrets}
        found[form] = {
            "n": scores["n"],
            "late": scores["late"],
            "error": scores["error"],
            "f1": _f1(said.us_BH, asked),
            **parts,
            "by_trace": _by_trace(said, asked),
            "blocks": 0 if drawn is None else drawn.blocks,
            "draws": {
                name: [None if not np.isfinite(v) else round(float(v), 5) for v in values]
                for name, values in replicates.items()
            },
        }
    return found


def _lateness(said: _Forecasts, asked: HeldOutPackets) -> Floats | None:
    """Return the probability that each packet is late, (B, H), if the forecaster has quantiles."""
    return None if said.spread is None else said.spread.above(late_from(asked.last_flow_BH, asked.change))


def _by_trace(said: _Forecasts, asked: HeldOutPackets) -> dict[str, list[float | None]]:
    """Return the scores of each trace alone, for the figures that get intervals."""
    lateness_BH = _lateness(said, asked)
    found: dict[str, list[float | None]] = {name: [] for name in (*DRAWN, "regret_ms")}
    for number in np.unique(asked.trace_B):
        rows = asked.trace_B == number
        some = said.of(rows)
        scores = score_predictions(
            some.us_BH,
            asked.came_BH[rows],
            asked.last_flow_BH[rows],
            change=asked.change,
            lateness_BH=None if lateness_BH is None else lateness_BH[rows],
        )
        found["average_precision"].append(scores["late"]["average_precision"])
        found["mae_ms"].append(scores["error"]["mae_ms"])
        if some.both is not None and asked.waits_BH3 is not None:
            chosen, _ = _choice(*some.both, asked.waits_BH3[rows], asked.time_ns_B[rows])
            found["regret_ms"].append(chosen["regret_ms"])
    return found


def _f1(us_BH: Floats, asked: HeldOutPackets) -> dict[str, float | None]:
    """Return F1 of sharp changes in both variants: from the sender's last packet and from the flow's."""
    known = np.isfinite(asked.came_BH)
    pred_N, came_N, flow_N = us_BH[known], asked.came_BH[known], asked.flow_BH[known]
    trace_N = np.repeat(asked.trace_B, HORIZON)[known.ravel()]  # no change is counted across two traces
    by_sender, by_flow = (score_sharp(pred_N, came_N, asked.change, each) for each in (trace_N, flow_N))
    return {
        f"{variant}{end}": scores[variant]["all"]["f1"]
        for end, scores in (("", by_sender), ("_by_flow", by_flow))
        for variant in scores
    }


def _choice(
    classic: DecisionForecasts, l4s: DecisionForecasts, waits_BH3: Floats, time_ns_B: NDArray[np.int64]
) -> tuple[dict[str, Any], Floats | None]:
    """Return the scores of the packets that may be moved, and the draws of their regret.

    Each packet goes to the queue with the lower forecast, and stays if they are equal.
    """
    movable = waits_BH3[..., 2] > 0
    classic_us_N, l4s_us_N = waits_BH3[movable][:, :2].T
    time_ns_N = np.repeat(time_ns_B, HORIZON)[movable.ravel()]
    return score_choice((classic.us_BH < l4s.us_BH)[movable], classic_us_N, l4s_us_N, time_ns_N, DRAWS_SEED)


@dataclass(frozen=True)
class _Forecasts(DecisionForecasts):
    """The forecasts for all test slices."""

    both: tuple[DecisionForecasts, DecisionForecasts] | None = None  # for the classic and the other queue

    def of(self, rows: NDArray[np.bool_]) -> _Forecasts:
        """Return the forecasts of some decisions."""
        some = super().of(rows)
        both = self.both and (self.both[0].of(rows), self.both[1].of(rows))
        return _Forecasts(some.us_BH, some.spread, both)


def _walked(
    fitted: Forecaster, traces: Sequence[Trace], judging: JudgingParams, *, both: bool
) -> dict[str, _Forecasts]:
    """Return the forecasts of all test slices by the head in service, and by the head of training.

    Only the heads in service are asked about both queues, which doubles the time.
    """
    heads = [tune_heads(fitted, trace, judging.finetune) for trace in traces]

    def said(form: str, queue: int = AS_SENT) -> DecisionForecasts:
        each = (
            forecasts(some, trace, judging.round_s, queue, (form,))[form]
            for some, trace in zip(heads, traces, strict=True)
        )
        return DecisionForecasts.joined(list(each))

    tuned, plain = said(TUNED), said(PRETRAINED)
    asked = (said(TUNED, 0), said(TUNED, 1)) if both else None
    return {
        TUNED: _Forecasts(tuned.us_BH, tuned.spread, asked),
        PRETRAINED: _Forecasts(plain.us_BH, plain.spread),
    }
