"""The ingest with its real processes: Ray Serve, HTTP, disk, and what happens when they fail.

In every case: what was acknowledged is in the store, once, and the counts of both sides add up.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bombs
import event_rows
import mutants
import pytest
from agent_program import AgentProgram, LiveSender
from ingest_program import (
    BATCH_PACKETS,
    SENDERS,
    WAIT_S,
    Ingest,
    batch,
    check_store,
    files,
    listening,
    raw,
    replicas,
    rows,
    running_ingest,
    stored_batches,
)
from ray_stranger import check_strangers_are_refused
from self_signed import self_signed
from strangers import as_nobody, crowd
from waiting import wait_until

from swiftqueue.benchmarks import ingest as bench
from swiftqueue.common.door import MOST_OF_ONE
from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.common.state import secret
from swiftqueue.feature_store.telemetry.compact import ROUND_BYTES
from swiftqueue.feature_store.telemetry.events import HEADER, BatchKey, encode, sealed
from swiftqueue.feature_store.telemetry.log import log_dir
from swiftqueue.feature_store.telemetry.manifest import load_manifest
from swiftqueue.feature_store.telemetry.recent import gaps, latest_minutes
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.ingest import senders
from swiftqueue.serving.ingest.bounds import IN_FLIGHT
from swiftqueue.serving.ingest.client import IngestClient, SenderRefusedError
from swiftqueue.serving.ingest.committer import WAITING_BATCHES
from swiftqueue.serving.ingest.senders import INSTALLATION
from swiftqueue.serving.ingest.server import APPLICATION, serve_ingest

pytestmark = pytest.mark.slow
CROWD = 200  # batches at once; each replica has one in its append and 64 that wait
CONNECTIONS = 10_000 if mutants.ALL else 1_000
NAMES = 100_000 if mutants.ALL else 2_000
NAMES_BYTES = 32 << 20  # a replica remembers 4096 senders, whatever came
WORKERS = 8
GROWTH_BYTES = 200 << 20  # that no attack takes
COMPACTION = "ServeReplica:swiftqueue-ingest:Compaction"


@pytest.fixture(scope="module")
def ingest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingest]:
    """One ingest for all tests."""
    with running_ingest(tmp_path_factory.mktemp("ingest")) as running:
        yield running


@pytest.mark.long
def test_its_ray_refuses_a_stranger(ingest: Ingest) -> None:
    """The ingest starts a Ray of its own, and a token for it; nothing in its environment asks for one."""
    raylet = " ".join(ingest.process("raylet/raylet").cmdline())
    [address] = set(re.findall(r"--gcs-address=(\S+)", raylet))
    check_strangers_are_refused(address, ingest.state / "ray" / "token")


def test_another_user_reaches_no_port_of_its_ray_but_the_ingests(ingest: Ingest) -> None:
    """Four compressed messages of 1 MB that become 1 GiB each, at every port that speaks gRPC."""
    ours = listening(ingest.server.children(recursive=True))
    assert {"gcs_server", "raylet"} < {process.name() for _, _, process in ours}
    assert any("ServeReplica" in process.name() for _, _, process in ours)
    assert {address for address, _, _ in ours} == {"127.0.0.1"}  # the replicas were on every interface
    method = "ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
    own = int(ingest.url.rpartition(":")[2])
    before = {process: bombs.peak_bytes(process.pid) for _, _, process in ours}
    for port in sorted({port for _, port, _ in ours} - {own}):
        assert crowd(port, 20, 0, slow=b"PRI * HTTP/2.0") == 0
        as_nobody(lambda port=port: bombs.throw_together(port, method))
    grown = {process.name(): bombs.peak_bytes(process.pid) - peak for process, peak in before.items()}
    assert max(grown.values()) < GROWTH_BYTES, grown
    assert ingest.answers()


def test_connections_of_another_user_cost_only_their_cap(ingest: Ingest) -> None:
    """Idle ones and slow ones, at the one port that is open to others; batches go on meanwhile."""
    proxy = ingest.process("ProxyActor")
    files, before = proxy.num_fds(), bombs.peak_bytes(proxy.pid)
    port, slow = int(ingest.url.rpartition(":")[2]), b"POST /v1/senders/slow/batches HTTP/1.1\r\nHost: x\r\n"
    shipped = threading.Event()

    def ship() -> None:
        with ingest.client("beside-a-crowd") as client:
            number = 0
            while not shipped.is_set() or number < 10:
                client.send(batch(number))
                number += 1
                assert client.flush(WAIT_S)

    with ThreadPoolExecutor(1) as pool:
        honest = pool.submit(ship)
        kept = crowd(port, CONNECTIONS, MOST_OF_ONE, slow=slow)
        shipped.set()
        honest.result()
    assert 0 < kept <= MOST_OF_ONE
    assert bombs.peak_bytes(proxy.pid) - before < GROWTH_BYTES
    wait_until(lambda: proxy.num_fds() < files + 50)  # all of it is over with the crowd


def test_a_compressed_body_is_not_inflated(ingest: Ingest) -> None:
    ingest.post("/v1/senders/packed/sessions")
    before = {p: bombs.peak_bytes(p.pid) for p in ingest.processes("ServeReplica:swiftqueue-ingest:Ingest")}
    for call in ("batches", "sessions"):
        told = ingest.post(f"/v1/senders/packed/{call}", bombs.bomb(), **{"Content-Encoding": "gzip"})
        assert told[0] in (400, 413), told
    for process, peak in before.items():
        assert bombs.peak_bytes(process.pid) - peak < GROWTH_BYTES


def test_names_without_a_right_to_them_cost_nothing(ingest: Ingest) -> None:
    """Each name once, by turns with no token, and with the installation's and no batch."""
    replicas = ingest.processes("ServeReplica:swiftqueue-ingest:Ingest")
    replicas_before = {process: bombs.peak_bytes(process.pid) for process in replicas}
    port = int(ingest.url.rpartition(":")[2])
    statuses: Counter[int] = Counter()

    def ask(first: int) -> Counter[int]:
        found: Counter[int] = Counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        for number in range(first, first + NAMES // WORKERS):
            token = ingest.token if number % 2 else "0" * 64
            headers = {"Authorization": f"Bearer {token}"}
            connection.request("POST", f"/v1/senders/name-{number}/batches", b"", headers)
            answer = connection.getresponse()
            answer.read()
            found[answer.status] += 1
        connection.close()
        return found

    with ThreadPoolExecutor(WORKERS) as pool:
        for found in pool.map(ask, range(0, NAMES, NAMES // WORKERS)):
            statuses += found
    assert statuses.keys() <= {400, 401, 503}, statuses  # refused: no token, or no batch
    assert min(statuses[400], statuses[401]) > NAMES // 4
    for process, peak in replicas_before.items():
        assert bombs.peak_bytes(process.pid) - peak < NAMES_BYTES
    assert not [path for path in files(ingest.store) if "name-" in path]


def test_agents_events_become_packet_tables(ingest: Ingest) -> None:
    before = ingest.events()
    with ingest.client("plain") as client:
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
        answers.extend(ingest.post("/v1/senders/again/batches", body)[0] for body in bodies)

    before = ingest.metric("swiftqueue_ingest_duplicates_total")
    threads = [threading.Thread(target=ship) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 20
    check_store(ingest, "again", 5)
    wait_until(lambda: ingest.metric("swiftqueue_ingest_duplicates_total") - before == 15)


def test_a_bad_batch_is_refused_whole_and_counted(ingest: Ingest) -> None:
    """Every reason that there is has its case in test_telemetry_events.py and test_bounds.py."""
    sender, reason, events = "bad", "order", rows(BATCH_PACKETS)
    events.reverse()
    before = ingest.metric("swiftqueue_ingest_refused_total", reason=reason)
    with ingest.client(sender) as client:
        client.send(batch(0))
        client.send(event_rows.batch(events))
        client.send(batch(2))
        assert client.flush(WAIT_S)
    assert (client.shipped.accepted, client.shipped.refused) == (2, 1)
    assert ingest.metric("swiftqueue_ingest_refused_total", reason=reason) == before + 1
    assert f"WARNING ingest: a batch is refused ({reason}): " in ingest.replicas_log.read_text()
    check_store(ingest, sender, 2)
    assert gaps(ingest.store).filter(sender=sender).rows() == [(sender, 1, 1, 1, 1, None)]


def test_what_is_no_batch_is_refused_in_one_line(ingest: Ingest) -> None:
    for body, status, word in (
        (b"hello", 400, "not a batch"),
        (b"", 400, "not a batch"),
        (b"\0" * (5 << 20), 413, "may have"),
    ):
        code, line = ingest.post("/v1/senders/stranger/batches", body)
        assert (code, word in line, "\n" in line) == (status, True, False)
    assert ingest.post("/v1/senders/a%20b/sessions")[0] == 400
    assert ingest.post("/v1/nothing")[0] == 404


def test_of_two_senders_under_one_id_the_later_is_believed(ingest: Ingest) -> None:
    first = ingest.client("twin")
    first.send(batch(0))
    assert first.flush(WAIT_S)
    with ingest.client("twin") as second:
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
    wait_until(lambda: stored_batches(ingest, "twin") == 3)
    assert latest_minutes(ingest.store, "twin", 1e6).packets.height == 2 * BATCH_PACKETS  # of the second


@pytest.mark.parametrize(("victim", "part"), [("Ingest", "a replica"), ("Compaction", "the compaction")])
def test_a_killed_process_loses_nothing_acknowledged(ingest: Ingest, victim: str, part: str) -> None:
    sender = f"killed-{victim}"
    before, begun = ingest.events(), ingest.begun(part)
    with ingest.client(sender) as client:
        for number in range(60):
            client.send(batch(number))
            if number == 25:
                ingest.process(f"ServeReplica:swiftqueue-ingest:{victim}").kill()
            time.sleep(0.02)
        assert client.flush(WAIT_S)
    assert (client.shipped.accepted, client.shipped.dropped) == (60, 0)
    check_store(ingest, sender, 60)
    wait_until(lambda: ingest.begun(part) == begun + 1)
    # A batch that a killed replica counted, and did not answer for, came again and counts twice.
    for kind, counted in ingest.events().items():
        assert 0 <= counted - before[kind] - 60 * BATCH_PACKETS <= client.shipped.retries * BATCH_PACKETS


@pytest.mark.long
def test_batches_wait_for_an_application_that_the_proxy_does_not_know_yet(
    ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart: Ray Serve's proxy listens, with TLS, and says 404 until the ingest is there."""
    from ray import serve

    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / "state"))
    port = free_ports(1)[0]
    try:
        certificate, key = self_signed(tmp_path)
        tls = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
        serve.start(http_options={"host": "127.0.0.1", "port": port, **tls})
        token = secret(INSTALLATION)
        with IngestClient(f"https://127.0.0.1:{port}", "early", token=token, ca=certificate) as client:
            client.send(batch(0))
            wait_until(lambda: client.shipped.retries > 2)
            serve_ingest(tmp_path, port, replicas=1)
            assert client.flush(WAIT_S)
            serve.delete(APPLICATION)
            client.send(batch(1))  # within a session
            retries = client.shipped.retries
            wait_until(lambda: client.shipped.retries > retries + 2)
            serve_ingest(tmp_path, port, replicas=1)
            assert client.flush(WAIT_S)
        shipped = client.shipped
        assert (shipped.accepted, shipped.refused, shipped.dropped) == (2, 0, 0)
        wait_until(lambda: load_manifest(tmp_path, "early").counts.batches == 2)
    finally:
        serve.shutdown()


@pytest.mark.long
def test_a_stopped_ingest_fills_a_bounded_buffer_and_the_gap_shows(ingest: Ingest) -> None:
    gaps_before = ingest.metric("swiftqueue_ingest_gaps_total")
    serving = [ingest.process("ProxyActor")]
    wait_until(lambda: len(ingest.processes(f"ServeReplica:{APPLICATION}")) == 3)  # with the compaction
    serving += ingest.processes(f"ServeReplica:{APPLICATION}")
    client = ingest.client("stopped", buffer=10, timeout_s=2)
    client.send(batch(0))
    assert client.flush(WAIT_S)
    for process in serving:
        process.suspend()
    try:
        for number in range(1, 31):
            client.send(batch(number))  # never blocks
        assert client.waiting <= 11
        wait_until(lambda: client.shipped.retries > 0)
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
    wait_until(lambda: ingest.metric("swiftqueue_ingest_gaps_total") - gaps_before >= shipped.dropped)


def test_a_full_disk_refuses_and_heals(ingest: Ingest) -> None:
    if os.statvfs(ingest.store).f_blocks * os.statvfs(ingest.store).f_frsize > 1 << 30:
        pytest.skip("no small file system could be mounted here: mount needs root")
    ballast = ingest.store / "ballast"
    with ingest.client("full") as client:
        client.send(batch(0))
        assert client.flush(WAIT_S)
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4096)
        for number in range(1, 10):
            client.send(batch(number))
        wait_until(lambda: client.shipped.retries > 0)
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
    names = [f"crowd-{n}" for n in range(CROWD // IN_FLIGHT)]
    for sender in names:
        ingest.post(f"/v1/senders/{sender}/sessions")
    bodies = [(s, encode(BatchKey(s, 1, n), batch(n))) for s in names for n in range(IN_FLIGHT)]
    busy_before = ingest.metric("swiftqueue_ingest_batches_total", outcome="busy")
    stored: list[str] = []
    sent_away: list[tuple[int, str, str | None]] = []

    def ship(sender: str, body: bytes) -> None:
        while True:
            status, said, headers = ingest.answer(f"/v1/senders/{sender}/batches", body)
            if status == 200:
                stored.append(said)
                return
            sent_away.append((status, said, headers["Retry-After"]))
            time.sleep(1)

    threads = [threading.Thread(target=ship, args=one) for one in bodies]
    held = ingest.hold / "appends"
    held.touch()
    try:
        for thread in threads:
            thread.start()
        wait_until(lambda: len(sent_away) > CROWD // 10)
        wait_until(lambda: ingest.metric("swiftqueue_ingest_queue_depth") == 2 * WAITING_BATCHES)
        assert not stored
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
    for sender in names:
        check_store(ingest, sender, IN_FLIGHT)


def test_the_agents_frames_reach_the_store_through_the_forwarder(
    ingest: Ingest, tmp_path: Path, make_artifact: Callable[..., Path]
) -> None:
    """The real agent decides for a synthetic sender; what it hears of every packet is in the store."""
    if (why := agent_process.why_not_built()) is not None:
        pytest.skip(why)
    path = tmp_path / "telemetry.sock"
    forwarder = subprocess.Popen(
        [SWIFTQUEUE, "part", "forwarder", path, ingest.url],
        env={**os.environ, "SWIFTQUEUE_STATE": str(ingest.state)},  # its token lies there
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(path.is_socket)
        arguments = ["--synthetic-bps", "1.2e7", "--flows", "4", "--seconds", "4", "--deadline-us", "1000000"]
        local = ["--local", str(make_artifact(1, layers=1)), f"--telemetry=unix:{path}"]
        for _ in range(2):  # the second agent's packets begin at 0 again: a session of its own
            with agent_process.running_agent([*arguments, *local]) as said:
                summary = list(said)[-1]
    finally:
        forwarder.terminate()
        output, _ = forwarder.communicate(timeout=60)
    assert output.count("dropped=0") == 2, output
    (sender,) = set(re.findall(r" sender (\S+):", output))
    packets = 8 * summary["batches"]
    wait_until(lambda: load_manifest(ingest.store, sender).counts.sends == 2 * packets)
    latest = latest_minutes(ingest.store, sender, 1e6)
    assert (latest.session, latest.packets.height, latest.missing_packets) == (2, packets, 0)
    assert latest.packets["flow_id"].n_unique() == 4
    assert latest.packets["latency_us"].is_between(35_000, 45_000).all()  # the agent's synthetic path
    counts = load_manifest(ingest.store, sender).counts
    assert counts.repeated_sends == counts.repeated_acks == counts.unmatched_acks == 0
    assert gaps(ingest.store).filter(sender=sender).is_empty()


@pytest.mark.long
def test_a_forwarder_that_ends_loses_nothing_and_what_a_killed_one_held_is_counted(
    ingest: Ingest, tmp_path: Path, make_artifact: Callable[..., Path]
) -> None:
    """One sender that stays, three forwarders: the second takes over, the third comes when it was killed."""
    if (why := agent_process.why_not_built()) is not None:
        pytest.skip(why)
    path, listen = tmp_path / "telemetry.sock", tmp_path / "agent.sock"
    missing_before = ingest.metric("swiftqueue_ingest_missing_events_total")

    @contextlib.contextmanager
    def forwarding() -> Iterator[subprocess.Popen[bytes]]:
        program = [SWIFTQUEUE, "part", "forwarder", path, ingest.url]
        its_token = {**os.environ, "SWIFTQUEUE_STATE": str(ingest.state)}
        with subprocess.Popen(program, env=its_token) as forwarder:
            try:
                yield forwarder
            finally:
                forwarder.terminate()
                forwarder.wait(60)

    def events_of(session: int) -> int:
        found = load_manifest(ingest.store, "stays").sessions.get(session)
        return found.events if found else 0

    def send(sender: LiveSender, until: Callable[[], bool]) -> None:
        wait_until(lambda: sender.batch() and until())  # while no forwarder is up, the agent holds what comes

    arguments = ("--listen", listen, f"--telemetry=unix:{path}", "--local", make_artifact(1, layers=1))
    with AgentProgram(*arguments) as agent, LiveSender(listen, "stays") as sender:
        with forwarding():
            send(sender, lambda: events_of(1) > 0)
        with forwarding() as second:
            send(sender, lambda: events_of(2) > 0)
            second.send_signal(signal.SIGSTOP)
            for _ in range(100):
                sender.batch()
            second.kill()
        with forwarding():
            send(sender, lambda: events_of(3) > 0)
            sender.socket.close()
            assert agent.end()["telemetry_dropped"] == 0
    wait_until(lambda: load_manifest(ingest.store, "stays").counts.missing_events > 0)
    manifest = load_manifest(ingest.store, "stays")
    first, second_, third = (manifest.sessions[number] for number in (1, 2, 3))
    assert (first.events_before, second_.events_before) == (0, first.events)
    assert second_.missing_before == 0
    missing = third.events_before - second_.events_before - second_.events
    assert third.missing_before == manifest.counts.missing_events == missing
    assert 0 < missing < 16 * 200
    assert ingest.metric("swiftqueue_ingest_missing_events_total") - missing_before == missing
    (gap,) = gaps(ingest.store).filter(sender="stays").rows(named=True)
    assert (gap["session"], gap["events"]) == (3, missing)


def test_damaged_batches_end_no_replica_and_good_ones_go_on(ingest: Ingest) -> None:
    before = replicas(ingest)
    ingest.post("/v1/senders/mutants/sessions")
    body = encode(BatchKey("mutants", 1, 0), batch(0)[:4])
    with ingest.client("beside") as client:
        for index in range(300):
            damaged = mutants.mutant([body], 3, index)
            if index % 2 and len(damaged) >= HEADER.itemsize:
                damaged = sealed(damaged)  # by one who knows how the checksum is made
            status, said = ingest.post("/v1/senders/mutants/batches", damaged)
            assert status in (200, 400, 409, 429), said
            assert "reason" in said or status in (200, 429), said
            if index % 30 == 0:
                client.send(batch(index // 30))
        assert client.flush(WAIT_S)
    assert (client.shipped.accepted, client.shipped.refused) == (10, 0)
    assert replicas(ingest) == before
    check_store(ingest, "beside", 10)


def test_who_has_no_token_learns_and_changes_nothing(ingest: Ingest) -> None:
    """One POST must not expel a victim: the victim's session goes on."""
    own = senders.add(ingest.store, "owner")
    with ingest.client("owner", token=own) as owner, ingest.client("local") as local:
        for client in (owner, local):
            client.send(batch(0))
            assert client.flush(WAIT_S)
        check_store(ingest, "owner", 1)
        check_store(ingest, "local", 1)
        wait_until(lambda: not list(log_dir(ingest.store).iterdir()))
        before = files(ingest.store)
        refused = ingest.metric("swiftqueue_ingest_refused_total", reason="token")
        body = encode(BatchKey("owner", 1, 1), batch(1))
        answers = set()
        for sender in ("owner", "local", "nobody", "..", "a%20b"):
            for token in ("", "Bearer ", "Bearer " + "0" * 64, f"Basic {ingest.token}", ingest.token):
                for call, content in (("sessions", b""), ("batches", body), ("batches", b"")):
                    status, said = ingest.post(f"/v1/senders/{sender}/{call}", content, Authorization=token)
                    answers.add((status, said.replace(sender.replace("%20", " "), "SENDER")))
        assert {status for status, _ in answers} == {401}
        assert len(answers) == 1  # the same whether there is such a sender or not
        assert ingest.metric("swiftqueue_ingest_refused_total", reason="token") == refused + 75
        lines = ingest.replicas_log.read_text().count("is refused (token)")
        assert 0 < lines < 30  # of each replica one each ten seconds
        # Of those with a token each has its own sender.
        for sender, token in (("owner", ingest.token), ("local", own)):
            status, _ = ingest.post(f"/v1/senders/{sender}/sessions", Authorization=f"Bearer {token}")
            assert status == 401
        assert files(ingest.store) == before
        for client in (owner, local):
            client.send(batch(1))
            assert client.flush(WAIT_S)
            assert (client.shipped.accepted, client.shipped.retries) == (2, 0)
        senders.remove(ingest.store, "owner")  # taken back while it sends
        owner.send(batch(2))
        assert owner.flush(WAIT_S)
        with pytest.raises(SenderRefusedError, match="none that speaks"):
            owner.send(batch(3))


def test_a_batch_under_anothers_name_is_refused(ingest: Ingest) -> None:
    token = senders.add(ingest.store, "mallory")
    ingest.post("/v1/senders/alice/sessions")
    status, said = ingest.post(
        "/v1/senders/mallory/batches",
        encode(BatchKey("alice", 1, 0), batch(0)),
        Authorization=f"Bearer {token}",
    )
    assert (status, "the batch is of sender alice" in said) == (400, True)


def test_the_store_is_its_owners_alone(ingest: Ingest) -> None:
    for folder in (
        ingest.store,
        ingest.store / "metrics",
        ingest.replicas_log.parent,
        ingest.state / "secrets",
    ):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    assert stat.S_IMODE((ingest.state / "secrets" / INSTALLATION).stat().st_mode) == 0o600


def test_a_body_without_a_size_or_too_large_is_refused_before_it_is_read(ingest: Ingest) -> None:
    ingest.post("/v1/senders/large/sessions")
    mib = b"0" * (1 << 20)

    def chunked() -> Iterator[bytes]:
        yield b"Transfer-Encoding: chunked\r\n\r\n"
        for _ in range(200):
            yield b"100000\r\n" + mib + b"\r\n"

    def sized() -> Iterator[bytes]:
        yield b"Content-Length: 209715200\r\n\r\n"
        for _ in range(200):
            yield mib

    for call in ("batches", "sessions"):
        for body, status in ((chunked, b"411"), (sized, b"413")):
            answer, sent = raw(ingest, f"/v1/senders/large/{call}", body())
            assert answer.split()[1] == status, answer
            assert sent < 150 << 20  # it did not wait for the end


@pytest.mark.long
def test_a_flood_of_one_sender_does_not_starve_another(ingest: Ingest) -> None:
    """A hundred connections of the flood at once, beside a hundred of nobody; an honest sender goes on."""
    ingest.post("/v1/senders/flood/sessions")
    ended, statuses = threading.Event(), set[int]()

    def flood(number: int) -> None:
        token = ingest.token if number % 2 else "0" * 64
        while not ended.is_set():
            body = encode(BatchKey("flood", 1, 0), batch(0))
            with contextlib.suppress(OSError):
                answer = ingest.post("/v1/senders/flood/batches", body, Authorization=f"Bearer {token}")
                statuses.add(answer[0])

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(60)]
    for thread in threads:
        thread.start()
    try:
        with ingest.client("honest") as client:
            for number in range(20):
                client.send(batch(number))
            assert client.flush(WAIT_S)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert (client.shipped.accepted, client.shipped.dropped) == (20, 0)
    assert {401, 429} <= statuses <= {200, 401, 429, 503}
    check_store(ingest, "honest", 20)


def test_sessions_come_at_a_rate(ingest: Ingest) -> None:
    answers = [ingest.answer("/v1/senders/opener/sessions", b"") for _ in range(150)]
    assert {status for status, _, _ in answers} == {201, 429}
    assert {headers["Retry-After"] for status, _, headers in answers if status == 429} == {"1"}


def test_what_came_before_a_session_reaches_the_store(ingest: Ingest) -> None:
    """A forwarder that was killed held 100 events."""
    lost = ingest.metric("swiftqueue_ingest_missing_events_total")
    with ingest.client("life") as first:
        first.send(batch(0))
        assert first.flush(WAIT_S)
    with ingest.client("life", events_before=2 * BATCH_PACKETS + 100) as second:
        second.send(batch(1))
        assert second.flush(WAIT_S)
    wait_until(lambda: load_manifest(ingest.store, "life").counts.missing_events == 100)
    wait_until(lambda: ingest.metric("swiftqueue_ingest_missing_events_total") == lost + 100)
    assert gaps(ingest.store).filter(sender="life").rows() == [("life", 2, None, None, None, 100)]
    for body in (b"{", b"[]", b'{"events_before": -1}', b'{"events_before": 1e3}', b'{"more": 1}'):
        assert ingest.post("/v1/senders/life/sessions", body)[0] == 400


def test_there_are_only_so_many_senders(ingest: Ingest) -> None:
    assert ingest.post("/v1/senders/plain/sessions")[0] == 201
    statuses = [ingest.answer(f"/v1/senders/one-of-many-{n}/sessions", b"") for n in range(SENDERS)]
    assert {status for status, _, _ in statuses} == {201, 507}
    assert '"reason":"senders"' in statuses[-1][1]
    assert ingest.metric("swiftqueue_ingest_refused_total", reason="senders") > 0
    assert ingest.post("/v1/senders/plain/sessions")[0] == 201  # that it knows
    for folder in (ingest.store / "sessions").glob("one-of-many-*"):
        shutil.rmtree(folder)


@pytest.fixture
def measured(ingest: Ingest) -> bench.IngestServer:
    """The ingest as its bench sees it; of its two replicas one is looked at."""
    names = (
        "ServeReplica:swiftqueue-ingest:Ingest",
        COMPACTION,
        "ProxyActor",
    )
    return bench.IngestServer(
        ingest.url, ingest.store, ingest.token, [ingest.process(name) for name in names]
    )


@pytest.mark.long
def test_memory_stays_flat(ingest: Ingest, measured: bench.IngestServer) -> None:
    """2 million events add next to nothing; 50 million: `swiftqueue bench ingest --events`.

    The most that the compaction ever took in at once stays resident, and a later round may bring more. But
    what keeps a quarter of the batches grows in each round, by twice the 8 MiB that may be added.
    """
    batch_bytes = len(encode(BatchKey("sender-0", 1, 0), bench.Source(0).batch()))
    assert batch_bytes * 2_000_000 // bench.BATCH_EVENTS > ROUND_BYTES  # 64 MiB, a quarter of which is that
    resident_mib: list[float] = []
    while len(resident_mib) < 2 or resident_mib[-1] - resident_mib[-2] > 8:
        assert len(resident_mib) < 10, resident_mib
        bench.ship(measured, 2_000_000)
        wait_until(lambda: not list(log_dir(measured.root).iterdir()))
        resident_mib.append(measured.resident_bytes() / 2**20)


def test_the_bench_of_memory_gives_rows(
    measured: bench.IngestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
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
