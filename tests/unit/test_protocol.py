"""Walk-forward slices: by time, in order, without overlap between training and test."""

from __future__ import annotations

import contextlib
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftqueue.models.training.protocol import (
    OF_A_TRACE,
    PAPER,
    PROTOCOLS,
    ROUND_S,
    SHORT,
    SMALL,
    TEACH,
    EvaluationProtocol,
    Round,
    Slice,
    TraceSlices,
    answered,
    divide,
    protocol_named,
)

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
    assert slices.pretrain == Slice(0, 300)
    assert list(slices.rounds) == [
        Round(Slice(240, 300), Slice(300, 400)),
        Round(Slice(340, 400), Slice(400, 500)),
        Round(Slice(440, 500), Slice(500, 601)),  # the last decision is the trace's end, and belongs to it
    ]
    assert slices.as_json()["rounds"][0] == {"finetune": [240, 300], "test": [300, 400]}


def test_a_trace_that_teaches_has_no_round() -> None:
    for seconds in (1, 60):  # however short
        slices = divide(every(0.1, seconds), TEACH, "t")
        assert slices.pretrain == Slice(0, 10 * seconds + 1)
        assert not slices.rounds
        assert (
            TraceSlices.from_json(json.loads(json.dumps(slices.as_json())), 10 * seconds + 1, "t") == slices
        )
    assert protocol_named("teach", OF_A_TRACE) is TEACH
    with pytest.raises(ValueError, match=r"'teach' is unknown; take one of short, small, paper$"):
        protocol_named("teach")  # not of all traces: nothing would test


@pytest.mark.parametrize(("seconds", "last"), [(44.9, (300, 400)), (45, (400, 451)), (49, (400, 491))])
def test_the_last_test_slice_is_at_least_half_as_long(seconds: float, last: tuple[int, int]) -> None:
    assert divide(every(0.1, seconds), SMALL, "t").rounds[-1].test == Slice(*last)


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 3 * S), min_size=1, max_size=200),
    st.sampled_from(list(PROTOCOLS.values())),
    st.integers(0, 10**18),
)
def test_slices_are_ordered_and_bounded_by_time(
    gaps_ns: list[int], protocol: EvaluationProtocol, start_ns: int
) -> None:
    decision_ns_B = start_ns + np.cumsum(gaps_ns)
    if decision_ns_B[-1] - decision_ns_B[0] < protocol.least_s * S:
        with pytest.raises(ValueError, match="needs at least"):
            divide(decision_ns_B, protocol, "t")
        return
    elapsed_s = (decision_ns_B - decision_ns_B[0]) / S
    later_s = elapsed_s[elapsed_s >= protocol.pretrain_s]
    untested_s = elapsed_s[-1] - protocol.test_s / 2  # a rest of half a test slice is not tested
    if (elapsed_s < protocol.pretrain_s).sum() < 2 or (later_s > untested_s).all():
        with contextlib.suppress(ValueError):  # whether one at the very boundary counts is rounding's
            divide(decision_ns_B, protocol, "t")
        return
    slices = divide(decision_ns_B, protocol, "t")
    assert slices.pretrain.lo == 0
    assert (elapsed_s[: slices.pretrain.hi] < protocol.pretrain_s).all()
    for fit, test in ((r.finetune, r.test) for r in slices.rounds):
        assert fit.lo <= fit.hi <= test.lo < test.hi <= len(decision_ns_B)
        boundary_s = elapsed_s[test.lo]  # the first decision tested: nothing trained on is later
        assert (elapsed_s[fit.lo : fit.hi] <= boundary_s).all()
        assert elapsed_s[test.hi - 1] - boundary_s <= protocol.test_s
    tests = [r.test for r in slices.rounds]
    assert all(a.hi <= b.lo for a, b in itertools.pairwise(tests))
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
def test_a_short_trace_is_told_what_fits(seconds: float, protocol: EvaluationProtocol, advice: str) -> None:
    with pytest.raises(ValueError, match=f"trace office lasts {seconds}.0 s.*{advice}") as error:
        divide(every(0.5, seconds), protocol, "office")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("elapsed_s", "said"),
    [
        ([0, 2.6, 2.7, 3.6], "was silent in the first 2.5 s, so protocol 'short' has nothing to train on"),
        ([0, 1, 2.4, 4.6], "was silent after 2.5 s"),
    ],
)
def test_a_silent_sender_is_named_before_anything_is_trained(elapsed_s: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=f"trace t: its sender {said}"):
        divide((np.array(elapsed_s) * S).astype(np.int64), SHORT, "t")


def test_no_window_at_all() -> None:
    with pytest.raises(ValueError, match="trace t: fewer than 8 packets"):
        divide(np.empty(0, np.int64), SHORT, "t")


def heads(decisions: np.ndarray, protocol: EvaluationProtocol, round_s: float) -> list[int]:
    """Who answers each tested decision."""
    slices = divide(decisions, protocol, "t")
    found = answered(slices.rounds, decisions, protocol.answers_after_s(round_s))
    for each, pieces in zip(slices.rounds, found, strict=True):  # whole, in order, nothing twice
        assert [i for p in pieces for i in range(p.part.lo, p.part.hi)] == list(
            range(each.test.lo, each.test.hi)
        )
    return [p.head for pieces in found for p in pieces for _ in range(len(p.part))]


def test_a_head_answers_once_its_round_has_ended() -> None:
    decisions = every(0.1, 60)
    assert heads(decisions, SMALL, 0) == [0] * 100 + [1] * 100 + [2] * 101
    # 6 s to learn from, of a minute that takes 20 s: 2 s, and the head before answers meanwhile
    assert heads(decisions, SMALL, 20) == [-1] * 20 + [0] * 100 + [1] * 100 + [2] * 81
    # 12 s are more than a test slice: the head of one round answers in the next but one's slice
    assert heads(decisions, SMALL, 120) == [-1] * 120 + [0] * 100 + [1] * 81
    assert heads(decisions, SMALL, 10_000) == [-1] * 301


def test_of_a_sender_that_falls_silent_the_newest_ready_head_answers() -> None:
    decisions = np.concatenate([every(0.1, 41), every(0.1, 30, start_ns=1_700_000_065 * S)])
    said = heads(decisions, SMALL, 10_000 / 60)
    assert said[0] == -1
    assert said == sorted(said)


def test_a_measured_round_is_a_tenth_of_the_papers_test_slice_and_a_third_of_the_small_ones() -> None:
    assert PAPER.answers_after_s(ROUND_S) == ROUND_S < PAPER.test_s / 10
    assert SMALL.answers_after_s(ROUND_S) / SMALL.test_s == pytest.approx(0.289)
