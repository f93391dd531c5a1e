"""The ingest with its real processes: Ray Serve, HTTP, disk, and what happens when they fail.

In every case: what was acknowledged is in the store, once, and the counts of both sides add up.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray_stranger import check_strangers_are_refused, without_token

from feature_store.telemetry import gaps, latest_minutes
from feature_store.telemetry_compact import ROUND_BYTES
from feature_store.telemetry_events import ACK, EVENT_SCHEMA, SEND, BatchKey, encode
from feature_store.telemetry_log import log_dir
from feature_store.telemetry_manifest import load_manifest
from infra.bench import ingest as bench
from infra.processes import free_ports
from serving import agent_process
from serving.ingest.client import IngestClient, SenderRefusedError
from serving.ingest.committer import WAITING_BATCHES
from serving.ingest.server import APPLICATION, serve_ingest

pytestmark = pytest.mark.slow
START_S = 300.0
WAIT_S = 90.0
MS = 1_000_000
BATCH_PACKETS = 200
CROWD = 200  # batches at once; each replica has one in its append and 64 that wait
HOLDING = Path(__file__).parent / "holding"
COMPACTION = "ServeReplica:swiftqueue-ingest:Compaction"


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

        wait_for(look)
        return found

    def post(self, path: str, body: bytes = b"") -> tuple[int, str]:
        return self.answer(path, body)[:2]

    def answer(self, path: str, body: bytes) -> tuple[int, str, Message]:
        request = urllib.request.Request(f"{self.url}{path}", body, method="POST")  # noqa: S310
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


def wait_for(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def ingest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingest]:
    """One ingest of two replicas for all tests; its store lies on a small file system of its own."""
    folder = tmp_path_factory.mktemp("ingest")
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
        "SWIFTQUEUE_STATE": str(state),
        "RAY_ADDRESS": "",
        "PYTHONPATH": str(HOLDING),
        "SWIFTQUEUE_TEST_HOLD": str(hold),
    }
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "serving.ingest.server"],
            env={**without_token(), **settings},
            stdout=output,
            stderr=output,
        )
    running = Ingest(f"http://127.0.0.1:{port}", store, psutil.Process(server.pid), log, state, hold)
    try:
        wait_for(lambda: running.answers() or server.poll() is not None, START_S)
        assert server.poll() is None, log.read_text()
        wait_for(lambda: running.begun("a replica") == 2)
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


def rows(first: int, packets: int = BATCH_PACKETS) -> list[dict[str, object]]:
    """Events of `packets` packets, each acknowledged 1 ms after it was sent."""
    made: list[dict[str, object]] = []
    for packet in range(first, first + packets):
        at = 10**18 + packet * 2 * MS
        sent = {"size_bytes": 1500, "flow_id": packet % 3, "receiver_id": 0, "queue": packet % 2}
        made.append({"kind": SEND, "time_ns": at, "packet": packet, **sent})
        made.append({"kind": ACK, "time_ns": at + MS, "packet": packet, "latency_us": 1000.0})
    return made


def batch(number: int) -> object:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist(rows(number * BATCH_PACKETS), schema=EVENT_SCHEMA)


def stored_batches(ingest: Ingest, sender: str) -> int:
    return load_manifest(ingest.store, sender).counts.batches


def check_store(ingest: Ingest, sender: str, batches: int) -> None:
    """All these batches are in the store, once, and the packets in it are theirs."""
    wait_for(lambda: stored_batches(ingest, sender) >= batches)
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


def test_its_ray_refuses_a_stranger(ingest: Ingest) -> None:
    """The ingest starts a Ray of its own, and a token for it; nothing in its environment asks for one."""
    raylet = " ".join(ingest.process("raylet/raylet").cmdline())
    [address] = set(re.findall(r"--gcs-address=(\S+)", raylet))
    check_strangers_are_refused(address, ingest.state / "ray" / "token")


def test_agents_events_become_packet_tables(ingest: Ingest) -> None:
    before = ingest.events()
    with IngestClient(ingest.url, "plain") as client:
        for number in range(20):
            client.send(batch(number))
        assert client.flush(WAIT_S)
    assert (client.shipped.accepted, client.shipped.refused, client.shipped.dropped) == (20, 0, 0)
    check_store(ingest, "plain", 20)
    assert gaps(ingest.store).filter(sender="plain").is_empty()
    for kind, counted in ingest.events().items():
        assert counted - before[kind] == 20 * BATCH_PACKETS
    assert ingest.metric("swiftqueue_ingest_append_seconds_count") > 0
    assert ingest.metric("swiftqueue_ingest_queue_depth") == 0


def test_a_batch_that_comes_again_is_stored_once(ingest: Ingest) -> None:
    """From several threads at once, so that both replicas get it: the compaction finds what they cannot."""
    ingest.post("/v1/senders/again/sessions")
    bodies = [encode(BatchKey("again", 1, n), batch(n)) for n in range(5)]
    answers: list[int] = []

    def ship() -> None:
        answers.extend(ingest.post("/v1/batches", body)[0] for body in bodies)

    before = ingest.metric("swiftqueue_ingest_duplicates_total")
    threads = [threading.Thread(target=ship) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 20
    check_store(ingest, "again", 5)
    wait_for(lambda: ingest.metric("swiftqueue_ingest_duplicates_total") - before == 15)


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("nan", lambda events: events[1].update(latency_us=float("nan"))),
        ("order", lambda events: events.reverse()),
        ("range", lambda events: events[0].update(size_bytes=0)),
        ("schema", lambda events: events[0].update(latency_us=1.0)),
    ],
)
def test_a_bad_batch_is_refused_whole_and_counted(
    ingest: Ingest, reason: str, change: Callable[[list[dict[str, object]]], object]
) -> None:
    import pyarrow as pa

    sender, events = f"bad-{reason}", rows(BATCH_PACKETS)
    change(events)
    before = ingest.metric("swiftqueue_ingest_refused_total", reason=reason)
    with IngestClient(ingest.url, sender) as client:
        client.send(batch(0))
        client.send(pa.RecordBatch.from_pylist(events, schema=EVENT_SCHEMA))
        client.send(batch(2))
        assert client.flush(WAIT_S)
    assert (client.shipped.accepted, client.shipped.refused) == (2, 1)
    assert ingest.metric("swiftqueue_ingest_refused_total", reason=reason) == before + 1
    assert f"WARNING ingest: a batch is refused ({reason}): " in ingest.replicas_log.read_text()
    check_store(ingest, sender, 2)
    assert gaps(ingest.store).filter(sender=sender).rows() == [(sender, 1, 1, 1, 1)]


def test_what_is_no_batch_is_refused_in_one_line(ingest: Ingest) -> None:
    for body, status, word in (
        (b"hello", 400, "Arrow"),
        (b"", 400, "Arrow"),
        (b"\0" * (5 << 20), 413, "may have"),
    ):
        code, line = ingest.post("/v1/batches", body)
        assert (code, word in line, "\n" in line) == (status, True, False)
    assert ingest.post("/v1/senders/a%20b/sessions")[0] == 400
    assert ingest.post("/v1/nothing")[0] == 404


def test_of_two_senders_under_one_id_the_later_is_believed(ingest: Ingest) -> None:
    first = IngestClient(ingest.url, "twin")
    first.send(batch(0))
    assert first.flush(WAIT_S)
    with IngestClient(ingest.url, "twin") as second:
        second.send(batch(0))
        assert second.flush(WAIT_S)
        first.send(batch(1))
        assert first.flush(WAIT_S)
        with pytest.raises(SenderRefusedError, match="give each its own"):
            first.send(batch(2))
        second.send(batch(1))
        assert second.flush(WAIT_S)
    first.close()
    assert (first.shipped.accepted, first.shipped.dropped, second.shipped.accepted) == (1, 1, 2)
    assert ingest.metric("swiftqueue_ingest_refused_total", reason="two_senders") >= 1
    wait_for(lambda: stored_batches(ingest, "twin") == 3)
    assert latest_minutes(ingest.store, "twin", 1e6).packets.height == 2 * BATCH_PACKETS  # of the second


@pytest.mark.parametrize(("victim", "part"), [("Ingest", "a replica"), ("Compaction", "the compaction")])
def test_a_killed_process_loses_nothing_acknowledged(ingest: Ingest, victim: str, part: str) -> None:
    sender = f"killed-{victim}"
    before, begun = ingest.events(), ingest.begun(part)
    with IngestClient(ingest.url, sender) as client:
        for number in range(60):
            client.send(batch(number))
            if number == 25:
                ingest.process(f"ServeReplica:swiftqueue-ingest:{victim}").kill()
            time.sleep(0.02)
        assert client.flush(WAIT_S)
    assert (client.shipped.accepted, client.shipped.dropped) == (60, 0)
    check_store(ingest, sender, 60)
    wait_for(lambda: ingest.begun(part) == begun + 1)
    # A batch that a killed replica counted, and did not answer for, came again and counts twice.
    for kind, counted in ingest.events().items():
        assert 0 <= counted - before[kind] - 60 * BATCH_PACKETS <= client.shipped.retries * BATCH_PACKETS


def test_batches_wait_for_an_application_that_the_proxy_does_not_know_yet(
    ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart: Ray Serve's proxy listens, and says 404 until the ingest is there."""
    from ray import serve

    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / "state"))
    port = free_ports(1)[0]
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        with IngestClient(f"http://127.0.0.1:{port}", "early") as client:
            client.send(batch(0))
            wait_for(lambda: client.shipped.retries > 2)
            serve_ingest(tmp_path, port, replicas=1)
            assert client.flush(WAIT_S)
            serve.delete(APPLICATION)
            client.send(batch(1))  # within a session
            retries = client.shipped.retries
            wait_for(lambda: client.shipped.retries > retries + 2)
            serve_ingest(tmp_path, port, replicas=1)
            assert client.flush(WAIT_S)
        shipped = client.shipped
        assert (shipped.accepted, shipped.refused, shipped.dropped) == (2, 0, 0)
        wait_for(lambda: load_manifest(tmp_path, "early").counts.batches == 2)
    finally:
        serve.shutdown()


def test_a_stopped_ingest_fills_a_bounded_buffer_and_the_gap_shows(ingest: Ingest) -> None:
    gaps_before = ingest.metric("swiftqueue_ingest_gaps_total")
    serving = [ingest.process("ProxyActor")]
    wait_for(lambda: len(ingest.processes(f"ServeReplica:{APPLICATION}")) == 3)  # with the compaction
    serving += ingest.processes(f"ServeReplica:{APPLICATION}")
    client = IngestClient(ingest.url, "stopped", buffer=10, timeout_s=2)
    client.send(batch(0))
    assert client.flush(WAIT_S)
    for process in serving:
        process.suspend()
    try:
        for number in range(1, 31):
            client.send(batch(number))  # never blocks
        assert client.waiting <= 11
        wait_for(lambda: client.shipped.retries > 0)
    finally:
        for process in serving:
            process.resume()
    assert client.flush(WAIT_S)
    client.close()
    shipped = client.shipped
    assert shipped.accepted + shipped.dropped == 31
    assert shipped.dropped in (19, 20)  # one may have been on its way
    check_store(ingest, "stopped", shipped.accepted)
    assert gaps(ingest.store).filter(sender="stopped")["batches"].sum() == shipped.dropped
    wait_for(lambda: ingest.metric("swiftqueue_ingest_gaps_total") - gaps_before >= shipped.dropped)


def test_a_full_disk_refuses_and_heals(ingest: Ingest) -> None:
    if os.statvfs(ingest.store).f_blocks * os.statvfs(ingest.store).f_frsize > 1 << 30:
        pytest.skip("no small file system could be mounted here: mount needs root")
    ballast = ingest.store / "ballast"
    with IngestClient(ingest.url, "full") as client:
        client.send(batch(0))
        assert client.flush(WAIT_S)
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4096)
        for number in range(1, 10):
            client.send(batch(number))
        wait_for(lambda: client.shipped.retries > 0)
        code, line = ingest.post("/v1/check")
        assert (code, "No space left" in line) == (503, True)
        assert client.shipped.accepted < 10
        ballast.unlink()
        assert client.flush(WAIT_S)
    assert (client.shipped.accepted, client.shipped.dropped) == (10, 0)
    check_store(ingest, "full", 10)
    assert ingest.metric("swiftqueue_ingest_batches_total", outcome="failed") > 0
    said = ingest.replicas_log.read_text()
    assert re.search(r"ERROR ingest: a batch of sender full cannot be stored: .*No space left", said)


def test_too_much_at_once_is_told_to_come_again_and_is_stored_once(ingest: Ingest) -> None:
    """While no append ends, 64 batches wait in each of the two replicas, and the others are sent away."""
    ingest.post("/v1/senders/crowd/sessions")
    bodies = [encode(BatchKey("crowd", 1, n), batch(n)) for n in range(CROWD)]
    busy_before = ingest.metric("swiftqueue_ingest_batches_total", outcome="busy")
    stored: list[str] = []
    sent_away: list[tuple[int, str, str | None]] = []

    def ship(body: bytes) -> None:
        while True:
            status, said, headers = ingest.answer("/v1/batches", body)
            if status == 200:
                stored.append(said)
                return
            sent_away.append((status, said, headers["Retry-After"]))
            time.sleep(1)

    threads = [threading.Thread(target=ship, args=(body,)) for body in bodies]
    held = ingest.hold / "appends"
    held.touch()
    try:
        for thread in threads:
            thread.start()
        wait_for(lambda: len(sent_away) > CROWD // 10)
        assert not stored
        assert ingest.metric("swiftqueue_ingest_queue_depth") == 2 * WAITING_BATCHES
    finally:
        held.unlink()
    for thread in threads:
        thread.join()
    assert {(status, after) for status, _, after in sent_away} == {(503, "1")}
    assert all(f"busy: {WAITING_BATCHES} batches wait for the disk" in said for _, said, _ in sent_away)
    busy = ingest.metric("swiftqueue_ingest_batches_total", outcome="busy")
    assert busy - busy_before == len(sent_away)
    assert len(stored) == CROWD
    assert not any("true" in said for said in stored)  # none is a duplicate
    check_store(ingest, "crowd", CROWD)


def test_the_agents_frames_reach_the_store_through_the_forwarder(
    ingest: Ingest, tmp_path: Path, make_artifact: Callable[..., Path]
) -> None:
    """The real agent decides for a synthetic sender; what it hears of every packet is in the store."""
    if (why := agent_process.why_not_built()) is not None:
        pytest.skip(why)
    path = tmp_path / "telemetry.sock"
    forwarder = subprocess.Popen(
        [sys.executable, "-m", "serving.ingest.forwarder", path, ingest.url],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(path.is_socket)
        arguments = ["--synthetic-bps", "1.2e7", "--flows", "4", "--seconds", "4", "--deadline-us", "1000000"]
        local = ["--local", str(make_artifact(1, tokens=16)), "--telemetry", str(path)]
        for _ in range(2):  # the second agent's packets begin at 0 again: a session of its own
            with agent_process.running_agent([*arguments, *local]) as said:
                summary = list(said)[-1]
    finally:
        forwarder.terminate()
        output, _ = forwarder.communicate(timeout=60)
    assert output.count("dropped=0") == 2, output
    (sender,) = {line.split()[2].rstrip(":") for line in output.splitlines() if "sender" in line}
    packets = 8 * summary["batches"]
    wait_for(lambda: load_manifest(ingest.store, sender).counts.sends == 2 * packets)
    latest = latest_minutes(ingest.store, sender, 1e6)
    assert (latest.session, latest.packets.height, latest.missing_packets) == (2, packets, 0)
    assert latest.packets["flow_id"].n_unique() == 4
    assert latest.packets["latency_us"].is_between(35_000, 45_000).all()  # the agent's synthetic path
    counts = load_manifest(ingest.store, sender).counts
    assert counts.repeated_sends == counts.repeated_acks == counts.unmatched_acks == 0
    assert gaps(ingest.store).filter(sender=sender).is_empty()


@pytest.fixture
def measured(ingest: Ingest) -> bench.Server:
    """The ingest as its bench sees it; of its two replicas one is looked at."""
    names = (
        "ServeReplica:swiftqueue-ingest:Ingest",
        COMPACTION,
        "ProxyActor",
    )
    return bench.Server(ingest.url, ingest.store, [ingest.process(name) for name in names])


def test_memory_stays_flat(ingest: Ingest, measured: bench.Server) -> None:
    """6 million events here, 50 million by `swiftqueue bench ingest --events` (docs/TELEMETRY.md)."""
    compaction = ingest.process(COMPACTION)
    resident_mib = []
    for _ in range(3):
        # Each time it must take in at once as much as it ever does: how often it comes is the machine's.
        compaction.suspend()
        try:
            bench.ship(measured, 2_000_000)
            segments = list(log_dir(measured.root).iterdir())
            assert sum(path.stat().st_size for path in segments) > ROUND_BYTES
        finally:
            compaction.resume()
        wait_for(lambda: not list(log_dir(measured.root).iterdir()))
        resident_mib.append(measured.resident_bytes() / 2**20)
    # The batches alone of the last two are 131 MiB: what kept a quarter of them would show.
    assert resident_mib[-1] - resident_mib[0] < 25, resident_mib


def test_the_bench_of_memory_gives_rows(measured: bench.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SAMPLES", 4)
    monkeypatch.setattr(bench, "running_ingest", lambda _: contextlib.nullcontext(measured))
    least = 4 * bench.SENDERS * bench.BATCH_EVENTS
    with pytest.raises(ValueError, match=f"{least:,} are needed"):
        bench.measure(1, events=least - 1)
    slope, end, rate, slowest = bench.measure(1, events=least)
    assert f"{least:,} events" in slope.name
    assert (slope.reference, slope.unit) == (bench.FLAT_MIB, "MiB/million events")
    assert min(end.ours, end.reference) > 100
    assert 0 < slowest.ours <= rate.ours
    assert rate.reference == bench.PROMISED
