"""Compute `scores.json`: the scores of every method by trace, pooled, per round and on the last test slice.

Each entry of a method has protocol, seed, visibility (`acked`, as in its training) and number of packets
beside its figures. Shapes: `B` decisions, `H` horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.models.scoring.choice import score_choice
from swiftqueue.models.scoring.intervals import over_time
from swiftqueue.models.scoring.metrics import (
    DRAWN,
    Floats,
    Ints,
    pool_changes,
    score_changes,
    score_predictions,
    score_sharp,
    score_with_replicates,
    successive,
)
from swiftqueue.models.scoring.predictions import (
    FINETUNED,
    METHODS,
    PRETRAINED,
    SEND_GAP,
    TREES,
    VIRTUAL_QUEUE,
    TracePredictions,
)
from swiftqueue.models.sharp import change_direction
from swiftqueue.models.training.protocol import together

HEADLINE_METHODS: Final = (FINETUNED, PRETRAINED, TREES, VIRTUAL_QUEUE)
HEADLINE_LATE: Final = ("average_precision", "recall_at_false_alarms")
HEADLINE_ERROR: Final = ("mae_ms", "p99_ms")
REGRET: Final = "regret_ms"  # regret of the choice between the queues
DIGITS: Final = 4  # digits of a committed figure
STABLE_DIGITS: Final = 9  # digits; beyond them a sum depends on the order in which threads add
VISIBILITY: Final = "acked"  # visibility of all scores here; `swiftqueue forecasts` also has `previous`
VARIANTS: Final = ("prediction_change", "truth_change")
SHARP: Final = {"sharp": False, "sharp_by_flow": True}  # whether the packet before is the flow's
TRACE_OFFSET_NS: Final = 10**16  # offset between pooled traces' time blocks: no trace lasts 115 days


def evaluate(
    predictions: Sequence[TracePredictions],
    *,
    seed: int,
    false_alarm_rate: float,
    round_s: float,
) -> dict[str, Any]:
    """Score all methods; return the content of `scores.json`, plain JSON without NaN.

    `traces` and `all` are nested trace → method → visibility → score; `all` pools the packets of all traces.
    `last_slice` is the last round's test slice alone.
    """

    def said(part: Sequence[TracePredictions]) -> dict[str, Any]:
        return {"protocol": together(p.protocol for p in part)["name"], "seed": seed}

    def scored(part: Sequence[TracePredictions]) -> dict[str, Any]:
        scores = _score(part, seed=seed, false_alarm_rate=false_alarm_rate)
        return {method: {**said(part), VISIBILITY: one} for method, one in scores.items()}

    traces = {p.trace: scored([p]) for p in predictions}
    pooled = traces[predictions[0].trace] if len(predictions) == 1 else scored(predictions)
    rounds = {p.trace: _by_round(p, false_alarm_rate) for p in predictions}
    return {
        "about": {
            **said(predictions),
            "slices_s": {
                p.protocol.name: {k: getattr(p.protocol, k) for k in ("pretrain_s", "finetune_s", "test_s")}
                for p in predictions
            },
            "visibility": VISIBILITY,
            "change": predictions[0].change.model_dump(),
            "round_s": round_s,
            "answers_after_s": {
                p.protocol.name: round(p.protocol.answers_after_s(round_s), 2) for p in predictions
            },
            "false_alarm_rate": false_alarm_rate,
            "traces": len(predictions),
            "rounds": {trace: len(slices) for trace, slices in rounds.items()},
        },
        "all": pooled,
        "traces": traces,
        "rounds": rounds,
        "last_slice": {
            p.trace: {**said([p]), "visibility": VISIBILITY, **rounds[p.trace][-1]} for p in predictions
        },
    }


def headline(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures for `dvc metrics`: late packets, error and regret of four methods, all traces.

    They are rounded, since they are committed and machines differ in further digits.
    """
    pooled = scores["all"]
    late = pooled[FINETUNED]["acked"]["late"]
    return {
        "n": pooled[FINETUNED]["acked"]["n"],
        "n_late": late["n_late"],
        "base_rate": _published(late["base_rate"]),
        **{
            method: {
                **{key: _published(pooled[method]["acked"]["late"][key]) for key in HEADLINE_LATE},
                **{key: _published(pooled[method]["acked"]["error"][key]) for key in HEADLINE_ERROR},
                REGRET: _published(pooled[method]["acked"]["choice"][REGRET]),
            }
            for method in HEADLINE_METHODS
        },
    }


def stable(scores: Any) -> Any:
    """Return the scores with each number cut to the digits that a second run gives again."""
    if isinstance(scores, dict):
        return {name: stable(value) for name, value in scores.items()}
    if isinstance(scores, list):
        return [stable(value) for value in scores]
    return float(f"{scores:.{STABLE_DIGITS}g}") if isinstance(scores, float) else scores


def _published(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def _score(
    part: Sequence[TracePredictions], *, seed: int, false_alarm_rate: float
) -> dict[str, dict[str, Any]]:
    """Return the scores of all methods over the test slices of some traces, with intervals.

    `finetuned_minus_this` holds 95 % intervals of the differences from the fine-tuned model, paired: both
    are scored on the same draws of blocks of time. Where zero is inside, the order of the two is not settled.
    """
    times = [p.decision_ns_B - p.decision_ns_B[0] + i * TRACE_OFFSET_NS for i, p in enumerate(part)]
    time_ns_B = np.concatenate(times)
    y_BH = np.concatenate([p.y_BH for p in part])
    last_flow_BH = np.concatenate([p.last_flow_BH for p in part])
    scores: dict[str, dict[str, Any]] = {}
    draws: dict[str, dict[str, Floats]] = {}
    for method in METHODS:
        scores[method], drawn = score_with_replicates(
            np.concatenate([p.us_BH[method] for p in part]),
            y_BH,
            last_flow_BH,
            time_ns_B=time_ns_B,
            false_alarm_rate=false_alarm_rate,
            seed=seed,
            change=part[0].change,
        )
        for name, by_flow in SHARP.items():  # no change is counted across two traces
            scored = [_sharp(p, p.us_BH[method], by_flow=by_flow) for p in part]
            scores[method][name] = {v: pool_changes([one[v] for one in scored]) for v in VARIANTS}
        scores[method]["choice"], regrets_R = _choice(part, method, times, seed)
        if drawn is not None:
            scores[method]["blocks"] = drawn.blocks
            draws[method] = {name: getattr(drawn, name) for name in DRAWN}
            if regrets_R is not None:
                draws[method][REGRET] = regrets_R
                regret = scores[method]["choice"][REGRET]
                scores[method]["choice"][f"{REGRET}_95"] = over_time(regret, regrets_R, drawn.blocks)
            if method != FINETUNED:
                scores[method]["finetuned_minus_this"] = {
                    f"{name}_95": _difference(scores, draws, method, name, drawn.blocks)
                    for name in draws[method]
                }
    rule = {name: _send_gap(part, by_flow=by_flow) for name, by_flow in SHARP.items()}
    return {**scores, SEND_GAP: {"n": scores[FINETUNED]["n"], **rule}}


def _choice(
    part: Sequence[TracePredictions], method: str, times: Sequence[Ints], seed: int
) -> tuple[dict[str, Any], Floats | None]:
    """Score a method's choice of queue for the packets that may be moved, in traces with known waits.

    A packet goes to the queue with the lower forecast, and stays where both are equal.
    """
    classic, waits, sent = [], [], []
    for p, time_ns_B in zip(part, times, strict=True):
        if p.waits is None:
            continue
        movable_N = p.waits.movable_N
        classic.append(p.classic_BH[method].ravel()[movable_N])
        waits.append(np.stack([p.waits.classic_us_N, p.waits.l4s_us_N])[:, movable_N])
        sent.append(np.repeat(time_ns_B, p.y_BH.shape[1])[movable_N])
    if not waits:
        nothing = np.zeros(0)
        return score_choice(nothing.astype(bool), nothing, nothing, nothing.astype(np.int64), seed)
    classic_us_N, l4s_us_N = np.concatenate(waits, axis=1).astype(np.float64)
    return score_choice(np.concatenate(classic), classic_us_N, l4s_us_N, np.concatenate(sent), seed)


def _difference(
    scores: Mapping[str, Any],
    draws: Mapping[str, Mapping[str, Floats]],
    method: str,
    name: str,
    blocks: int,
) -> list[float] | None:
    """Return the 95 % interval of the fine-tuned model's figure less a method's."""
    group = {"average_precision": "late", "mae_ms": "error", REGRET: "choice"}[name]
    ours, theirs = (scores[each][group][name] for each in (FINETUNED, method))
    if ours is None or theirs is None:
        return None
    return over_time(ours - theirs, draws[FINETUNED][name] - draws[method][name], blocks)


def _sharp(p: TracePredictions, us_BH: Floats, *, by_flow: bool) -> dict[str, Any]:
    known = np.isfinite(p.y_BH)
    return score_sharp(us_BH[known], p.y_BH[known], p.change, p.flow_BH[known] if by_flow else None)


def _send_gap(part: Sequence[TracePredictions], *, by_flow: bool) -> dict[str, Any]:
    """Score the send-gap rule on sharp changes; it gives a direction, so both variants are the same."""
    scored = []
    for p in part:
        known = np.isfinite(p.y_BH)
        y_N, direction_N = p.y_BH[known], p.gap_BH[known]
        later_M, before_M = successive(y_N.size, p.flow_BH[known] if by_flow else None)
        true_M: NDArray[np.int8] = change_direction(y_N[later_M], y_N[before_M], p.change)
        scored.append(score_changes(true_M, direction_N[later_M]))
    return dict.fromkeys(VARIANTS, pool_changes(scored))


def _by_round(p: TracePredictions, false_alarm_rate: float) -> list[dict[str, Any]]:
    """Return the headline figures of each round's test slice by method."""
    slices = []
    for k in range(int(p.round_B.max()) + 1):
        rows = p.round_B == k
        figures: dict[str, Any] = {"round": k}
        for method in METHODS:
            scored = score_predictions(
                p.us_BH[method][rows],
                p.y_BH[rows],
                p.last_flow_BH[rows],
                false_alarm_rate=false_alarm_rate,
                change=p.change,
            )
            figures[method] = {
                "average_precision": scored["late"]["average_precision"],
                "base_rate": scored["late"]["base_rate"],
                "mae_ms": scored["error"]["mae_ms"],
                "n": scored["n"],
                "n_late": scored["late"]["n_late"],
            }
        slices.append(figures)
    return slices
