"""Measure from a round's trigger to its version's first answer, on a minute of telemetry at 100 Mbit/s.

Every part is real: packets of an ns-3 simulation, shipped to the ingest and read from its store; a worker
that is warm; the registry as `up --live` uses it; Triton; and a client of its own that asks 50 times a second
and sees the version change. The sender goes on while rounds run, so each head is judged in shadow on the
packets that came meanwhile. Each round's version is the next one's champion; if a head is kept back, the
round is run again. The first version's round starts Ray and its worker, and is not counted.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swiftqueue.benchmarks.inference_references import event_stream
from swiftqueue.benchmarks.ingest import IngestServer, running_ingest
from swiftqueue.benchmarks.rows import Row
from swiftqueue.benchmarks.version_watch import VersionWatch
from swiftqueue.common.section import read_all
from swiftqueue.common.settings import settings, surrounded_by, variable
from swiftqueue.infra.local.processes import free_ports

if TYPE_CHECKING:
    import polars as pl

    from swiftqueue.pipelines.live.rounds import Rounds
    from swiftqueue.pipelines.live.rounds_log import RoundRecord
    from swiftqueue.serving.ingest.client import IngestClient

PARAMS_FILE: Final = Path("params.yaml")
PROMISED_S: Final = 30.0
LEARN_S, JUDGE_S, LEAD_IN_S = 60.0, 10.0, 5.0  # the defaults of `swiftqueue schedule`
ROUND_S: Final = 60.0  # seconds of telemetry for a round and its judging slice; a shadow needs as much
STEP_S: Final = 0.25  # seconds of telemetry shipped together
START_S: Final = 3.0  # first seconds of the simulation, in which its flows begin
LEAST_DECISIONS: Final = 200
# These parameters differ from params.yaml: the same network, seven times as fast. Its sender gets about 100
# Mbit/s.
TRAFFIC: Final = {"seeds": [1], "bottleneck_mbps": 175, "flow_mbps": 14}
BATCH_EVENTS: Final = 8192
STORED_WAIT_S: Final = 60.0
SEEN_WAIT_S: Final = 30.0
SETTLED_S: Final = 3.0  # seconds until telemetry can be read
SENDER: Final = "bench"


@dataclass(frozen=True)
class RoundTiming:
    """A round and the time at which its version first answered."""

    record: RoundRecord
    first_answer_s: float  # seconds after the trigger


def measure(rounds: int) -> list[Row]:
    """Run rounds until a version is served, then `rounds` more, which are measured.

    Raises:
        OSError, RuntimeError: a part did not start; the line says which.
    """
    from swiftqueue.pipelines.live.scheduler import WATCH_EVERY_S

    # `--json` owns the standard output.
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        packets = _simulated(root, _first_s() + ROUND_S * (rounds + 2))
        with own_state(root / "state"), running_ingest(root / "telemetry") as ingest:
            measured, answered, watch_s = _run(rounds, packets, root, ingest)
    rows = _rows(measured[1:], answered, rounds)
    looked = "a look at the served head between two rounds"
    return [*rows, Row(looked, watch_s, WATCH_EVERY_S, "one every", WATCH_EVERY_S / watch_s, "s", 1)]


def _run(
    rounds: int, packets: pl.DataFrame, root: Path, ingest: IngestServer
) -> tuple[list[RoundTiming], float, float]:
    from swiftqueue.infra.local.loop import stop_stack
    from swiftqueue.infra.local.servers import start_stack
    from swiftqueue.models.training.head import FinetuneParams
    from swiftqueue.pipelines.live.command import round_params
    from swiftqueue.pipelines.live.rounds import Rounds
    from swiftqueue.serving.ingest.client import IngestClient
    from swiftqueue.serving.triton.endpoint import grpc_address

    params = read_all(PARAMS_FILE)
    model = params["register"]["model_name"]
    store = TelemetryStore(root / "telemetry")
    start_stack()
    judged = round_params(
        params["validate"],
        learn_s=LEARN_S,
        judge_s=JUDGE_S,
        lead_in_s=LEAD_IN_S,
        least_decisions=LEAST_DECISIONS,
    )
    live = Rounds(store.latest, judged, FinetuneParams(**params["finetune"]), model)
    try:
        first_champion(root / "champion", model)
        sender = IngestClient(ingest.url, SENDER, token=ingest.token)
        with VersionWatch(grpc_address()) as watch, contextlib.closing(sender) as client:
            store.ship(client, packets, 0.0, _first_s())
            with _sending(client, packets, _first_s()):
                measured = [_one_round(live, watch) for _ in range(rounds + 1)]
                # A look judges packets sent after the switch.
                time.sleep(settings().rollback_after_s + SETTLED_S)
                begin_s = time.monotonic()
                live.probation.watch()
                return measured, watch.close(), time.monotonic() - begin_s
    finally:
        live.close()
        stop_stack()


def _first_s() -> float:
    """Return the seconds of telemetry for the first round."""
    return START_S + LEAD_IN_S + LEARN_S + JUDGE_S


def _one_round(live: Rounds, watch: VersionWatch) -> RoundTiming:
    """Run a round that ends in a served version; repeat it while its head is kept back.

    Raises:
        RuntimeError: it ended otherwise.
    """
    while True:
        begin_s = time.monotonic()
        record = live.run()
        if record.outcome != "kept":
            break
        print(f"round {record.number}: {record.reason}")
    if record.outcome != "pushed" or record.version is None:
        raise RuntimeError(f"bench live: round {record.number} {record.outcome}: {record.reason}")
    seen_s = watch.first_answer_s(record.version, SEEN_WAIT_S)
    print(f"round {record.number}: version {record.version} answered after {seen_s - begin_s:.1f} s")
    return RoundTiming(record, seen_s - begin_s)


@contextmanager
def _sending(client: IngestClient, packets: pl.DataFrame, from_s: float) -> Iterator[None]:
    """Ship the sender's events from a time on during the block, as time goes on."""
    import numpy as np

    events = event_table(packets, from_s, float("inf"))
    ended = threading.Event()

    def send() -> None:
        begin_s, first = time.monotonic(), 0
        begin_ns = int(packets["sent_ns"][0]) + round(from_s * 1e9)
        while first < len(events["kind"]) and not ended.wait(STEP_S):
            now_ns = begin_ns + round((time.monotonic() - begin_s) * 1e9)
            last = int(np.searchsorted(events["time_ns"], now_ns))
            if last > first:
                client.send(_batch({name: column[first:last] for name, column in events.items()}))
            first = last

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class TelemetryStore:
    """The ingest's telemetry store, filled by a sender and read as the scheduler reads it."""

    def __init__(self, folder: Path, sender: str = SENDER) -> None:
        self._folder, self._sender = folder, sender

    def latest(self, seconds: float, sender: str = "") -> Any:
        """Return the last seconds of the only sender."""
        from swiftqueue.feature_store.telemetry.recent import latest_minutes

        return latest_minutes(self._folder, sender or self._sender, seconds / 60)

    def ship(self, client: IngestClient, packets: pl.DataFrame, from_s: float, to_s: float) -> None:
        """Ship the events of these seconds of a packet table, and wait until they can be read.

        Raises:
            RuntimeError: they could not be read in time.
        """
        events = event_table(packets, from_s, to_s)
        for first in range(0, len(events["kind"]), BATCH_EVENTS):
            while client.waiting >= 4:
                time.sleep(0.001)
            some = slice(first, first + BATCH_EVENTS)
            client.send(_batch({name: column[some] for name, column in events.items()}))
        client.flush(STORED_WAIT_S)
        newest_ns = int(events["time_ns"][-1])
        deadline = time.monotonic() + STORED_WAIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                if self.latest(1.0).newest_ns == newest_ns:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"bench live: {from_s:g} to {to_s:g} s of telemetry were not stored")


def event_table(packets: pl.DataFrame, from_s: float, to_s: float) -> dict[str, Any]:
    """Return a packet table's events between two times after its first packet, in time order, as columns."""
    import numpy as np
    import polars as pl

    sent_ns = packets["sent_ns"].to_numpy()
    acked = packets.filter(packets["acked_ns"].is_not_null())
    number = packets["packet"].to_numpy()
    kind = np.concatenate([np.zeros(len(number), np.uint8), np.ones(acked.height, np.uint8)])
    time_ns = np.concatenate([sent_ns, acked["acked_ns"].to_numpy()])
    columns: dict[str, Any] = {
        "kind": kind,
        "time_ns": time_ns,
        "packet": np.concatenate([number, acked["packet"].to_numpy()]),
        "latency_us": np.concatenate(
            [np.zeros(len(number), np.float32), acked["latency_us"].fill_null(float("nan")).to_numpy()]
        ),
    }
    is_l4s = (packets["queue"].cast(pl.String) == "l4s").cast(pl.UInt8).to_numpy()
    for name, values in (
        *((name, packets[name].to_numpy()) for name in ("size_bytes", "flow_id", "receiver_id", "ecn")),
        ("queue", is_l4s),
        ("retransmitted", packets["retransmitted"].cast(pl.UInt8).to_numpy()),
    ):
        columns[name] = np.concatenate([values, np.zeros(acked.height, values.dtype)])
    begin_ns = int(sent_ns[0])
    inside = (time_ns >= begin_ns + from_s * 1e9) & (time_ns < begin_ns + to_s * 1e9)
    order = np.flatnonzero(inside)
    order = order[np.lexsort((columns["packet"][order], time_ns[order]))]
    return {name: values[order] for name, values in columns.items()}


def _batch(columns: dict[str, Any]) -> Any:
    from swiftqueue.feature_store.telemetry.events import SEND_COLUMNS, event_batch

    send = {name: columns[name] for name in SEND_COLUMNS}
    return event_batch(columns["kind"], columns["time_ns"], columns["packet"], send, columns["latency_us"])


def _simulated(root: Path, seconds: float) -> pl.DataFrame:
    """Return the packets of a simulated sender of about 100 Mbit/s."""
    import polars as pl

    from swiftqueue.feature_store.packets.extract import ExtractJob
    from swiftqueue.feature_store.packets.extract_many import extract_traces
    from swiftqueue.feature_store.packets.schema import scan_packets
    from swiftqueue.pipelines.simulate import SimulateParams, simulate
    from swiftqueue.pipelines.simulators import build_simulator

    section = read_all(PARAMS_FILE)["simulate"]
    params = SimulateParams(**(section | TRAFFIC | {"duration_s": seconds + 2}))
    print(f"simulating {seconds:.0f} s of a sender at 100 Mbit/s (a minute or two)", flush=True)
    (capture,) = simulate(params, root, build_simulator())
    extract_traces([ExtractJob(capture, SENDER, None, "acks")], root / "packets")
    packets = scan_packets(root / "packets", SENDER).collect()
    return packets.with_columns(pl.col("sent_ns").cum_max())


def first_champion(folder: Path, name: str) -> None:
    """Register and serve an event stream; its weights are random, so each round improves it."""
    import torch

    from swiftqueue.models.networks import artifact
    from swiftqueue.models.registry.registry import GateDecision, Registry
    from swiftqueue.serving.deploy.deployment import deploy_version

    torch.manual_seed(0)
    artifact.save(folder, event_stream(), {})
    artifact.export_onnx(folder)
    judged = GateDecision(True, "random weights of a bench", None)
    deploy_version(Registry(name).add(folder, judged=judged, tags={}, params={}, metrics={}))


@contextmanager
def own_state(folder: Path, **more: str) -> Iterator[None]:
    """Set a state folder and free ports of its own, and more settings by name, in the environment."""
    names = ("triton_grpc", "triton_metrics", "mlflow_port")
    chosen = {variable(name): str(port) for name, port in zip(names, free_ports(3), strict=True)}
    chosen |= {variable("state"): str(folder), "MLFLOW_TRACKING_URI": "", "RAY_ADDRESS": ""}
    chosen |= {variable(name): value for name, value in more.items()}
    with surrounded_by(chosen):
        yield


def _rows(warm: list[RoundTiming], answered: float, rounds: int) -> list[Row]:
    count = round(statistics.median(one.record.packets for one in warm))
    ours = statistics.median(one.first_answer_s for one in warm)
    name = f"trigger to the first answer of the new version, {count:,} packets"
    worst = max(one.first_answer_s for one in warm)
    rows = [
        Row(name, ours, PROMISED_S, "promised at most", PROMISED_S / ours, "s", rounds),
        Row(f"{name}, slowest round", worst, PROMISED_S, "promised at most", PROMISED_S / worst, "s", rounds),
    ]
    for step in warm[0].record.seconds:
        step_s = statistics.median(one.record.seconds[step] for one in warm)
        ratio = ours / max(step_s, 1e-6)
        rows.append(Row(f"step {step}", step_s, ours, "the whole round", ratio, "s", rounds))
    rows.append(Row("questions answered meanwhile", answered, 1.0, "all of them", answered, "share", rounds))
    return rows
