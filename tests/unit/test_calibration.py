"""Quantiles moved to their levels by what they missed, and how probable it is that one queue is faster."""

# Shapes: B decisions, H horizon, N known latencies, L levels, D width.

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftqueue.models.forecasters.spread import Spread
from swiftqueue.models.mlp.network import MlpArchitecture, QueryMlp
from swiftqueue.models.networks.prediction import HeadInputs, answers, quantiles
from swiftqueue.models.networks.scaling import ScaledFeature, TargetScaling
from swiftqueue.models.scoring.choice import RULES, rule_name, score_choice, score_sooner
from swiftqueue.models.training.calibration import SLICES, calibrated, missed, shifts

LEVELS = (0.05, 0.25, 0.5, 0.9, 0.99)
TARGET = TargetScaling("log", 10.0, 0.5)


def network() -> QueryMlp:
    torch.manual_seed(1)
    model = QueryMlp(
        (),
        [ScaledFeature("size_bytes", "bytes")],
        TARGET,
        MlpArchitecture(layers=1, width=8, dropout=0.0, anchor=None),
        LEVELS,
    )
    return model.eval()


def lesson(seed: int) -> tuple[HeadInputs, np.ndarray]:
    """What a head reads, and latencies that have to do with it; some are unknown."""
    random = np.random.default_rng(seed)
    read_BHD = random.normal(size=(60, 8, 8)).astype(np.float32)
    came_BH = np.exp(10 + read_BHD[..., 0] + random.normal(size=read_BHD.shape[:2])).astype(np.float32)
    came_BH[random.random(came_BH.shape) < 0.2] = np.nan
    return HeadInputs(torch.from_numpy(read_BHD), torch.zeros(read_BHD.shape[:2])), came_BH


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=400, unique=True),
    st.lists(st.floats(0.01, 0.99), min_size=1, max_size=5, unique=True),
)
def test_each_level_covers_its_share_of_what_it_is_calibrated_on(
    missed_N: list[float], some: list[float]
) -> None:
    """At least the level, and no more than a latency above it: by rank, so whatever the distribution is."""
    levels, count = sorted(some), len(missed_N)
    missed_NL = np.repeat(np.array(missed_N)[:, None], len(levels), axis=1)
    moved_L = shifts(missed_NL, levels)
    share_L, level_L = (missed_NL <= moved_L).mean(0), np.array(levels)
    assert (share_L >= level_L - 1e-12).all()
    assert (share_L <= level_L + (1 + level_L) / count + 1e-12).all()
    assert (np.diff(moved_L) >= 0).all()  # levels that had one value ascend
    np.testing.assert_array_equal(shifts(missed_NL[:0], levels), np.zeros(len(levels)))


def test_the_head_itself_is_moved_and_covers() -> None:
    model, (encoded, came_BH) = network(), lesson(1)
    known_BH = np.isfinite(came_BH)
    found = calibrated(model, [missed(model, encoded, came_BH)])
    said_NL = answers(found, encoded).numpy()[known_BH]
    target_N = TARGET.apply(came_BH)[known_BH]
    share_L = (target_N[:, None] <= said_NL + 1e-5).mean(0)
    count = len(target_N)
    assert (share_L >= np.array(LEVELS)).all()
    assert (share_L <= np.array(LEVELS) + 3 / count).all()
    before_L = (target_N[:, None] <= answers(model, encoded).numpy()[known_BH]).mean(0)
    assert (np.abs(before_L - LEVELS) > 0.03).any()  # it had something to do
    assert (np.diff(quantiles(found, encoded), axis=-1) >= 0).all()
    for (name, was), now in zip(model.state_dict().items(), found.state_dict().values(), strict=True):
        assert torch.equal(was, now) == (name != "head.2.bias"), name


def test_nothing_known_leaves_the_head_as_it_is() -> None:
    model, (encoded, came_BH) = network(), lesson(1)
    nothing = missed(model, encoded, np.full_like(came_BH, np.nan))
    assert nothing.shape == (0, len(LEVELS))
    assert calibrated(model, [nothing]) is model
    assert calibrated(model, []) is model


def test_the_newest_slices_count() -> None:
    model = network()
    each = [missed(model, *lesson(seed)) + seed for seed in range(SLICES + 2)]
    newest, of_newest = calibrated(model, each), calibrated(model, each[-SLICES:])
    assert torch.equal(newest.head[2].bias, of_newest.head[2].bias)
    assert not torch.equal(newest.head[2].bias, calibrated(model, each[-1:]).head[2].bias)


def spread(us: list[float], levels: tuple[float, ...] = LEVELS) -> Spread:
    return Spread(levels, np.array(us, np.float32)[None, None])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(100, 1e6), min_size=5, max_size=5), st.floats(0.001, 0.999))
def test_the_quantile_is_the_inverse_of_the_probability(us: list[float], share: float) -> None:
    ascending = sorted(us)
    if min(b / a for a, b in itertools.pairwise(ascending)) < 1.01:
        return  # coinciding levels have many shares for one latency
    one = spread(ascending)
    if (at := one.quantile_us(share)).item() < 1:  # below the logarithm's floor
        return
    assert 1 - one.above(at).item() == pytest.approx(share, abs=2e-3)


def test_who_is_faster_by_hand() -> None:
    """Independent log-normals: the difference of their logarithms is normal."""
    from scipy.stats import norm

    levels = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
    z = norm.ppf(levels)

    def log_normal(mean: float, sigma: float) -> Spread:
        return spread(list(np.exp(mean + sigma * z)), levels)

    slow = log_normal(10, 0.5)
    for mean, sigma in ((9.0, 0.5), (9.9, 0.2), (10.0, 0.5), (10.6, 1.0)):
        wanted = norm.cdf((10 - mean) / np.hypot(0.5, sigma))
        assert log_normal(mean, sigma).sooner_than(slow).item() == pytest.approx(wanted, abs=0.02)
    assert slow.sooner_than(log_normal(13, 0.1)).item() > 0.99


def test_probabilities_are_scored_by_brier_and_by_what_their_rules_cost() -> None:
    classic_us = np.array([0.0, 5_000, 1_000, np.nan])
    l4s_us = np.array([4_000.0, 0, 2_000, 0])
    time_ns = np.arange(4) * 1_000_000_000
    sooner = np.array([0.9, 0.3, 0.45, 0.5])
    scores, drawn = score_sooner(sooner, classic_us, l4s_us, time_ns, seed=1)
    assert scores["brier"] == pytest.approx((0.1**2 + 0.3**2 + 0.55**2) / 3)
    assert scores["brier_of_share"] == pytest.approx(2 / 9)
    assert scores[rule_name(0.25)] == pytest.approx(5 / 3)
    assert scores[rule_name(0.4)] == 0
    assert scores[rule_name(0.5)] == pytest.approx(1 / 3)
    assert set(drawn) == {rule_name(rule) for rule in RULES}
    # Who is sure has one rule: that of `score_choice`.
    sure = classic_us < l4s_us - 2_000
    one, _ = score_sooner(sure.astype(float), classic_us, l4s_us, time_ns, seed=1)
    plain, _ = score_choice(sure, classic_us, l4s_us, time_ns, seed=1)
    assert {one[rule_name(rule)] for rule in RULES} == {plain["regret_ms"]}
    nothing, none = score_sooner(sooner[:0], classic_us[:0], l4s_us[:0], time_ns[:0], seed=1)
    assert (nothing["brier"], none) == (None, {})
