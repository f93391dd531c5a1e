"""The scheduler between two rounds; the rounds themselves run in tests/integration/test_live_rounds.py."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from swiftqueue.pipelines.live import scheduler
from swiftqueue.pipelines.live.metrics import Metrics
from swiftqueue.pipelines.live.rounds import Rounds
from swiftqueue.pipelines.live.rounds_log import RoundRecord
from swiftqueue.pipelines.live.scheduler import Scheduler


class Quiet:
    """Rounds that take no time; the third look finds a bad head."""

    def __init__(self) -> None:
        self.events: list[tuple[str, float]] = []
        self.probation = self

    def run(self) -> RoundRecord:
        self.events.append(("round", time.monotonic()))
        return RoundRecord(len(self.events), 0.0, outcome="pushed", seconds={"total": 0.0})

    def watch(self) -> str:
        self.events.append(("look", time.monotonic()))
        looks = sum(what == "look" for what, _ in self.events)
        return "version 2 is rolled back to 1: it was bad" if looks == 3 else ""


def test_what_serves_is_looked_at_between_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "WATCH_EVERY_S", 0.1)
    monkeypatch.setattr(scheduler, "WATCH_TAKES_S", 0.6)
    rounds, metrics, said = Quiet(), Metrics(), list[str]()
    Scheduler(cast(Rounds, rounds), 2.0, metrics).run(2, said.append)
    first, second = (at_s for what, at_s in rounds.events if what == "round")
    looks = [at_s for what, at_s in rounds.events if what == "look"]
    assert len(looks) >= 3
    assert second - first == pytest.approx(2, abs=0.5)
    assert all(first < at_s < second - 0.5 for at_s in looks)  # none that could delay the round
    assert "version 2 is rolled back to 1: it was bad" in said
    rolled_back: Any = metrics._rollbacks
    assert rolled_back._value.get() == 1


def test_a_slow_look_delays_a_round_and_is_not_taken_for_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "WATCH_EVERY_S", 0.1)
    monkeypatch.setattr(scheduler, "WATCH_TAKES_S", 0.0)
    rounds, metrics, said = Quiet(), Metrics(), list[str]()
    monkeypatch.setattr(rounds, "watch", lambda: threading.Event().wait(1.3) * "")
    Scheduler(cast(Rounds, rounds), 0.5, metrics).run(2, said.append)
    (first, second), counted = (at_s for _, at_s in rounds.events), metrics._rounds.labels("skipped")
    assert 1.3 < second - first < 1.9
    assert said[1:-1] == ["a look delayed the next round: it begins 1 s late"]  # the others are the rounds'
    assert cast(Any, counted)._value.get() == 0
