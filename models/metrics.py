"""`metrics.json`: the scores of every method by trace, pooled, per round and on the last test slice.

Each entry of a method says protocol, seed, visibility and number of packets beside its figures. Shapes: `B`
windows, `H` horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.evaluation import METHODS, SEND_GAP, TracePredictions
from models.scores import change_direction, pool_changes, score_changes, score_predictions

VARIANTS: Final = ("prediction_change", "truth_change")
TRACE_OFFSET_NS: Final = 10**16  # keeps the time blocks of pooled traces apart: no trace lasts 115 days


def evaluate(
    predictions: Sequence[TracePredictions],
    *,
    protocol: Mapping[str, Any],
    seed: int,
    false_alarm_rate: float,
) -> dict[str, Any]:
    """Score all methods: the content of `metrics.json`, plain JSON without NaN.

    `traces` and `all` are nested trace → method → visibility → score; `all` pools the packets of all traces.
    `last_slice` is the last round's test slice under `acked`, which the registry's gate looks at.
    """
    visibilities = list(predictions[0].us_BH)
    said = {"protocol": protocol["name"], "seed": seed}

    def entry(part: Sequence[TracePredictions], method: str) -> dict[str, Any]:
        by_visibility = {
            v: _score(part, v, method, seed=seed, false_alarm_rate=false_alarm_rate) for v in visibilities
        }
        return {**said, **by_visibility}

    methods = (*METHODS, SEND_GAP)
    traces = {p.trace: {m: entry([p], m) for m in methods} for p in predictions}
    if len(predictions) == 1:
        pooled = traces[predictions[0].trace]
    else:
        pooled = {m: entry(predictions, m) for m in methods}
        for method, scored in pooled.items():
            for v in visibilities:
                scored[v]["sharp"] = _pool_sharp([traces[p.trace][method][v]["sharp"] for p in predictions])
    rounds = {p.trace: _by_round(p, false_alarm_rate) for p in predictions}
    return {
        "about": {
            **said,
            "slices_s": {k: protocol[k] for k in ("pretrain_s", "finetune_s", "test_s")},
            "visibility": "acked",
            "false_alarm_rate": false_alarm_rate,
            "traces": len(predictions),
            "rounds": {trace: len(slices) for trace, slices in rounds.items()},
        },
        "all": pooled,
        "traces": traces,
        "rounds": rounds,
        "last_slice": {t: {**said, "visibility": "acked", **slices[-1]} for t, slices in rounds.items()},
    }


def _score(
    part: Sequence[TracePredictions], visibility: str, method: str, *, seed: int, false_alarm_rate: float
) -> dict[str, Any]:
    """Scores of one method over the test slices of some traces; intervals for the deployable visibility."""
    if method == SEND_GAP:
        return {"n": int(sum(np.isfinite(p.y_BH).sum() for p in part)), "sharp": _send_gap(part, visibility)}
    time_ns_B = np.concatenate(
        [p.decision_ns_B - p.decision_ns_B[0] + i * TRACE_OFFSET_NS for i, p in enumerate(part)]
    )
    return score_predictions(
        np.concatenate([p.us_BH[visibility][method] for p in part]),
        np.concatenate([p.y_BH for p in part]),
        np.concatenate([p.last_flow_BH[visibility] for p in part]),
        time_ns_B=time_ns_B if visibility == "acked" else None,
        false_alarm_rate=false_alarm_rate,
        seed=seed,
    )


def _send_gap(part: Sequence[TracePredictions], visibility: str) -> dict[str, Any]:
    """Sharp changes by the send-gap rule, which gives a direction: both variants are the same."""
    scored = []
    for p in part:
        y_N, direction_N = p.y_BH.ravel(), p.gap_BH[visibility].ravel()
        known = np.isfinite(y_N)
        true_N: NDArray[np.int8] = change_direction(y_N[known][1:], y_N[known][:-1])
        scored.append(score_changes(true_N, direction_N[known][1:]))
    return dict.fromkeys(VARIANTS, pool_changes(scored))


def _pool_sharp(scored: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {variant: pool_changes([s[variant] for s in scored]) for variant in VARIANTS}


def _by_round(p: TracePredictions, false_alarm_rate: float) -> list[dict[str, Any]]:
    """Headline figures of each round's test slice under `acked`, by method."""
    slices = []
    for k in range(int(p.round_B.max()) + 1):
        rows = p.round_B == k
        figures: dict[str, Any] = {"round": k}
        for method in METHODS:
            scored = score_predictions(
                p.us_BH["acked"][method][rows],
                p.y_BH[rows],
                p.last_flow_BH["acked"][rows],
                false_alarm_rate=false_alarm_rate,
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
