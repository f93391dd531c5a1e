"""A whole live loop for the tests of faults: real parts, a client that asks, a sender that counts.

MLflow is a server of its own, as one elsewhere would be: the rounds depend on it, and who runs it heals it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from event_rows import batch
from of_state import processes_of
from registered import add_version
from waiting import wait_until

from swiftqueue.feature_store.telemetry.events import ACK, SEND
from swiftqueue.feature_store.telemetry.manifest import load_manifest
from swiftqueue.infra.local import parts, processes, status
from swiftqueue.infra.local.loop import start_loop
from swiftqueue.infra.local.pages import answers
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.infra.local.servers import start_mlflow
from swiftqueue.models.registry.registry import CHAMPION, Registry
from swiftqueue.pipelines.live.rounds_log import LOG_FILE, read
from swiftqueue.serving.ingest.client import IngestClient, read_token
from swiftqueue.serving.ingest.senders import INSTALLATION
from swiftqueue.serving.triton.endpoint import Triton

HERE = Path(__file__).parent
PORTS = (
    "SWIFTQUEUE_TRITON_GRPC",
    "SWIFTQUEUE_TRITON_METRICS",
    "SWIFTQUEUE_MLFLOW_PORT",
    "SWIFTQUEUE_RAY_PORT",
    "SWIFTQUEUE_INGEST_PORT",
    "SWIFTQUEUE_AGENT_METRICS",
    "SWIFTQUEUE_SCHEDULER_METRICS",
    "SWIFTQUEUE_KEEPER_METRICS",
    "SWIFTQUEUE_PROMETHEUS_PORT",
    "SWIFTQUEUE_PAGE_PORT",
)
# A program that registers the artifact in the folder that it is given as the first champion.
FIRST = (
    "import sys; from pathlib import Path; import fault_loop; fault_loop.register_champion(Path(sys.argv[1]))"
)
EVERY_S = 3.0
HEAL_S = 300.0  # Ray's head, then the ingest, then the workers: 40 to 90 s, 170 beside other work
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
PROBE = "probe"  # the sender whose telemetry is counted
MS = 1_000_000
ENDED_WELL = ("pushed", "kept")
PROCESSES = {  # a word of the command line of each process that a fault befalls
    "ray": "gcs_server",
    "worker": "ray::WarmActor",
    "ingest": "ServeReplica:swiftqueue-ingest:Ingest",
    "agent": "swiftqueue-agent",
}


class Asking(threading.Thread):
    """A client that asks Triton for predictions ten times a second, and what it saw."""

    def __init__(self) -> None:
        super().__init__(name="asking", daemon=True)
        self.answered, self.failed = 0, 0
        self.last_error = ""
        self.ended = threading.Event()

    def run(self) -> None:
        tokens, features = 64, 0
        while not self.ended.wait(0.1):
            with Triton() as triton:
                with contextlib.suppress(OSError):
                    tokens, features = triton.config().input[0].dims
                x_BWF = np.zeros((1, tokens, features), np.float32)
                while not self.ended.wait(0.1):
                    try:
                        triton.infer(x_BWF)
                        self.answered += 1
                    except OSError as error:
                        self.failed += 1
                        self.last_error = str(error)
                        break


class Probe(threading.Thread):
    """A sender of its own: two batches of telemetry a second; what was acknowledged must be stored."""

    def __init__(self, url: str, store: Path, token: str) -> None:
        super().__init__(name="probe", daemon=True)
        self.client = IngestClient(url, PROBE, token=token, buffer=10_000, timeout_s=5)
        self._store, self._sent = store, 0
        self.ended = threading.Event()
        self._resting = threading.Lock()

    def run(self) -> None:
        while not self.ended.wait(0.5):
            with self._resting:
                at_ns, packet = 10**18 + self._sent * 10 * MS, self._sent
                sent = {"size_bytes": 1500, "flow_id": 0, "receiver_id": 0, "queue": 1, "ecn": 1}
                rows = [
                    {"kind": SEND, "time_ns": at_ns, "packet": packet, **sent},
                    {"kind": ACK, "time_ns": at_ns + MS, "packet": packet, "latency_us": 1000.0},
                ]
                self.client.send(batch(rows))
                self._sent += 1

    def check(self) -> None:
        """All that was sent is acknowledged, and all that was acknowledged is stored, once."""
        assert self.is_alive()
        with self._resting:
            assert self.client.flush(HEAL_S), f"{self.client.waiting} batches are not acknowledged"
            shipped = self.client.shipped
            assert (shipped.accepted, shipped.refused, shipped.dropped) == (self._sent, 0, 0)
            wait_until(
                lambda: self._counts() == (self._sent, self._sent, self._sent, 0, 0),
                f"of {self._sent} acknowledged batches these are stored: {self._counts()}",
            )

    def _counts(self) -> tuple[int, ...]:
        counts = load_manifest(self._store, PROBE).counts
        return counts.batches, counts.sends, counts.acks, counts.repeated_sends, counts.repeated_acks


@dataclass
class FaultLoop:
    """The loop in a state folder of its own."""

    state: Path
    packets: Path
    hold: Path
    clock: Path
    ports: dict[str, int]
    small_disk: bool
    temporary: Path  # the TMPDIR of what makes none of its own
    shared_memory: set[str] = field(default_factory=lambda: names_in_shared_memory())
    asking: Asking = field(init=False)
    probe: Probe = field(init=False)

    def start(self) -> None:
        start_loop(str(self.packets), speed=1, every_s=EVERY_S, learn_s=4, judge_s=2)

    def begin(self) -> None:
        """Start client and sender, and wait for the first round that ends well."""
        self.asking = Asking()
        self.probe = Probe(self.ingest_url, self.state / "telemetry", self.token)
        self.asking.start()
        self.probe.start()
        self.next_good_round(0, 300)

    def end(self) -> None:
        """End client and sender."""
        self.asking.ended.set()
        self.probe.ended.set()
        self.asking.join()
        self.probe.join()
        self.probe.client.close()

    @property
    def token(self) -> str:
        return read_token(self.state / "secrets" / INSTALLATION)

    @property
    def ingest_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['SWIFTQUEUE_INGEST_PORT']}"

    # Processes ------------------------------------------------------------------------------------------

    def process(self, part: str) -> psutil.Process:
        """The process of a part that a fault befalls; waits for it."""

        def look() -> psutil.Process | None:
            if (word := PROCESSES.get(part)) is None:
                server = processes.running(part)
                return server.process() if server else None
            for process in processes_of(self.state):
                with contextlib.suppress(psutil.Error):
                    if word in " ".join(process.cmdline()[:3]):  # python -m NAME
                        return process
            return None

        found: psutil.Process = wait_until(look, f"no process of {part}")
        return found

    def leaked_shared_memory(self) -> set[str]:
        """What lies in shared memory since the beginning and no process uses."""
        maps = []
        for process in Path("/proc").glob("[0-9]*/maps"):
            with contextlib.suppress(OSError):
                maps.append(process.read_text())
        used = "\n".join(maps)
        new = names_in_shared_memory() - self.shared_memory
        return {name for name in new if str(SHARED_MEMORY / name) not in used}

    def heal_mlflow(self) -> None:
        """Do what its own supervisor would after it was killed: start the registry's server."""
        wait_until(lambda: processes.running("mlflow") is None, "mlflow did not end")
        uri = os.environ.pop("MLFLOW_TRACKING_URI")
        try:
            processes.stop("mlflow")
            start_mlflow()
        finally:
            os.environ["MLFLOW_TRACKING_URI"] = uri

    # Rounds ---------------------------------------------------------------------------------------------

    def rounds(self) -> list[dict[str, Any]]:
        """What the rounds log says."""
        return read(self.state / "live" / LOG_FILE)

    def next_good_round(self, after: int, seconds: float = HEAL_S, *, begun_s: float = 0.0) -> dict[str, Any]:
        """Wait for a round that ended well, beyond the first `after` ones and begun since then."""

        def look() -> dict[str, Any] | None:
            for one in self.rounds()[after:]:
                if one["outcome"] in ENDED_WELL and one["triggered"] > begun_s:
                    return one
            return None

        try:
            found: dict[str, Any] = wait_until(look, "no round ended well")
        except AssertionError as error:
            last = [f"{one['number']} {one['outcome']}: {one['reason']}" for one in self.rounds()[after:]]
            raise AssertionError(f"{error}; the rounds since then: {last[-5:]}") from None
        return found

    @contextlib.contextmanager
    def held_at(self, step: str) -> Iterator[None]:
        """A round waits at the beginning of a step for the block."""
        (self.hold / step).touch()
        try:
            wait_until(lambda: list(self.hold.glob(f"{step}.*")), f"no round came to {step}")
            yield
        finally:
            for file in self.hold.iterdir():
                file.unlink()

    # What users see -------------------------------------------------------------------------------------

    def restarts(self, part: str) -> float:
        """How often the keeper has started a part."""
        return self._count("KEEPER_METRICS", f'swiftqueue_part_restarts_total{{part="{part}"}}')

    def wait_until_kept(self) -> None:
        """Wait until the keeper starts nothing: a part answers before its start has ended and is counted."""
        up = [f'swiftqueue_part_up{{part="{part}"}}' for part in parts.wanted()]
        wait_until(
            lambda: all(self._count("KEEPER_METRICS", series) == 1 for series in up),
            "the keeper starts a part, or has no answer of one",
        )

    def rounds_ended(self, outcome: str) -> float:
        return self._count("SCHEDULER_METRICS", f'swiftqueue_rounds_total{{outcome="{outcome}"}}')

    def batches(self, outcome: str) -> float:
        """How many batches of the replaying sender ended so."""
        return self._count("AGENT_METRICS", f'swiftqueue_agent_batches_total{{outcome="{outcome}"}}')

    def refused(self, reason: str) -> float:
        """How many batches the ingest has refused for a reason."""
        return self._count("INGEST_PORT", f'swiftqueue_ingest_refused_total{{reason="{reason}"}}')

    def _count(self, port: str, series: str) -> float:
        """A series of a part's page, which is waited for; 0 of one that has not begun to count."""
        url = f"http://127.0.0.1:{self.ports[f'SWIFTQUEUE_{port}']}/metrics"
        wait_until(lambda: answers(url), f"no answer at {url}")
        return status.number(url, series) or 0.0

    def newest_session(self, sender: str) -> int:
        """The last session of a sender of which packets are in the store."""
        newest = load_manifest(self.state / "telemetry", sender).newest()
        assert newest is not None
        return newest[0]

    def said(self, part: str, name: str = "server.log") -> str:
        """A log of the part; nothing if there is none yet."""
        log = self.state / part / name
        return log.read_text(errors="replace") if log.exists() else ""

    def set_clock(self, seconds: float) -> None:
        """Set the wall clock of all parts so far from the machine's."""
        with self.clock.open("r+b") as file:
            file.write(struct.pack("q", round(seconds * 1e9)))

    def served(self) -> int | None:
        with Triton() as triton:
            return triton.served_version()

    def check_champion(self) -> None:
        """The champion is what is served, and a client that has asked all the while is answered now."""
        registry = Registry("swiftqueue")
        wait_until(
            lambda: self.served() == registry.alias(CHAMPION),
            f"version {self.served()} is served, champion is {registry.alias(CHAMPION)}",
        )
        assert self.asking.is_alive()
        answered = self.asking.answered
        wait_until(lambda: self.asking.answered > answered, "the client has no answer")

    def check_sender(self) -> None:
        """The replaying sender's agent decides by predictions again."""
        decided = self.batches("decided")  # 0 while it is not there, and of a new one
        wait_until(lambda: self.batches("decided") > decided, "the agent decides nothing")

    def answers(self, part: str) -> bool:
        """Whether a part answers within a second; also true of one that cannot be asked."""
        pages = {
            "mlflow": ("SWIFTQUEUE_MLFLOW_PORT", "health"),
            "ingest": ("SWIFTQUEUE_INGEST_PORT", "metrics"),
            "agent": ("SWIFTQUEUE_AGENT_METRICS", "metrics"),
            "scheduler": ("SWIFTQUEUE_SCHEDULER_METRICS", "metrics"),
        }
        if part == "triton":
            with Triton(call_timeout_s=1.0) as triton:
                return triton.live()
        if part not in pages:
            return True
        variable, path = pages[part]
        return answers(f"http://127.0.0.1:{self.ports[variable]}/{path}", timeout_s=1)


def environment_of(state: Path) -> dict[str, str]:
    """Return the variables of a loop of its own: this process's without our settings, and free ports."""
    ours = ("SWIFTQUEUE_", "RAY_", "MLFLOW_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {name: str(port) for name, port in zip(PORTS, free_ports(len(PORTS)), strict=True)}
    return environment | {"SWIFTQUEUE_STATE": str(state)}


def names_in_shared_memory() -> set[str]:
    """Segments that lie in shared memory now: files. Folders there are of tests that run beside."""
    return {path.name for path in SHARED_MEMORY.iterdir() if path.is_file()}


def compile_clock(folder: Path) -> Path:
    """Build the library of the wall clock that a test sets."""
    library = folder / "stepped_clock.so"
    words = ["g++", "-x", "c", "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "stepped_clock.c")]
    subprocess.run(words, check=True)
    return library


def register_champion(folder: Path) -> int:
    """Make an artifact the champion of an empty registry; return its version."""
    version = add_version(folder)
    Registry("swiftqueue").set_alias(CHAMPION, version)
    return version
