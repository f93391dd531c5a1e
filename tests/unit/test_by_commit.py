"""Which of many tests a commit draws."""

from __future__ import annotations

import by_commit
import pytest


def test_a_commit_draws_one_in_so_many_and_another_commit_others(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"tests/unit/test_some.py::test_{i}" for i in range(6_000)]
    drawn = {}
    for commit in ("a" * 40, "b" * 40):
        monkeypatch.setattr(by_commit, "this_commit", lambda commit=commit: commit)
        drawn[commit] = {name for name in names if by_commit.drawn(name, 6)}
        assert drawn[commit] == {name for name in names if by_commit.drawn(name, 6)}
        assert 900 < len(drawn[commit]) < 1_100
    first, second = drawn.values()
    assert 90 < len(first & second) < 250  # a sixth of a sixth


def test_one_in_one_is_all() -> None:
    assert all(by_commit.drawn(f"test_{i}", 1) for i in range(100))
