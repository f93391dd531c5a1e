"""Forecast all horizons from the first n samples by rules, tables and trees, as the networks' references.

Shapes: N flows, S samples, F fields of a sample (28), H horizons (6).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from swiftqueue.studies.rate.model.flows import Flows
from swiftqueue.studies.rate.model.network import US_PER_S, path_guess
from swiftqueue.studies.rate.samples.definition import HORIZONS, NAMES

Floats = NDArray[np.float64]
Predictor = Callable[[Flows], Floats]
"""Bytes/s (N, H) of flows that have the samples."""
Fit = Callable[[Flows, Flows, int, int], Predictor]
"""From flows to learn from, all flows (of which one may know those that came before), n, and a seed."""
AT: Final = {name: place for place, name in enumerate(NAMES)}
TRAIN: Final = 10  # packets of the initial window, as `kTrain` of samples/dispersion.h
BINS: Final = 20
RIDGE: Final = 1.0
MLP_UNITS: Final = (64, 32)
MLP_LEAST: Final = 100


def best_constant(y_N: Floats) -> float:
    """The constant of least mean absolute percentage error: the median weighted by 1/y."""
    y_N = np.sort(y_N[np.isfinite(y_N)])
    if not len(y_N):
        return float("nan")
    weight = np.cumsum(1 / y_N)
    return float(y_N[np.searchsorted(weight, weight[-1] / 2)])


def guesses(flows: Flows, n: int) -> tuple[Floats, Floats]:
    """Dispersion of all n ACKs, and a packet a round trip; bytes/s (N,) each (`path_guess`)."""
    with torch.no_grad():
        found = path_guess(torch.from_numpy(flows.x_NSF[:, :n]))
    return found[0][:, -1].double().exp().numpy(), found[1][:, -1].double().exp().numpy()


def constant(train: Flows, _every: Flows, n: int, _seed: int) -> Predictor:
    """The best constant of the flows that are learned from."""
    known = train.known_NH(n)
    best_H = np.array([best_constant(train.y_NH[known[:, h], h]) for h in range(len(HORIZONS))])
    return lambda flows: np.tile(best_H, (len(flows), 1))


def _last(field: str) -> Fit:
    def fit(_train: Flows, _every: Flows, n: int, _seed: int) -> Predictor:
        return lambda flows: _repeated(np.maximum(flows.x_NSF[:, n - 1, AT[field]].astype(float), 1))

    return fit


def train_dispersion(flows: Flows, n: int) -> Floats:
    """How closely the ACKs of the first ten packets follow each other; bytes/s (N,).

    The arithmetic is that of samples/dispersion.h. Where no ACK shows a gap it is BBR's estimate.
    """
    x_NSF = flows.x_NSF[:, : min(n, TRAIN)].astype(np.int64)
    gap_us, acked = x_NSF[:, 1:, AT["ts"]], x_NSF[:, 1:, AT["bytes_acked"]]  # since the ACK before
    seen = (gap_us > 0) & (acked > 0)
    # bytes/s = bytes · us/s / us
    rates = np.where(seen, acked * int(US_PER_S) // np.maximum(gap_us, 1), np.iinfo(np.int64).max)
    count_N = seen.sum(1)
    middle_N = np.maximum(count_N - 1, 0) // 2
    median_N = np.take_along_axis(np.sort(rates, 1), middle_N[:, None], 1)[:, 0]
    rate_N = np.where(count_N > 0, median_N, flows.x_NSF[:, n - 1, AT["bbr_bw"]])
    return np.maximum(rate_N, 1).astype(float)


def dispersion(_train: Flows, _every: Flows, n: int, _seed: int) -> Predictor:
    """How closely the ACKs of the first ten packets follow each other."""
    return lambda flows: _repeated(train_dispersion(flows, n))


def dispersion_of_all(_train: Flows, _every: Flows, n: int, _seed: int) -> Predictor:
    """How closely all n ACKs follow each other, paced ones too: what our Transformer corrects."""
    return lambda flows: _repeated(guesses(flows, n)[0])


def capped_dispersion(train: Flows, _every: Flows, n: int, _seed: int) -> Predictor:
    """The smaller of a share of the dispersion and a window a round trip; both fitted for each horizon."""
    full_N, trip_N = train_dispersion(train, n), guesses(train, n)[1]
    known, best = train.known_NH(n), []
    for h, packets in enumerate(HORIZONS):
        some = known[:, h]
        tried = [(a, b * packets) for a in np.linspace(0.5, 1.2, 15) for b in np.geomspace(0.05, 1.5, 15)]
        errors = [_mape(np.minimum(a * full_N, b * trip_N)[some], train.y_NH[some, h]) for a, b in tried]
        best.append(tried[int(np.argmin(errors))])

    def predict(flows: Flows) -> Floats:
        full, trip = train_dispersion(flows, n), guesses(flows, n)[1]
        return np.stack([np.minimum(a * full, b * trip) for a, b in best], 1)

    return predict


def min_rtt(train: Flows, every: Flows, n: int, seed: int) -> Predictor:
    """The best constant of flows of a like least round trip: a look-up in equally full bins."""
    rtt_N = train.x_NSF[:, n - 1, AT["min_rtt"]]
    edges = np.unique(np.quantile(rtt_N, np.linspace(0, 1, BINS + 1)[1:-1]))
    other_H = constant(train, every, n, seed)(train.take(np.arange(1)))[0]
    known = train.known_NH(n)
    place_N = np.searchsorted(edges, rtt_N)
    table = np.tile(other_H, (len(edges) + 1, 1))
    for place in range(len(table)):
        for h in range(len(HORIZONS)):
            if len(y_N := train.y_NH[(place_N == place) & known[:, h], h]):
                table[place, h] = best_constant(y_N)
    return lambda flows: table[np.searchsorted(edges, flows.x_NSF[:, n - 1, AT["min_rtt"]])]


def previous_flow(train: Flows, every: Flows, n: int, seed: int) -> Predictor:
    """The rate that the last flow to the same receiver had reached by then; without one, the dispersion.

    A sender remembers it (careful resume). Only what was reached before sample n counts.
    """

    def predict(flows: Flows) -> Floats:
        found = dispersion(train, every, n, seed)(flows)
        now_N = flows.seen_at_N(n)
        for row in range(len(flows)):
            same = (every.path_N == flows.path_N[row]) & (every.receiver_N == flows.receiver_N[row])
            same &= every.started_N < flows.started_N[row]
            for h in range(len(HORIZONS)):
                before = np.flatnonzero(
                    same & (every.at_NH[:, h] < now_N[row]) & np.isfinite(every.y_NH[:, h])
                )
                if len(before):
                    found[row, h] = every.y_NH[before[np.argmax(every.at_NH[before, h])], h]
        return found

    return predict


def linear(train: Flows, _every: Flows, n: int, _seed: int) -> Predictor:
    """Ridge regression of the log rate on the logarithms of all fields of the samples."""
    x = _logs(train, n)
    mean, std = x.mean(0), x.std(0) + 1e-6
    known, fitted = train.known_NH(n), []
    for h in range(len(HORIZONS)):
        rows = known[:, h]
        a, y = (x[rows] - mean) / std, np.log(train.y_NH[rows, h])
        center = float(y.mean()) if len(y) else 0.0
        ridge = RIDGE * max(len(a), 1) ** 0.5 * np.eye(a.shape[1])  # also where no flow reached so far
        weights = np.linalg.solve(a.T @ a + ridge, a.T @ (y - center))
        fitted.append((center, weights, (y.min(), y.max()) if len(y) else (0.0, 0.0)))

    def predict(flows: Flows) -> Floats:
        a = (_logs(flows, n) - mean) / std
        logs = np.stack([np.clip(c + a @ w, *ends) for c, w, ends in fitted], 1)
        return np.asarray(np.exp(logs), np.float64)

    return predict


def xgboost(rounds: int, inputs: Callable[[Flows, int], Floats] | None = None) -> Fit:
    """Boosted trees of the rate, by absolute error weighted by 1/rate, on `derived` or other inputs."""
    seen = inputs or derived

    def fit(train: Flows, _every: Flows, n: int, seed: int) -> Predictor:
        from xgboost import DMatrix
        from xgboost import train as boost

        x, known, trees = seen(train, n), train.known_NH(n), []
        for h in range(len(HORIZONS)):
            rows = known[:, h]
            y = train.y_NH[rows, h]
            data = DMatrix(x[rows], y / 1e6, weight=1e6 / y)
            how: dict[str, Any] = {
                "objective": "reg:absoluteerror", "max_depth": 5, "eta": 0.15, "subsample": 0.8,
                "colsample_bytree": 0.3, "seed": seed, "nthread": 1, "verbosity": 0,
            }  # fmt: skip
            trees.append(boost(how, data, rounds))

        def predict(flows: Flows) -> Floats:
            data = DMatrix(seen(flows, n))
            rates: Floats = np.stack([tree.predict(data) for tree in trees], 1).astype(float)
            return np.maximum(rates * 1e6, 1.0)  # bytes/s

        return predict

    return fit


def mlp(inputs: Callable[[Flows, int], Floats] | None = None) -> Fit:
    """Two hidden layers of scikit-learn's, of what the trees see; squared error of the log rate."""
    seen = inputs or derived

    def fit(train: Flows, _every: Flows, n: int, seed: int) -> Predictor:
        return _mlp(seen, train, n, seed)

    return fit


def _mlp(seen: Callable[[Flows, int], Floats], train: Flows, n: int, seed: int) -> Predictor:
    x, known, fitted = seen(train, n), train.known_NH(n), []
    for h in range(len(HORIZONS)):
        rows = known[:, h] if known[:, h].any() else np.full(len(train), fill_value=True)
        y = np.log(train.y_NH[rows, h]) if known[:, h].any() else np.zeros(len(train))
        fitted.append(log_mlp(x[rows], y, epochs=200, seed=seed))

    def predict(flows: Flows) -> Floats:
        x = seen(flows, n)
        return np.stack([one(x) for one in fitted], 1)

    return predict


def log_mlp(x_NP: Floats, log_y_N: Floats, *, epochs: int, seed: int) -> Callable[[Floats], Floats]:
    """Fit two hidden layers of scikit-learn's to logarithms; what is returned predicts the values themselves.

    It says nothing beyond what it has seen: a network may say anything there, and a logarithm makes it worse.
    """
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    enough = len(log_y_N) >= MLP_LEAST  # to stop by a tenth of them
    network = MLPRegressor(
        hidden_layer_sizes=MLP_UNITS, alpha=1.0, early_stopping=enough, max_iter=epochs, random_state=seed
    )
    fitted = make_pipeline(StandardScaler(), network).fit(x_NP, log_y_N)
    least, most = log_y_N.min(), log_y_N.max()
    return lambda x: np.exp(np.clip(fitted.predict(x), least, most))


def baselines(xgboost_rounds: int) -> dict[str, Fit]:
    """All that a network is judged beside, by name."""
    return {
        "constant": constant,
        "last-estimate": _last("bbr_bw"),
        "last-delivery-rate": _last("delivery_rate"),
        "min-rtt": min_rtt,
        "linear": linear,
        "dispersion": dispersion,
        "dispersion-of-all": dispersion_of_all,
        "capped-dispersion": capped_dispersion,
        "previous-flow": previous_flow,
        "mlp": mlp(),
        "xgboost": xgboost(xgboost_rounds),
    }


def _repeated(rate_N: Floats) -> Floats:
    return np.tile(rate_N[:, None], (1, len(HORIZONS)))


def _logs(flows: Flows, n: int) -> Floats:
    x_NSF = flows.x_NSF[:, :n].astype(float)
    logs: Floats = np.log1p(np.maximum(x_NSF, 0)).reshape(len(flows), -1)
    return logs


def derived(flows: Flows, n: int) -> Floats:
    """Return the trees' inputs: the logarithms of all fields of the first n samples, and of both guesses."""
    return np.concatenate([_logs(flows, n), *(np.log(guess)[:, None] for guess in guesses(flows, n))], 1)


def _mape(predicted: Floats, y: Floats) -> float:
    return float(np.mean(np.abs(predicted / y - 1))) if len(y) else float("nan")
