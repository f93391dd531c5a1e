"""Rounds of the live loop with the real Ray, registry and Triton."""

from __future__ import annotations

import re
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import psutil
import pytest

from feature_store.telemetry import Latest
from infra.live.metrics import Metrics
from infra.live.rounds import RoundParams, Rounds
from infra.live.scheduler import Scheduler
from models.finetuning import FinetuneParams
from models.registry import CHAMPION, Registry
from serving.endpoint import Triton
from serving.push import served_version

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from bottleneck_tables import START_NS, bottleneck_table

pytestmark = pytest.mark.slow

PARAMS = RoundParams(
    learn_s=6,
    judge_s=2,
    lead_in_s=1,
    least_windows=50,
    max_psi=4,
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

    def __call__(self, seconds: float) -> Latest:
        self.now_s += 1
        sent_s = (pl.col("sent_ns") - START_NS) / 1e9
        packets = self.table.filter(sent_s.is_between(self.now_s - seconds, self.now_s))
        starts = dict(self.table.group_by("flow_id").agg(pl.col("sent_ns").min()).iter_rows())
        newest_ns = int(START_NS + self.now_s * 1e9)
        return Latest(packets, newest_ns, 1, self.missing, starts)


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


@pytest.fixture(scope="module")
def rounds(triton: Path, champion: int, source: Source, ray_cluster: None) -> Iterator[Rounds]:
    rounds = Rounds(source, PARAMS, FINETUNE, "swiftqueue")
    yield rounds
    rounds.close()


def served() -> int | None:
    with Triton() as triton:
        return served_version(triton)


def test_a_round_ends_in_a_served_version(rounds: Rounds, champion: int) -> None:
    record = rounds.run()
    assert record.outcome == "pushed", record.reason
    assert record.parent == champion
    assert record.version is not None
    assert served() == record.version == Registry("swiftqueue").alias(CHAMPION)
    tags = Registry("swiftqueue").tags(record.version)
    assert tags["parent_version"] == str(champion)
    assert tags["source"] == "telemetry/live"
    steps = {"telemetry", "validate", "load", "encode", "train", "judge", "register", "push", "total"}
    assert set(record.seconds) == steps
    assert rounds.history()[-1]["version"] == record.version


@pytest.mark.parametrize(
    ("rows", "missing", "change", "line"),
    [
        (0, 0, {}, "no telemetry"),
        (400, 0, {}, "windows to learn from"),
        (9000, 0, {"size_bytes": pl.lit(0, pl.Int32)}, "bad telemetry: .*size_bytes"),
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


def test_a_killed_worker_costs_at_most_one_round(rounds: Rounds) -> None:
    children = psutil.Process().children(recursive=True)
    mine = [child for child in children if "RayTrainWorker" in " ".join(child.cmdline())]
    assert mine
    for worker in mine:
        worker.kill()
    first, second = rounds.run(), rounds.run()
    assert first.outcome in ("failed", "pushed", "kept"), first.reason
    assert second.outcome in ("pushed", "kept"), second.reason


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
    assert float(values["swiftqueue_served_version"]) == served()
    assert float(values["swiftqueue_served_version_age_seconds"]) < 60
