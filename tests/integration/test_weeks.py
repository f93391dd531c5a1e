"""A few compressed rounds of the soak, with real registry, Triton and telemetry store; and its verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mutants
import pytest

from benchmarks import weeks
from benchmarks.slopes import read
from feature_store.telemetry.compact import KEEP_MINUTES
from pipelines.live import rounds_log


def samples(rounds: int, **a_week: float) -> list[dict[str, Any]]:
    """Samples of which each quantity is 100 and grows so much a simulated week."""
    return [
        {"values": {"rounds": n, **{k: 100 + v * n / weeks.ROUNDS_A_WEEK for k, v in a_week.items()}}}
        for n in range(weeks.ROUNDS_A_SAMPLE, rounds + 1, weeks.ROUNDS_A_SAMPLE)
    ]


def test_what_grows_by_more_than_is_allowed_has_a_ratio_below_one() -> None:
    found = weeks.rows(
        samples(600, **{"triton memory MiB": 20.0, "mlflow disk MiB": 0.0, "MLflow rows": 6.0})
    )
    triton, mlflow, count = found
    assert triton.ours == pytest.approx(20)
    assert triton.reference == weeks.ALLOWED_MIB
    assert triton.ratio == pytest.approx(0.25)
    assert mlflow.ratio == weeks.BEST
    assert (count.unit, count.ratio) == ("1/week", pytest.approx(5 / 6, rel=1e-3))
    assert "600 rounds" in triton.name


def test_a_run_before_the_stores_are_full_has_no_slopes() -> None:
    with pytest.raises(ValueError, match="24 are needed"):
        weeks.rows(samples(weeks.kept_rounds() + 12, **{"MLflow rows": 0.0}))


@pytest.mark.slow
@pytest.mark.skipif(not mutants.ALL, reason="a minute: make test-all")
def test_rounds_back_to_back_leave_what_is_kept_and_go_on_after_a_stop(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.setenv("SWIFTQUEUE_KEEP_VERSIONS", "2")
    monkeypatch.setattr(weeks, "ROUNDS_A_SAMPLE", 4)
    path = weeks.samples_file()
    path.parent.mkdir()
    for wanted in (8, 12):  # the second goes on
        with weeks.own_state(tmp_path / "soak" / "weeks", shadow_batches="0"):
            weeks.run(path, wanted)
    first, second, third = (one["values"] for one in read(path))
    assert [one["rounds"] for one in (first, second, third)] == [4, 8, 12]
    history = rounds_log.read(tmp_path / "soak" / "weeks" / "live" / rounds_log.LOG_FILE)
    assert [one["outcome"] for one in history] == ["pushed"] * 12
    assert len({one["version"] for one in history}) == 12
    newest_s = [one["newest_ns"] / 1e9 for one in history]
    assert newest_s[-1] - newest_s[0] == pytest.approx(11 * weeks.ROUND_S, abs=5)
    assert third["mlflow files"] == second["mlflow files"], "versions that nobody needs are gone"
    minutes = tmp_path / "soak" / "weeks" / "telemetry" / "packets" / f"trace={weeks.SENDER}"
    assert 12 * weeks.ROUND_S // 60 <= len(list(minutes.glob("minute=*"))) <= KEEP_MINUTES
