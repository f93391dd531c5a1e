"""Measure how far the network's inputs have moved from the distribution of its training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.feature_store.packets.schema import HORIZON

SAMPLE: Final = 2_000  # rows that stand for many; the index moves by about 0.01 between samples
PSI_BINS: Final = 10
PSI_FLOOR: Final = 1e-3  # an empty bin would make the index infinite
# These inputs shift by nature. A flow's age grows with the trace. The last hole's length stays until the next
# hole, and the least latency until a lower one, so a slice holds only a few values of each. The signs of
# flows and receivers are random.
NO_SHIFT_TEST: Final = (
    *(f.name for f in EVENTS.features if f.unit == "sign"),
    "flow_age_us",
    "hole_us",
    "hole_age_us",
    *(f"min_latency{scope}_us" for scope in ("", "_queue", "_flow", "_receiver")),
)


def population_stability(training: npt.NDArray[Any], later: npt.NDArray[Any]) -> float:
    """Return the population stability index of `later` against `training`: 0 is no shift.

    The sum over bins of (q - p) ln(q / p), p and q being the shares of training and later values; the
    bins are the training values' deciles, and a value that fills deciles by itself has its own bin.
    """
    edges = np.unique(np.quantile(training, np.linspace(0, 1, PSI_BINS + 1)))

    def shares(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        # Even bins are the edges themselves, odd ones the open intervals between them.
        left, right = np.searchsorted(edges, values, "left"), np.searchsorted(edges, values, "right")
        counts = np.bincount(left + right, minlength=2 * len(edges) + 1)
        return np.maximum(counts / len(values), PSI_FLOOR).astype(np.float64)

    p, q = shares(training), shares(later)
    return float(np.sum((q - p) * np.log(q / p)))


def as_rows(x_BHF: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return queries (B, H, inputs) as a server's rows: no query is an ACK."""
    return np.pad(x_BHF, ((0, 0), (0, 0), (0, len(EVENTS.features) - x_BHF.shape[-1])))


def sample_inputs(candidates_BHF: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return evenly spaced rows (N, F) of many candidates' inputs, with each place of a batch as often."""
    rows_NF = candidates_BHF.reshape(-1, candidates_BHF.shape[-1])
    step = max(1, len(rows_NF) // SAMPLE) | 1  # odd: an even step would meet only some of the HORIZON places
    return np.ascontiguousarray(rows_NF[::step])


def input_shift(
    training_NF: npt.NDArray[np.float32],
    now_NF: npt.NDArray[np.float32],
) -> dict[str, float]:
    """Return the population stability index of each input against the training's."""
    return {
        feature.name: population_stability(training_NF[:, i], now_NF[:, i])
        for i, feature in enumerate(EVENTS.features)
        if feature.name not in NO_SHIFT_TEST
    }


def slice_shifts(
    trace: str, features: pl.DataFrame, pretrain: Sequence[int], tests: Sequence[Sequence[int]]
) -> pl.DataFrame:
    """Return the shift of each input, and of the latency, from the training slice to the test slices.

    The test slices count as one. Seconds of real traffic differ far more than minutes, so single short slices
    would exceed any limit that tells broken data from ordinary change.

    Args:
        trace: the trace's name.
        features: a row for each packet decided, in the order of `packet`.
        pretrain: decisions of the training slice.
        tests: decisions of each round's test slice.

    Returns:
        Columns `trace`, `feature`, `psi`, `worst_round` (the round that differs most); a feature without a
        known value on either side has no row.
    """

    def known(name: str, decisions: Sequence[int]) -> npt.NDArray[Any]:
        part = features[name][decisions[0] * HORIZON : decisions[1] * HORIZON].to_numpy()
        finite: npt.NDArray[Any] = part[np.isfinite(part)]
        return finite

    rows = []
    inputs = dict.fromkeys(feature.name for feature in EVENTS.features)
    for name in (one for one in inputs if one in features.columns and one not in NO_SHIFT_TEST):
        training = known(name, pretrain)
        later = {number: known(name, test) for number, test in enumerate(tests, start=1)}
        later = {number: values for number, values in later.items() if len(values)}
        if len(training) and later:
            by_round = {number: population_stability(training, values) for number, values in later.items()}
            together = population_stability(training, np.concatenate(list(later.values())))
            rows.append((trace, name, together, max(by_round, key=by_round.__getitem__)))
    schema = {"trace": pl.String, "feature": pl.String, "psi": pl.Float64, "worst_round": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")
