"""`scores.json`: the scores of every method by trace, pooled, per round and on the last test slice.

Each entry of a method says protocol, seed, visibility and number of packets beside its figures. Shapes: `B`
windows, `H` horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.scoring.metrics import (
    Floats,
    Replicates,
    interval,
    pool_changes,
    score_changes,
    score_predictions,
    score_sharp,
    score_with_replicates,
)
from models.scoring.predictions import FINETUNED, METHODS, PRETRAINED, SEND_GAP, TREES, TracePredictions
from models.training.protocol import together
from models.training.sharp import change_direction

HEADLINE_METHODS: Final = (FINETUNED, PRETRAINED, TREES, "last_flow")
HEADLINE_LATE: Final = ("average_precision", "recall_at_false_alarms")
HEADLINE_ERROR: Final = ("mae_ms", "p99_ms")
DIGITS: Final = 4  # of a committed figure
VARIANTS: Final = ("prediction_change", "truth_change")
TRACE_OFFSET_NS: Final = 10**16  # keeps the time blocks of pooled traces apart: no trace lasts 115 days


def evaluate(
    predictions: Sequence[TracePredictions],
    *,
    seed: int,
    false_alarm_rate: float,
) -> dict[str, Any]:
    """Score all methods: the content of `scores.json`, plain JSON without NaN.

    `traces` and `all` are nested trace → method → visibility → score; `all` pools the packets of all traces.
    `last_slice` is the last round's test slice under `acked`, which the registry's gate looks at.
    """
    visibilities = list(predictions[0].us_BH)

    def said(part: Sequence[TracePredictions]) -> dict[str, Any]:
        return {"protocol": together(p.protocol for p in part)["name"], "seed": seed}

    def scored(part: Sequence[TracePredictions]) -> dict[str, Any]:
        by_visibility = {
            v: _score(part, v, seed=seed, false_alarm_rate=false_alarm_rate) for v in visibilities
        }
        return {
            m: {**said(part), **{v: by_visibility[v][m] for v in visibilities}} for m in (*METHODS, SEND_GAP)
        }

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
            "visibility": "acked",
            "false_alarm_rate": false_alarm_rate,
            "traces": len(predictions),
            "rounds": {trace: len(slices) for trace, slices in rounds.items()},
        },
        "all": pooled,
        "traces": traces,
        "rounds": rounds,
        "last_slice": {
            p.trace: {**said([p]), "visibility": "acked", **rounds[p.trace][-1]} for p in predictions
        },
    }


def headline(scores: Mapping[str, Any]) -> dict[str, Any]:
    """What `dvc metrics` shows: late packets and error under `acked`, all traces, of four methods.

    Rounded, since it is committed: in the digits beyond, machines differ.
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
            }
            for method in HEADLINE_METHODS
        },
    }


def _published(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def _score(
    part: Sequence[TracePredictions], visibility: str, *, seed: int, false_alarm_rate: float
) -> dict[str, dict[str, Any]]:
    """Scores of all methods over the test slices of some traces; intervals for the deployable visibility.

    `finetuned_minus_this` holds 95 % intervals of the differences from the fine-tuned model, paired: both
    are scored on the same draws of seconds. Where zero is inside, the order of the two is not settled.
    """
    time_ns_B = np.concatenate(
        [p.decision_ns_B - p.decision_ns_B[0] + i * TRACE_OFFSET_NS for i, p in enumerate(part)]
    )
    y_BH = np.concatenate([p.y_BH for p in part])
    last_flow_BH = np.concatenate([p.last_flow_BH[visibility] for p in part])
    scores: dict[str, dict[str, Any]] = {}
    replicates: dict[str, Replicates] = {}
    for method in METHODS:
        scores[method], drawn = score_with_replicates(
            np.concatenate([p.us_BH[visibility][method] for p in part]),
            y_BH,
            last_flow_BH,
            time_ns_B=time_ns_B if visibility == "acked" else None,
            false_alarm_rate=false_alarm_rate,
            seed=seed,
        )
        if len(part) > 1:  # no change is counted across two traces
            scored = [_sharp(p, p.us_BH[visibility][method]) for p in part]
            scores[method]["sharp"] = {v: pool_changes([s[v] for s in scored]) for v in VARIANTS}
        if drawn is not None:
            replicates[method] = drawn
            ours = replicates[FINETUNED]
            if method != FINETUNED:
                scores[method]["finetuned_minus_this"] = {
                    f"{name}_95": interval(getattr(ours, name) - getattr(drawn, name))
                    for name in Replicates._fields
                }
    n = scores[FINETUNED]["n"]
    return {**scores, SEND_GAP: {"n": n, "sharp": _send_gap(part, visibility)}}


def _sharp(p: TracePredictions, us_BH: Floats) -> dict[str, Any]:
    known = np.isfinite(p.y_BH)
    return score_sharp(us_BH[known], p.y_BH[known])


def _send_gap(part: Sequence[TracePredictions], visibility: str) -> dict[str, Any]:
    """Sharp changes by the send-gap rule, which gives a direction: both variants are the same."""
    scored = []
    for p in part:
        y_N, direction_N = p.y_BH.ravel(), p.gap_BH[visibility].ravel()
        known = np.isfinite(y_N)
        true_N: NDArray[np.int8] = change_direction(y_N[known][1:], y_N[known][:-1])
        scored.append(score_changes(true_N, direction_N[known][1:]))
    return dict.fromkeys(VARIANTS, pool_changes(scored))


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
