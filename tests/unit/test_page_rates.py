"""What the live page makes of an agent's counts and of a sender's stored packets."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from page_world import SENDER, store_packets

from swiftqueue.feature_store.telemetry.manifest import load_manifest
from swiftqueue.feature_store.telemetry.round import MAX_PARTS
from swiftqueue.infra.monitoring.page import agent_rates
from swiftqueue.infra.monitoring.page.agent_rates import AgentRates
from swiftqueue.infra.monitoring.page.latency import LatencySeries

BOUNDS_S = (0.001, 0.01, 0.1)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_rates, "LEAST_S", 0.0)


def metrics(decided: int, late: int, classic: int, l4s: int, errors: list[int]) -> str:
    """An agent's metrics page; `errors` are the counts of both histograms' buckets."""
    name = "swiftqueue_agent"
    counts = {'batches_total{outcome="decided"}': decided, 'batches_total{outcome="late"}': late}
    counts |= {'packets_total{queue="classic"}': classic, 'packets_total{queue="l4s"}': l4s}
    lines = [f"{name}_{series} {count}" for series, count in counts.items()]
    below = 0
    for bound, count in zip((*BOUNDS_S, "+Inf"), errors, strict=True):
        below += count
        lines.append(f'{name}_prediction_error_seconds_bucket{{le="{bound}"}} {below}')
        lines.append(f'{name}_predicted_latency_seconds_bucket{{le="{bound}"}} {below}')
    lines.append(f'{name}_server_version{{server="127.0.0.1:8001"}} 12')
    return "\n".join(lines) + "\n"


def test_rates_are_those_between_two_looks() -> None:
    rates = AgentRates()
    rates.look(metrics(1000, 0, 0, 8000, [500, 0, 0, 0]))
    assert rates.columns()["at_s"] == []
    rates.look(metrics(1030, 10, 80, 8240, [500, 100, 0, 0]))
    columns = rates.columns()
    assert columns["in_time"] == [0.75]
    assert columns["moved"] == [0.25]
    assert columns["error_median_ms"] == [pytest.approx(5.5)]  # half of the bucket from 1 to 10 ms
    assert columns["error_p90_ms"] == [pytest.approx(9.1)]
    assert columns["predicted_median_ms"] == columns["error_median_ms"]
    assert columns["predicted_p99_ms"] == [pytest.approx(9.91)]
    assert columns["round_trip_p99_ms"] == [None]
    assert rates.versions == [12]


def test_an_agent_that_counts_anew_gives_no_negative_rate() -> None:
    rates = AgentRates()
    for decided in (1000, 1010, 5, 15):
        rates.look(metrics(decided, 0, 0, 8 * decided, [0, 0, 0, 0]))
    assert len(rates.columns()["at_s"]) == 2
    assert min(one for one in rates.columns()["batches_per_s"] if one is not None) > 0
    rates.forget()
    assert rates.versions == []
    rates.look(metrics(2000, 0, 0, 0, [0, 0, 0, 0]))
    assert len(rates.columns()["at_s"]) == 2


def test_errors_above_the_last_bound_are_said_to_be_at_least_that() -> None:
    rates = AgentRates()
    rates.look(metrics(0, 0, 0, 0, [0, 0, 0, 0]))
    rates.look(metrics(1, 0, 0, 8, [0, 0, 0, 8]))
    assert rates.columns()["error_median_ms"] == [100.0]


@pytest.mark.parametrize("parts", [1, 3])
def test_each_second_has_the_quantiles_of_what_was_acknowledged_in_it(tmp_path: Path, parts: int) -> None:
    """However the packets came into the store, and how often somebody looked meanwhile."""
    latencies_ms = [float(one) for one in np.random.default_rng(parts).integers(1, 400, 500)]
    begin_ns = (time.time_ns() // 10**9 - 10) * 10**9
    series = LatencySeries(tmp_path, SENDER)
    for _ in store_packets(tmp_path, begin_ns, latencies_ms, parts):
        series.look()
    latency_ms_N = np.array(latencies_ms)
    acked_N = np.arange(len(latencies_ms)) * 10_000_000 + np.round(latency_ms_N * 1e6).astype(int)
    seconds_N = (begin_ns + acked_N) // 10**9
    expected = [latency_ms_N[seconds_N == second] for second in np.unique(seconds_N)[:-1]]
    found = series.seconds()
    assert [one.packets for one in found] == [len(one) for one in expected]
    assert [one.median_ms for one in found] == pytest.approx([np.median(one) for one in expected], rel=1e-5)


@pytest.mark.long
def test_a_minute_that_was_merged_is_not_counted_twice(tmp_path: Path) -> None:
    """The compaction makes one file of a minute's files while the sender goes on."""
    begin_ns = (time.time_ns() // 10**9 - 40) * 10**9
    series = LatencySeries(tmp_path, SENDER)
    for _ in store_packets(tmp_path, begin_ns, [8.0] * 3500, parts=MAX_PARTS + 6):
        series.look()
    files = load_manifest(tmp_path, SENDER).partitions
    assert any(len(partition.packets) + len(partition.acks) < MAX_PARTS for partition in files)
    assert {one.packets for one in series.seconds()} == {100}
    opened_now = LatencySeries(tmp_path, SENDER)
    opened_now.look()
    assert [(one.median_ms, one.packets) for one in opened_now.seconds()] == [
        (one.median_ms, one.packets) for one in series.seconds()
    ]
    times_s = [one.at_s for one in series.seconds()]
    assert np.diff(times_s) == pytest.approx(1.0)
