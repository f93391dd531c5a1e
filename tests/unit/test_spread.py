"""Quantiles of a latency and what is read from them; the choice of a queue, and what it cost."""

# Shapes: B decisions, H horizon, L levels, N packets.

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_pinball_loss

from swiftqueue.models.forecasters.spread import Spread
from swiftqueue.models.scoring.choice import PACKET_US, score_choice
from swiftqueue.models.scoring.metrics import EPISODE_NS, late_from, late_margin, score_with_replicates
from swiftqueue.models.training.loss import weighted_error

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def spread() -> Spread:
    us = np.random.default_rng(1).lognormal(10, 0.5, (50, 8, len(LEVELS))).astype(np.float32)
    return Spread(LEVELS, np.sort(us, -1))


def test_the_probability_is_that_of_the_levels_and_falls_with_the_latency() -> None:
    one = spread()
    for n, level in enumerate(LEVELS):
        np.testing.assert_allclose(one.above(one.us_BHL[..., n].astype(np.float64)), 1 - level, atol=1e-4)
    np.testing.assert_array_equal(one.median_us, one.us_BHL[..., 2])
    before = np.ones(one.us_BHL.shape[:2])
    for us in np.geomspace(10, 1e7, 200):
        now = one.above(np.full_like(before, us))
        assert ((now <= before + 1e-12) & (now >= 0)).all()
        before = now
    assert np.isnan(one.above(np.full_like(before, np.nan))).all()


def test_beyond_the_last_level_it_falls_as_an_exponential_of_the_log_latency_does() -> None:
    """log-latency = a + exponential: its quantiles are a - s log(1 - level), its tail exp(-(x - a) / s)."""
    a, s = np.log(20_000), 0.3
    us = np.exp(a - s * np.log(1 - np.array(LEVELS)))
    one = Spread(LEVELS, us[None, None].astype(np.float32))
    for beyond in (1.1, 2, 5):
        at = us[-1] * beyond
        assert one.above(np.array([[at]]))[0, 0] == pytest.approx(np.exp(-(np.log(at) - a) / s), rel=1e-4)


def test_quantiles_that_coincide_still_rank() -> None:
    flat = Spread(LEVELS, np.full((1, 8, len(LEVELS)), 20_000, np.float32))
    ranked = flat.above(20_000 * (1 + np.arange(1, 9)[None] * 1e-3))
    assert (np.diff(ranked) < 0).all()
    assert np.isfinite(ranked).all()


def test_scores_are_scikit_learns() -> None:
    one = spread()
    random = np.random.default_rng(2)
    came = random.lognormal(10, 0.5, (50, 8))
    came[random.random(came.shape) < 0.2] = np.nan
    known = np.isfinite(came)
    scores = one.scores(came)
    by_level = [
        mean_pinball_loss(came[known], one.us_BHL[known][:, n], alpha=q) for n, q in enumerate(LEVELS)
    ]
    assert scores["pinball_ms"] == pytest.approx(np.mean(by_level) / 1e3, abs=1e-4)
    shares = [(came[known] <= one.us_BHL[known][:, n]).mean() for n in range(len(LEVELS))]
    assert scores["coverage"] == pytest.approx(shares, abs=1e-5)
    nothing = one.scores(np.full((50, 8), np.nan))
    assert (nothing["coverage"], nothing["pinball_ms"]) == (None, None)


def test_the_loss_is_the_pinball_error_and_unknown_labels_have_no_gradient() -> None:
    random = np.random.default_rng(3)
    said = torch.tensor(random.normal(size=(9, 8, len(LEVELS))), requires_grad=True)
    came = torch.tensor(random.normal(size=(9, 8)))
    came[0] = float("nan")
    weight = torch.isfinite(came).double()
    loss = weighted_error(said, came, weight, LEVELS)
    by_level = [
        mean_pinball_loss(came[1:].ravel(), said.detach()[1:, :, n].ravel(), alpha=level)
        for n, level in enumerate(LEVELS)
    ]
    assert float(loss) / 64 == pytest.approx(np.mean(by_level))
    loss.backward()
    assert said.grad is not None
    assert not said.grad[0].any()
    assert said.grad[1:].all()


def test_who_says_how_likely_lateness_is_is_ranked_by_it() -> None:
    last = np.full((100, 8), 10_000.0)
    random = np.random.default_rng(4)
    came = np.where(random.random(last.shape) < 0.1, 50_000.0, 10_000.0)
    np.testing.assert_array_equal(came >= late_from(last), late_margin(came, last) >= 1)
    assert np.isnan(late_from(np.array([0.0, np.nan]))).all()

    def precision(lateness: np.ndarray | None) -> float:
        alike = np.full_like(last, 20_000)
        arguments = {"time_ns_B": None, "false_alarm_rate": 0.01, "seed": 0}
        scores, _ = score_with_replicates(alike, came, last, lateness_BH=lateness, **arguments)
        return float(scores["late"]["average_precision"])

    assert precision(None) == pytest.approx((came > 20_000).mean())
    assert precision(np.where(came > 20_000, 0.9, 0.1)) == 1


def test_regret_by_hand() -> None:
    classic_us = np.array([0, 5_000, 1_000, np.nan, 1_100])
    l4s_us = np.array([4_000, 0, 1_000 + PACKET_US, 0, 1_000])
    time_ns = np.arange(5) * EPISODE_NS  # each in a block of its own
    stayed = np.zeros(5, bool)
    scores, drawn = score_choice(stayed, classic_us, l4s_us, time_ns, seed=1)
    assert scores["n"] == 4
    assert scores["regret_ms"] == scores["never_ms"] == pytest.approx((4 + 0.48) / 4)
    assert scores["always_ms"] == pytest.approx((5 + 0.1) / 4)
    assert scores["right"] == pytest.approx(1 / 3)  # of three that are a packet apart
    assert drawn is not None
    assert drawn.min() < scores["regret_ms"] < drawn.max()
    best, _ = score_choice(classic_us < l4s_us, classic_us, l4s_us, time_ns, seed=1)
    assert (best["regret_ms"], best["right"], best["moved"]) == (0, 1, 0.5)
    moved, _ = score_choice(~stayed, classic_us, l4s_us, time_ns, seed=1)
    assert moved["regret_ms"] == moved["always_ms"]
    nobody, none = score_choice(stayed[:0], classic_us[:0], l4s_us[:0], time_ns[:0], seed=1)
    assert (nobody["n"], nobody["regret_ms"], none) == (0, None, None)
