"""The queue controller's rules, as properties over any predictions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from swiftqueue.serving.agent.bindings.controller import CLASSIC, L4S, ControllerParams, QueueController

latencies = arrays.arrays(np.float32, (2, 8), elements=st.floats(1, 2e6, width=32))
flows = st.lists(st.integers(0, 3), min_size=8, max_size=8)
defaults = st.lists(st.sampled_from([CLASSIC, L4S]), min_size=8, max_size=8)


def predicted(classic_us: float, l4s_us: float) -> np.ndarray:
    return np.array([[classic_us] * 8, [l4s_us] * 8], dtype=np.float32)


@given(latencies, flows, defaults)
def test_only_packets_of_l4s_capable_flows_are_ever_moved(
    y_2H: np.ndarray, flow_ids: list[int], queues: list[int]
) -> None:
    chosen = QueueController().choose(0, 0, flow_ids, queues, y_2H)
    assert all(c == CLASSIC for c, d in zip(chosen, queues, strict=True) if d == CLASSIC)


@given(latencies, flows)
def test_no_packet_is_moved_to_a_queue_predicted_slower(y_2H: np.ndarray, flow_ids: list[int]) -> None:
    chosen = QueueController().choose(0, 0, flow_ids, [L4S] * 8, y_2H)
    first_of_flow = {flow: i for i, flow in reversed(list(enumerate(flow_ids)))}
    for i in first_of_flow.values():
        if chosen[i] == CLASSIC:
            assert y_2H[CLASSIC, i] < y_2H[L4S, i]


@given(st.lists(latencies, max_size=5), st.integers(0, 20))
def test_the_limit_of_moved_packets_in_flight_holds(batches: list[np.ndarray], limit: int) -> None:
    controller = QueueController(ControllerParams(max_moved_unacked=limit))
    for k, y_2H in enumerate(batches):
        controller.choose(8 * k, k, range(8), [L4S] * 8, y_2H)
        assert controller.moved_unacked <= limit


def test_a_clear_gain_moves_and_a_margin_keeps() -> None:
    controller = QueueController(ControllerParams(margin_us=1_000, margin_share=0.1))
    assert controller.choose(0, 0, [1] * 8, [L4S] * 8, predicted(20_000, 50_000)) == [CLASSIC] * 8
    # Now in the classic queue: a gain below either margin does not bring the flow back.
    assert controller.choose(8, 1, [1] * 8, [L4S] * 8, predicted(20_000, 19_500)) == [CLASSIC] * 8
    assert controller.choose(16, 2, [1] * 8, [L4S] * 8, predicted(20_000, 18_500)) == [CLASSIC] * 8
    assert controller.choose(24, 3, [1] * 8, [L4S] * 8, predicted(20_000, 17_000)) == [L4S] * 8


LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


def test_quantiles_are_as_their_median() -> None:
    rng = np.random.default_rng(1)
    both = [QueueController(ControllerParams()) for _ in range(2)]
    for batch in range(50):
        y_2HL = np.sort(rng.lognormal(10, 0.5, (2, 8, len(LEVELS))).astype(np.float32))
        y_2H = y_2HL[..., LEVELS.index(0.5)]
        flow_ids = list(rng.integers(0, 5, 8))
        batches = 8 * batch, 10**10 * batch, flow_ids, [L4S] * 8
        assert both[0].choose(*batches, y_2HL, 0, LEVELS) == both[1].choose(*batches, y_2H)


def test_levels_that_cannot_be_are_refused_in_one_line() -> None:
    for levels in ([0.5], [0.5, 0.4], [0.1, 0.9], [0.5, 1.0], [n / 40 for n in range(1, 40)]):
        y_2HL = np.ones((2, 8, len(levels)), np.float32)
        with pytest.raises(ValueError, match=r"2 to 16 must ascend, 0\.5 among them"):
            QueueController().choose(0, 0, [1] * 8, [L4S] * 8, y_2HL, 0, levels)
    with pytest.raises(ValueError, match=r"its predictions \(2, 8, 7\)"):
        QueueController().choose(0, 0, [1] * 8, [L4S] * 8, predicted(1, 2), 0, LEVELS)


def test_acknowledged_and_forgotten_packets_free_the_limit() -> None:
    controller = QueueController(ControllerParams(max_moved_unacked=8))
    better = predicted(1_000, 90_000)
    assert controller.choose(0, 0, range(8), [L4S] * 8, better) == [CLASSIC] * 8
    assert controller.choose(8, 1, range(8, 16), [L4S] * 8, better) == [L4S] * 8
    for packet in range(4):
        controller.acked(packet)
    assert controller.moved_unacked == 4
    assert controller.choose(16, 2, range(16, 24), [L4S] * 8, better) == [CLASSIC] * 4 + [L4S] * 4
    assert controller.choose(24, 10**9, range(24, 32), [L4S] * 8, better) == [L4S] * 8
    assert controller.choose(32, 2 * 10**9 + 2, range(32, 40), [L4S] * 8, better) == [CLASSIC] * 8


def test_of_a_pairs_batches_one_has_its_first_packet_moved() -> None:
    """The guard has heard of no latency, so it is on trial: of a pair's batches one is moved so far."""
    controller, moved, batches = QueueController(guarded=True), [], 16
    for batch in range(batches):
        chosen = controller.choose(8 * batch, batch, [1] * 8, [L4S] * 8, predicted(1_000, 90_000))
        count = chosen.count(CLASSIC)
        assert chosen == [CLASSIC] * count + [L4S] * (8 - count)
        moved.append(count)
    assert set(moved) == {0, 1}
    assert moved.count(1) == 4  # as many as pairs may be under way
    assert controller.moved_unacked == 2 * 4  # both of a pair count


def test_the_limit_grows_with_what_is_in_flight() -> None:
    params = ControllerParams(max_moved_unacked=16, max_moved_share=0.5)
    for in_flight, most in ((0, 16), (32, 16), (33, 17), (3_333, 1_667), (-1, 16)):
        controller = QueueController(params)
        for first in range(0, 4_000, 8):
            controller.choose(first, 0, [1] * 8, [L4S] * 8, predicted(1_000, 90_000), in_flight)
        assert controller.moved_unacked == most


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=200))
def test_moved_packets_are_counted_whatever_the_order_of_acks(happened: list[tuple[bool, int]]) -> None:
    controller, here = QueueController(ControllerParams(max_moved_unacked=64, max_moved_share=0)), set[int]()
    batch = 0
    for is_batch, number in happened:
        if is_batch:
            flows = range(8 * batch, 8 * batch + 8)  # new ones, so that nothing but the limit keeps them
            chosen = controller.choose(8 * batch, 0, flows, [L4S] * 8, predicted(1_000, 90_000))
            here |= {8 * batch + i for i, queue in enumerate(chosen) if queue == CLASSIC}
            batch += 1
        else:
            controller.acked(number)
            here.discard(number)
        assert controller.moved_unacked == len(here)


def test_flows_in_the_classic_queue_are_bounded() -> None:
    """A sender that names new flows for ever fills no memory: those beyond the bound keep their queue."""
    controller = QueueController(ControllerParams(max_moved_unacked=2**20))
    better, bound = predicted(1_000, 90_000), 1 << 14
    for first in range(0, bound, 8):
        assert controller.choose(first, 0, range(first, first + 8), [L4S] * 8, better) == [CLASSIC] * 8
    new = range(bound, bound + 8)
    assert controller.choose(bound, 0, new, [L4S] * 8, better) == [L4S] * 8
    assert controller.choose(bound + 8, 0, range(8), [L4S] * 8, better) == [CLASSIC] * 8  # known ones go on
    controller.keep_default(range(4))
    assert controller.choose(bound + 16, 0, new, [L4S] * 8, better) == [CLASSIC] * 4 + [L4S] * 4


def test_default_marking_ends_the_hysteresis() -> None:
    controller = QueueController()
    controller.choose(0, 0, [1] * 8, [L4S] * 8, predicted(10_000, 90_000))
    controller.keep_default([1])
    assert controller.choose(8, 1, [1] * 8, [L4S] * 8, predicted(10_000, 10_000)) == [L4S] * 8


def test_negative_margins_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        ControllerParams(margin_us=-1)
