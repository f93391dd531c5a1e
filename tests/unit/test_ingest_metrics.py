"""What the ingest tells Prometheus before it has taken a batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

EXPOSE = "from serving.ingest import metrics; print(metrics.exposition().decode())"
COUNT = "from serving.ingest import metrics; metrics.BATCHES.labels('failed').inc()"


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
