"""Decide whether a challenger among the networks that forecast rates may take the champion's place.

A network of the stages is judged on flows of held-out paths: neither it nor the champion has learned from
any flow of them, or was chosen on one. What judges a round's says `tuning.py`. The rule and its
bars are those of `models/registry/bars.py`; the figures are the mean absolute percentage error over the grid
of prefixes and horizons, and that of the pair with most to gain. A paired bootstrap draws blocks of flows
that follow each other on a path, since these meet in its queue.

Shapes: N flows, P prefixes, H horizons, C cells of the grid, B blocks of flows, R draws of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.models.registry import bars
from swiftqueue.models.registry.bars import Floats, Gain, Verdict
from swiftqueue.models.scoring.metrics import SECOND_NS, Ints, block_draws
from swiftqueue.studies.rate.model.flows import Flows
from swiftqueue.studies.rate.model.network import RateNetwork
from swiftqueue.studies.rate.model.networks import load, predict_all
from swiftqueue.studies.rate.model.predictors import baselines
from swiftqueue.studies.rate.model.study import BEATEN, HEADLINE
from swiftqueue.studies.rate.samples.definition import HORIZONS, PREFIXES

MARGIN: Final = 0.02  # relative, of either error
REFERENCE_MARGIN: Final = 0.01
BLOCK: Final = 4  # flows
LEAST_BLOCKS: Final = 5  # fewer have no interval worth the name: the figures themselves are compared
SEED: Final = 1  # seed of the draws, the same for all that are judged together
NAIVE: Final = (*BEATEN, "dispersion")
GRID: Final = "error over all pairs"
PAIR: Final = f"error {HEADLINE[0]} to {HEADLINE[1]}"
_CELL: Final = PREFIXES.index(HEADLINE[0]) * len(HORIZONS) + HORIZONS.index(HEADLINE[1])


@dataclass(frozen=True)
class HeldOut:
    """The judging flows: those of paths that nobody has learned from, by path and start."""

    flows: Flows

    @classmethod
    def of(cls, every: Flows, names: Mapping[int, str], learned_from: Collection[str]) -> HeldOut:
        """Choose the held-out paths, but for those that a model in question has learned from.

        Args:
            every: flows of all paths.
            names: names of the paths, by their number in `every`.
            learned_from: paths that the champion was trained on.

        Raises:
            ValueError: no such flow is left.
        """
        chosen = every.held_out_N & np.array([names[int(path)] not in learned_from for path in every.path_N])
        chosen &= every.samples_N >= min(PREFIXES)
        if not chosen.any():
            raise ValueError("no flow of a held-out path is left to judge by")
        return cls.in_order(every.take(chosen))

    @classmethod
    def in_order(cls, flows: Flows) -> HeldOut:
        """Flows that judge, in the order that blocks need."""
        return cls(flows.take(np.lexsort((flows.started_N, flows.path_N))))

    @cached_property
    def known_NC(self) -> NDArray[np.bool_]:
        """Return the cells of the grid in which a flow has a truth."""
        return np.concatenate([self.flows.known_NH(n) for n in PREFIXES], 1)

    @cached_property
    def draws(self) -> tuple[Ints, Floats]:
        """Block (N,) of each flow, and how often each draw takes each block (R, B)."""
        first_N = np.searchsorted(self.flows.path_N, self.flows.path_N)
        in_path_N = (np.arange(len(self.flows)) - first_N) // BLOCK
        block_N = np.unique(np.stack([self.flows.path_N, in_path_N], 1), axis=0, return_inverse=True)[1]
        return block_draws(block_N.reshape(-1).astype(np.int64) * SECOND_NS, SEED)


@dataclass(frozen=True)
class Figures:
    """How well a predictor does; None where no flow got so far."""

    grid_mape: float | None  # mean over the cells of the grid
    pair_mape: float | None  # error of the pair with most to gain
    over: float | None  # share of that pair's flows forecast too high
    flows: int
    blocks: int

    def as_metrics(self, prefix: str) -> dict[str, float]:
        """The figures that exist, by metric name."""
        return {f"{prefix}.{k}": float(v) for k, v in asdict(self).items() if v is not None}


@dataclass(frozen=True)
class Scored:
    """A predictor's figures, and those under each draw of the bootstrap; NaN where a draw leaves none."""

    figures: Figures
    grid_R: Floats
    pair_R: Floats


def score(rates_NPH: Floats, held_out: HeldOut) -> Scored:
    """Figures of forecasts in bytes/s, after each prefix of which a flow has the samples.

    Raises:
        ValueError: a forecast that counts is not a finite number above 0.
    """
    flows, known_NC = held_out.flows, held_out.known_NC
    rates_NC = rates_NPH.reshape(len(flows), -1)
    wrong = known_NC & ~(np.isfinite(rates_NC) & (rates_NC > 0))
    if wrong.any():
        raise ValueError(f"{wrong.sum()} of {known_NC.sum()} forecasts are 0, or no finite numbers")
    y_NC = np.tile(flows.y_NH, (1, len(PREFIXES)))
    error_NC = np.where(known_NC, np.abs(np.divide(rates_NC, y_NC, where=known_NC, out=y_NC * 0) - 1), 0.0)
    block_N, draws = held_out.draws
    sums_BC, counts_BC = (np.zeros((draws.shape[1], known_NC.shape[1])) for _ in range(2))
    np.add.at(sums_BC, block_N, error_NC)
    np.add.at(counts_BC, block_N, known_NC)

    def means(sums: Floats, counts: Floats) -> Floats:
        return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)

    def over_cells(cells: Floats) -> Floats:
        there = np.isfinite(cells)
        return means(np.where(there, cells, 0.0).sum(-1), there.sum(-1).astype(np.float64))

    cells_C = means(sums_BC.sum(0), counts_BC.sum(0))
    cells_RC = means(draws @ sums_BC, draws @ counts_BC)
    here = known_NC[:, _CELL]
    figures = Figures(
        _number(over_cells(cells_C)),
        _number(cells_C[_CELL]),
        float((rates_NC > y_NC)[here, _CELL].mean()) if here.any() else None,
        len(flows),
        int(draws.shape[1]),
    )
    return Scored(figures, over_cells(cells_RC), cells_RC[:, _CELL])


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def score_network(network: RateNetwork, held_out: HeldOut) -> Scored:
    """Figures of a network; raises as `score`."""
    log_NSH = predict_all(network, held_out.flows)
    return score(np.exp(log_NSH[:, [n - 1 for n in PREFIXES]]), held_out)


@dataclass(frozen=True)
class Bench:
    """The judging flows, and the naive baselines' forecasts of them."""

    held_out: HeldOut
    naive: Mapping[str, Scored]

    @classmethod
    def of(cls, train: Flows, every: Flows, held_out: HeldOut) -> Bench:
        """Fit the baselines on what the challenger learned from; raises as `score`."""
        return cls(held_out, score_naive(train, every, held_out))

    def score(self, folder: Path) -> Scored:
        """Figures of the network in a folder; raises as `load` and `score`."""
        return score_network(load(folder)[0], self.held_out)

    def judge(
        self, challenger: Scored, champion: Scored | None, why_not: str, reference: Scored | None
    ) -> Verdict:
        """Decide, as `judge`."""
        return judge(challenger, champion, self.naive, why_not, reference)

    def figures(self, scores: Mapping[str, Scored]) -> dict[str, Figures]:
        """Everybody's, by name."""
        return {name: one.figures for name, one in {**scores, **self.naive}.items()}

    def metrics(self, scores: Mapping[str, Scored]) -> dict[str, float]:
        """The same as metrics of a run."""
        named = self.figures(scores).items()
        return {k: v for name, one in named for k, v in one.as_metrics(f"gate.{name}").items()}


def score_naive(train: Flows, every: Flows, held_out: HeldOut) -> dict[str, Scored]:
    """Figures of the baselines that must be beaten; what is fitted is fitted on the challenger's flows."""
    found: dict[str, list[Floats]] = {name: [] for name in NAIVE}
    for n in PREFIXES:
        some = train.take(train.samples_N >= n)
        for name, rates in found.items():
            rates.append(baselines(1)[name](some, every, n, SEED)(held_out.flows))
    return {name: score(np.stack(rates, 1), held_out) for name, rates in found.items()}


def judge(
    challenger: Scored,
    champion: Scored | None,
    naive: Mapping[str, Scored],
    why_not: str,
    reference: Scored | None = None,
) -> Verdict:
    """Decide by `bars.decide`, whose arguments these are."""
    if challenger.figures.grid_mape is None:
        return Verdict(False, "no flow that judges has a rate", bars.losers(challenger, naive, _gains))
    blocks = challenger.figures.blocks
    few = f"; {blocks} blocks of flows judge, too few for an interval" if blocks < LEAST_BLOCKS else ""
    return bars.decide(challenger, champion, naive, _gains, why_not=why_not, reference=reference, few=few)


def _gains(ours: Scored, other: Scored, *, strict: bool = False) -> list[Gain]:
    """Return the gain of `ours` over another in each figure that both have."""
    margin = REFERENCE_MARGIN if strict else MARGIN
    found = []
    for name, one, two, one_R, two_R in (
        (GRID, ours.figures.grid_mape, other.figures.grid_mape, ours.grid_R, other.grid_R),
        (PAIR, ours.figures.pair_mape, other.figures.pair_mape, ours.pair_R, other.pair_R),
    ):
        if one is None or not two:  # 0: it knows all, as an oracle in a test
            continue
        drawn = ours.figures.blocks >= LEAST_BLOCKS
        ends = bars.ends(1 - one_R / two_R) if drawn else (None, None)
        found.append(Gain(name, one, two, 1 - one / two, margin, *ends))
    return found
