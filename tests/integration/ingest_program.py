"""A running ingest as tests see it: its processes, its answers, its counts and its store."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import event_rows
import psutil
from prometheus_client.parser import text_string_to_metric_families
from ray_stranger import without_token
from waiting import wait_until

from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.feature_store.telemetry.events import ACK, SEND, Events
from swiftqueue.feature_store.telemetry.manifest import load_manifest
from swiftqueue.feature_store.telemetry.recent import latest_minutes
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.serving.ingest.client import IngestClient, read_token
from swiftqueue.serving.ingest.senders import INSTALLATION

START_S = 300.0
WAIT_S = 90.0
MS = 1_000_000
BATCH_PACKETS = 200
SENDERS = 120  # in the store at most
HOLDING = Path(__file__).parent / "holding"


@dataclass
class Ingest:
    """The running ingest."""

    url: str
    store: Path
    server: psutil.Process
    log: Path
    state: Path
    hold: Path

    @property
    def replicas_log(self) -> Path:
        return self.state / "ingest" / "replicas.log"

    def process(self, name: str) -> psutil.Process:
        """The Ray process whose title has `name`; waits for it."""
        return self.processes(name)[0]

    def processes(self, name: str) -> list[psutil.Process]:
        found: list[psutil.Process] = []

        def look() -> bool:
            for process in self.server.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if name in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
            return bool(found)

        wait_until(look)
        return found

    @property
    def token(self) -> str:
        """The installation's."""
        return read_token(self.state / "secrets" / INSTALLATION)

    def client(self, sender: str, **options: Any) -> IngestClient:
        return IngestClient(self.url, sender, **{"token": self.token, **options})

    def post(self, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
        return self.answer(path, body, **headers)[:2]

    def answer(self, path: str, body: bytes, **headers: str) -> tuple[int, str, Message]:
        headers = {"Authorization": f"Bearer {self.token}", **headers}
        request = urllib.request.Request(f"{self.url}{path}", body, headers, method="POST")  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:  # noqa: S310
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self.post("/v1/check")[0] == 200
        return False

    def metric(self, name: str, **labels: str) -> float:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:  # noqa: S310
            families = list(text_string_to_metric_families(answer.read().decode()))
        return sum(
            s.value
            for family in families
            for s in family.samples
            if s.name == name and labels.items() <= s.labels.items()
        )

    def begun(self, part: str) -> int:
        """How many replicas, or compactions, have begun so far."""
        return self.replicas_log.read_text().count(f"ingest: {part} begins\n")

    def events(self) -> dict[str, float]:
        """How many were counted, by kind."""
        return {kind: self.metric("swiftqueue_ingest_events_total", kind=kind) for kind in ("send", "ack")}


@contextlib.contextmanager
def running_ingest(folder: Path) -> Iterator[Ingest]:
    """Run an ingest of two replicas; its store lies on a small file system of its own."""
    store, log, port = folder / "store", folder / "log", free_ports(1)[0]
    state, hold = folder / "state", folder / "hold"
    store.mkdir()
    hold.mkdir()
    mounted = (
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", store], check=False).returncode
        == 0
    )
    settings = {
        "SWIFTQUEUE_INGEST_PORT": str(port),
        "SWIFTQUEUE_TELEMETRY": str(store),
        "SWIFTQUEUE_INGEST_REPLICAS": "2",
        "SWIFTQUEUE_INGEST_SENDERS": str(SENDERS),
        "SWIFTQUEUE_STATE": str(state),
        "RAY_ADDRESS": "",
        "PYTHONPATH": str(HOLDING),
        "SWIFTQUEUE_TEST_HOLD": str(hold),
    }
    with log.open("wb") as output:
        server = subprocess.Popen(
            [SWIFTQUEUE, "part", "ingest"],
            env={**without_token(), **settings},
            stdout=output,
            stderr=output,
        )
    running = Ingest(f"http://127.0.0.1:{port}", store, psutil.Process(server.pid), log, state, hold)
    try:
        wait_until(lambda: running.answers() or server.poll() is not None)
        assert server.poll() is None, log.read_text()
        wait_until(lambda: running.begun("a replica") == 2)
        yield running
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        if mounted:
            subprocess.run(["umount", "-l", store], check=True)


def rows(first: int) -> list[dict[str, object]]:
    """Events of a batch's packets, each acknowledged 1 ms after it was sent."""
    made: list[dict[str, object]] = []
    for packet in range(first, first + BATCH_PACKETS):
        at = 10**18 + packet * 2 * MS
        l4s = packet % 2
        sent = {"size_bytes": 1500, "flow_id": packet % 3, "receiver_id": 0, "queue": l4s, "ecn": 2 - l4s}
        made.append({"kind": SEND, "time_ns": at, "packet": packet, **sent})
        made.append({"kind": ACK, "time_ns": at + MS, "packet": packet, "latency_us": 1000.0})
    return made


def batch(number: int) -> Events:
    return event_rows.batch(rows(number * BATCH_PACKETS))


def stored_batches(ingest: Ingest, sender: str) -> int:
    return load_manifest(ingest.store, sender).counts.batches


def check_store(ingest: Ingest, sender: str, batches: int) -> None:
    """All these batches are in the store, once, and the packets in it are theirs."""
    wait_until(lambda: stored_batches(ingest, sender) >= batches)
    counts = load_manifest(ingest.store, sender).counts
    assert (counts.batches, counts.sends, counts.acks) == (
        batches,
        batches * BATCH_PACKETS,
        batches * BATCH_PACKETS,
    )
    assert counts.repeated_sends == counts.repeated_acks == counts.unmatched_acks == 0
    packets = latest_minutes(ingest.store, sender, 1e6).packets
    assert packets.height == batches * BATCH_PACKETS
    assert packets["acked_ns"].null_count() == 0


def listening(processes: list[psutil.Process]) -> list[tuple[str, int, psutil.Process]]:
    """Where processes listen: address, port and whose it is."""
    return [
        (one.laddr.ip.removeprefix("::ffff:"), one.laddr.port, process)
        for process in processes
        for one in process.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    ]


def replicas(ingest: Ingest) -> set[int]:
    return {process.pid for process in ingest.processes("ServeReplica:swiftqueue-ingest:Ingest")}


def files(folder: Path) -> set[str]:
    return {str(p) for p in folder.rglob("*") if "metrics" not in p.parts}


def raw(ingest: Ingest, head: str, body: Iterator[bytes]) -> tuple[bytes, int]:
    """What is answered to a request by hand, and how many bytes of its body could be sent by then."""
    port, sent = int(ingest.url.rpartition(":")[2]), 0
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        token = f"Authorization: Bearer {ingest.token}\r\n"
        connection.sendall(f"POST {head} HTTP/1.1\r\nHost: x\r\n{token}".encode())
        with contextlib.suppress(ConnectionError):
            for part in body:
                connection.sendall(part)
                sent += len(part)
                if select.select([connection], [], [], 0)[0]:
                    break
        return connection.recv(65536), sent
