"""A loop's state for the tests of its live page: logs, a telemetry store, and parts that only count."""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from event_rows import batch
from waiting import wait_until

from swiftqueue.common import json_lines
from swiftqueue.common.state import secret
from swiftqueue.feature_store.telemetry.compact import Compactor
from swiftqueue.feature_store.telemetry.events import ACK, SEND, BatchKey, encode
from swiftqueue.feature_store.telemetry.log import SegmentWriter
from swiftqueue.infra.local import live_options, processes
from swiftqueue.infra.local.pages import answers
from swiftqueue.infra.local.parts import PAGE
from swiftqueue.pipelines.live.rounds_log import LOG_FILE

SENDER = "agent-1"
SECOND_NS = 10**9
# The metrics page of an agent and of a keeper: of ten batches nine are in time, of four packets one is moved.
COUNTING = """
import sys, time
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from swiftqueue.common import metrics_page
page, agent = CollectorRegistry(), "swiftqueue_agent_"
batches = Counter(agent + "batches", "", ["outcome"], registry=page)
packets = Counter(agent + "packets", "", ["queue"], registry=page)
bounds = [100e-6, 250e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 200e-3, 1.0]
error = Histogram(agent + "prediction_error_seconds", "", buckets=bounds, registry=page)
predicted = Histogram(agent + "predicted_latency_seconds", "", buckets=bounds, registry=page)
Histogram(agent + "round_trip_seconds", "", buckets=bounds, registry=page)
Gauge(agent + "server_version", "", ["server"], registry=page).labels("127.0.0.1:8001").set(7)
Gauge(agent + "senders", "", registry=page).set(1)
up = Gauge("swiftqueue_part_up", "", ["part"], registry=page)
restarts = Counter("swiftqueue_part_restarts", "", ["part"], registry=page)
for part in ("agent", "page"):
    up.labels(part).set(1)
restarts.labels("agent").inc(3)
metrics_page.serve(page, "127.0.0.1", int(sys.argv[1]))
while True:
    batches.labels("decided").inc(9)
    batches.labels("late").inc(1)
    packets.labels("classic").inc(20)
    packets.labels("l4s").inc(60)
    for _ in range(8):
        error.observe(1.5e-3)
        predicted.observe(15e-3)
    time.sleep(0.05)
"""


def store_packets(root: Path, begin_ns: int, latencies_ms: list[float], parts: int) -> Iterator[None]:
    """Store a packet each 10 ms with these latencies, in so many runs of the compaction; yield after each."""
    rows: list[dict[str, Any]] = []
    sent = {"size_bytes": 1500, "flow_id": 0, "receiver_id": 0, "queue": 1, "ecn": 1}
    for number, latency_ms in enumerate(latencies_ms):
        at_ns = begin_ns + number * 10_000_000
        rows.append({"kind": SEND, "time_ns": at_ns, "packet": number, **sent})
        acked_ns = at_ns + round(latency_ms * 1e6)
        rows.append({"kind": ACK, "time_ns": acked_ns, "packet": number, "latency_us": 1e3 * latency_ms})
    rows.sort(key=lambda row: row["time_ns"])
    size = -(-len(rows) // parts)
    for sequence in range(parts):
        writer = SegmentWriter(root)
        events = batch(rows[sequence * size : (sequence + 1) * size])
        writer.append([encode(BatchKey(SENDER, 1, sequence), events)])
        writer.close()
        compactor = Compactor(root)
        compactor.run()
        compactor.close()
        yield


def write_logs(state: Path) -> None:
    """Write two rounds, of which the gate refused one, and two deployments."""
    now_s = time.time()
    rounds: list[dict[str, Any]] = [
        {"number": 1, "triggered": now_s - 120, "outcome": "pushed", "reason": "better", "version": 7},
        {
            "number": 2,
            "triggered": now_s - 60,
            "outcome": "kept",
            "reason": "worse <b>than</b> the champion by 3 % of the log-error",
            "version": 8,
            "seconds": {"train": 2.5, "judge": 1.5, "total": 4.0},
        },
    ]
    (state / "live").mkdir(exist_ok=True)
    for one in rounds:
        json_lines.append(state / "live" / LOG_FILE, one)
    for version, ago_s in ((6, 500.0), (7, 110.0)):
        entry = {"time": now_s - ago_s, "action": "deploy", "version": version, "outcome": "served"}
        json_lines.append(state / "deploy.log.jsonl", {**entry, "registered": now_s - ago_s - 5})


def make_world(state: Path) -> None:
    """Write the logs and the store, and start an agent and a keeper that count."""
    live_options.write(live_options.LiveOptions("toy", 1, 60, 30, 8))
    write_logs(state)
    begin_ns = time.time_ns() - 20 * SECOND_NS
    # One packet of fifty takes 40 ms, the others 8.
    latencies_ms = [40.0 if number % 50 == 0 else 8.0 for number in range(1800)]
    for _ in store_packets(state / "telemetry", begin_ns, latencies_ms, parts=2):
        pass
    for name in ("agent", "keeper"):
        start_counting(name)


def start_counting(name: str) -> processes.ServerProcess:
    """Start a part that only counts."""
    (port,) = processes.free_ports(1)
    url = f"http://127.0.0.1:{port}/metrics"
    command = [sys.executable, "-c", COUNTING, str(port)]
    return processes.start(name, command, {"metrics": port}, {}, lambda: answers(url), 120)


def stop_world() -> None:
    """Stop what `make_world` started, and the page."""
    for name in ("page", "agent", "keeper"):
        processes.stop(name)


def damage(state: Path) -> None:
    """Put what a full disk, a crash or a mistake leaves into each of the files that the page reads."""
    for log in (state / "live" / LOG_FILE, state / "deploy.log.jsonl"):
        with log.open("ab") as file:
            file.write(b'{"number": "NaN", "outcome": 3}\n[1]\n\xff\xfe{"number": 9')
            file.write(b"\n" + json.dumps({"version": 9, "time": "now", "outcome": []}).encode())
            late = {"number": 3, "outcome": "failed", "triggered": "x", "seconds": [1], "version": {}}
            file.write(b"\n" + json.dumps(late).encode() + b"\n" + b'{"number": 4, "outcome": "pus')
    folder = state / "telemetry" / "packets" / f"trace={SENDER}"
    other = folder.with_name("trace=damaged")
    other.mkdir()
    (other / "manifest.json").write_text('{"sender": 1')


def port() -> int:
    """Return the page's port."""
    server = processes.running(PAGE)
    assert server is not None, processes.log_path(PAGE).read_text()
    return server.ports["http"]


def get(path: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """Ask the page; `Host` is this machine's unless a header says otherwise."""
    connection = http.client.HTTPConnection("127.0.0.1", port(), timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def view() -> dict[str, Any]:
    """Return what the page shows; the first one who looks waits for it."""

    def look() -> dict[str, Any]:
        status, body, _ = get("/state.json", Authorization=f"Bearer {secret(PAGE)}")
        assert status == 200
        found: dict[str, Any] = json.loads(body)
        return found

    return wait_until(look, "the page shows nothing")
