"""The guard: it moves where moving helps, stops where it does not, and rarely takes the one for the other."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from guard_binding import ALPHA, Guard, settle
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from swiftqueue.serving.agent.bindings.controller import CLASSIC, L4S

MS = 1_000_000  # ns
RUNS = 2_000
MOST_RECEIVERS = 1_024
Latency = Callable[[int, int], float]  # queue, now_ns -> ns; inf: it is never acknowledged


@dataclass
class World:
    """Batches of one packet to one receiver, every 2 ms, with latencies that a test makes up."""

    guard: Guard
    latency_ns: Latency
    now_ns: int = 0
    packet: int = 0
    under_way: list[tuple[float, int]] = field(default_factory=list)
    bytes_of: Callable[[bool, int], float] = lambda moving, now_ns: 1_000
    others: Callable[[bool, int], float] | None = None  # bytes of a classic flow, with each batch

    def run(self, batches: int, receiver: int = 1) -> list[bool]:
        """Send so many; return which of them were moved."""
        moved = []
        for _ in range(batches):
            self.now_ns += 2 * MS
            self.packet += 8
            while self.under_way and self.under_way[0][0] <= self.now_ns:
                acked_ns, packet = heapq.heappop(self.under_way)
                self.guard.acked(packet, int(acked_ns))
            move, arm = self.guard.rule(receiver, self.now_ns)
            queue = CLASSIC if move else L4S
            self.guard.sent(self.packet, self.now_ns, receiver, queue, arm)
            moving, before_ns = self.guard.counts().moving == 1, self.now_ns - 2 * MS
            self.guard.carried(receiver, self.now_ns, self.bytes_of(moving, self.now_ns), before_ns=before_ns)
            if self.others:
                size = self.others(moving, self.now_ns)
                self.guard.carried(receiver, self.now_ns, size, before_ns=before_ns, movable=False)
            came_ns = self.now_ns + self.latency_ns(queue, self.now_ns)
            if np.isfinite(came_ns):
                heapq.heappush(self.under_way, (came_ns, self.packet))
            moved.append(move)
        return moved


def constant(classic_ms: float, l4s_ms: float) -> Latency:
    return lambda queue, _: (classic_ms if queue == CLASSIC else l4s_ms) * MS


def noisy(rng: np.random.Generator, helps_ms: float) -> Latency:
    return lambda queue, _: (60 + 30 * rng.random() - (helps_ms if queue == CLASSIC else 0)) * MS


def waves(rng: np.random.Generator) -> Latency:
    """One queue by two names: its wait wanders over some 50 ms, so that near packets have near latencies."""
    steps = np.concatenate([[0.0], rng.normal(0, 3, 4_000)]).cumsum()
    return lambda _, now_ns: (90 + 50 * np.sin(steps[now_ns // (2 * MS)] / 10)) * MS


def unwatched(seed: int = 1) -> Guard:
    return Guard(seed=seed, most_growth=0, most_advantage=0)


NULLS: dict[str, Callable[[np.random.Generator], Any]] = {
    "signs": lambda rng: rng.choice([-1.0, 1.0], 192),
    "normal": lambda rng: np.clip(rng.normal(0, 0.4, 192), -1, 1),
    "heavy tails": lambda rng: np.clip(rng.standard_t(1.5, 192) / 20, -1, 1),
    "often a little better, seldom much worse": lambda rng: np.where(rng.random(192) < 0.1, -0.9, 0.1),
    "worse": lambda rng: np.clip(rng.normal(-0.1, 0.4, 192), -1, 1),
}


@pytest.mark.parametrize("null", NULLS)
def test_no_help_is_seldom_taken_for_help(null: str) -> None:
    """Of a mean of 0 or less, at most 5 % is taken for more, however often one looks."""
    rng = np.random.default_rng(1)
    alarms = sum(settle(NULLS[null](rng))[0] == 1 for _ in range(RUNS))
    assert alarms / RUNS < ALPHA


def test_help_is_found_and_harm_given_up_in_time() -> None:
    rng = np.random.default_rng(2)

    def share_and_values(mean: float, verdict: int) -> tuple[float, float]:
        found = [settle(np.clip(rng.normal(mean, 0.3, 192), -1, 1)) for _ in range(RUNS)]
        took = [values for said, values in found if said == verdict]
        return len(took) / RUNS, float(np.median(took))

    share, values = share_and_values(0.15, 1)  # half a standard deviation
    assert share > 0.99
    assert values < 60
    share, values = share_and_values(-0.15, -1)
    assert share > 0.99
    assert values < 40
    assert settle(np.full(192, -1.0)) == (-1, 5)


def test_a_test_ends_where_it_ends() -> None:
    assert settle(np.zeros(500)) == (-1, 192)
    assert settle(np.zeros(191)) == (0, 191)
    assert settle(np.ones(500))[0] == 1


@given(st.lists(st.floats(-1, 1), max_size=60), st.floats(0.001, 0.5))
def test_what_is_settled_does_not_hang_on_what_comes_later(values: list[float], alpha: float) -> None:
    verdict, looked = settle(np.array(values), alpha)
    assert settle(np.array(values[:looked]), alpha) == (verdict, looked)
    if verdict == 1:  # a looser test says so no later
        assert settle(np.array(values), alpha * 1.5)[1] <= looked


@pytest.mark.long
def test_a_receiver_where_moving_never_helps_is_seldom_moved_to() -> None:
    """All its life, with latencies that depend on each other: bounded by alpha. Here it is 8 s."""
    admitted = trials = 0
    for seed in range(200):
        guard = unwatched(seed)
        World(guard, waves(np.random.default_rng(seed))).run(4_000)
        counts = guard.counts()
        admitted += counts.admitted > 0
        trials += counts.trials
    assert admitted / 200 < ALPHA
    assert trials > 200  # some had a second one


def test_help_is_used() -> None:
    guard = unwatched()
    world = World(guard, noisy(np.random.default_rng(3), helps_ms=10))
    first = world.run(3_000)
    assert guard.counts().moving == 1
    assert np.mean(first[:100]) < 0.3  # on trial
    later = world.run(5_000)
    assert guard.counts().stops == 0
    assert 0.9 < np.mean(later) < 0.95  # of 16 batches one keeps its default queue, a moment longer two


def test_harm_is_stopped_at_once_and_seldom_tried_again() -> None:
    guard = unwatched()
    moved = World(guard, constant(classic_ms=100, l4s_ms=45)).run(30_000)  # a minute
    counts = guard.counts()
    assert counts.admitted == 0
    assert 4 <= counts.trials <= 6  # pauses of 2, 4, 8, 16 and 32 s
    assert np.mean(moved) < 0.002
    tried = np.flatnonzero(moved)
    pauses = np.diff(tried)[np.diff(tried) > 500]
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(pauses))


def test_while_rates_are_watched_a_trial_that_failed_is_tried_again_later() -> None:
    guard = Guard()
    World(guard, constant(classic_ms=100, l4s_ms=45)).run(30_000)  # a minute
    assert (guard.counts().admitted, guard.counts().trials) == (0, 4)  # pauses of 8, 16 and 32 s


def test_moving_stops_when_it_no_longer_helps_and_comes_back() -> None:
    guard = unwatched()
    world = World(guard, constant(classic_ms=45, l4s_ms=60))
    world.run(3_000)
    assert guard.counts().moving == 1
    world.latency_ns = constant(classic_ms=100, l4s_ms=45)
    worse = world.run(1_500)
    assert guard.counts().stops == 1
    assert not any(worse[400:1_000])  # a pause of 2 s, and then a trial
    world.latency_ns = constant(classic_ms=45, l4s_ms=60)
    assert np.mean(world.run(5_000)[4_000:]) > 0.9


def test_no_difference_stops_it_too() -> None:
    guard = unwatched()
    world = World(guard, constant(classic_ms=45, l4s_ms=60))
    world.run(3_000)
    world.latency_ns = noisy(np.random.default_rng(4), helps_ms=0)
    world.run(10_000)
    assert guard.counts().stops >= 1
    assert guard.counts().moving == 0


def test_a_loss_speaks_against_moving_only() -> None:
    never = float("inf")
    lost = unwatched()
    World(lost, constant(classic_ms=never, l4s_ms=45)).run(10_000)
    assert lost.counts().admitted == 0
    assert lost.counts().stopped == 1
    escaped = unwatched()
    World(escaped, constant(classic_ms=45, l4s_ms=never)).run(10_000)
    assert (escaped.counts().admitted, escaped.counts().pairs) == (0, 0)


def test_what_was_sent_again_is_a_loss() -> None:
    """Both queues have one latency, and one of them tells it after a retransmission only."""
    found = {}
    for again in (CLASSIC, L4S):
        guard = unwatched()
        for batch in range(5_000):
            moved, arm = guard.rule(1, batch * MS)
            queue = CLASSIC if moved else L4S
            guard.sent(batch, batch * MS, 1, queue, arm)
            guard.acked(batch, batch * MS + (90 if queue == again else 45) * MS, known=queue != again)
        found[again] = guard.counts()
    assert (found[CLASSIC].admitted, found[CLASSIC].stopped) == (0, 1)
    assert (found[L4S].admitted, found[L4S].pairs) == (0, 0)


def test_receivers_are_judged_apart() -> None:
    guard = unwatched()
    good = World(guard, constant(classic_ms=45, l4s_ms=60))
    bad = World(guard, constant(classic_ms=100, l4s_ms=45), packet=1)
    for _ in range(300):
        helped, harmed = good.run(10, receiver=1), bad.run(10, receiver=2)
    assert (guard.counts().moving, guard.counts().stopped) == (1, 1)
    assert np.mean(helped) > 0.5
    assert not any(harmed)


def test_of_each_pair_one_is_moved_and_a_coin_says_which() -> None:
    guard = unwatched()
    arms: dict[int, list[bool]] = {}
    for batch in range(20_000):
        moved, arm = guard.rule(1, batch * 200 * MS)  # nothing comes back, so every pair is let go
        if arm:
            arms.setdefault(arm // 2, []).append(moved)
            assert moved == bool(arm % 2)
        else:
            assert not moved
    pairs = [both for both in arms.values() if len(both) == 2]
    assert len(pairs) > 1_000
    assert all(sum(both) == 1 for both in pairs)
    assert 0.45 < np.mean([both[0] for both in pairs]) < 0.55


def test_what_did_not_follow_its_decision_is_not_compared() -> None:
    guard = unwatched()
    for batch in range(2_000):
        moved, arm = guard.rule(1, batch * MS)
        guard.sent(8 * batch, batch * MS, 1, L4S, arm)  # whatever was said
        guard.acked(8 * batch, batch * MS + MS // 2)
        assert not moved or arm
    assert guard.counts().pairs == 0


def test_receivers_are_bounded_and_forgotten() -> None:
    guard = unwatched()
    for receiver in range(3 * MOST_RECEIVERS):
        guard.rule(receiver, 0)
    counts = guard.counts()
    assert counts.trial + counts.moving + counts.stopped == MOST_RECEIVERS
    assert [guard.rule(2 * MOST_RECEIVERS, t) for t in range(100)] == [(False, 0)] * 100
    later_ns = 61_000 * MS
    assert any(guard.rule(2 * MOST_RECEIVERS, later_ns + t)[0] for t in range(100))
    counts = guard.counts()
    assert counts.trial + counts.moving + counts.stopped == 1


def watched(**more: Any) -> World:
    return World(Guard(), constant(45, 60), **more)


def test_a_rate_that_grows_stops_moving() -> None:
    """Moved packets are faster, and their flows send thrice as much: within two seconds that is settled."""
    world = watched(bytes_of=lambda moving, _: 3_000 if moving else 1_000)
    moved = world.run(3_000)
    counts = world.guard.counts()
    assert (counts.admitted, counts.grown, counts.stops, counts.stopped) == (1, 1, 1, 1)
    began = np.argmax(np.convolve(moved, np.ones(50), "valid") > 40)
    ended = np.flatnonzero(moved)[-1]
    assert (ended - began) * 2 * MS < 2_000 * MS
    assert not any(world.run(1_500))  # a pause of 8 s, where one without growth would be of 2 s
    world.run(20_000)  # each further pause is twice as long
    assert world.guard.counts().grown == 3


def test_a_rate_that_does_not_grow_beyond_what_is_allowed_stops_nothing() -> None:
    for growth in (0.5, 1.0, 1.4):
        world = watched(bytes_of=lambda moving, _, growth=growth: 1_000 * (growth if moving else 1))
        world.run(10_000)
        assert (world.guard.counts().grown, world.guard.counts().moving) == (0, 1)
    other = World(unwatched(), constant(45, 60), bytes_of=lambda moving, _: 9_000 if moving else 1_000)
    other.run(10_000)
    assert (other.guard.counts().grown, other.guard.counts().moving) == (0, 1)


def test_the_unmoved_rate_is_measured_anew_while_packets_are_moved() -> None:
    """Moving began in good times. Then the network fills, and only who moves keeps his rate."""
    world = watched(bytes_of=lambda moving, _: 9_000)
    assert np.mean(world.run(1_500)[1_000:]) > 0.15
    assert world.guard.counts().moving == 1
    last: list[bool] = []

    def starved(_: bool, now_ns: int) -> float:
        return 9_000 if sum(last[-100:]) > 50 else 3_000

    world.bytes_of = starved
    for _ in range(6_000):
        last += world.run(1)
    assert world.guard.counts().grown >= 1


def test_moving_begins_with_a_quarter_of_the_batches() -> None:
    """Half after the first hold, all after the second: the watch sees harm while little is moved."""
    world = watched()
    moved = np.array(world.run(6_000))
    began = 50 * (int(np.argmax(moved.reshape(-1, 50).sum(1) > 8)) + 1)
    assert 0.25 < moved[began : began + 600].mean() < 0.35  # those of pairs too
    assert world.guard.counts().stops == 0
    shares = moved.reshape(-1, 50).mean(1)
    assert ((shares > 0.4) & (shares < 0.6)).sum() >= 25  # of 100 ms each: some 3.2 s
    assert (shares[-20:] > 0.8).all()
    assert np.mean(World(unwatched(), constant(45, 60)).run(3_000)[1_000:]) > 0.9  # where nobody looks


def test_flows_that_seldom_send_are_watched_too() -> None:
    """Of 100 flows each sends a packet in two windows; moved, twice as many, and the classic ones half."""
    last: list[bool] = []
    world, rng = watched(bytes_of=lambda *_: 0), np.random.default_rng(5)
    sent_ns: dict[tuple[bool, int], int] = {}
    while world.now_ns < 12_000 * MS:
        last += world.run(1)
        part = sum(last[-100:]) / 100
        for movable, mean in ((True, 1 + part), (False, 1 - part / 2)):
            for flow in rng.integers(0, 100, rng.poisson(mean)):
                before_ns = sent_ns.get((movable, flow), -1)
                world.guard.carried(1, world.now_ns, 1_500, before_ns=before_ns, movable=movable)
                sent_ns[movable, flow] = world.now_ns
    assert (world.guard.counts().advantage, world.guard.counts().stopped) == (1, 1)


def test_moving_is_held_for_a_small_part_of_the_time() -> None:
    world = watched()
    world.run(5_000)
    moved = np.array(world.run(30_000))  # a minute
    assert world.guard.counts().stops == 0
    held = np.convolve(moved, np.ones(100), "valid") == 0  # for 200 ms and more
    assert 0 < held.mean() < 0.1


@pytest.mark.long
def test_a_change_is_seldom_seen_where_there_is_none() -> None:
    """Rates of heavy tails and one mean, moved or not, for 20 s: at most alpha of the lives are stopped."""
    stopped = 0
    for seed in range(100):
        rates = np.random.default_rng(seed).pareto(2.5, 500) * 1_000

        def rate(_: bool, now_ns: int, rates: NDArray[np.float64] = rates) -> float:
            return float(rates[now_ns // (100 * MS) % 500])

        world = watched(bytes_of=rate, others=rate)
        world.run(10_000)
        stopped += world.guard.counts().grown + world.guard.counts().advantage > 0
    assert stopped / 100 <= ALPHA


def lived(world: World, seconds: float, last: list[bool]) -> None:
    """Go on until then, and note what was moved: `of_moved` looks there."""
    while world.now_ns < seconds * 1_000 * MS:
        last += world.run(1)


def of_moved(last: list[bool], moved: float, unmoved: float) -> Callable[..., float]:
    """A rate that follows the part that is really moved, holds and all."""
    return lambda *_: unmoved + (moved - unmoved) * sum(last[-100:]) / 100


def test_moved_flows_that_gain_on_classic_ones_stop_moving() -> None:
    """Their flow sends half as much again, the sender's classic one half as much: within 5 s."""
    last: list[bool] = []
    world = watched(bytes_of=of_moved(last, 1_500, 1_000), others=of_moved(last, 1_500, 3_000))
    lived(world, 8, last)
    counts = world.guard.counts()
    assert (counts.admitted, counts.advantage, counts.grown, counts.stops, counts.stopped) == (1, 1, 0, 1, 1)
    began = np.argmax(np.convolve(last, np.ones(50), "valid") > 10)
    assert (np.flatnonzero(last)[-1] - began) * 2 * MS < 5_000 * MS


@pytest.mark.slow
def test_after_an_advantage_the_pause_is_long_and_doubles() -> None:
    """With growth not watched, too."""
    last: list[bool] = []
    world = watched(bytes_of=of_moved(last, 1_500, 1_000), others=of_moved(last, 1_500, 3_000))
    world.guard = Guard(most_growth=0)
    lived(world, 150, last)
    assert (world.guard.counts().advantage, world.guard.counts().stops) == (3, 3)
    still = np.diff(np.flatnonzero(last)) * 2 / 1_000
    assert [round(s / 32) for s in still if s > 10] == [1, 2]


def test_receivers_of_classic_flows_alone_leave_room() -> None:
    guard = Guard()
    for receiver in range(10, 10 + 2 * MOST_RECEIVERS):
        guard.carried(receiver, 0, 1_000, movable=False)
    World(guard, constant(45, 60)).run(600)
    assert guard.counts().pairs > 0


@pytest.mark.parametrize(("moved", "classic"), [(1_000, 700), (1_400, 1_000), (500, 400), (3_000, 3_000)])
def test_an_advantage_that_is_allowed_stops_nothing(moved: float, classic: float) -> None:
    """What befalls both alike is none, be it a third of the rate or three times as much."""
    last: list[bool] = []
    world = watched(bytes_of=of_moved(last, moved, 1_000), others=of_moved(last, classic, 1_000))
    lived(world, 20, last)
    assert (world.guard.counts().advantage, world.guard.counts().moving) == (0, 1)


def test_fewer_classic_flows_are_no_advantage() -> None:
    """Two flows before moving, one of them while packets are moved."""
    world, before_ns = watched(others=lambda *_: 1_000), -1
    while world.now_ns < 20_000 * MS:
        world.run(50)
        if not world.guard.counts().moving:
            world.guard.carried(1, world.now_ns, 50_000, before_ns=before_ns, movable=False)
            before_ns = world.now_ns
    assert (world.guard.counts().advantage, world.guard.counts().moving) == (0, 1)


def test_classic_flows_that_were_never_seen_unmoved_are_not_compared() -> None:
    world = watched()
    world.run(1_500)
    assert world.guard.counts().moving == 1
    world.others = lambda _, now_ns: 9_000 if now_ns < 3_300 * MS else 10
    world.run(200)
    assert (world.guard.counts().advantage, world.guard.counts().moving) == (0, 1)


def test_growth_counts_only_where_no_classic_flow_tells() -> None:
    """Moved flows send thrice as much, and so does the classic one, until it ends."""
    last: list[bool] = []
    rate = of_moved(last, 3_000, 1_000)
    world = watched(bytes_of=rate, others=rate)
    lived(world, 16, last)
    assert (world.guard.counts().grown, world.guard.counts().moving) == (0, 1)
    world.others = None  # after 10 s its word counts no more
    lived(world, 32, last)
    assert world.guard.counts().grown == 1


def test_further_flows_are_no_growth() -> None:
    """Thrice as many bytes of thrice as many flows."""
    guard = Guard(most_growth=0.5)
    world = World(guard, constant(45, 60))
    world.run(2_000)
    assert guard.counts().moving == 1
    for _ in range(100):
        before_ns = world.now_ns
        world.run(50)
        for _flow in range(2):
            guard.carried(1, world.now_ns, 50_000, before_ns=before_ns)
    assert (guard.counts().grown, guard.counts().moving) == (0, 1)


def test_nothing_is_tried_before_the_unmoved_rate_is_known() -> None:
    guard = Guard(most_growth=0.5)
    assert not any(guard.rule(1, t)[1] for t in range(100))
    World(guard, constant(45, 60)).run(600)
    assert guard.counts().pairs > 0


def test_a_trial_of_one_packet_moves_one() -> None:
    guard = unwatched()
    while not (ruled := guard.rule(1, 0))[1]:
        pass
    moved, arm = ruled
    assert guard.moves(1, arm, decided=moved) == moved
    guard.sent(0, 0, 1, CLASSIC if moved else L4S, arm)
    assert not guard.moves(1, arm, decided=moved)  # the others do as the state says: it is a trial
    assert not guard.moves(1, 0, decided=True)
    assert not guard.moves(7, arm, decided=True)


times = st.integers(0, 2**62)
events = st.one_of(
    st.tuples(st.just("rule"), st.integers(-(2**31), 2**31 - 1) | st.integers(0, 2), times),
    st.tuples(st.just("sent"), times, times),
    st.tuples(st.just("acked"), times | st.integers(0, 40), times),
    st.tuples(st.just("carried"), st.integers(0, 2), times),
)


@given(st.lists(events, max_size=80))
def test_any_order_of_events_is_taken(happened: list[tuple[str, int, int]]) -> None:
    """Times that fall, ACKs of packets never sent, packets sent twice: no state goes below nothing."""
    guard, arms = Guard(most_growth=0.5), [(0, 0)]
    for what, a, b in happened:
        if what == "rule":
            _, arm = guard.rule(a, b)
            arms.append((a, arm))
        elif what == "sent":
            receiver, arm = arms[a % len(arms)]
            guard.sent(a % 40, b, receiver, CLASSIC if arm % 2 else L4S, arm)
            guard.moves(receiver, arm, decided=bool(b % 2))
        elif what == "carried":
            guard.carried(a, b, b % 1_500, before_ns=b - a * 30 * MS, movable=bool(b % 3))
        else:
            guard.acked(a, b, known=bool(b % 3))
        counts = guard.counts()
        assert min(counts.trial, counts.moving, counts.stopped, counts.pairs) >= 0
        assert counts.trial + counts.moving + counts.stopped <= MOST_RECEIVERS
        assert counts.admitted <= counts.trials
    assert counts.trials >= counts.trial if happened else True


def test_changes_of_rate_that_cannot_be_are_refused() -> None:
    nan = float("nan")
    for growth, advantage in ((-0.1, 0.0), (nan, 0.0), (0.0, -0.1), (0.0, nan)):
        with pytest.raises(ValueError, match="give 0 or more"):
            Guard(most_growth=growth, most_advantage=advantage)
