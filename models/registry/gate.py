"""The gate: may a challenger take the champion's place? Judged on the last held-out slice alone.

Shapes: B windows, W tokens, F features, H horizon (8 packets), N packets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.scoring.baselines import LAST_VISIBLE, Candidates, last_visible
from models.scoring.metrics import score_predictions

# 'Not worse' leaves room for the noise of a slice of seconds: on the default traces the 95 % block-bootstrap
# interval of one model's average precision is wider than this, so more would bar good challengers by chance.
AP_TOLERANCE: Final = 0.02  # absolute, of average precision
LOG_MAE_TOLERANCE: Final = 0.02  # relative
FALSE_ALARM_RATE: Final = 0.01


@dataclass(frozen=True)
class HeldOut:
    """The slice: windows in time order and what came."""

    x_BWF: NDArray[np.float32]
    y_BH: NDArray[np.float32]  # µs; NaN where unknown
    features: tuple[str, ...]

    @property
    def candidates(self) -> Candidates:
        """Tokens of the packets about to be sent."""
        return Candidates(np.asarray(self.x_BWF[:, -self.y_BH.shape[1] :]), self.features)


@dataclass(frozen=True)
class Figures:
    """How well a predictor does on the slice; None where it cannot be computed."""

    average_precision: float | None  # of late packets
    log_mae: float | None  # mean |ln predicted - ln true|
    mae_ms: float | None
    n: int  # packets of known latency
    n_late: int

    def as_metrics(self, prefix: str) -> dict[str, float]:
        """The figures that exist, by metric name."""
        return {f"{prefix}.{k}": float(v) for k, v in asdict(self).items() if v is not None}


@dataclass(frozen=True)
class Verdict:
    """The decision and why."""

    passed: bool
    reason: str
    loses_to: tuple[str, ...]  # naive baselines that do better on late packets or on log-error


def score(pred_BH: NDArray[Any], held_out: HeldOut) -> Figures:
    """Figures of predicted latencies (µs) on the slice."""
    last_BH = held_out.candidates.column("last_latency_flow_us")
    scores = score_predictions(pred_BH, held_out.y_BH, last_BH, false_alarm_rate=FALSE_ALARM_RATE)
    known = np.isfinite(held_out.y_BH) & (held_out.y_BH > 0)
    logs_N = np.abs(np.log(np.maximum(pred_BH[known], 1.0)) - np.log(held_out.y_BH[known]))
    return Figures(
        average_precision=scores["late"]["average_precision"],
        log_mae=float(logs_N.mean()) if logs_N.size else None,
        mae_ms=scores["error"]["mae_ms"],
        n=scores["n"],
        n_late=scores["late"]["n_late"],
    )


def score_naive(held_out: HeldOut, otherwise_us: float) -> dict[str, Figures]:
    """Figures of the last visible latency of the sender, the flow and the queue."""
    return {
        method: score(last_visible(held_out.candidates, method, otherwise_us), held_out)
        for method in LAST_VISIBLE
    }


def judge(
    challenger: Figures, champion: Figures | None, naive: Mapping[str, Figures], why_not: str
) -> Verdict:
    """Decide: not worse than the champion beyond the tolerances on either figure.

    Args:
        challenger: figures of the new version.
        champion: figures of the served version on the same windows, or None if there are none.
        naive: figures of the naive baselines.
        why_not: why there are no figures of a champion; `no champion yet`, or why it cannot run here.
    """
    loses_to = tuple(name for name, figures in naive.items() if _worse(challenger, figures, 0.0, 0.0))
    if challenger.log_mae is None:
        return Verdict(False, "no packet of the held-out slice has a known latency", loses_to)
    if champion is None:
        if why_not == NO_CHAMPION or not loses_to:
            return Verdict(True, why_not, loses_to)
        return Verdict(False, f"{why_not}, and it loses to {', '.join(loses_to)}", loses_to)
    if worse := _worse(challenger, champion, AP_TOLERANCE, LOG_MAE_TOLERANCE):
        return Verdict(False, f"worse than the champion: {worse}", loses_to)
    return Verdict(True, f"not worse than the champion: {_beside(challenger, champion)}", loses_to)


NO_CHAMPION: Final = "no champion yet"


def _worse(ours: Figures, other: Figures, ap_tolerance: float, log_tolerance: float) -> str:
    """Which figure is worse than the other's by more than the tolerance, in words; empty if none."""
    ours_ap, other_ap = ours.average_precision, other.average_precision
    if ours_ap is not None and other_ap is not None and ours_ap < other_ap - ap_tolerance:
        return f"average precision of late packets {ours_ap:.3f} against {other_ap:.3f}"
    ours_log, other_log = ours.log_mae, other.log_mae
    if ours_log is not None and other_log is not None and ours_log > other_log * (1 + log_tolerance):
        return f"log-error {ours_log:.3f} against {other_log:.3f}"
    return ""


def _beside(ours: Figures, other: Figures) -> str:
    def text(value: float | None) -> str:
        return "none" if value is None or math.isnan(value) else f"{value:.3f}"

    return (
        f"average precision of late packets {text(ours.average_precision)} against "
        f"{text(other.average_precision)}, log-error {text(ours.log_mae)} against {text(other.log_mae)}"
    )
