"""Measure events per second through the real ingest (Ray Serve, HTTP, fsync), on one core.

Senders at 100 Mbit/s each would bring 16,700 events/s; here each sends its next batch when the last one is
answered. The references write the same batches from a loop of their own, on one core: the bare append to the
log without a server, and one Parquet file per batch, fsynced, without protection from duplicates. Two
replicas are compared with one, both on every core and beside the senders: on two cores the senders and
Serve's one proxy leave them little room to be faster.

Memory over a long run: `swiftqueue bench ingest --events 50000000`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swiftqueue.benchmarks.rows import Row, interleaved_medians
from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.common.settings import variable

if TYPE_CHECKING:
    import numpy.typing as npt
    import psutil

    from swiftqueue.feature_store.telemetry.events import Events

PROMISED: Final = 200_000.0  # events/s on one core, durably stored
SENDERS: Final = 12  # 12 · 16,700 events/s are 200,000
REPLICAS: Final = 2
BATCH_EVENTS: Final = 4096  # a quarter of a second of one sender at 100 Mbit/s
ROUND_EVENTS: Final = 2_000_000
REFERENCE_EVENTS: Final = 500_000
GAP_NS: Final = 120_000  # between packets of 1500 bytes at 100 Mbit/s
LATENCY_PACKETS: Final = 166  # 20 ms in flight
START_S: Final = 240.0  # Ray on a busy machine
PROBE_S: Final = 0.5
SAMPLES: Final = 20  # memory samples over a long run
FLAT_MIB: Final = 1.0  # MiB per million events: one byte for each event, which has about 25


class Source:
    """One sender's endless batches: a SEND and an ACK in turn."""

    def __init__(self, sender: int) -> None:
        import numpy as np

        packets = BATCH_EVENTS // 2
        self._at = 0
        self._start_ns = 1_700_000_000_000_000_000 + sender
        self._packet = np.repeat(np.arange(packets, dtype=np.int64), 2)
        self._packet[1::2] -= LATENCY_PACKETS
        self._time_ns = np.repeat(np.arange(packets, dtype=np.int64) * GAP_NS, 2)
        self._kind = np.tile(np.array([0, 1], np.uint8), packets)
        ones = np.ones(BATCH_EVENTS, np.int32)
        self._send: dict[str, npt.NDArray[Any]] = {
            "size_bytes": 1500 * ones,
            "flow_id": self._packet.astype(np.int32) % 8,
            "receiver_id": 0 * ones,
            "queue": (self._packet % 2).astype(np.uint8),
            "ecn": 2 - (self._packet % 2).astype(np.uint8),  # ECT(1) to the L4S queue, ECT(0) to the other
            "retransmitted": np.zeros(BATCH_EVENTS, np.uint8),
        }
        rng = np.random.default_rng(sender)
        self._latency_us = (20_000 + rng.random(BATCH_EVENTS) * 5000).astype(np.float32)

    def batch(self) -> Events:
        """Return the next batch."""
        import numpy as np

        from swiftqueue.feature_store.telemetry.events import event_batch

        first = self._at * (BATCH_EVENTS // 2)
        self._at += 1
        return event_batch(
            self._kind,
            self._time_ns + (self._start_ns + first * GAP_NS),
            np.maximum(self._packet + first, 0),
            self._send,
            self._latency_us,
        )


@dataclass(frozen=True)
class IngestServer:
    """A running ingest."""

    url: str
    root: Path
    token: str
    processes: list[psutil.Process]

    def pin(self, cores: set[int]) -> None:
        """Confine every thread that handles batches, and those they will start, to these cores."""
        for process in self.processes:
            for thread in process.threads():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, cores)

    def resident_bytes(self) -> int:
        """Return the resident bytes of the proxy, the replica and the compaction, without Ray's own."""
        return sum(p.memory_info().rss for p in self.processes)


@contextmanager
def running_ingest(folder: Path, replicas: int = 1) -> Iterator[IngestServer]:
    """Start the ingest's server with a Ray of its own; the threads that handle batches have one core."""
    import psutil

    from swiftqueue.infra.local.processes import free_ports
    from swiftqueue.infra.local.status import ingest_check
    from swiftqueue.serving.ingest.client import read_token
    from swiftqueue.serving.ingest.senders import INSTALLATION

    (port,) = free_ports(1)
    folder.parent.mkdir(parents=True, exist_ok=True)
    settings = {
        variable("ingest_port"): str(port),
        variable("telemetry"): str(folder),
        variable("ingest_replicas"): str(replicas),
        variable("state"): str(folder.parent / "state"),
        "RAY_ADDRESS": "",
    }
    command = [SWIFTQUEUE, "part", "ingest"]
    log_path = folder.parent / "ingest.log"
    with log_path.open("wb") as log:
        child = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_S
        while not ingest_check(url):
            if child.poll() is not None or time.monotonic() > deadline:
                last = log_path.read_text().splitlines()[-1:]
                raise RuntimeError(f"the ingest did not start: {' '.join(last)}")
            time.sleep(PROBE_S)
        names = ("ServeReplica", "ProxyActor")
        family = psutil.Process(child.pid).children(recursive=True)
        ours = [p for p in family if any(name in " ".join(p.cmdline()) for name in names)]
        token = read_token(folder.parent / "state" / "secrets" / INSTALLATION)
        server = IngestServer(url, folder, token, ours)
        server.pin({max(os.sched_getaffinity(0))})
        yield server
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(60)


@contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    """Run the block on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def ship(server: IngestServer, events: int, first_sender: int = 0) -> float:
    """Send `count` events from all senders at once; return events per second, each of them stored."""
    from swiftqueue.serving.ingest.client import IngestClient

    sources = [Source(first_sender + n) for n in range(SENDERS)]
    clients = [
        IngestClient(server.url, f"sender-{first_sender + n}", token=server.token, buffer=8)
        for n in range(SENDERS)
    ]
    batches = max(events // (BATCH_EVENTS * SENDERS), 1)
    started = time.perf_counter()
    for _ in range(batches):
        for client, source in zip(clients, sources, strict=True):
            while client.waiting >= 4:  # below the client's limit, so it drops no batch
                time.sleep(0.0005)
            client.send(source.batch())
    for client in clients:
        client.flush(600)
    seconds = time.perf_counter() - started
    accepted = sum(client.shipped.accepted for client in clients)
    for client in clients:
        client.close()
    if accepted != batches * SENDERS:
        raise RuntimeError(f"bench ingest: {accepted} of {batches * SENDERS} batches were accepted")
    return batches * SENDERS * BATCH_EVENTS / seconds


def bare_append(folder: Path) -> float:
    """Return the events per second of encoding, checking, appending and fsync without a server."""
    from swiftqueue.feature_store.telemetry.events import BatchKey, checked, encode
    from swiftqueue.feature_store.telemetry.log import SegmentWriter

    writer, source = SegmentWriter(folder), Source(0)
    count = REFERENCE_EVENTS // BATCH_EVENTS
    started = time.perf_counter()
    for number in range(count):
        body = encode(BatchKey("bench", 1, number), source.batch())
        checked(body)
        writer.append([body])
    writer.close()
    return count * BATCH_EVENTS / (time.perf_counter() - started)


def parquet_files(folder: Path) -> float:
    """Return the events per second of one Parquet file per batch, fsynced."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from swiftqueue.feature_store.telemetry.events import EVENT

    names = EVENT.names or ()
    source, count = Source(0), REFERENCE_EVENTS // BATCH_EVENTS
    folder.mkdir(exist_ok=True)
    started = time.perf_counter()
    for number in range(count):
        with (folder / f"{number}.parquet").open("wb") as file:
            events = source.batch()
            columns = {name: np.ascontiguousarray(events[name]) for name in names}
            pq.write_table(pa.table(columns), file)
            file.flush()
            os.fsync(file.fileno())
    return count * BATCH_EVENTS / (time.perf_counter() - started)


def measure(rounds: int, events: int | None = None) -> list[Row]:
    """Return the events per second, durable, beside the promise, the references and two replicas.

    With `events`, return the ingest's memory over that many events instead.
    """
    if events is not None:
        return _memory(events)
    cores = os.sched_getaffinity(0)
    with (
        tempfile.TemporaryDirectory() as temporary,
        running_ingest(Path(temporary) / "one" / "store") as one,
        running_ingest(Path(temporary) / "more" / "store", REPLICAS) as more,
    ):
        folder, senders = Path(temporary), iter(range(0, 100_000, SENDERS))

        def rate(server: IngestServer, theirs: set[int], ours: set[int], events: int = ROUND_EVENTS) -> float:
            server.pin(theirs)
            with _on(ours):
                return ship(server, events, next(senders))

        def alone(reference: Callable[[Path], float], name: str) -> float:
            with _on({min(cores)}):
                return reference(folder / name)

        for server in (one, more):
            rate(server, cores, cores, ROUND_EVENTS // 4)  # warm-up
        ours, bare, parquet, single, double = interleaved_medians(
            rounds,
            lambda: rate(one, {max(cores)}, {min(cores)}),
            lambda: alone(bare_append, "bare"),
            lambda: alone(parquet_files, "parquet"),
            lambda: rate(one, cores, cores),
            lambda: rate(more, cores, cores),
        )
    what = "ingest over HTTP through Ray Serve, fsynced, checked and compacted"
    load = f"{SENDERS} senders, batches of {BATCH_EVENTS:,} events"
    shared = f"{len(cores)} cores that the senders share"
    name = f"{what} on one core, {load}"
    references = {
        PROMISED: "promised at least",
        bare: "check, append and fsync of each batch, without a server",
        parquet: "a Parquet file per batch, fsynced, without a server",
    }
    rows = [
        Row(name, ours, reference, told, ours / reference, "events/s", rounds)
        for reference, told in references.items()
    ]
    name = f"{what} by {REPLICAS} replicas on {shared}, {load}"
    return [*rows, Row(name, double, single, "one replica, likewise", double / single, "events/s", rounds)]


@dataclass(frozen=True)
class RunStretch:
    """A stretch of a long run: the memory of the ingest's processes at its start, and its rate."""

    events: int  # events sent before it
    mib: float
    rate: float  # events/s


def memory_over(events: int, samples: int) -> list[RunStretch]:
    """Send many events in equal stretches; a last one, without events, shows the memory at the end."""
    found = []
    with tempfile.TemporaryDirectory() as temporary, running_ingest(Path(temporary) / "store") as server:
        for sample in range(samples + 1):
            so_far, mib = sample * (events // samples), server.resident_bytes() / 2**20
            rate = ship(server, events // samples, 0) if sample < samples else 0.0
            found.append(RunStretch(so_far, mib, rate))
            print(f"{so_far:>12,} events: {mib:,.0f} MiB, then {rate:,.0f} events/s", flush=True)
    return found


def slope(run: list[RunStretch]) -> float:
    """Return the MiB per million events over the second half of a run (least squares)."""
    import numpy as np

    late = run[len(run) // 2 :]
    return float(np.polyfit([one.events / 1e6 for one in late], [one.mib for one in late], 1)[0])


def _memory(events: int) -> list[Row]:
    """Return rows for a long run.

    Raises:
        ValueError: there are too few events.
    """
    least = SAMPLES * SENDERS * BATCH_EVENTS
    if events < least:
        raise ValueError(f"--events {events:,}: {least:,} are needed, a batch of each sender in each stretch")
    with contextlib.redirect_stdout(sys.stderr):  # `--json` owns the standard output
        run = memory_over(events, SAMPLES)
    return memory_rows(run)


def memory_rows(run: list[RunStretch]) -> list[Row]:
    """Return rows saying whether the memory grows and whether the ingest was fast all the time."""
    what, count = "memory of the ingest's processes", f"{run[-1].events:,} events"
    grows = slope(run)
    half, end = run[len(run) // 2].mib, run[-1].mib
    rates = [one.rate for one in run[:-1]]
    rate, slowest = statistics.median(rates), min(rates)
    parts = len(rates)
    # A slope of zero or less would be better without bound.
    ratio = FLAT_MIB / max(grows, FLAT_MIB / 100)
    unit = "MiB/million events"
    promised = "promised at least"
    return [
        Row(f"{what}, slope over the second half of {count}", grows, FLAT_MIB, "flat", ratio, unit, parts),
        Row(f"{what} after {count}", end, half, "after half of them", half / end, "MiB", parts),
        Row("ingest on one core meanwhile", rate, PROMISED, promised, rate / PROMISED, "events/s", parts),
        Row("its slowest stretch", slowest, PROMISED, promised, slowest / PROMISED, "events/s", parts),
    ]
