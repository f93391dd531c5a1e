"""Scores against hand-computed examples and against slow literal implementations."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    average_precision_score,
    mean_absolute_error,
    median_absolute_error,
    precision_recall_fscore_support,
)

from swiftqueue.models.scoring import metrics
from swiftqueue.models.sharp import PAPERS, change_direction, change_of, sharp_changes

latencies = st.sampled_from([1_000.0, 9_000.0, 20_000.0, 30_000.0, 40_000.0, 48_000.0, 120_000.0, 145_000.0])
coarse = st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0, 2.0])


def sklearns_average_precision(positive: Any, score: Any, weight: Any = None) -> float | None:
    """What scikit-learn says; it defines none where nothing is positive, and warns."""
    weights = np.ones(len(positive)) if weight is None else weight
    if not weights[np.asarray(positive, bool)].sum():
        return None
    return float(average_precision_score(positive, score, sample_weight=weights))


@pytest.mark.parametrize(
    ("latency", "last", "late"),
    [
        (60_000, 40_000, True),  # exactly 20 ms more, 50 %
        (59_999, 40_000, False),  # not quite 20 ms
        (119_000, 100_000, False),  # 19 ms more
        (121_000, 101_000, False),  # 20 ms more, but 19.8 %
        (120_000, 100_000, True),  # exactly 20 ms and 20 %
        (10_000, 90_000, False),
    ],
)
def test_late_needs_both_20_ms_and_20_percent(latency: float, last: float, late: bool) -> None:
    assert bool(metrics.late_margin(np.array([latency]), np.array([last]))[0] >= 1) is late


def test_margin_is_the_smaller_of_the_two_distances() -> None:
    margin = metrics.late_margin(np.array([30_000.0, 300_000.0]), np.array([10_000.0, 200_000.0]))
    assert margin.tolist() == pytest.approx([1.0, 2.5])  # 20/20 against 2/0.2; 100/20 against 0.5/0.2


@pytest.mark.parametrize("none", [0.0, np.nan])
def test_a_flow_without_a_visible_latency_has_no_margin(none: float) -> None:
    assert np.isnan(metrics.late_margin(np.array([50_000.0]), np.array([none]))[0])


def test_change_direction_by_hand() -> None:
    now, before = [60_000, 40_000, 41_000, 120_000, 98_000], [40_000, 60_000, 60_000, 101_000, 119_000]
    assert change_direction(np.array(now), np.array(before)).tolist() == [1, -1, 0, 0, 0]


def test_average_precision_by_hand() -> None:
    positive = np.array([True, False, True, False])
    assert metrics.precision_recall(
        positive, np.array([4.0, 3.0, 2.0, 1.0])
    ).average_precision() == pytest.approx(0.5 * 1 + 0.5 * 2 / 3)


@given(st.lists(st.tuples(st.booleans(), coarse), min_size=1, max_size=60))
def test_average_precision_is_scikit_learns(packets: list[tuple[bool, float]]) -> None:
    positive, score = np.array([p for p, _ in packets]), np.array([s for _, s in packets])
    ours = metrics.precision_recall(positive, score).average_precision()
    expected = sklearns_average_precision(positive, score)
    assert ours == (None if expected is None else pytest.approx(expected))


@given(st.lists(st.tuples(st.booleans(), coarse), min_size=1, max_size=60), st.floats(0, 1))
def test_recall_at_false_alarms_is_the_literal_one(packets: list[tuple[bool, float]], rate: float) -> None:
    positives, negatives = sum(p for p, _ in packets), sum(not p for p, _ in packets)
    best = 0.0
    for threshold in {s for _, s in packets}:
        false = sum(not p for p, s in packets if s >= threshold)
        if positives and false <= rate * negatives:
            best = max(best, sum(p for p, s in packets if s >= threshold) / positives)
    curve = metrics.precision_recall(np.array([p for p, _ in packets]), np.array([s for _, s in packets]))
    ours = curve.recall_at(rate)
    assert ours == (pytest.approx(best) if positives else None)


@pytest.mark.slow
@given(st.lists(st.tuples(latencies, latencies), min_size=2, max_size=40))
def test_sharp_changes_are_the_literal_ones(packets: list[tuple[float, float]]) -> None:
    """Both variants against a loop over successive packets that spells the definition out."""

    def direction(now: float, before: float) -> int:
        if abs(now - before) < 20_000 or abs(now - before) < 0.2 * before:
            return 0
        return 1 if now > before else -1

    y, p = [t for t, _ in packets], [p for _, p in packets]
    for variant, before in (("prediction_change", p), ("truth_change", y)):
        for name, wanted in (("all", (1, -1)), ("rises", (1,)), ("drops", (-1,))):
            true = predicted = right = 0
            for i in range(1, len(y)):
                t, q = direction(y[i], y[i - 1]), direction(p[i], before[i - 1])
                true += t in wanted
                predicted += q in wanted
                right += t in wanted and t == q
            got = metrics.score_predictions(np.array([p]), np.array([y]), np.full((1, len(y)), 1e4))
            figures = got["sharp"][variant][name]
            assert (figures["n_true"], figures["n_predicted"]) == (true, predicted)
            assert figures["precision"] == (pytest.approx(right / predicted) if predicted else None)
            assert figures["recall"] == (pytest.approx(right / true) if true else None)


def test_sharp_changes_skip_packets_of_unknown_latency() -> None:
    y = np.array([[30_000.0, np.nan, 60_000.0]])
    got = metrics.score_predictions(np.array([[30_000.0, 500_000.0, 60_000.0]]), y, np.full((1, 3), 3e4))
    assert got["sharp"]["prediction_change"]["all"] == {
        "precision": 1.0, "recall": 1.0, "f1": 1.0, "n_true": 1, "n_predicted": 1, "n_right": 1
    }  # fmt: skip


def test_pooled_changes_are_the_sum_of_the_traces() -> None:
    first = metrics.score_changes(np.int8([1, -1, 0]), np.int8([1, 1, 0]))
    second = metrics.score_changes(np.int8([0, -1]), np.int8([0, -1]))
    pooled = metrics.pool_changes([first, second])
    assert pooled["all"] == pytest.approx(
        {"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "n_true": 3, "n_predicted": 3, "n_right": 2}
    )
    assert pooled["drops"]["recall"] == 0.5


def random_slice(seed: int) -> tuple[Any, ...]:
    """Latencies with bursts of lateness, unknown ones among them, and last visible ones."""
    rng = np.random.default_rng(seed)
    y = rng.choice([20_000.0, 25_000.0, 90_000.0], p=[0.6, 0.35, 0.05], size=(300, 8))
    y[rng.random(y.shape) < 0.05] = np.nan
    last = rng.choice([0.0, 20_000.0, 30_000.0], p=[0.05, 0.5, 0.45], size=y.shape)
    return y, last, np.arange(len(y), dtype=np.int64) * 40_000_000


def scored_over_time(pred: Any, y: Any, last: Any, time_ns: Any, seed: int = 1) -> dict[str, Any]:
    return metrics.score_with_replicates(pred, y, last, time_ns_B=time_ns, false_alarm_rate=0.01, seed=seed)[
        0
    ]


def test_a_perfect_prediction_scores_one() -> None:
    y, last, time = random_slice(1)
    got = scored_over_time(np.nan_to_num(y, nan=1.0), y, last, time)
    assert got["late"]["average_precision"] == 1.0
    assert got["late"]["recall_at_false_alarms"] == 1.0
    assert got["late"]["average_precision_95"] == [1.0, 1.0]
    assert got["error"]["mae_ms"] == got["error"]["p99_ms"] == 0.0
    assert {v["all"]["f1"] for v in got["sharp"].values()} == {1.0}


def test_repeating_the_last_visible_latency_scores_the_base_rate() -> None:
    y, last, _ = random_slice(2)
    got = metrics.score_predictions(last, y, last)["late"]
    assert got["average_precision"] == pytest.approx(got["base_rate"])
    assert got["recall_at_false_alarms"] == 0.0


def test_packets_without_reference_are_counted_and_not_scored() -> None:
    y, last, _ = random_slice(3)
    got = metrics.score_predictions(last, y, last)
    known = np.isfinite(y)
    assert got["n"] == known.sum()
    assert got["late"]["n"] == (known & (last > 0)).sum()
    assert got["late"]["n_without_reference"] == (known & (last <= 0)).sum()


@pytest.mark.slow
@given(st.lists(st.tuples(latencies, latencies), min_size=3, max_size=40))
def test_errors_and_sharp_changes_are_scikit_learns(packets: list[tuple[float, float]]) -> None:
    y, p = np.array([y for y, _ in packets]), np.array([p for _, p in packets])
    got = metrics.score_predictions(p[None], y[None], np.full((1, len(y)), 1e4))
    assert got["error"]["mae_ms"] == pytest.approx(mean_absolute_error(y, p) / 1e3)
    assert got["error"]["p50_ms"] == pytest.approx(median_absolute_error(y, p) / 1e3)
    true = change_direction(y[1:], y[:-1])
    for variant, before in (("prediction_change", p), ("truth_change", y)):
        said = change_direction(p[1:], before[:-1])
        for name, labels in (("all", [1, -1]), ("rises", [1]), ("drops", [-1])):
            figures = [got["sharp"][variant][name][one] or 0.0 for one in ("precision", "recall", "f1")]
            theirs = precision_recall_fscore_support(
                true, said, labels=labels, average="micro", zero_division=0
            )
            assert figures == pytest.approx(theirs[:3])


def test_errors_by_hand() -> None:
    y = np.array([[10_000.0, 20_000.0, np.nan, 40_000.0]])
    got = metrics.score_predictions(np.array([[11_000.0, 18_000.0, 5.0, 43_000.0]]), y, y)["error"]
    assert (got["mae_ms"], got["p50_ms"]) == pytest.approx((2.0, 2.0))


@pytest.mark.slow
@given(st.integers(0, 10_000))
def test_bootstrap_draws_equal_scoring_the_repeated_packets(seed: int) -> None:
    """A draw that takes block k twice must score as if its packets stood there twice."""
    rng = np.random.default_rng(seed)
    positive, block = rng.random(80) < 0.2, np.sort(rng.integers(0, 5, 80))
    score = rng.choice([0.0, 0.5, 1.0, 2.0, 3.0], 80) + rng.integers(0, 3, 80)
    draws = rng.multinomial(5, np.full(5, 0.2), size=4).astype(float)
    got = metrics.average_precision_draws(metrics.precision_recall(positive, score), positive, block, draws)
    for draw, ours in zip(draws, got, strict=True):
        expected = sklearns_average_precision(positive, score, draw[block])
        assert np.isnan(ours) if expected is None else ours == pytest.approx(expected)


def test_bootstrap_is_the_same_whatever_the_chunk() -> None:
    rng = np.random.default_rng(7)
    positive, score = rng.random(5000) < 0.1, rng.normal(size=5000)
    block = np.sort(rng.integers(0, 20_000, 5000))  # 20,000 blocks force chunks of 50 steps
    curve, ones = metrics.precision_recall(positive, score), np.ones((1, 20_000))
    assert metrics.average_precision_draws(curve, positive, block, ones)[0] == pytest.approx(
        curve.average_precision()
    )


def test_interval_holds_the_estimate_and_repeats_with_the_seed() -> None:
    y, last, time = random_slice(4)
    pred = np.nan_to_num(y, nan=2e4) * np.random.default_rng(0).normal(1, 0.6, y.shape)
    first, again, other = (scored_over_time(pred, y, last, time, seed) for seed in (1, 1, 2))
    low, high = first["late"]["average_precision_95"]
    assert low < first["late"]["average_precision"] < high
    assert first == again
    assert first["late"]["average_precision_95"] != other["late"]["average_precision_95"]


@pytest.mark.parametrize(
    ("y", "last"),
    [
        (np.full((3, 8), np.nan), np.full((3, 8), 1e4)),
        (np.full((3, 8), 1e4), np.zeros((3, 8))),
        (np.zeros((0, 8)), np.zeros((0, 8))),
    ],
)
def test_nothing_to_score_gives_none_and_valid_json(y: Any, last: Any) -> None:
    got = scored_over_time(np.ones(y.shape), y, last, np.arange(len(y), dtype=np.int64) * 10**9)
    assert got["late"]["average_precision"] is None
    json.dumps(got, allow_nan=False)


def test_bad_input_is_named() -> None:
    y = np.full((2, 8), 1e4)
    with pytest.raises(ValueError, match="differ in shape"):
        metrics.score_predictions(y[:1], y, y)
    with pytest.raises(ValueError, match="1 of 16 predictions are not finite"):
        metrics.score_predictions(np.where(np.arange(16).reshape(2, 8) == 3, np.inf, y), y, y)


@given(st.lists(st.tuples(latencies, latencies, st.integers(0, 2)), min_size=2, max_size=40))
def test_changes_within_a_flow_are_the_literal_ones(packets: list[tuple[float, float, int]]) -> None:
    y, p, flow = (np.array([packet[i] for packet in packets]) for i in range(3))
    got = metrics.score_sharp(p, y, flow_N=flow)
    for variant, before in (("prediction_change", p), ("truth_change", y)):
        true, said = [], []
        for one in range(3):
            mine = np.flatnonzero(flow == one)
            for earlier, later in itertools.pairwise(mine):
                true += change_direction(y[[later]], y[[earlier]]).tolist()
                said += change_direction(p[[later]], before[[earlier]]).tolist()
        assert got[variant] == metrics.score_changes(np.int8(true), np.int8(said))


def test_the_thresholds_are_parameters_and_one_definition_serves_loss_and_scores(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("pretrain: {}\n")
    assert change_of(path) is PAPERS  # a file of before there was the section
    path.write_text("change: {least_ms: 5, least_share: 0.5}\n")
    change = change_of(path)
    y = np.float32([10_000, 14_000, 19_001, 30_000]).reshape(2, 2)
    assert sharp_changes(y, change).tolist() == [[False, False], [False, True]]  # 11 ms and 58 %
    assert sharp_changes(y).sum() == 0
    holes = 1e3 * np.float32([30, np.nan, 60, 61, 20, np.nan, np.nan, 90]).reshape(1, 8)
    scored = metrics.score_predictions(np.nan_to_num(holes), holes, np.full_like(holes, 3e4))
    assert sharp_changes(holes).sum() == scored["sharp"]["truth_change"]["all"]["n_true"] == 3
    assert change_direction(y.ravel()[1:], y.ravel()[:-1], change).tolist() == [0, 0, 1]
    last = np.array([10_000.0, 10_000.0, 4_000.0])
    came = np.array([15_000.0, 14_999.0, 9_001.0])
    assert (metrics.late_margin(came, last, change) >= 1).tolist() == [True, False, True]
    np.testing.assert_array_equal(metrics.late_from(last, change), [15_000, 15_000, 9_000])
    path.write_text("change: {least_ms: 0, least_share: 0.5}\n")
    with pytest.raises(ValueError, match=r"change\.least_ms is 0; it must be a number above 0"):
        change_of(path)
