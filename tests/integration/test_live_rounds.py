"""Rounds of the live loop with the real Ray, registry and Triton."""

from __future__ import annotations

import contextlib
import gc
import re
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import psutil
import pytest
import torch
import yaml
from toy_world import START_NS, bottleneck_table
from waiting import wait_until

from swiftqueue.benchmarks.version_watch import VersionWatch
from swiftqueue.feature_store.events.beginning import NOTHING
from swiftqueue.feature_store.telemetry.recent import RecentPackets
from swiftqueue.models.networks import artifact
from swiftqueue.models.registry.registry import CHAMPION, Registry
from swiftqueue.models.registry.saving import INPUTS_FILE
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.pipelines.live.metrics import Metrics
from swiftqueue.pipelines.live.minute import TuningResult
from swiftqueue.pipelines.live.retrain import Retraining, scratch
from swiftqueue.pipelines.live.rounds import RoundParams, Rounds
from swiftqueue.pipelines.live.rounds_log import RoundRecord
from swiftqueue.pipelines.live.scheduler import Scheduler
from swiftqueue.serving.deploy.deployment import deploy_version, rollback_champion
from swiftqueue.serving.deploy.log import age_s
from swiftqueue.serving.triton.endpoint import Triton, grpc_address

pytestmark = pytest.mark.slow

PARAMS = RoundParams(
    learn_s=6,
    judge_s=2,
    lead_in_s=1,
    least_decisions=50,
    drift=4,
    max_unknown_latency=0.5,
    max_latency_s=10,
)
FINETUNE = FinetuneParams(seed=1, workers=1, epochs=2, batch_size=64, learning_rate=1e-3, sharp_weight=1)


class Source:
    """Telemetry of a made-up sender; each round comes a second later."""

    def __init__(self) -> None:
        self.table = bottleneck_table("live", seconds=40)
        self.now_s = 9.0
        self.missing = 0

    def __call__(self, seconds: float, sender: str = "") -> RecentPackets:
        self.now_s += 1
        sent_s = (pl.col("sent_ns") - START_NS) / 1e9
        packets = self.table.filter(sent_s.is_between(self.now_s - seconds, self.now_s))
        before = self.table.filter(sent_s < self.now_s - seconds).height
        beginning = NOTHING.moved(self.table, before) if packets.height else NOTHING
        newest_ns = int(START_NS + self.now_s * 1e9)
        return RecentPackets(packets, newest_ns, 1, self.missing, beginning)


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


@pytest.fixture(scope="module", autouse=True)
def no_shadow() -> Iterator[None]:
    """The source's forty seconds would be over; one test has a shadow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWIFTQUEUE_SHADOW_BATCHES", "0")
        patch.setenv("SWIFTQUEUE_ROLLBACK_AFTER_S", "5")
        yield


@pytest.fixture(scope="module")
def rounds(triton: Path, champion: int, source: Source, ray_cluster: None) -> Iterator[Rounds]:
    rounds = Rounds(source, PARAMS, FINETUNE, "swiftqueue")
    yield rounds
    rounds.close()


def served() -> int | None:
    with Triton() as triton:
        return triton.served_version()


def test_a_round_ends_in_a_served_version(rounds: Rounds, champion: int) -> None:
    record = rounds.run()
    assert record.outcome == "pushed", record.reason
    assert record.parent == champion
    assert record.version is not None
    assert served() == record.version == Registry("swiftqueue").alias(CHAMPION)
    tags = Registry("swiftqueue").tags(record.version)
    assert tags["parent_version"] == str(champion)
    assert tags["source"] == "telemetry/live"
    steps = {
        "champion",
        "telemetry",
        "validate",
        "fetch",
        "workers",
        "load",
        "encode",
        "train",
        "judge",
        "register",
        "push",
    }
    assert set(record.seconds) == steps | {"total"}
    assert rounds.history()[-1]["version"] == record.version


def test_a_spoilt_head_is_kept_from_serving(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    before = served()
    monkeypatch.setattr(rounds, "_finetune", FINETUNE.model_copy(update={"learning_rate": 1.0}))
    record = rounds.run()
    assert record.outcome == "kept", record.reason
    assert record.reason.startswith("worse than the champion: ")
    registry = Registry("swiftqueue")
    assert registry.tags(int(record.version or 0))["gate"] == "failed"
    assert served() == before == registry.alias(CHAMPION) == record.parent


@pytest.mark.parametrize(
    ("rows", "missing", "change", "line"),
    [
        (0, 0, {}, "no telemetry"),
        (400, 0, {}, "decisions to learn from"),
        (9000, 0, {"size_bytes": pl.lit(0, pl.Int32)}, "bad telemetry: .*size_bytes"),
        (9000, 0, {"latency_us": pl.lit(1.0, pl.Float32)}, r"impossible claims: \d+ latency_below_path"),
        (9000, 500, {}, "telemetry has gaps: 500 packets are missing among"),
    ],
)
def test_unsound_telemetry_is_declined_and_the_champion_goes_on(
    rounds: Rounds, source: Source, rows: int, missing: int, change: dict[str, pl.Expr], line: str
) -> None:
    before, whole, now_s = served(), source.table, source.now_s
    source.table, source.now_s, source.missing = whole[:rows].with_columns(**change), 8.0, missing
    record = rounds.run()
    source.table, source.now_s, source.missing = whole, now_s, 0
    assert record.outcome == "declined", record.reason
    assert re.search(line, record.reason)
    assert served() == before


def test_telemetry_that_a_round_has_learned_from_teaches_no_other(rounds: Rounds, source: Source) -> None:
    learned = rounds.run()
    before = served()
    assert learned.outcome in ("pushed", "kept"), learned.reason
    for one in (rounds, Rounds(source, PARAMS, FINETUNE, "swiftqueue")):  # and a scheduler that came back
        source.now_s -= 1
        record = one.run()
        assert (record.outcome, record.reason) == ("declined", f"no telemetry since round {learned.number}")
    assert served() == before


def test_a_rollback_during_a_round_stands(
    rounds: Rounds, champion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first version is untrained, so that its child passes the gate."""
    deploy_version(champion)
    judge = rounds._tune

    def rolled_back(*arguments: Any) -> TuningResult:
        tuned = judge(*arguments)
        rollback_champion()
        return tuned

    monkeypatch.setattr(rounds, "_tune", rolled_back)
    record = rounds.run()
    back = served()
    assert record.outcome == "declined", record.reason
    assert record.reason.endswith(f"was judged against champion {champion}; {back} is champion now")
    assert back == Registry("swiftqueue").alias(CHAMPION) != record.version


def spoilt_files(files: Mapping[str, bytes], folder: Path) -> dict[str, bytes]:
    """An artifact whose head says a twentieth of what it would."""
    for name, content in files.items():
        (folder / name).write_bytes(content)
    loaded = artifact.load(folder)
    with torch.no_grad():
        loaded.model.head[2].bias -= np.log(20) / loaded.model.target.scale
    artifact.save(folder / "bad", loaded.model, loaded.description.protocol)
    return artifact.read_files(folder / "bad")


def let_a_bad_head_through(rounds: Rounds, patch: pytest.MonkeyPatch, folder: Path) -> None:
    """The gate passes a deliberately bad head, as it might by chance."""
    judge = rounds._tune

    def passed(*arguments: Any) -> TuningResult:
        tuned = judge(*arguments)
        verdict = replace(tuned.verdict, passed=True, reason="a test lets it through")
        return replace(tuned, files=spoilt_files(tuned.files, folder), verdict=verdict)

    patch.setattr(rounds, "_tune", passed)


def test_a_bad_head_in_shadow_never_serves(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = served()
    let_a_bad_head_through(rounds, monkeypatch, tmp_path)
    monkeypatch.setattr(rounds.probation, "shadow_batches", 100)
    record = rounds.run()
    assert record.outcome == "kept", record.reason
    assert record.reason.startswith("worse than the champion in shadow: log-error ")
    assert record.shadow["batches"] >= 100
    assert record.shadow["head"]["log_mae"] > record.shadow["other"]["log_mae"]
    assert served() == before
    version = int(record.version or 0)
    assert "did not pass the gate: worse than the champion in shadow" in Registry("swiftqueue").refusal(
        version
    )


def test_a_bad_head_that_serves_is_put_back_without_a_hand(
    rounds: Rounds, source: Source, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under load: whoever asks meanwhile gets an answer each time."""
    before = served()
    with monkeypatch.context() as patch:
        let_a_bad_head_through(rounds, patch, tmp_path)
        bad = rounds.run()
    assert bad.outcome == "pushed", bad.reason
    assert served() == bad.version
    assert rounds.probation.watch() == ""  # a second of traffic says too little
    source.now_s += 6
    with VersionWatch(grpc_address()) as asking:
        asking.first_answer_s(int(bad.version or 0), 60)
        line = rounds.probation.watch()
        asking.first_answer_s(int(before or 0), 60)
        answered = asking.close()
    assert line.startswith(f"version {bad.version} is rolled back to {before}: over "), line
    assert "log-error worse by " in line
    assert served() == before == Registry("swiftqueue").alias(CHAMPION)
    assert answered == 1
    assert rounds.probation.watch() == ""
    after = rounds.run()
    assert f"version {bad.version} was rolled back to {before}: over " in after.reason
    assert "rolled back" not in rounds.run().reason


def test_a_retrained_model_that_cannot_be_used_costs_one_round_at_most(
    rounds: Rounds, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = yaml.safe_load((project / "params.yaml").read_text())
    monkeypatch.setattr(rounds, "_retraining", Retraining(params))
    made = rounds.log.parent / "retrain" / "candidate"
    made.mkdir(parents=True)
    first = rounds.run()
    assert (first.outcome in ("pushed", "kept"), first.retraining) == (True, "failed"), first.reason
    assert not made.exists()
    for name, content in (("model.json", "{}"), ("model.safetensors", ""), ("tags.yaml", "{}")):
        made.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(content)
    np.save(made / INPUTS_FILE, np.zeros((1, 1), np.float32))
    second, third = rounds.run(), rounds.run()
    assert (second.outcome, second.retraining) == ("failed", "failed"), second.reason
    assert third.outcome in ("pushed", "kept"), third.reason
    assert not third.retrain  # else it has started a real one


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("damaged", "minute 7: damaged"),
        ("claims", "makes impossible claims"),
        ("gaps", "telemetry has gaps: 9000 packets are missing"),
        ("", ""),
    ],
)
def test_a_retrain_learns_from_nothing_that_a_round_refuses(
    rounds: Rounds, source: Source, project: Path, monkeypatch: pytest.MonkeyPatch, bad: str, reason: str
) -> None:
    def telemetry(seconds: float, sender: str = "") -> RecentPackets:
        if bad == "damaged":
            raise ValueError("minute 7: damaged")
        claimed = pl.lit(1, pl.Float32) if bad == "claims" else pl.col("latency_us")
        packets = source.table.with_columns(latency_us=claimed)
        return RecentPackets(packets, int(packets["sent_ns"][-1]), 1, 9000 if bad == "gaps" else 0, NOTHING)

    retraining = Retraining(yaml.safe_load((project / "params.yaml").read_text()))
    started: list[RecentPackets] = []
    monkeypatch.setattr(retraining, "start", started.append)
    monkeypatch.setattr(rounds, "_retraining", retraining)
    monkeypatch.setattr(rounds, "_telemetry", telemetry)
    record = RoundRecord(1, 0.0, sender="live", packets=1000, retrain=True)
    rounds._retrain(record)
    assert record.retraining == ("failed" if bad else "started")
    assert reason in record.reason
    assert len(started) == (0 if bad else 1)


def test_an_error_of_the_worker_is_named_and_costs_no_worker(rounds: Rounds) -> None:
    rounds.warm()
    with pytest.raises(RuntimeError, match="AttributeError: 'str' object has no attribute"):
        rounds._worker.do("not a minute")  # type: ignore[arg-type]
    assert rounds.run().outcome in ("pushed", "kept")


def test_rounds_do_not_keep_their_telemetry(rounds: Rounds) -> None:
    for _ in range(3):
        record = rounds.run()
        assert record.outcome in ("pushed", "kept"), record.reason
    tables = [one for one in gc.get_objects() if isinstance(one, pd.DataFrame) and "sent_ns" in one.columns]
    assert len(tables) <= 1  # Great Expectations holds the last one


def test_a_killed_worker_costs_no_round(rounds: Rounds) -> None:
    """Another takes its place and does the work."""
    children = psutil.Process().children(recursive=True)
    mine = [child for child in children if "ray::WarmActor" in " ".join(child.cmdline())]
    assert mine
    for worker in mine:
        worker.kill()
    for record in (rounds.run(), rounds.run()):
        assert record.outcome in ("pushed", "kept"), record.reason


def test_an_overlapping_round_is_skipped_and_counted(rounds: Rounds) -> None:
    metrics = Metrics()
    port = metrics.serve(0)
    lines: list[str] = []
    Scheduler(rounds, 0.2, metrics).run(2, lines.append)
    assert len([line for line in lines if ": pushed version" in line or ": kept version" in line]) == 2, lines
    assert any("skipped" in line for line in lines)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    ended = [
        float(values[f'swiftqueue_rounds_total{{outcome="{outcome}"}}']) for outcome in ("pushed", "kept")
    ]
    assert sum(ended) == 2  # the gate may keep the champion on seconds of a made-up sender
    assert float(values['swiftqueue_rounds_total{outcome="skipped"}']) > 0
    server = f'{{server="{grpc_address()}"}}'
    assert float(values[f"swiftqueue_served_version{server}"]) == served()
    age = float(values[f"swiftqueue_served_version_age_seconds{server}"])
    assert age == pytest.approx(age_s(served() or 0), abs=60)


RETRAIN_WAIT_S = 450.0  # three stages and a Ray of their own, at the lowest priority


@pytest.mark.long
@pytest.mark.timeout(RETRAIN_WAIT_S + 300)
def test_a_drift_starts_a_retrain_that_ends_as_a_challenger(
    triton: Path, champion: int, source: Source, ray_cluster: None, project: Path, tmp_path: Path
) -> None:
    params = yaml.safe_load((project / "params.yaml").read_text())
    params["event-stream"]["workers"] = 1
    retraining = Retraining(params)
    metrics = Metrics()
    rounds = Rounds(source, replace(PARAMS, drift=1e-9), FINETUNE, "swiftqueue", retraining)
    source.now_s = 15.0
    deploy_version(champion)  # which says nothing of its training's inputs
    try:
        before = rounds.run()
        assert before.outcome == "pushed", before.reason
        assert max(before.psi.values()) == 0
        assert not before.retrain
        first = rounds.run()
        assert first.retrain, first
        assert retraining.running()
        meanwhile = rounds.run()
        metrics.add(meanwhile)
        assert meanwhile.outcome in ("pushed", "kept"), meanwhile.reason
        assert meanwhile.retrain
        assert not meanwhile.retraining  # it drifts still: none is started beside the one that runs
        wait_until(lambda: not retraining.running())
        made = retraining.candidate()
        assert made is not None, retraining.log.read_text()
        inputs = made.trained_on
        deploy_version(champion)  # the untrained one, so that seconds of training are enough to pass
        judged = rounds.run()
        assert (judged.outcome, judged.retraining) == ("pushed", "pushed"), judged.reason
        assert served() == judged.version == Registry("swiftqueue").alias(CHAMPION)
        tags = Registry("swiftqueue").tags(int(judged.version or 0))
        assert tags["retrain.protocol"] == "short"
        assert tags["gate"] == "passed"
        assert not scratch().exists()
        assert retraining.candidate() is None

        after = (
            rounds.run()
        )  # of the new encoder: drift is measured from its inputs now, and none is started soon
        for version in (judged.version, after.version):
            kept = Registry("swiftqueue").fetch(int(version or 0), tmp_path / str(version)) / INPUTS_FILE
            np.testing.assert_array_equal(np.load(kept), inputs)
        assert after.outcome in ("pushed", "kept"), after.reason
        assert after.retrain
        assert not after.retraining
        assert Registry("swiftqueue").tags(int(after.version or 0))["retrain.protocol"] == "short"
        metrics.add(judged)
    finally:
        rounds.close()


def command_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):  # it has just ended
        return " ".join(process.cmdline())
    return ""


def test_a_retrain_that_is_ended_leaves_no_process(
    serving_state: Path, source: Source, project: Path
) -> None:
    params = yaml.safe_load((project / "params.yaml").read_text())
    retraining = Retraining(params)
    source.now_s = 20.0
    retraining.start(source(20.0))
    found: list[psutil.Process] = []

    def there() -> bool:  # a process that is just becoming another program has no command line
        found[:] = [
            p for p in psutil.Process().children() if "swiftqueue.pipelines.live.retrain" in command_of(p)
        ]
        return bool(found)

    wait_until(there)
    [child] = found
    wait_until(lambda: any("pipelines" in command_of(one) for one in child.children(recursive=True)))
    family = [child, *child.children(recursive=True)]
    retraining.close()
    assert not any(process.is_running() and process.status() != "zombie" for process in family)
    assert not scratch().exists()
