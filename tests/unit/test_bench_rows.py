"""Rows of the benches that run long, on made-up figures; and options that a bench does not have."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftqueue.benchmarks import linerate, pretrain
from swiftqueue.benchmarks.ingest import FLAT_MIB, PROMISED, RunStretch, memory_rows, slope
from swiftqueue.benchmarks.rows import run_benchmark
from swiftqueue.models.training import ray_job


def long_run(mib_per_million: float) -> list[RunStretch]:
    rates = [300_000.0, 250_000.0, 350_000.0, 260_000.0, 0.0]
    return [RunStretch(n * 1_000_000, 900.0 + mib_per_million * n, rate) for n, rate in enumerate(rates)]


@pytest.mark.parametrize("grows", [0.2, 5.0, -1.0])
def test_memory_that_grows_is_worse_than_flat(grows: float) -> None:
    assert slope(long_run(grows)) == pytest.approx(grows)
    flat, end, rate, slowest = memory_rows(long_run(grows))
    assert flat.ours == pytest.approx(grows)
    assert (flat.ratio >= 1) == (grows <= FLAT_MIB)
    assert (end.ours, end.reference) == pytest.approx((900 + 4 * grows, 900 + 2 * grows))
    assert (rate.ours, slowest.ours) == (280_000, 250_000)
    assert rate.ratio == rate.ours / PROMISED


def test_a_worker_that_was_started_again_is_no_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))

    def job(*_: object, say: Callable[[dict[str, float]], None], **__: object) -> None:
        say({"epoch": 1, "validation_log_mse": 0.5, "targets_per_s": 10.0})
        say({"resumed_at_epoch": 2})
        say({"epoch": 2, "validation_log_mse": 0.4, "targets_per_s": 30.0})

    monkeypatch.setattr(ray_job, "run_job", job)
    seconds, rate = pretrain._seconds(None, tmp_path, seed=1)
    assert seconds > 0
    assert rate == 20.0


def test_an_option_of_another_bench_is_named() -> None:
    with pytest.raises(ValueError, match="--events: bench soak has no such option"):
        run_benchmark("soak", rounds=1, as_json=True, events=5, minutes=None)
    with pytest.raises(ValueError, match="--minutes: bench ingest has no such option"):
        run_benchmark("ingest", rounds=1, as_json=True, events=None, minutes=1.0)
    with pytest.raises(ValueError, match="--long: bench swap has no such option"):
        run_benchmark("swap", rounds=1, as_json=True, long=True)


def test_the_search_finds_the_highest_rate_to_a_twentieth() -> None:
    for limit_bps in (30e6, 333e6, 5e9):
        asked: list[float] = []

        def share(rate_bps: float, limit_bps: float = limit_bps, asked: list[float] = asked) -> float:
            asked.append(rate_bps)
            return 0.995 if rate_bps <= limit_bps else 0.98

        assert limit_bps / linerate.STEP <= linerate.searched_bps(share) <= limit_bps
        assert len(asked) < 10


def test_the_usual_form_is_of_minutes_and_the_long_one_has_all_of_its_settings() -> None:
    """The stretches of five rounds, both ways, take the usual form two minutes beside the starts."""
    usual, long = linerate.USUAL, linerate.LONG

    def seconds(form: linerate.Form) -> float:
        whole = len(form.ahead_us) * (len(linerate.FLOWS) + len(form.searched_flows))
        probes = math.log2(math.log(linerate.HIGHEST_BPS / linerate.LOWEST_BPS, linerate.STEP))
        searched = len(form.ahead_us) * len(form.searched_flows)
        return 2 * (5 * form.seconds * whole + form.probe_s * math.ceil(probes) * searched)

    assert 60 < seconds(usual) < 150
    assert seconds(long) > 10 * seconds(usual)
    assert usual.ahead_us == (2_000,)
    assert set(usual.ahead_us) < set(long.ahead_us)
    assert set(usual.searched_flows) < set(long.searched_flows)
