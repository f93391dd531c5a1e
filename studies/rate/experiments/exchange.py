"""Measure whether forecasts of latency gain by knowing rates, and forecasts of rates by knowing latencies.

Every seed is judged by models of the other half of the seeds: odd ones by even ones, and the other way round.
Each model is trained with its own inputs, with the other's besides, and with the other's in a wrong order: a
placebo of as many columns. Figures of a seed go over its whole run; intervals over seeds are Student's t.

Shapes: D decisions, H packets of a decision (8), N rows, P inputs, E inputs from the other side, S samples.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.feature_store.events.event_stream import INPUTS, replay_events
from swiftqueue.feature_store.packets.schema import HORIZON, QUEUES
from swiftqueue.models.forecasters.queries import QUERY_INPUTS, column
from swiftqueue.models.scoring.intervals import LEVEL, Estimate, corrected, estimate
from swiftqueue.models.scoring.metrics import score_predictions
from swiftqueue.models.trees.boosting import BoostedTrees
from swiftqueue.models.trees.forecaster import BY_HEART
from swiftqueue.studies.rate.experiments.exchange_runs import STATE, Traffic
from swiftqueue.studies.rate.model import flows as rate_flows
from swiftqueue.studies.rate.model.flows import Flows
from swiftqueue.studies.rate.model.predictors import Fit, derived, log_mlp, mlp, xgboost
from swiftqueue.studies.rate.samples.definition import HORIZONS
from swiftqueue.studies.rate.samples.tables import FLOW_SCHEMA, write_path

Floats = NDArray[np.float64]
OWN, EXCHANGED, PLACEBO = "own", "exchanged", "placebo"
VARIANTS: Final = (OWN, EXCHANGED, PLACEBO)
PREFIX: Final = 5  # samples that a rate is forecast from
JUDGED: Final = (62, 125, 250, 500)  # horizons, in packets
FORECAST: Final = 250  # the horizon whose forecast the latency model is told
ROUNDS: Final = 100  # rounds of boosting
RECENT_NS: Final = 100_000_000  # age up to which the other flows' ACKs count
GAIN: Final = 1 / 8  # gain of their average, as TCP's own
MOST_ROWS: Final = 20_000  # rows that a latency model learns from at most
TOLD: Final = (*STATE, "forecast_bytes_per_s", "forecast_age_us")
"""What the latency model is told: state of the packet's connection, and the newest forecast of a download."""
OTHERS: Final = tuple(f"{queue}_{what}_us" for queue in QUEUES for what in ("last", "average", "least"))
"""What the rate model is told: latencies of the sender's other flows in the last 100 ms, by queue."""
LOWER: Final = {"average_precision": False, "mae_ms": True}  # whether less is better; of a rate's MAPE it is


@dataclass(frozen=True)
class Queries:
    """Packets about to be sent, as a latency model sees them."""

    own_NP: Floats
    told_NE: Floats
    y_N: Floats  # µs; NaN: unknown, or of a download, whose latency is mostly that of its lost packets
    last_N: Floats  # the flow's last visible latency


def queries_of(packets: pl.DataFrame) -> Queries:
    """All decisions of a run, told the connections' state; `with_forecasts` tells the rest.

    Nothing is told that was not known when a decision's first packet left.
    """
    whole = len(packets) // HORIZON * HORIZON
    x_DHF = replay_events(packets).x_DHF
    names = [each.name for each in QUERY_INPUTS if each.name not in (*BY_HEART, "place")]
    at = [[each.name for each in INPUTS].index(name) for name in names]
    y_N = packets["latency_us"][:whole].cast(pl.Float64).fill_null(np.nan).to_numpy().copy()
    y_N[packets["ecn"][:whole].to_numpy() == 0] = np.nan
    return Queries(
        x_DHF[..., at].reshape(whole, -1).astype(np.float64),
        state_at_decision(packets),
        y_N,
        column(x_DHF, "last_latency_flow_us").ravel(),
    )


def with_forecasts(queries: Queries, packets: pl.DataFrame, forecasts: pl.DataFrame) -> Queries:
    """The same decisions, told the newest forecast of a download besides.

    Args:
        queries: result of `queries_of`.
        packets: packets of the same run.
        forecasts: `at_ns`, `bytes_per_s`, in the order of time.
    """
    return replace(queries, told_NE=np.concatenate([queries.told_NE, _newest(packets, forecasts)], 1))


def state_at_decision(packets: pl.DataFrame) -> Floats:
    """State (N, S) of each packet's connection as its last packet up to the decision's first one showed it.

    NaN where none had been sent: a packet's own row tells of ACKs that came after the decision.
    """
    n = len(packets)
    whole = n // HORIZON * HORIZON
    flow_N = packets["flow_id"].to_numpy().astype(np.int64)
    place_N = flow_N * n + np.arange(n)
    order = np.argsort(place_N)
    first_N = np.arange(whole) // HORIZON * HORIZON
    found = np.searchsorted(place_N[order], flow_N[:whole] * n + first_N, side="right") - 1
    before = order[np.maximum(found, 0)]
    known = (found >= 0) & (flow_N[before] == flow_N[:whole])
    state = packets.select(STATE).cast(pl.Float64).to_numpy()[before]
    state[~known] = np.nan
    return state


def _newest(packets: pl.DataFrame, forecasts: pl.DataFrame) -> Floats:
    """The newest forecast at each packet's decision, and its age in µs."""
    whole = len(packets) // HORIZON * HORIZON
    now_N = np.repeat(packets["sent_ns"].to_numpy()[:whole:HORIZON], HORIZON)
    at = forecasts["at_ns"].to_numpy()
    found = np.searchsorted(at, now_N, side="right") - 1
    told = np.full((whole, 2), np.nan)
    some = found >= 0
    told[some, 0] = forecasts["bytes_per_s"].to_numpy()[found[some]]
    told[some, 1] = (now_N[some] - at[found[some]]) / 1e3
    return told


def others_at(packets: pl.DataFrame, flow_id: int, now_ns: int) -> list[float]:
    """`OTHERS`: of latencies that ACKs of other flows told up to `now_ns`; NaN where none came."""
    recent = packets.filter(
        (pl.col("flow_id") != flow_id)
        & (pl.col("acked_ns") <= now_ns)
        & (pl.col("acked_ns") > now_ns - RECENT_NS)
        & pl.col("latency_us").is_not_null()
    ).sort("acked_ns", "packet")
    told: list[float] = []
    for queue in QUEUES:
        us = recent.filter(pl.col("queue") == queue)["latency_us"].to_list()
        average = us[0] if us else np.nan
        for one in us:
            average += GAIN * (one - average)
        told += [us[-1], average, min(us)] if us else [np.nan] * 3
    return told


@dataclass(frozen=True)
class Downloads:
    """All runs' downloads of enough samples; those of a run have its place among the runs as path."""

    flows: Flows
    now_N: NDArray[np.int64]  # when the fifth sample was taken, in ns
    told_NE: Floats


def downloads_of(runs: Sequence[Traffic]) -> Downloads:
    """The downloads of all runs, and what their sender's other flows told.

    Raises:
        ValueError: a run has no download of enough samples.
    """
    with tempfile.TemporaryDirectory(prefix="rate-") as scratch:
        for place, one in enumerate(runs):
            flows = one.flows.select(FLOW_SCHEMA.names())
            rates = pl.selectors.starts_with("rate_")
            flows = flows.with_columns(pl.when(rates > 0).then(rates).name.keep())
            write_path(Path(scratch), f"{place:04}", {"kind": "train"}, one.samples, flows)
        every = rate_flows.load(Path(scratch))
    nows, told = [], []
    for one in runs:
        fifth = one.samples.filter(pl.col("sample") == PREFIX - 1).select("flow", "ts")
        usable = one.flows.join(fifth, on="flow", how="inner", maintain_order="left")
        if not len(usable):
            raise ValueError(
                f"{one.profile}, seed {one.seed}: no download has {PREFIX} samples; simulate longer"
            )
        for established, flow_id, ts in usable.select("established_ns", "flow_id", "ts").rows():
            nows.append(established + 1000 * ts)
            told.append(others_at(one.packets, flow_id, nows[-1]))
    return Downloads(every.take(every.samples_N >= PREFIX), np.array(nows), np.array(told))


def compare(
    runs: Sequence[Traffic], report: Callable[[int, int], None] = lambda _done, _of: None
) -> dict[str, Any]:
    """Answer both questions for runs of one profile.

    Args:
        runs: runs of odd and of even seeds, at least two of each.
        report: called with how many models are trained and judged, and of how many.

    Raises:
        ValueError: seeds are missing, or a run has too little.
    """
    halves = [np.array([one.seed % 2 == rest for one in runs]) for rest in (0, 1)]
    if any(half.sum() < 2 for half in halves):
        raise ValueError("two odd and two even seeds are needed: each half is judged by the other's models")
    downloads = downloads_of(runs)
    asked = [queries_of(one.packets) for one in runs]
    done, of = 0, len(halves) * len(VARIANTS) * (len(RATE_MODELS) + len(LATENCY_MODELS))
    rates: dict[tuple[str, str, str], dict[int, float]] = {}
    latencies: dict[tuple[str, str, str], dict[int, float]] = {}
    for half in halves:
        forecasts = _forecasts(downloads, half)
        queries = [
            with_forecasts(own, one.packets, told)
            for own, one, told in zip(asked, runs, forecasts, strict=True)
        ]
        for variant in VARIANTS:
            for model, make in RATE_MODELS.items():
                for place, mape in _rate(downloads, half, make, variant).items():
                    for k, value in mape.items():
                        rates.setdefault((model, variant, str(k)), {})[runs[place].seed] = value
                report(done := done + 1, of)
            for model, fit in LATENCY_MODELS.items():
                predict = fit(*_learned(queries, half, variant))
                for place in np.flatnonzero(~half).tolist():
                    for figure, value in _scores(queries[place], predict, variant, place).items():
                        latencies.setdefault((model, variant, figure), {})[runs[place].seed] = value
                report(done := done + 1, of)
    return {
        "seeds": sorted(one.seed for one in runs),
        "downloads": len(downloads.flows),
        "packets": sum(len(one.packets) for one in runs),
        "latency": _summary(latencies, LOWER),
        "rate": _summary(rates, dict.fromkeys(map(str, JUDGED), True)),
    }


def _shuffled(told_NE: Floats, place: int) -> Floats:
    """The same rows in another order: nothing of their packet or download is left."""
    return told_NE[np.random.default_rng(place).permutation(len(told_NE))]


def _rate_inputs(downloads: Downloads, variant: str, *, whole: bool) -> Callable[[Flows, int], Floats]:
    """Inputs of a rate model; `whole`: 0 stands for what is unknown, where a model takes no NaN."""
    if variant == OWN:
        return derived
    told_NE = np.log1p(downloads.told_NE)
    if variant == PLACEBO:
        told_NE = told_NE.copy()
        for place in np.unique(downloads.flows.path_N):
            mine = downloads.flows.path_N == place
            told_NE[mine] = _shuffled(told_NE[mine], int(place))
    if whole:
        told_NE = np.nan_to_num(told_NE)
    keys = zip(downloads.flows.path_N, downloads.flows.started_N, strict=True)
    rows = dict(zip(keys, told_NE, strict=True))

    def inputs(flows: Flows, n: int) -> Floats:
        more = [rows[key] for key in zip(flows.path_N, flows.started_N, strict=True)]
        return np.concatenate([derived(flows, n), np.array(more)], 1)

    return inputs


def _rate_trees(downloads: Downloads, variant: str) -> Fit:
    return xgboost(ROUNDS, _rate_inputs(downloads, variant, whole=False))


def _rate_mlp(downloads: Downloads, variant: str) -> Fit:
    return mlp(_rate_inputs(downloads, variant, whole=True))


RATE_MODELS: Final = {"xgboost": _rate_trees, "mlp": _rate_mlp}


def _rate(
    downloads: Downloads, half: NDArray[np.bool_], make: Callable[[Downloads, str], Fit], variant: str
) -> dict[int, dict[int, float]]:
    """MAPE of each judged run and horizon, by models of the other half."""
    flows = downloads.flows
    learned = half[flows.path_N]
    predict = make(downloads, variant)(flows.take(learned), flows, PREFIX, 1)
    found: dict[int, dict[int, float]] = {}
    for place in np.flatnonzero(~half).tolist():
        mine = flows.take(flows.path_N == place)
        errors = np.abs(predict(mine) / mine.y_NH - 1)
        of = {k: errors[:, HORIZONS.index(k)] for k in JUDGED}
        found[place] = {k: float(np.nanmean(e)) for k, e in of.items() if np.isfinite(e).any()}
    return found


def _forecasts(downloads: Downloads, half: NDArray[np.bool_]) -> list[pl.DataFrame]:
    """Return the trees' forecasts of each run's downloads by time; no model has seen the run it forecasts.

    Runs of `half` are forecast by its other runs: what is told in training is as good as when it is judged.
    """
    flows, at = downloads.flows, HORIZONS.index(FORECAST)
    found = []
    for place in range(len(half)):
        others = half & (np.arange(len(half)) != place)
        mine = flows.path_N == place
        predict = xgboost(ROUNDS)(flows.take(others[flows.path_N]), flows, PREFIX, 1)
        told = {"at_ns": downloads.now_N[mine], "bytes_per_s": predict(flows.take(mine))[:, at]}
        found.append(pl.DataFrame(told).sort("at_ns"))
    return found


def _seen(query: Queries, variant: str, place: int) -> Floats:
    if variant == OWN:
        return query.own_NP
    told_NE = query.told_NE if variant == EXCHANGED else _shuffled(query.told_NE, place)
    return np.concatenate([query.own_NP, told_NE], 1)


def _learned(queries: Sequence[Queries], half: NDArray[np.bool_], variant: str) -> tuple[Floats, Floats]:
    """Rows of one half whose latency is known, of each run as many."""
    rows, latencies = [], []
    for place in np.flatnonzero(half).tolist():
        known = np.flatnonzero(np.isfinite(queries[place].y_N))
        most = MOST_ROWS // int(half.sum())
        some = np.sort(np.random.default_rng(place).permutation(known)[:most])
        rows.append(_seen(queries[place], variant, place)[some])
        latencies.append(queries[place].y_N[some])
    return np.concatenate(rows), np.concatenate(latencies)


def _latency_trees(x_NP: Floats, y_N: Floats) -> Callable[[Floats], Floats]:
    trees = BoostedTrees.fit(x_NP.astype(np.float32), y_N, rounds=ROUNDS, seed=1)
    return lambda x: trees.predict(x.astype(np.float32))


def _latency_mlp(x_NP: Floats, y_N: Floats) -> Callable[[Floats], Floats]:
    """MLP of logarithms that minimizes the squared error of the log-latency; 0 is unknown."""

    def logs(x: Floats) -> Floats:
        found: Floats = np.log1p(np.maximum(np.nan_to_num(x), 0))
        return found

    predict = log_mlp(logs(x_NP), np.log(y_N), epochs=50, seed=1)
    return lambda x: predict(logs(x))


LATENCY_MODELS: Final = {"xgboost": _latency_trees, "mlp": _latency_mlp}


def _scores(
    query: Queries, predict: Callable[[Floats], Floats], variant: str, place: int
) -> dict[str, float]:
    """Figures of one judged run; what a run has nothing of is left out."""
    predicted = predict(_seen(query, variant, place))
    found = score_predictions(*(of.reshape(-1, HORIZON) for of in (predicted, query.y_N, query.last_N)))
    figures = {
        "average_precision": found["late"]["average_precision"],
        "mae_ms": found["error"]["mae_ms"],
    }
    return {name: float(value) for name, value in figures.items() if value is not None}


def _summary(
    found: Mapping[tuple[str, str, str], Mapping[int, float]], lower: Mapping[str, bool]
) -> dict[str, Any]:
    """By model and figure: each variant, what the exchange changes, and whether that is settled.

    It is settled where it is, by Holm over all models and figures of the question, beside the own inputs and
    beside the placebo.
    """
    models = list(dict.fromkeys(model for model, _, _ in found))
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    chances: list[float] = []
    for model in models:
        for figure in lower:
            by = {variant: found.get((model, variant, figure), {}) for variant in VARIANTS}
            seeds = sorted(set.intersection(*(set(one) for one in by.values())))
            if not seeds:
                continue
            over = {v: _over([by[v][s] for s in seeds]) for v in VARIANTS}
            less = {f"than_{v}": _over([by[EXCHANGED][s] - by[v][s] for s in seeds]) for v in (OWN, PLACEBO)}
            cells[model, figure] = {**over, **less}
            better = lower[figure]
            chances.append(max(2 * one.chance(0, below=better) for one in less.values()))
            cells[model, figure]["worse"] = max(2 * one.chance(0, below=not better) for one in less.values())
    both = corrected([*chances, *(cell.pop("worse") for cell in cells.values())])
    for place, cell in enumerate(cells.values()):
        by_chance = both[place], both[len(cells) + place]
        settled = [word for word, one in zip(("better", "worse"), by_chance, strict=True) if one < 1 - LEVEL]
        cell["verdict"] = settled[0] if settled else "not settled"
    return {
        model: {figure: _written(cells[model, figure]) for figure in lower if (model, figure) in cells}
        for model in models
    }


def _over(values: Sequence[float]) -> Estimate:
    found = estimate(values)
    if found is None:
        raise ValueError("no seed has a figure")
    return found


def _written(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The same with each estimate as what is published of it."""
    return {
        name: {"mean": one.mean, "low": one.low, "high": one.high, "n": one.n}
        if isinstance(one, Estimate)
        else one
        for name, one in cell.items()
    }


def lines(found: Mapping[str, Any]) -> list[str]:
    """A summary in words: a line for each profile, question, model and figure."""
    return [
        f"{profile}, {question}, {model}, {figure}: own {cell[OWN]['mean']:.4g}, with the other's inputs "
        f"{cell[EXCHANGED]['mean']:.4g}, placebo {cell[PLACEBO]['mean']:.4g}: {cell['verdict']}"
        for profile, answers in found["exchange"].items()
        for question in ("latency", "rate")
        for model, figures in answers[question].items()
        for figure, cell in figures.items()
    ]
