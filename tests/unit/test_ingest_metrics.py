"""What the ingest tells Prometheus before it has taken a batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

EXPOSE = "from swiftqueue.serving.ingest import metrics; print(metrics.exposition().decode())"
COUNT = "from swiftqueue.serving.ingest import metrics; metrics.BATCHES.labels('failed').inc()"
FORGET = "from swiftqueue.serving.ingest import metrics; metrics.forget_dead_processes()"
# A process of the node that it is told, which lives until its input ends.
LIVE = """import socket, sys
socket.gethostname = lambda: sys.argv[1]
from swiftqueue.serving.ingest import metrics
metrics.QUEUE_DEPTH.set(3)
metrics.BATCHES.labels("failed").inc()
metrics.APPEND_SECONDS.observe(0.003)
print(flush=True)
sys.stdin.read()
"""


def counts(folder: Path) -> dict[tuple[str, ...], float]:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    page = subprocess.run(
        [sys.executable, "-c", EXPOSE], env=environment, check=True, capture_output=True, text=True
    ).stdout
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_every_series_is_there_at_zero_and_keeps_its_count(tmp_path: Path) -> None:
    found = counts(tmp_path)
    for name, values in (
        ("events", ("send", "ack")),
        ("batches", ("accepted", "duplicate", "refused", "busy", "failed")),
        ("refused", ("schema", "too_large", "empty", "nan", "range", "order", "session", "two_senders")),
    ):
        for value in values:
            assert found[f"swiftqueue_ingest_{name}_total", value] == 0
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", COUNT], env=environment, check=True)
    assert counts(tmp_path)["swiftqueue_ingest_batches_total", "failed"] == 1  # of a process that is gone


@pytest.mark.slow
def test_of_the_dead_on_whichever_node_the_counts_stay_in_one_file_of_each_kind(tmp_path: Path) -> None:
    """As on Kubernetes, where each start has another node's name; who lives loses nothing."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    names = "swiftqueue_ingest_queue_depth", "swiftqueue_ingest_append_seconds_count"

    def seen() -> list[float]:
        found = counts(tmp_path)
        return [
            *(found[name,] for name in names),
            found["swiftqueue_ingest_append_seconds_bucket", "0.005"],
            found["swiftqueue_ingest_batches_total", "failed"],
        ]

    def start(node: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", LIVE, node]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout
        process.stdout.readline()
        return process

    with start("pod-2") as lives:
        for node in ("pod-0", "pod-1"):
            with start(node) as process:
                process.kill()
        assert seen() == [9, 3, 3, 3]
        for _ in range(2):
            subprocess.run([sys.executable, "-c", FORGET], env=environment, check=True)
            assert seen() == [3, 3, 3, 3]
        kept = {path.name for path in tmp_path.glob("*_ended.db")}
        assert kept == {"counter_ended.db", "histogram_ended.db"}
        assert not list(tmp_path.glob("*pod-[01]*"))
        assert len(list(tmp_path.glob("*pod-2*"))) == 4
        lives.communicate()
