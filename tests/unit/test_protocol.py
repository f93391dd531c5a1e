"""Walk-forward slices: by time, in order, without overlap between training and test."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.protocol import PAPER, PROTOCOLS, SHORT, SMALL, Protocol, divide, protocol_named

S = 10**9


def every(step_s: float, seconds: float, start_ns: int = 1_700_000_000 * S) -> np.ndarray:
    return start_ns + (np.arange(0, seconds + step_s / 2, step_s) * S).round().astype(np.int64)


def test_lengths_are_the_designs() -> None:
    assert [(p.pretrain_s, p.finetune_s, p.test_s) for p in (SHORT, SMALL, PAPER)] == [
        (2.5, 0.5, 1),
        (30, 6, 10),
        (300, 60, 300),
    ]
    assert protocol_named("paper") is PAPER
    with pytest.raises(ValueError, match="'long' is unknown; take one of short, small, paper"):
        protocol_named("long")


def test_slices_of_an_even_trace() -> None:
    slices = divide(every(0.1, 60), SMALL, "t")
    assert slices.duration_s == 60
    assert slices.pretrain == (0, 300)
    assert [(r.finetune, r.test) for r in slices.rounds] == [
        ((240, 300), (300, 400)),
        ((340, 400), (400, 500)),
        ((440, 500), (500, 601)),  # the last decision is the trace's end, and belongs to it
    ]
    assert slices.as_json()["rounds"][0] == {"finetune": [240, 300], "test": [300, 400]}


@pytest.mark.parametrize(("seconds", "last"), [(44.9, (300, 400)), (45, (400, 451)), (49, (400, 491))])
def test_the_last_test_slice_is_at_least_half_as_long(seconds: float, last: tuple[int, int]) -> None:
    assert divide(every(0.1, seconds), SMALL, "t").rounds[-1].test == last


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 3 * S), min_size=1, max_size=200),
    st.sampled_from(list(PROTOCOLS.values())),
    st.integers(0, 10**18),
)
def test_slices_are_ordered_and_bounded_by_time(
    gaps_ns: list[int], protocol: Protocol, start_ns: int
) -> None:
    decision_ns_B = start_ns + np.cumsum(gaps_ns)
    if decision_ns_B[-1] - decision_ns_B[0] < protocol.least_s * S:
        with pytest.raises(ValueError, match="needs at least"):
            divide(decision_ns_B, protocol, "t")
        return
    slices = divide(decision_ns_B, protocol, "t")
    elapsed_s = (decision_ns_B - decision_ns_B[0]) / S
    low, high = slices.pretrain
    assert low == 0
    assert (elapsed_s[:high] < protocol.pretrain_s).all()
    for fit, test in ((r.finetune, r.test) for r in slices.rounds):
        assert fit[0] <= fit[1] <= test[0] < test[1] <= len(decision_ns_B)
        boundary_s = elapsed_s[test[0]]  # the first decision tested: nothing trained on is later
        assert (elapsed_s[fit[0] : fit[1]] <= boundary_s).all()
        assert elapsed_s[test[1] - 1] - boundary_s <= protocol.test_s
    tests = [r.test for r in slices.rounds]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(tests))
    assert slices == divide(decision_ns_B + 12345, protocol, "t")  # absolute time does not matter


@pytest.mark.parametrize(
    ("seconds", "protocol", "advice"),
    [
        (200, PAPER, "protocol 'small' fits"),
        (20, PAPER, "protocol 'short' fits"),
        (20, SMALL, "protocol 'short' fits"),
        (2, SMALL, "no protocol is short enough"),
    ],
)
def test_a_short_trace_is_told_what_fits(seconds: float, protocol: Protocol, advice: str) -> None:
    with pytest.raises(ValueError, match=f"trace office lasts {seconds}.0 s.*{advice}") as error:
        divide(every(0.5, seconds), protocol, "office")
    assert "\n" not in str(error.value)


def test_no_window_at_all() -> None:
    with pytest.raises(ValueError, match="trace t: fewer than 8 packets"):
        divide(np.empty(0, np.int64), SHORT, "t")
