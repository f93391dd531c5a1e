"""The metrics of all ingest processes, on whatever nodes; any of them answers.

Each process keeps its values in files of the folder that `PROMETHEUS_MULTIPROC_DIR` names (set before this
module is imported), so counts survive a killed replica. Processes of two nodes may share a number, so a
file's name has its node, too. Each process holds a lock of its own while it lives, so every node sees it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import prometheus_client as prometheus
from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

from swiftqueue.common.atomic import new_file
from swiftqueue.feature_store.telemetry.events import REASONS

NODE: Final = socket.gethostname().replace("_", "-")  # the collector splits names at underscores


@contextlib.contextmanager
def _locked(how: int) -> Iterator[Path]:
    """Yield the folder; the files of dead processes stay as they are meanwhile."""
    folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, how)
        yield folder


if values.ValueClass._multiprocess:  # the folder was named when the client was imported
    values.ValueClass = values.MultiProcessValue(lambda: f"{NODE}-{os.getpid()}")  # type: ignore[no-untyped-call]
    with _locked(fcntl.LOCK_EX) as _folder:
        _alive = (_folder / f"{NODE}-{os.getpid()}.alive").open("a")
        fcntl.flock(_alive, fcntl.LOCK_EX)

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
    "seconds of a durable append of all waiting batches",
    buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
QUEUE_DEPTH: Final = prometheus.Gauge(
    "swiftqueue_ingest_queue_depth", "batches that wait for their append", multiprocess_mode="livesum"
)
COMPACT_SECONDS: Final = prometheus.Histogram(
    "swiftqueue_ingest_compact_seconds",
    "seconds of a run of the compaction",
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
COMPACT_FAILURES: Final = prometheus.Counter(
    "swiftqueue_ingest_compact_failures",
    "runs of the compaction that ended in an error (the log has its line)",
)
# Each series is there from the start, at 0: otherwise no alert sees its first count, or its absence.
for _series, _values in ((EVENTS, KINDS), (BATCHES, OUTCOMES), (REFUSED, REASONS)):
    for _value in _values:
        _series.labels(_value)


def exposition() -> bytes:
    """Return the metrics of every process, and this process's own memory and files."""
    with _locked(fcntl.LOCK_SH):
        registry = prometheus.CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        prometheus.ProcessCollector(registry=registry)
        return prometheus.generate_latest(registry)


def forget_dead_processes() -> None:
    """Merge the counts of ended processes, on whichever node, into one file of each kind; drop gauges."""
    with _locked(fcntl.LOCK_EX) as folder:
        alive = {path.stem for path in folder.glob("*.alive") if _is_held(path)}
        dead = [path for path in folder.glob("*.db") if path.stem.rpartition("_")[2] not in alive]
        for kind in ("counter", "histogram"):
            files = [path for path in dead if path.name.startswith(f"{kind}_")]
            kept = folder / f"{kind}_ended.db"
            if files and files != [kept]:
                _fold(files, kept)
        for path in dead:  # if killed before this, the next start counts them once more: better than never
            if not path.stem.endswith("_ended"):
                path.unlink()
        for path in folder.glob("*.alive"):
            if path.stem not in alive:
                path.unlink()


def _is_held(path: Path) -> bool:
    with path.open("a") as file:  # NFS refuses the lock to a file opened for reading
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _fold(files: list[Path], into: Path) -> None:
    total: Counter[str] = Counter()
    for path in files:
        if path.stat().st_size:  # 0 bytes: its process was killed when it had just made it
            found = MmapedDict.read_all_values_from_file(path)  # type: ignore[no-untyped-call]
            for key, value, *_ in found:
                total[key] += value
    with new_file(into) as partial:
        kept = MmapedDict(partial)  # type: ignore[no-untyped-call]
        for key, value in total.items():
            kept.write_value(key, value, 0.0)  # type: ignore[no-untyped-call]
        kept.close()  # type: ignore[no-untyped-call]
