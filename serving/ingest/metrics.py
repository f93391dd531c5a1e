"""Metrics of all ingest processes, on whatever nodes, answered by any of them.

Each process keeps its values in files of the folder that `PROMETHEUS_MULTIPROC_DIR` names (set before this
module is imported), so counts survive a replica that is killed. Processes of two nodes may have one number,
so a file bears its node's name, too.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path
from typing import Final

import prometheus_client as prometheus
from prometheus_client import values
from prometheus_client.multiprocess import MultiProcessCollector

from feature_store.telemetry.events import REASONS

NODE: Final = socket.gethostname().replace("_", "-")  # the collector splits names at underscores
if values.ValueClass._multiprocess:  # the folder was named when the client was imported
    values.ValueClass = values.MultiProcessValue(lambda: f"{NODE}-{os.getpid()}")  # type: ignore[no-untyped-call]

KINDS: Final = ("send", "ack")
OUTCOMES: Final = ("accepted", "duplicate", "refused", "busy", "failed")

EVENTS: Final = prometheus.Counter("swiftqueue_ingest_events", "events stored durably", ["kind"])
BATCHES: Final = prometheus.Counter("swiftqueue_ingest_batches", "batches received", ["outcome"])
REFUSED: Final = prometheus.Counter("swiftqueue_ingest_refused", "batches and sessions refused", ["reason"])
DUPLICATES: Final = prometheus.Counter(
    "swiftqueue_ingest_duplicates", "batches that came again: not stored, or dropped by the compaction"
)
GAPS: Final = prometheus.Counter(
    "swiftqueue_ingest_gaps", "batches found missing in a sender's sequence numbers by the compaction"
)
MISSING_EVENTS: Final = prometheus.Counter(
    "swiftqueue_ingest_missing_events", "events that a forwarder held when it was killed: no session has them"
)
APPEND_SECONDS: Final = prometheus.Histogram(
    "swiftqueue_ingest_append_seconds",
    "one durable append, of the batches of all requests that waited for it",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
QUEUE_DEPTH: Final = prometheus.Gauge(
    "swiftqueue_ingest_queue_depth", "batches that wait for their append", multiprocess_mode="livesum"
)
COMPACT_SECONDS: Final = prometheus.Histogram(
    "swiftqueue_ingest_compact_seconds",
    "one run of the compaction",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
COMPACT_FAILURES: Final = prometheus.Counter(
    "swiftqueue_ingest_compact_failures",
    "runs of the compaction that ended in an error (the log has its line)",
)
# Each series is there from the start, at 0: no alert sees the first count of an absent one, or its lack.
for _series, _values in ((EVENTS, KINDS), (BATCHES, OUTCOMES), (REFUSED, REASONS)):
    for _value in _values:
        _series.labels(_value)


def exposition() -> bytes:
    """Return the metrics of every process, and this process's own memory and files."""
    registry = prometheus.CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    prometheus.ProcessCollector(registry=registry)
    return prometheus.generate_latest(registry)


def forget_dead_processes() -> None:
    """Remove the gauges of processes of this node that were killed; their counters stay."""
    for path in Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]).glob("gauge_live*.db"):
        pid = re.search(rf"_{re.escape(NODE)}-(\d+)\.db$", path.name)
        if pid and not Path(f"/proc/{pid[1]}").exists():
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
