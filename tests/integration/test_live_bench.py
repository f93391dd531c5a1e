"""`bench live`, made short: slower traffic and a few seconds of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.bench import live

pytestmark = pytest.mark.slow


def test_a_round_is_timed_up_to_an_asking_clients_first_answer(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(live, "TRAFFIC", {"seeds": [1]})
    for name, value in (("LEARN_S", 6.0), ("JUDGE_S", 3.0), ("LEAD_IN_S", 2.0), ("LEAST_WINDOWS", 50)):
        monkeypatch.setattr(live, name, value)
    rows = live.measure(rounds=1)
    first, slowest, cold = rows[:3]
    assert first.name.startswith("trigger to the first answer of the new version, ")
    assert (first.reference, first.unit) == (live.PROMISED_S, "s")
    assert 0 < first.ours <= slowest.ours
    assert cold.reference > 0
    steps = {row.name.removeprefix("step "): row.ours for row in rows if row.name.startswith("step ")}
    assert {"telemetry", "encode", "train", "register", "push", "total"} <= set(steps)
    assert sum(seconds for step, seconds in steps.items() if step != "total") <= steps["total"]
    assert rows[-1].ours == 1, rows[-1]  # every question was answered
