"""The time that a training still takes is said from its second epoch on, and not after its last."""

from __future__ import annotations

from swiftqueue.models.training.epochs import TimeLeft


def test_the_time_left_comes_from_the_epochs_so_far() -> None:
    times = iter([100.0, 110.0, 140.0, 150.0])
    left = TimeLeft(4, lambda: next(times))
    # The first epoch has Ray's start within, so it does not count.
    assert [left.words(epoch) for epoch in (1, 2, 3, 4)] == ["", ", about 20 s left", ", about 20 s left", ""]


def test_a_resumed_training_counts_from_where_it_resumed() -> None:
    times = iter([0.0, 5.0])
    left = TimeLeft(16, lambda: next(times))
    assert [left.words(epoch) for epoch in (9, 10)] == ["", ", about 30 s left"]
