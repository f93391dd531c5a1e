"""Slopes and verdict of a long run, on made-up samples; the run itself is `swiftqueue bench soak`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftqueue.benchmarks import soak


def samples(**per_hour: float) -> list[dict[str, Any]]:
    """Two hours of samples; each quantity is 100, noisy, and grows so much an hour."""
    rng = np.random.default_rng(0)
    found = []
    for n in range(720):
        hours = n * soak.SAMPLE_S / 3600
        values = {name: 100 + slope * hours + rng.normal(0, 2) for name, slope in per_hour.items()}
        found.append({"time": 1e9 + 3600 * hours, "values": values | {"versions": n, "served version": n}})
    return found


def test_what_grows_is_named_and_what_does_not_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    flat = {"ray memory MiB": 0.0, "ray open files": 0.0, "mlflow disk MiB": 50.0}
    assert soak.report(samples(**flat)) == 0
    assert "nothing grows" in capsys.readouterr().out
    assert soak.report(samples(**flat | {"agent memory MiB": 20.0})) == 1
    assert "GROWING: agent memory MiB" in capsys.readouterr().out
    assert soak.report(samples(**flat | {"agent threads": 3.0})) == 1


def test_what_is_judged_is_a_row_beside_what_is_allowed() -> None:
    found = soak.rows(samples(**{"agent memory MiB": 20.0, "ray open files": 0.0, "mlflow disk MiB": 50.0}))
    agent, ray = found
    assert agent.name.startswith("agent memory MiB, change an hour (+")
    assert (agent.reference, agent.unit, agent.rounds) == (soak.ALLOWED_MIB, "MiB/h", 720)
    assert 18 < agent.ours < 22
    assert agent.ratio < 1  # it grows
    assert (ray.reference, ray.unit) == (soak.ALLOWED_COUNT, "1/h")
    assert ray.ratio > 1


def test_the_interval_holds_the_true_slope() -> None:
    by_name = {one.name: one for one in soak.slopes(samples(a=7.0, b=-3.0))}
    assert by_name["a"].low < 7.0 < by_name["a"].high
    assert by_name["b"].low < -3.0 < by_name["b"].high
    assert by_name["versions"].allowed is None


def test_too_few_samples_are_no_slope() -> None:
    with pytest.raises(ValueError, match="24 are needed"):
        soak.slopes(samples(a=0.0)[:20])


def test_no_sample_to_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    with pytest.raises(ValueError, match=r"soak/samples\.jsonl has no samples$"):
        soak.measure(1, minutes=0)


def test_a_run_goes_on_where_it_stopped_and_loses_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.setattr(soak, "SAMPLE_S", 0.01)
    assert soak.samples_file() == tmp_path / "soak" / "samples.jsonl"
    path = tmp_path / "soak" / "samples.jsonl"
    soak.run(path, 3 * 0.01 / 60)
    with path.open("a") as lines:
        lines.write('{"time": 1')  # cut short, as by a full disk
    assert len(soak.read(path)) == 3
    soak.run(path, 5 * 0.01 / 60)
    found = soak.read(path)
    assert len(found) == 5
    assert found[-1]["values"]["served version"] == 0
