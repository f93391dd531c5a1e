"""Events per second through the real ingest (Ray Serve, HTTP, fsync), all its processes on one core.

Senders at 100 Mbit/s each would bring 16,700 events/s; here each sends its next batch when the last one is
answered. The references write the same batches from a loop of their own, on one core: the bare append to the
log without a server, and one Parquet file per batch, fsynced, which nothing protects from duplicates.

Memory over a long run: `python -m infra.bench.ingest --events 50000000`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from infra.bench.rows import Row, interleaved_medians

if TYPE_CHECKING:
    import numpy.typing as npt
    import psutil
    import pyarrow as pa

SENDERS: Final = 12  # 12 · 16,700 events/s are 200,000
BATCH_EVENTS: Final = 4096  # a quarter of a second of one sender at 100 Mbit/s
ROUND_EVENTS: Final = 2_000_000
REFERENCE_EVENTS: Final = 500_000
GAP_NS: Final = 120_000  # between packets of 1500 bytes at 100 Mbit/s
LATENCY_PACKETS: Final = 166  # 20 ms in flight
START_S: Final = 240.0  # Ray on a busy machine
PROBE_S: Final = 0.5


class Source:
    """One sender's batches, without end: a SEND and an ACK in turn."""

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
        }
        rng = np.random.default_rng(sender)
        self._latency_us = (20_000 + rng.random(BATCH_EVENTS) * 5000).astype(np.float32)

    def batch(self) -> pa.RecordBatch:
        """Return the next batch."""
        import numpy as np

        from feature_store.telemetry_events import event_batch

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
class Server:
    """A running ingest."""

    url: str
    root: Path
    processes: list[psutil.Process]

    def resident_bytes(self) -> int:
        """Resident memory of the proxy, the replica and the compaction, not of Ray's own processes."""
        return sum(p.memory_info().rss for p in self.processes)


@contextmanager
def running_ingest(folder: Path) -> Iterator[Server]:
    """Start `serving.ingest.server` with a Ray of its own; what handles batches has one core."""
    import psutil

    from infra.bench.served_models import free_ports

    (port,) = free_ports(1)
    settings = {
        "SWIFTQUEUE_INGEST_PORT": str(port),
        "SWIFTQUEUE_TELEMETRY": str(folder),
        "RAY_ADDRESS": "",
    }
    command = [sys.executable, "-m", "serving.ingest.server"]
    log_path = folder.parent / "ingest.log"
    with log_path.open("wb") as log:
        child = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_S
        while not _answers(url):
            if child.poll() is not None or time.monotonic() > deadline:
                last = log_path.read_text().splitlines()[-1:]
                raise RuntimeError(f"the ingest did not start: {' '.join(last)}")
            time.sleep(PROBE_S)
        names = ("ServeReplica", "ProxyActor")
        family = psutil.Process(child.pid).children(recursive=True)
        ours = [p for p in family if any(name in " ".join(p.cmdline()) for name in names)]
        for process in ours:
            _pin(process, max(os.sched_getaffinity(0)))
        yield Server(url, folder, ours)
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(60)


def _pin(process: psutil.Process, core: int) -> None:
    """Give every thread of a process, and those it will start, one core."""
    for thread in process.threads():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(thread.id, {core})


def _answers(url: str) -> bool:
    try:
        request = urllib.request.Request(f"{url}/v1/check", b"", method="POST")  # noqa: S310 - loopback http
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            return bool(answer.status == 200)
    except OSError:
        return False


def ship(server: Server, events: int, first_sender: int = 0) -> float:
    """Send so many events from all senders at once; return events per second, each of them stored."""
    from serving.ingest.client import IngestClient

    sources = [Source(first_sender + n) for n in range(SENDERS)]
    clients = [IngestClient(server.url, f"sender-{first_sender + n}", buffer=8) for n in range(SENDERS)]
    batches = max(events // (BATCH_EVENTS * SENDERS), 1)
    started = time.perf_counter()
    for _ in range(batches):
        for client, source in zip(clients, sources, strict=True):
            while client.waiting >= 4:  # never so much that the client would drop a batch
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
    """Events per second of encode, check, append and fsync without a server; a batch at a time."""
    from feature_store.telemetry_events import BatchKey, checked, encode
    from feature_store.telemetry_log import SegmentWriter

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
    """Events per second of one Parquet file per batch, fsynced."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source, count = Source(0), REFERENCE_EVENTS // BATCH_EVENTS
    folder.mkdir(exist_ok=True)
    started = time.perf_counter()
    for number in range(count):
        with (folder / f"{number}.parquet").open("wb") as file:
            pq.write_table(pa.Table.from_batches([source.batch()]), file)
            file.flush()
            os.fsync(file.fileno())
    return count * BATCH_EVENTS / (time.perf_counter() - started)


def measure(rounds: int) -> list[Row]:
    """Events per second, durable, of the ingest on one core, beside both references on one core."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, senders = Path(temporary), iter(range(0, 10_000, SENDERS))
        with running_ingest(folder / "store") as server:
            ship(server, ROUND_EVENTS // 4, next(senders))  # warm
            everywhere = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {min(everywhere)})
            try:
                ours, bare, parquet = interleaved_medians(
                    rounds,
                    lambda: ship(server, ROUND_EVENTS, next(senders)),
                    lambda: bare_append(folder / "bare"),
                    lambda: parquet_files(folder / "parquet"),
                )
            finally:
                os.sched_setaffinity(0, everywhere)
    name = (
        f"ingest over HTTP through Ray Serve, fsynced, checked and compacted on one core, {SENDERS} senders, "
        f"batches of {BATCH_EVENTS:,} events"
    )
    references = {
        bare: "check, append and fsync of each batch, without a server",
        parquet: "a Parquet file per batch, fsynced, without a server",
    }
    return [
        Row(name, ours, reference, what, ours / reference, "events/s", rounds)
        for reference, what in references.items()
    ]


def memory_over(events: int, samples: int = 20) -> list[tuple[int, float]]:
    """Send many events; return events so far and the ingest's resident MiB, `samples` times."""
    points = []
    with tempfile.TemporaryDirectory() as temporary, running_ingest(Path(temporary) / "store") as server:
        for sample in range(samples + 1):
            points.append((sample * (events // samples), server.resident_bytes() / 2**20))
            if sample < samples:
                rate = ship(server, events // samples, 0)
                so_far, mib = points[-1]
                print(f"{so_far:>12,} events: {mib:,.0f} MiB, then {rate:,.0f} events/s", flush=True)
    return points


def slope(points: list[tuple[int, float]]) -> float:
    """MiB per million events over the second half of the run (least squares)."""
    import numpy as np

    late = np.array(points[len(points) // 2 :])
    return float(np.polyfit(late[:, 0] / 1e6, late[:, 1], 1)[0])


def main() -> None:
    """Print the memory of the ingest over a long run."""
    parser = argparse.ArgumentParser(description="Memory of the ingest over a long run.")
    parser.add_argument("--events", type=int, default=50_000_000)
    points = memory_over(parser.parse_args().events)
    print(f"slope over the second half: {slope(points):+.2f} MiB per million events")


if __name__ == "__main__":
    main()
