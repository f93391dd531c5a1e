"""Decide whether a challenger may take the place of the latency model's champion.

The judging packets are new to both: the newest seconds, and the slices that judged earlier rounds. `bars.py`
has the rule and its bars. The figures are the average precision of late packets and the log-error, with a
paired block bootstrap over seconds.

    reference  the version with which the champion's encoder came (from the stages or the last full re-train);
               it stays the same for all heads that follow
    naive      the last visible latency of the sender, the flow or the queue

Shapes: B decisions, F features, H horizon (8 packets), N packets of known latency, S those of them whose flow
has a visible latency, R draws of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.models.registry import bars
from swiftqueue.models.registry.bars import Gain, Verdict
from swiftqueue.models.scoring.baselines import LAST_VISIBLE, Candidates, last_visible
from swiftqueue.models.scoring.metrics import (
    Bools,
    Floats,
    Ints,
    average_precision_draws,
    block_draws,
    late_margin,
    precision_recall,
)
from swiftqueue.models.sharp import PAPERS, Change

AP_MARGIN: Final = 0.02  # absolute margin of average precision
LOG_MARGIN: Final = 0.02  # relative margin of the log-error
REFERENCE_MARGIN: Final = 0.01  # margin of either figure: smaller, because nothing moves this bar up again
LEAST_SECONDS: Final = 5  # with fewer seconds there is no interval: the figures themselves are compared
# Late packets come in episodes. With fewer of them one episode decides, so average precision is left out.
LEAST_LATE: Final = 50
LEAST_LATE_SECONDS: Final = 5
LATE: Final = "average precision of late packets"
LOG: Final = "log-error"
SEED: Final = 1  # seed of the draws: the same for all predictors judged together


@dataclass(frozen=True)
class HeldOutDecisions:
    """The judging data: decisions in time order, and their packets' latencies."""

    candidates_BHF: NDArray[np.float32]  # tokens of the packets about to be sent
    y_BH: NDArray[np.float32]  # µs; NaN where unknown
    decision_ns_B: Ints
    features: tuple[str, ...]
    change: Change = PAPERS  # least change from which a packet is late

    @property
    def candidates(self) -> Candidates:
        """Return the queries of the packets about to be sent."""
        return Candidates(self.candidates_BHF, self.features)

    @cached_property
    def known_BH(self) -> Bools:
        """Return which packets have a known latency."""
        return np.isfinite(self.y_BH)

    @cached_property
    def y_N(self) -> Floats:
        """Return the known latencies in µs."""
        return self.y_BH[self.known_BH].astype(np.float64)

    @cached_property
    def last_N(self) -> Floats:
        """Return the last visible latency in µs of each known packet's flow."""
        return self.candidates.column("last_latency_flow_us")[self.known_BH]

    def margin_N(self, us_N: Floats) -> Floats:
        """Return how far latencies (µs) of known packets lie above their flow's last one; late from 1 on."""
        return late_margin(us_N, self.last_N, self.change)

    @cached_property
    def referred_N(self) -> Bools:
        """Return which known packets' flows have a visible latency; no other packet can be late."""
        return np.isfinite(self.margin_N(self.y_N))

    @cached_property
    def late_S(self) -> Bools:
        """Return which packets were late."""
        return self.margin_N(self.y_N)[self.referred_N] >= 1

    @cached_property
    def draws(self) -> tuple[Ints, Floats]:
        """Return the second of each packet (N,), and how often each draw takes each second (R, seconds)."""
        block_B, draws = block_draws(self.decision_ns_B, SEED)
        return np.repeat(block_B, self.y_BH.shape[1]).reshape(self.y_BH.shape)[self.known_BH], draws


@dataclass(frozen=True)
class Figures:
    """The figures of a predictor; None where one cannot be computed."""

    average_precision: float | None  # figure of late packets
    log_mae: float | None  # mean |ln predicted - ln true|
    mae_ms: float | None
    n: int  # packets of known latency
    n_late: int
    seconds: int = 0  # number of seconds that they come from
    late_seconds: int = 0  # number of these seconds with a late packet

    def as_metrics(self, prefix: str) -> dict[str, float]:
        """Return the figures that exist, by metric name."""
        return {f"{prefix}.{k}": float(v) for k, v in asdict(self).items() if v is not None}


@dataclass(frozen=True)
class ScoreTable:
    """A predictor's figures, and their values under each draw of the bootstrap; NaN for an empty draw.

    A naive baseline has no draws: a challenger must never be below it, however few the data.
    """

    figures: Figures
    average_precision_R: Floats
    log_mae_R: Floats


def score(pred_BH: NDArray[Any], held_out: HeldOutDecisions, *, drawn: bool = True) -> ScoreTable:
    """Return the scores of predicted latencies (µs); `drawn` adds the bootstrap.

    Raises:
        ValueError: a prediction is not a finite number.
    """
    pred_N = np.asarray(pred_BH, np.float64)[held_out.known_BH]
    if not np.isfinite(pred_N).all():
        raise ValueError(
            f"{np.sum(~np.isfinite(pred_N))} of {pred_N.size} predictions are not finite numbers"
        )
    y_N, referred_N, late_S = held_out.y_N, held_out.referred_N, held_out.late_S
    none_R = np.zeros(0)
    if not y_N.size:
        return ScoreTable(Figures(None, None, None, 0, 0), none_R, none_R)
    second_N, draws = held_out.draws
    curve = precision_recall(late_S, held_out.margin_N(pred_N)[referred_N])
    log_N = np.abs(np.log(np.maximum(pred_N, 1.0)) - np.log(np.maximum(y_N, 1.0)))  # 1 µs: resolution
    figures = Figures(
        average_precision=curve.average_precision(),
        log_mae=float(log_N.mean()),
        mae_ms=float(np.abs(pred_N - y_N).mean() / 1e3),
        n=int(y_N.size),
        n_late=int(late_S.sum()),
        seconds=int(np.unique(second_N).size),
        late_seconds=int(np.unique(second_N[referred_N][late_S]).size),
    )
    if not drawn:
        return ScoreTable(figures, none_R, none_R)
    packets_R, errors_R = (
        draws @ np.bincount(second_N, weight_N, minlength=draws.shape[1])
        for weight_N in (np.ones_like(log_N), log_N)
    )
    return ScoreTable(
        figures,
        average_precision_draws(curve, late_S, second_N[referred_N], draws),
        np.divide(errors_R, packets_R, out=np.full_like(errors_R, np.nan), where=packets_R > 0),
    )


def score_naive(held_out: HeldOutDecisions, otherwise_us: float) -> dict[str, ScoreTable]:
    """Return the scores of the last visible latency of the sender, the flow and the queue."""
    return {
        method: score(last_visible(held_out.candidates, method, otherwise_us), held_out, drawn=False)
        for method in LAST_VISIBLE
    }


def judge(
    challenger: ScoreTable,
    champion: ScoreTable | None,
    naive: Mapping[str, ScoreTable],
    why_not: str,
    reference: ScoreTable | None = None,
) -> Verdict:
    """Decide, by the bars above.

    Args:
        challenger: the new version.
        champion: the served version on the same packets, or None if there are no figures of it.
        naive: the naive baselines.
        why_not: reason for missing figures of a champion (`no champion yet`, or why it cannot run here), or
            of a reference.
        reference: the version that the champion's encoder came with; None if it is the champion itself, or
            unavailable.
    """
    if challenger.figures.log_mae is None:
        loses_to = bars.losers(challenger, naive, _gains)
        return Verdict(False, "no judging packet has a known latency", loses_to)
    few = _few(challenger.figures)
    return bars.decide(challenger, champion, naive, _gains, why_not=why_not, reference=reference, few=few)


def inferior(ours: ScoreTable, other: ScoreTable) -> str:
    """Return in words where a version may be worse than another by more than the margin, or nothing."""
    return ", ".join(str(gain) for gain in _gains(ours, other) if gain.inferior)


def surely_worse(ours: ScoreTable, other: ScoreTable) -> dict[str, float]:
    """Return the least loss of a version against another in each figure where a loss is settled."""
    return {
        gain.figure: -gain.high for gain in _gains(ours, other) if gain.high is not None and gain.high < 0
    }


def _gains(ours: ScoreTable, other: ScoreTable, *, strict: bool = False) -> list[Gain]:
    """Return the gains of `ours` over another in each figure that both have and that counts."""
    ap_margin, log_margin = (REFERENCE_MARGIN, REFERENCE_MARGIN) if strict else (AP_MARGIN, LOG_MARGIN)
    one, two = ours.figures, other.figures
    drawn = one.seconds >= LEAST_SECONDS and other.log_mae_R.size > 0
    found = []
    if one.average_precision is not None and two.average_precision is not None and _enough_late(one):
        ends = bars.ends(ours.average_precision_R - other.average_precision_R) if drawn else (None, None)
        gain = one.average_precision - two.average_precision
        precise = (one.average_precision, two.average_precision)
        found.append(Gain(LATE, *precise, gain, ap_margin, *ends, relative=False))
    if one.log_mae is not None and two.log_mae:  # 0: an oracle in a test
        ends = bars.ends(1 - ours.log_mae_R / other.log_mae_R) if drawn else (None, None)
        gain = 1 - one.log_mae / two.log_mae
        found.append(Gain(LOG, one.log_mae, two.log_mae, gain, log_margin, *ends))
    return found


def _enough_late(figures: Figures) -> bool:
    return figures.n_late >= LEAST_LATE and figures.late_seconds >= LEAST_LATE_SECONDS


def _few(figures: Figures) -> str:
    """Return in words which judging data are too few, or nothing."""
    said = []
    if figures.seconds < LEAST_SECONDS:
        said.append(f"{figures.seconds} s judge, too few for an interval ({LEAST_SECONDS})")
    if not _enough_late(figures):
        said.append(
            f"{figures.n_late} late packets in {figures.late_seconds} s, too few for average precision "
            f"({LEAST_LATE} in {LEAST_LATE_SECONDS} s): the log-error alone judges"
        )
    return "".join(f"; {one}" for one in said)
