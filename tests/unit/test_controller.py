"""The queue controller's rules, as properties over any predictions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from models.forecasters.spread import Spread
from serving.agent.bindings.controller import CLASSIC, L4S, ControllerParams, QueueController, better

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


def test_a_packet_moves_only_where_its_gain_is_above_the_charge() -> None:
    """Also one whose flow is in the classic queue already, where the margins alone would keep it."""
    for charge_us, gain_us, queue in ((0, 2_001, CLASSIC), (5_000, 5_000, L4S), (5_000, 5_001, CLASSIC)):
        controller = QueueController(ControllerParams(margin_us=1_000, margin_share=0, charge_us=charge_us))
        assert controller.choose(0, 0, [1] * 8, [L4S] * 8, predicted(10_000, 10_000 + gain_us)) == [queue] * 8
    assert controller.choose(8, 1, [1] * 8, [L4S] * 8, predicted(10_000, 14_999)) == [L4S] * 8
    assert controller.choose(16, 2, [1] * 8, [L4S] * 8, predicted(10_000, 15_001)) == [CLASSIC] * 8
    with pytest.raises(ValueError, match="must not be negative"):
        ControllerParams(charge_us=-1)


LEVELS = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


def quantiles(medians_us: Sequence[float]) -> np.ndarray:
    """Log-normal quantiles (2, H, L) of a batch's packets, all alike: in the classic and the L4S queue."""
    around = np.exp(0.4 * np.array([NormalDist().inv_cdf(level) for level in LEVELS]))
    us_QL = np.array(medians_us)[:, None] * around
    return np.repeat(us_QL[:, None], 8, axis=1).astype(np.float32)


def chosen(controller: QueueController, batch: int, predicted_us: np.ndarray) -> set[int]:
    return set(controller.choose(8 * batch, batch, [1] * 8, [L4S] * 8, predicted_us, 0, LEVELS))


def test_a_packet_moves_where_the_classic_queue_is_likely_enough_sooner_and_returns_later() -> None:
    sooner = {us: better(LEVELS, *quantiles((us, 40_000))[:, 0]) for us in (30_000, 36_000, 38_000, 45_000)}
    assert [round(each, 2) for each in sooner.values()] == [0.69, 0.57, 0.53, 0.42]
    controller = QueueController(ControllerParams(least_probability=0.6, probability_margin=0.1))
    steps = [(36_000, L4S), (30_000, CLASSIC), (36_000, CLASSIC), (38_000, CLASSIC)]
    steps += [(45_000, L4S), (36_000, L4S)]
    for batch, (classic_us, queue) in enumerate(steps):
        assert chosen(controller, batch, quantiles((classic_us, 40_000))) == {queue}, batch


def test_with_a_deadline_a_packet_moves_where_it_would_be_late() -> None:
    params = ControllerParams(least_probability=0.5, deadline_us=50_000)
    for medians_us, queue in (
        ((20_000, 40_000), L4S),  # sooner, and in time in either queue
        ((20_000, 80_000), CLASSIC),
        ((80_000, 90_000), L4S),  # late in either
        ((80_000, 20_000), L4S),
    ):
        assert chosen(QueueController(params), 0, quantiles(medians_us)) == {queue}, medians_us
        late = better(LEVELS, *quantiles(medians_us)[:, 0], 50_000)
        assert (late > 0.5) == (queue == CLASSIC)


def test_without_such_a_rule_quantiles_are_as_their_median_and_one_latency_goes_by_the_margins() -> None:
    rng = np.random.default_rng(1)
    both = [QueueController(ControllerParams()) for _ in range(2)]
    ruled, plain = QueueController(ControllerParams(least_probability=0.5)), QueueController()
    for batch in range(50):
        y_2HL = np.sort(rng.lognormal(10, 0.5, (2, 8, len(LEVELS))).astype(np.float32))
        y_2H = y_2HL[..., LEVELS.index(0.5)]
        flow_ids = list(rng.integers(0, 5, 8))
        batches = 8 * batch, 10**10 * batch, flow_ids, [L4S] * 8
        assert both[0].choose(*batches, y_2HL, 0, LEVELS) == both[1].choose(*batches, y_2H)
        assert ruled.choose(*batches, y_2H) == plain.choose(*batches, y_2H)


@given(
    arrays.arrays(np.float32, (2, len(LEVELS)), elements=st.floats(0, 1e6, width=32)),
    st.floats(1, 1e6),
)
def test_the_probability_is_that_of_the_forecasters_spread(us_QL: np.ndarray, deadline_us: float) -> None:
    us_QL = np.sort(us_QL)
    us_QL += np.arange(len(LEVELS), dtype=np.float32) * (1 + us_QL[:, -1:] * 1e-3)  # none coincide
    classic, l4s = (Spread(LEVELS, us_L[None, None]) for us_L in us_QL)
    assert better(LEVELS, *us_QL) == pytest.approx(classic.sooner_than(l4s).item(), abs=1e-9)
    late = [spread.above(np.array([[deadline_us]])).item() for spread in (classic, l4s)]
    assert better(LEVELS, *us_QL, deadline_us) == pytest.approx(late[1] * (1 - late[0]), abs=1e-9)


def test_a_rule_or_levels_that_cannot_be_are_refused_in_one_line() -> None:
    for wrong in (
        {"least_probability": 1.0},
        {"least_probability": 0.1, "probability_margin": 0.1},
        {"least_probability": float("nan")},
        {"least_probability": 0.5, "probability_margin": -0.1},
        {"deadline_us": 0.0},
    ):
        with pytest.raises(ValueError, match=r"least_probability must be|deadline_us must be") as error:
            ControllerParams(**wrong)
        assert "\n" not in str(error.value)
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


def test_a_pair_is_of_as_many_packets_as_the_guard_is_told() -> None:
    """The guard has heard of no latency, so it is on trial: of a pair's batches one is moved so far."""
    for packets in (1, 3, 8):
        controller, moved, batches = QueueController(guard_packets=packets), [], 16
        for batch in range(batches):
            chosen = controller.choose(8 * batch, batch, [1] * 8, [L4S] * 8, predicted(1_000, 90_000))
            count = chosen.count(CLASSIC)
            assert chosen == [CLASSIC] * count + [L4S] * (8 - count)
            moved.append(count)
        assert set(moved) == {0, packets}
        assert moved.count(packets) == 4  # as many as pairs may be under way
        assert controller.moved_unacked == 2 * 4 * packets  # both of a pair count


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
