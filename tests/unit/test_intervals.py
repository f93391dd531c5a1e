"""The intervals behind every verdict: how often they settle what is not there, and what they find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from interval_world import HOLDS, THREE_SEEDS, World, shares
from scipy.stats import binomtest

from swiftqueue.models.scoring.intervals import over_all, over_time

TRIALS = 300
NOT_ABOVE = 0.08  # of 5 %: 300 trials tell that from what the interval before had


@pytest.mark.slow
@pytest.mark.parametrize("world", HOLDS, ids=lambda world: world.name)
def test_no_difference_is_settled_no_more_often_than_an_interval_may(world: World) -> None:
    """Where it does not hold: docs/results/intervals.md."""
    ours, _ = shares(world, TRIALS)
    assert binomtest(ours, TRIALS).proportion_ci(0.99).low < 0.05
    assert ours / TRIALS < NOT_ABOVE


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 3, 4])
def test_the_interval_before_settled_what_is_not_there(place: int) -> None:
    """So the test above can fail: it would on percentiles of single seconds and a few seeds."""
    _, before = shares(HOLDS[place], TRIALS)
    assert binomtest(before, TRIALS).proportion_ci(0.99).low > 0.05
    assert before / TRIALS > NOT_ABOVE


@pytest.mark.slow
def test_a_difference_is_found_the_more_often_the_larger_it_is() -> None:
    found = [shares(replace(THREE_SEEDS, worse=worse), 100)[0] for worse in (0.0, 0.4, 1.0)]
    assert found == sorted(found)
    assert found[0] < 15
    assert found[2] > 80


def test_variances_of_seeds_time_and_traces_by_hand() -> None:
    by_seed = [1.0, 2.0, 3.0]  # variance 1, of the mean 1/3; t of 2 degrees
    still = np.full((3, 50), 2.0)
    low, high = over_all(by_seed, still, 10, np.zeros((3, 0))) or (0.0, 0.0)
    assert (low, high) == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), rel=1e-4)
    draws = np.array([[1.0, 3.0]])
    low, high = over_time(2.0, draws[0], 5) or (0.0, 0.0)
    half = 2.7764 * (2 * 5 / 4) ** 0.5  # t of 4 degrees; drawn blocks vary less by 5/4
    assert (low, high) == pytest.approx((2 - half, 2 + half), rel=1e-4)
    two = np.array([[0.0, 4.0]])  # which say too little of how traces differ
    assert over_all([2.0], draws, 5, two) == over_all([2.0], draws, 5, np.zeros((1, 0)))
    three = np.array([[-10.0, 2.0, 14.0]])  # variance 144, of the mean 48, above 2.5 of time; 2 degrees
    low, high = over_all([2.0], draws, 5, three) or (0.0, 0.0)
    assert (low, high) == pytest.approx((2 - 4.3027 * 48**0.5, 2 + 4.3027 * 48**0.5), rel=1e-4)


def test_where_nothing_varies_or_nothing_is_known() -> None:
    assert over_time(3.0, np.full(20, 3.0), 4) == [3.0, 3.0]
    assert over_time(None, np.full(20, 3.0), 4) is None
    assert over_time(3.0, np.full(20, np.nan), 4) is None
    assert over_time(3.0, np.arange(20.0), 1) is None  # one block says nothing of time
