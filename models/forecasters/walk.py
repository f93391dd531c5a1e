"""Forecasters walked forward over traces and scored on packets: the same packets and knowledge for each.

A forecaster is trained on the pre-training slices of all traces. Round by round its head is tuned on the
slice before the boundary and predicts the slice after it; beside that stands the same without any tuning.

Shapes: B decisions, H horizon (8 packets).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.forecasters.forecaster import Forecaster, Say, Trace, Variant
from models.forecasters.queries import column, replayed
from models.scoring.evaluation import TRACE_OFFSET_NS
from models.scoring.metrics import score_with_replicates
from models.training.protocol import Round, Slice, Slices

FORMS: Final = ("tuned", "pretrained")
FALSE_ALARMS: Final = 0.01
DRAWS_SEED: Final = 1  # of the seconds drawn: the same for all, so that differences are paired


@dataclass(frozen=True)
class Asked:
    """The packets of all test slices: what came of them, and what was visible of each one's flow."""

    came_BH: NDArray[np.float64]
    last_flow_BH: NDArray[np.float64]
    time_ns_B: NDArray[np.int64]

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Asked:
        """Of some traces, one after the other."""
        came, last, times = [], [], []
        for number, trace in enumerate(traces):
            sent_ns = trace.packets["sent_ns"].to_numpy()
            for each in trace.slices.rounds:
                part = trace.to_predict(each.test)
                came.append(part.latencies_us().astype(np.float64))
                last.append(column(replayed(part).x_DHF, "last_latency_flow_us"))
                times.append(sent_ns[part.first_packets] - sent_ns[0] + number * TRACE_OFFSET_NS)
        return cls(np.concatenate(came), np.concatenate(last), np.concatenate(times))


def within_training(traces: Sequence[Trace]) -> list[Trace]:
    """The traces' training slices alone: the last third to predict, so that a choice sees no test slice."""
    chosen = []
    for trace in traces:
        lo, hi = trace.slices.pretrain.lo, trace.slices.pretrain.hi
        middle = hi - (hi - lo) // 3
        tune = Slice(
            max(lo, middle - (hi - lo) // 5), middle
        )  # as the protocols: a fifth of what is trained on
        slices = Slices(
            trace.slices.protocol,
            trace.slices.duration_s,
            Slice(lo, middle),
            (Round(tune, Slice(middle, hi)),),
        )
        chosen.append(Trace(trace.name, trace.to_learn(trace.slices.pretrain).packets, slices))
    return chosen


def run(variant: Variant, seed: int, traces: Sequence[Trace], asked: Asked, say: Say) -> dict[str, Any]:
    """Fit, tune, predict and score one variant with one seed; plain JSON, without NaN."""
    started = time.process_time()
    fitted = variant.fit([trace.to_learn(trace.slices.pretrain) for trace in traces], seed, say)
    fit_s = time.process_time() - started
    predicted = _walked(fitted, traces)
    found: dict[str, Any] = {
        "variant": variant.name,
        "seed": seed,
        "fit_cpu_s": round(fit_s, 2),
        "multiply_adds": fitted.multiply_adds(),
    }
    for form in FORMS:
        scores, drawn = score_with_replicates(
            predicted[form],
            asked.came_BH,
            asked.last_flow_BH,
            time_ns_B=asked.time_ns_B,
            false_alarm_rate=FALSE_ALARMS,
            seed=DRAWS_SEED,
        )
        replicates = {} if drawn is None else drawn._asdict()
        found[form] = {
            "n": scores["n"],
            "late": scores["late"],
            "error": scores["error"],
            "draws": {
                name: [None if not np.isfinite(v) else round(float(v), 5) for v in values]
                for name, values in replicates.items()
            },
        }
    return found


def _walked(fitted: Forecaster, traces: Sequence[Trace]) -> dict[str, NDArray[np.float64]]:
    """Predictions of all test slices, with each round's head and with that of training; (B, H) in µs."""
    tuned_us, fitted_us = [], []
    for trace in traces:
        tuned = fitted
        for each in trace.slices.rounds:
            if len(each.finetune):
                tuned = tuned.tuned(trace.to_learn(each.finetune))
            part = trace.to_predict(each.test)
            fitted_us.append(fitted.predict(part))
            tuned_us.append(fitted_us[-1] if tuned is fitted else tuned.predict(part))
    by_form = {"tuned": tuned_us, "pretrained": fitted_us}
    return {form: np.concatenate(us).astype(np.float64) for form, us in by_form.items()}
