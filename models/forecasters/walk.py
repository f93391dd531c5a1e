"""Forecasters walked forward over traces and scored on packets: the same packets and knowledge for each.

A forecaster is trained on the pre-training slices of all traces. Round by round its head is tuned on the
slice before the boundary and predicts the slice after it; beside that stands the same without any tuning.

Shapes: B decisions, H horizon (8 packets).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feature_store.packets.schema import HORIZON
from models.forecasters.forecaster import Forecaster, Part, Say, Trace, Variant, Waits
from models.forecasters.queries import column, replayed
from models.forecasters.spread import Spread
from models.scoring.choice import score_choice
from models.scoring.evaluation import TRACE_OFFSET_NS
from models.scoring.metrics import late_from, score_with_replicates
from models.training.protocol import Round, Slice, Slices

FORMS: Final = ("tuned", "pretrained")
Floats = NDArray[np.float64]
FALSE_ALARMS: Final = 0.01
DRAWS_SEED: Final = 1  # of the seconds drawn: the same for all, so that differences are paired


@dataclass(frozen=True)
class Asked:
    """The packets of all test slices: what came of them, and what was visible of each one's flow."""

    came_BH: NDArray[np.float64]
    last_flow_BH: NDArray[np.float64]
    time_ns_B: NDArray[np.int64]
    waits_BH3: NDArray[np.float64] | None  # classic, L4S in µs; 1 where the packet is movable

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Asked:
        """Of some traces, one after the other."""
        came, last, times, waits = [], [], [], []
        for number, trace in enumerate(traces):
            sent_ns = trace.packets["sent_ns"].to_numpy()
            for each in trace.slices.rounds:
                part = trace.to_predict(each.test)
                came.append(part.latencies_us().astype(np.float64))
                last.append(column(replayed(replace(part, told="all")).x_DHF, "last_latency_flow_us"))
                if trace.waits:
                    waits.append(_waits(trace.waits, each.test))
                times.append(sent_ns[part.first_packets] - sent_ns[0] + number * TRACE_OFFSET_NS)
        return cls(
            np.concatenate(came),
            np.concatenate(last),
            np.concatenate(times),
            np.concatenate(waits) if all(trace.waits for trace in traces) else None,
        )


def _waits(waits: Waits, part: Slice) -> NDArray[np.float64]:
    here = slice(part.lo * HORIZON, part.hi * HORIZON)
    columns = waits.classic_us_N[here], waits.l4s_us_N[here], waits.movable_N[here]
    return np.stack([each.astype(np.float64).reshape(-1, HORIZON) for each in columns], -1)


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
        packets = trace.to_learn(trace.slices.pretrain).packets
        chosen.append(replace(trace, packets=packets, slices=slices))
    return chosen


def lessons(traces: Sequence[Trace], also: Sequence[pl.DataFrame] = ()) -> list[Part]:
    """What is learned from: the traces' training slices, and other packet tables from end to end."""
    own = [trace.to_learn(trace.slices.pretrain) for trace in traces]
    whole = [Slice(0, table.height // HORIZON) for table in also]
    return own + [
        Part(str(table["trace"][0]), table, decisions, traces[0].visibility, traces[0].told)
        for table, decisions in zip(also, whole, strict=True)
    ]


def run(
    variant: Variant,
    seed: int,
    traces: Sequence[Trace],
    asked: Asked,
    say: Say,
    also: Sequence[pl.DataFrame] = (),
) -> dict[str, Any]:
    """Fit, tune, predict and score one variant with one seed; plain JSON, without NaN.

    Packet tables of `also` are learned from besides (`lessons`), and not scored.
    """
    started = time.process_time()
    fitted = variant.fit(lessons(traces, also), seed, say)
    fit_s = time.process_time() - started
    walked = _walked(fitted, traces, both=asked.waits_BH3 is not None)
    found: dict[str, Any] = {
        "variant": variant.name,
        "seed": seed,
        "fit_cpu_s": round(fit_s, 2),
        "multiply_adds": fitted.multiply_adds(),
    }
    for form in FORMS:
        said = walked[form]
        scores, drawn = score_with_replicates(
            said.us_BH,
            asked.came_BH,
            asked.last_flow_BH,
            time_ns_B=asked.time_ns_B,
            false_alarm_rate=FALSE_ALARMS,
            seed=DRAWS_SEED,
            lateness_BH=None if said.spread is None else said.spread.above(late_from(asked.last_flow_BH)),
        )
        replicates = {} if drawn is None else drawn._asdict()
        parts: dict[str, Any] = {}
        if said.spread is not None:
            parts["spread"] = said.spread.scores(asked.came_BH)
        if said.both_us is not None and asked.waits_BH3 is not None:
            parts["choice"], regrets = _choice(*said.both_us, asked.waits_BH3, asked.time_ns_B)
            replicates |= {} if regrets is None else {"regret_ms": regrets}
        found[form] = {
            "n": scores["n"],
            "late": scores["late"],
            "error": scores["error"],
            **parts,
            "draws": {
                name: [None if not np.isfinite(v) else round(float(v), 5) for v in values]
                for name, values in replicates.items()
            },
        }
    return found


def _choice(
    classic_us_BH: Floats, l4s_us_BH: Floats, waits_BH3: Floats, time_ns_B: NDArray[np.int64]
) -> tuple[dict[str, Any], Floats | None]:
    """Each packet that may be moved goes where the forecast is less, and stays where they are equal."""
    movable = waits_BH3[..., 2] > 0
    classic_BH = classic_us_BH < l4s_us_BH
    time_ns_N = np.repeat(time_ns_B, HORIZON)[movable.ravel()]
    waits = waits_BH3[movable]
    return score_choice(classic_BH[movable], waits[:, 0], waits[:, 1], time_ns_N, DRAWS_SEED)


@dataclass(frozen=True)
class _Said:
    """What was forecast of all test slices, (B, H)."""

    us_BH: Floats
    spread: Spread | None
    both_us: tuple[Floats, Floats] | None  # asked for the classic queue, and for the other


def _walked(fitted: Forecaster, traces: Sequence[Trace], *, both: bool) -> dict[str, _Said]:
    """Forecasts of all test slices, with each round's head and with that of training.

    Both queues are asked for with each round's head only: it doubles the time.
    """
    parts: list[tuple[Forecaster, Part]] = []
    for trace in traces:
        tuned = fitted
        for each in trace.slices.rounds:
            if len(each.finetune):
                tuned = tuned.tuned(trace.to_learn(each.finetune))
            parts.append((tuned, trace.to_predict(each.test)))
    said = _said(parts)
    if both:
        classic, l4s = (_joined([each.predict(part, queue) for each, part in parts]) for queue in (0, 1))
        said = replace(said, both_us=(classic, l4s))
    unchanged = all(tuned is fitted for tuned, _ in parts)
    plain = replace(said, both_us=None) if unchanged else _said([(fitted, part) for _, part in parts])
    return {"tuned": said, "pretrained": plain}


def _said(parts: Sequence[tuple[Forecaster, Part]]) -> _Said:
    spreads = [each.spread(part) for each, part in parts]
    whole = [each for each in spreads if each is not None]
    if whole:
        spread = Spread.joined(whole)
        return _Said(spread.median_us.astype(np.float64), spread, None)
    return _Said(_joined([each.predict(part) for each, part in parts]), None, None)


def _joined(parts: Sequence[NDArray[np.float32]]) -> Floats:
    return np.concatenate(parts).astype(np.float64)
