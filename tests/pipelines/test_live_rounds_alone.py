"""Rounds of the live loop without a service: their limits, and a candidate that ends the worker."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from toy_world import START_NS, bottleneck_table

from swiftqueue.common.lock import LockHeldError
from swiftqueue.feature_store.events.beginning import NOTHING
from swiftqueue.feature_store.telemetry.recent import RecentPackets
from swiftqueue.models.networks.files import DESCRIPTION_FILE, WEIGHTS_FILE
from swiftqueue.models.registry.saving import INPUTS_FILE
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.training.warm_worker import WarmWorkerError
from swiftqueue.pipelines.live import probation, runner
from swiftqueue.pipelines.live import rounds as live
from swiftqueue.pipelines.live.command import round_params, schedule
from swiftqueue.pipelines.live.retrain import RetrainError, Retraining, stage_params
from swiftqueue.pipelines.live.rounds_log import RoundRecord
from swiftqueue.pipelines.live.runner import alone
from swiftqueue.pipelines.live.watch import HeadComparison, HeadPair

FINETUNE = FinetuneParams(seed=1, workers=1, epochs=2, batch_size=64, learning_rate=1e-3, sharp_weight=1)


class Candidate:
    """A re-train that is done, until it is dropped."""

    there = True

    def candidate(self) -> object | None:
        return object() if self.there else None

    def drop(self) -> None:
        self.there = False

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> live.RoundParams:
    """Of rounds whose registry has a champion, and nothing else."""
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    registry = SimpleNamespace(fetch=lambda version, folder: folder, reference=lambda version: version)
    monkeypatch.setattr(live, "Registry", lambda model: registry)
    monkeypatch.setattr(live, "read_files", lambda folder: {})
    for name, value in {
        "find_champion": lambda registry, kind: SimpleNamespace(version=1, astray=""),
        "serve_champion": lambda kind: None,
        "held": lambda kind: None,
    }.items():
        monkeypatch.setattr(runner, name, value)
    limits = {"max_unknown_latency": 0.5, "max_latency_s": 10}
    return round_params(limits, learn_s=6, judge_s=2, least_decisions=50)


def test_a_declined_round_is_a_turn_and_names_a_damaged_file(
    params: live.RoundParams, capsys: pytest.CaptureFixture[str]
) -> None:
    packets = bottleneck_table("a", seconds=1)
    latest = RecentPackets(packets, 1, 1, packets.height, NOTHING, damaged="part-1.parquet cannot be read")
    for number in (1, 2):  # and a scheduler that came back
        rounds = live.Rounds(lambda seconds, sender: latest, params, FINETUNE, "swiftqueue")
        assert rounds.run().reason.startswith("telemetry has gaps")
        assert rounds.turns == ["a"] * number
        rounds.close()
        assert capsys.readouterr().out.count("part-1.parquet") == 1


def test_a_candidate_that_ends_the_worker_twice_is_given_up(
    params: live.RoundParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = RecentPackets(bottleneck_table("live", seconds=1), 0, 1, 0, NOTHING)
    retraining: Any = Candidate()
    rounds = live.Rounds(lambda seconds, sender: latest, params, FINETUNE, "swiftqueue", retraining)
    monkeypatch.setattr(rounds, "_validate", lambda latest, record: latest)

    def too_slow(*_: object) -> None:
        raise WarmWorkerError("Ray's worker did not finish its work within 120 s")

    monkeypatch.setattr(rounds, "_tune", too_slow)
    assert [(rounds.run().retraining, retraining.there) for _ in range(3)] == [
        ("", True),
        ("failed", False),
        ("", False),
    ]
    rounds.close()


def test_a_shadow_counts_what_came_while_it_waited(
    params: live.RoundParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 20 batches a second the 256 come in thirteen seconds: within its wait, and never in ten."""
    table = bottleneck_table("live", seconds=60, packets_per_s=160)
    clock = SimpleNamespace(now_s=20.0)
    monkeypatch.setattr(clock, "monotonic", lambda: clock.now_s, raising=False)
    monkeypatch.setattr(clock, "sleep", lambda s: setattr(clock, "now_s", clock.now_s + s), raising=False)
    monkeypatch.setattr(probation, "time", clock)

    def telemetry(seconds: float, sender: str = "") -> RecentPackets:
        sent_s = (pl.col("sent_ns") - START_NS) / 1e9
        packets = table.filter(sent_s.is_between(clock.now_s - seconds, clock.now_s))
        return RecentPackets(packets, int(START_NS + clock.now_s * 1e9), 1, 0, NOTHING)

    def compared(pair: HeadPair) -> HeadComparison:
        batches = pair.packets.filter(pl.col("sent_ns") >= pair.from_ns).height // 8
        return HeadComparison(batches, 0.0, {}, "late", {})

    worker: Any = SimpleNamespace(do=compared)
    found = probation.Probation(telemetry, worker, "swiftqueue", lead_in_s=5)
    record = RoundRecord(1, 0.0, sender="live")
    assert found.shadow(record, telemetry(5), {}, {}) == "late"
    assert record.shadow["batches"] >= found.shadow_batches == 256


def test_a_version_that_is_deployed_again_is_watched_beside_the_one_that_it_replaced(
    params: live.RoundParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no more beside the one that it had replaced before."""
    switch = {"action": "deploy", "version": 5, "previous": 4}
    tags = SimpleNamespace(tags=lambda version: {})
    for name, value in {
        "deploy_log": SimpleNamespace(last_switch=lambda: switch),
        "held": lambda: None,
        "Registry": lambda model: tags,
        "find_champion": lambda registry: SimpleNamespace(version=5),
        "files_of": lambda registry, version: {str(version): b""},
    }.items():
        monkeypatch.setattr(probation, name, value)
    beside: list[str] = []

    def compared(pair: HeadPair) -> HeadComparison:
        beside.extend(pair.other)
        return HeadComparison(1, 0.0, {}, "", {})

    worker: Any = SimpleNamespace(do=compared)
    latest = RecentPackets(bottleneck_table("live", seconds=1), 1, 1, 0, NOTHING)
    found = probation.Probation(lambda seconds, sender: latest, worker, "swiftqueue", lead_in_s=5)
    for previous in (4, 6):
        switch["previous"] = previous
        assert found.watch() == ""
    assert beside == ["4", "6"]


def test_a_retrain_is_as_long_as_its_decisions() -> None:
    packets = pl.DataFrame({"sent_ns": np.arange(63) * 50_000_000})  # 3.1 s, and the seventh decision at 2.4
    with pytest.raises(RetrainError, match=r"2\.4 s of telemetry are too few"):
        stage_params({}, packets)


def test_a_retrain_with_auto_chooses_among_what_is_served(project: Path) -> None:
    packets = pl.DataFrame({"sent_ns": np.arange(800) * 10_000_000})
    own = yaml.safe_load((project / "params.yaml").read_text())
    served = [name for name in own["auto"]["candidates"] if name != "virtual-queue"]
    assert len(served) == len(own["auto"]["candidates"]) - 1
    made = stage_params(own | {"architecture": {"name": "auto"}}, packets)
    assert made["auto"]["candidates"] == served
    assert {"trees", "mlp", "event-stream"} <= set(made)
    assert "auto" not in stage_params(own, packets)


@pytest.mark.parametrize("ended", [True, False])
def test_a_retrain_that_made_nothing_leaves_its_log_alone(
    params: live.RoundParams, tmp_path: Path, ended: bool
) -> None:
    """Not the gigabytes of its telemetry and windows, for which the next one may come in weeks."""
    retraining = Retraining({})
    folder = tmp_path / "live" / "retrain"
    (folder / "packets").mkdir(parents=True)
    retraining.log.write_text("stage pretrain ended with code 1\n")
    retraining._process = subprocess.Popen(["false"] if ended else ["sleep", "60"])
    if ended:
        retraining._process.wait()
        with pytest.raises(RetrainError, match="the re-train failed: stage pretrain"):
            retraining.finish()
    else:
        retraining.close()
    assert not folder.exists()
    assert retraining.log.is_file()


@pytest.mark.parametrize("damaged", ["tags.yaml", INPUTS_FILE])
def test_a_candidate_that_a_power_cut_left_empty_is_dropped(
    params: live.RoundParams, tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: str
) -> None:
    """It ended each scheduler in its first round."""
    folder = tmp_path / "live" / "retrain" / "candidate"
    folder.mkdir(parents=True)
    for name in (DESCRIPTION_FILE, WEIGHTS_FILE):
        (folder / name).touch()
    (folder / "tags.yaml").write_text("retrain.protocol: small\n")
    np.save(folder / INPUTS_FILE, np.zeros((2, 3), np.float32))
    retraining = Retraining({})
    assert retraining.candidate() is not None
    (folder / damaged).write_bytes(b"")
    nothing: Any = None
    rounds, record = live.Rounds(nothing, params, FINETUNE, "swiftqueue", retraining), RoundRecord(1, 0.0)
    assert rounds._candidate(record) is None
    assert record.retraining == "failed"
    assert "cannot be read" in capsys.readouterr().out
    assert not folder.exists()


def test_rounds_take_the_limits_that_the_section_may_have(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"max_unknown_latency": 0, "max_latency_s": 10}
    assert round_params(limits, learn_s=6, judge_s=2, least_decisions=50).max_unknown_latency == 0
    params = yaml.safe_load((project / "params.yaml").read_text())
    params["validate"]["max_unknown_latency"] = 2
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    monkeypatch.chdir(tmp_path)
    asked = {"every_s": 1, "learn_s": 6, "judge_s": 2, "least_decisions": 50, "limit": 1, "metrics_port": 0}
    with pytest.raises(ValueError, match=r"params\.yaml: validate\.max_unknown_latency is 2; it must be"):
        schedule(tmp_path, sender=None, drift=1, retrain=False, **asked)


def test_a_second_scheduler_is_refused_and_leaves_the_re_train_of_the_first(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.setattr(runner, "LOCK_WAIT_S", 0.0)
    monkeypatch.chdir(project)
    asked = {"every_s": 1, "learn_s": 6, "judge_s": 2, "least_decisions": 50, "limit": 1, "metrics_port": 0}
    (works_on := tmp_path / "live" / "retrain").mkdir(parents=True)
    with alone("schedule.lock", ""), pytest.raises(LockHeldError, match="`swiftqueue schedule`"):
        schedule(tmp_path, sender=None, drift=1, retrain=True, **asked)
    assert works_on.is_dir()
