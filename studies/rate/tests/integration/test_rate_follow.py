"""A real kernel's flows that an agent tells their rates: what is told, and who dies, lags or is not there."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PROJECT
from waiting import wait_until

from swiftqueue.serving.agent.io import frames
from swiftqueue.studies.rate.frames import FORECAST, RATE_OUTCOMES, SAMPLE, blank
from swiftqueue.studies.rate.model.flows import load
from swiftqueue.studies.rate.programs import SAMPLER, SAMPLER_OBJECT
from swiftqueue.studies.rate.samples.definition import HORIZONS, MOST_SAMPLES, NAMES
from swiftqueue.studies.rate.testbed.flows import CONTROL, why_not
from swiftqueue.studies.rate.testbed.follow import following
from swiftqueue.testbed.host import tcp_traffic
from swiftqueue.testbed.host.hosts import ADDRESS_B, Bed
from swiftqueue.testbed.host.programs import CONTROLS
from swiftqueue.testbed.host.selfcheck import NO_AQM
from swiftqueue.testbed.host.tcp import PORT, running, summary, urgent

sys.path.append(str(Path(__file__).resolve().parents[1]))
from rate_agent import RateAgent

CANNOT = why_not()
needs_bed = pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))
alone = pytest.mark.usefixtures("kernels_controls_alone")
pytestmark = [pytest.mark.slow, needs_bed, alone]
USED, NOT_A_RATE, STALE, TOO_LATE, _, NOTHING_NEW = range(6)  # sq_verdict
SAMPLES = 5
RTT_MS = 60
LARGE = 400_000  # bytes of a download that has enough ACKs, also where a busy machine merges some
GONE: Callable[[], bool] = lambda: CONTROL not in CONTROLS.read_text().split()  # noqa: E731


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained Transformer: what it says is near the dispersion."""
    from rate_flows import saved_once, untrained

    return saved_once(tmp_path_factory.mktemp("networks"), lambda seed: untrained("transformer", seed))(1)


class Follower:
    """`swiftqueue-rate follow`, started; what it complains of is kept."""

    def __init__(self, path: Path) -> None:
        wait_until(GONE, "another bed runs")
        words = [str(word) for word in urgent(SAMPLER, "follow", SAMPLER_OBJECT, path, SAMPLES)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True)
        assert self.process.stdout is not None
        self.complaints: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline())

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.complaints.extend(line.rstrip() for line in self.process.stderr)

    def end(self) -> dict[str, Any]:
        """Its summary."""
        self.process.terminate()
        said = summary(self.process)
        self._reader.join()
        return said

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        wait_until(GONE, "sq_rate is still there")


@contextmanager
def hosts() -> Iterator[Callable[..., list[dict[str, float]]]]:
    """A bed with a receiver; what sends so many downloads there, until they are complete."""
    queue = NO_AQM | {"max_bytes": round(20e6 / 8 * RTT_MS / 1e3)}
    take = [sys.executable, tcp_traffic.__file__, "take", ADDRESS_B, PORT]

    def send(count: int, size: int = 100_000) -> list[dict[str, float]]:
        words = [
            sys.executable,
            tcp_traffic.__file__,
            "flows",
            ADDRESS_B,
            PORT,
            size,
            count,
            0.2,
            1,
            CONTROL,
        ]
        sent = subprocess.Popen(bed.a(*words), stdout=subprocess.PIPE, text=True)
        return list(summary(sent)["each"])

    with Bed(rate_mbps=20, delay_ms=RTT_MS / 2, queue=queue) as bed, running(bed.b(*take), "the receiver"):
        yield send


@contextmanager
def near(listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection over the loopback whose first end has `sq_rate`."""
    with socket.socket() as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONTROL.encode())
        one.connect(listener.getsockname())
        other, _ = listener.accept()
        with other:
            yield one, other


def agent_of(path: Path, network: Path) -> RateAgent:
    return RateAgent("--listen", path, "--local", network, "--metrics-port", 0)


def test_an_agent_tells_a_kernels_flows_their_rate(tmp_path: Path, network: Path) -> None:
    """Its forecast is in the kernel's map within a round trip, and is used."""
    with hosts() as send, following(tmp_path, network, SAMPLES) as sampler:
        each = send(4)
    said = sampler.said
    assert said["flows"] == said["asked"] == said["answered"]["forecast"] == len(each) == 4
    assert said["judged"][USED] > 0
    assert said["judged"][USED] + said["judged"][STALE] == sum(said["judged"]) == 4  # stale: a busy machine
    told = said["ack_to_map"]
    assert told["count"] == 4
    assert said["judged"][USED] <= told["within_a_trip"] <= 4
    assert 0 < told["p50_us"] <= told["p99_us"]
    assert said["lost"] == 0


def test_an_agent_that_dies_leaves_plain_bbr_and_the_next_one_is_asked(tmp_path: Path, network: Path) -> None:
    path = tmp_path / "agent.sock"
    with hosts() as send, agent_of(path, network) as agent, Follower(path) as follower:
        assert follower.ready["agent"] is True
        send(1)
        agent.process.kill()
        gone = f"agent socket {path}: it closed the connection; flows are plain BBR"
        wait_until(lambda: gone in follower.complaints, lambda: str(follower.complaints))
        send(2)
        wait_until(lambda: follower.complaints[-1].endswith("Connection refused; flows are plain BBR"))
        with agent_of(path, network) as next_one:
            wait_until(lambda: next_one.metrics()["senders"] == 1, "nobody connects again")
            send(1)
            said = follower.end()
        assert len(follower.complaints) == 2
    assert (said["flows"], said["asked"], sum(said["judged"])) == (4, 2, 2)
    assert (said["agent_connections"], said["agent_lost"]) == (2, 1)


def test_without_an_agent_flows_are_plain_bbr(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with hosts() as send, Follower(path) as follower:
        assert follower.ready["agent"] is False
        each = send(2)
        said = follower.end()
        assert follower.complaints == [f"agent socket {path}: No such file or directory; flows are plain BBR"]
    assert said["flows"] == len(each) == 2
    assert said["asked"] == sum(said["judged"]) == said["ack_to_map"]["count"] == 0


def test_an_agent_that_stands_still_holds_nobody_up(tmp_path: Path, network: Path) -> None:
    path = tmp_path / "agent.sock"
    with hosts() as send, agent_of(path, network) as agent, Follower(path) as follower:
        agent.process.send_signal(signal.SIGSTOP)
        each = send(2)
        said = follower.end()
        agent.process.send_signal(signal.SIGCONT)
    assert said["flows"] == said["asked"] == len(each) == 2
    assert sum(said["answered"].values()) == sum(said["judged"]) == 0


def test_a_flow_of_three_packets_is_forgotten_with_its_end(tmp_path: Path, network: Path) -> None:
    """By the agent too, whose connection goes on; nobody is asked."""
    path = tmp_path / "agent.sock"
    with (
        agent_of(path, network) as agent,
        Follower(path) as follower,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        for _ in range(2):
            with near(listener) as (one, other):
                for _ in range(3):
                    one.sendall(b"x" * 1000)
                    other.recv(1000, socket.MSG_WAITALL)
                wait_until(lambda: agent.metrics()["rate_connections"] == 1, "it is not known")
                one.shutdown(socket.SHUT_WR)
                assert other.recv(1) == b""
            wait_until(lambda: agent.metrics()["rate_connections"] == 0, "it is still known")
        said = follower.end()
        assert follower.complaints == []
    assert (said["flows"], said["asked"], said["agent_lost"]) == (2, 0, 0)


class Scripted:
    """An agent that says what it is told to say, and keeps the SAMPLE frames that it gets."""

    def __init__(self, path: Path, rate: float, outcome: str = "forecast", late_s: float = 0.0) -> None:
        self.samples: list[Any] = []
        self._answer = blank(FORECAST)
        self._answer["outcome"], self._answer["rates"] = RATE_OUTCOMES.index(outcome), rate
        self._late_s = late_s
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        with suppress(OSError):
            near, _ = self._listener.accept()
            with near:
                near.recv(frames.HELLO.itemsize, socket.MSG_WAITALL)
                near.sendall(frames.hello("agent").tobytes())
                while data := near.recv(SAMPLE.itemsize, socket.MSG_WAITALL):
                    self.samples.append(sample := np.frombuffer(data, SAMPLE)[0])
                    if sample["asked"]:
                        time.sleep(self._late_s)
                        self._answer["connection"], self._answer["sample"] = (
                            sample["connection"],
                            sample["sample"],
                        )
                        near.sendall(self._answer.tobytes())

    def __enter__(self) -> Scripted:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._thread.join()


@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        ({"rate": 1e10}, USED),  # wild: bounded by the dispersion
        ({"rate": math.nan}, NOT_A_RATE),
        ({"rate": 1e3}, NOTHING_NEW),
        ({"rate": 1e10, "late_s": 1.5 * RTT_MS / 1e3}, STALE),
        ({"rate": 1e7, "outcome": "none"}, None),
    ],
)
def test_what_the_agent_hears_and_what_the_kernel_makes_of_its_answer(
    tmp_path: Path, how: dict[str, Any], verdict: int | None
) -> None:
    path = tmp_path / "agent.sock"
    with hosts() as send, Scripted(path, **how) as agent, Follower(path) as follower:
        each = send(2)
        said = follower.end()
    late = said["judged"][STALE] if verdict not in (STALE, None) else 0  # a busy machine is late
    assert sum(said["judged"]) == (0 if verdict is None else 2)
    if verdict is not None:
        assert said["judged"][verdict] + late == 2
        assert said["judged"][verdict] > 0
    if verdict == STALE:
        assert (said["ack_to_map"]["count"], said["ack_to_map"]["within_a_trip"]) == (2, 0)
    assert all(one["seconds"] < 10 for one in each)
    for flow in range(2):
        heard = [sample for sample in agent.samples if sample["connection"] == flow]
        assert [int(sample["sample"]) for sample in heard] == list(range(SAMPLES))
        for flag in ("asked", "last"):
            assert [int(sample[flag]) for sample in heard] == [0, 0, 0, 0, 1]
        fields = np.array([sample["fields"] for sample in heard])
        assert (np.diff(fields[:, NAMES.index("ts")]) > 0).all()
        assert (np.diff(fields[:, NAMES.index("bytes_acked")]) > 0).all()
        assert (fields[:, NAMES.index("min_rtt")] >= 1000 * RTT_MS).all()


@pytest.mark.parametrize("end", ["SIGTERM", "SIGINT", "Ctrl-C"])
def test_a_program_that_is_not_root_may_choose_it_while_the_command_runs(
    tmp_path: Path, network: Path, end: str
) -> None:
    """The command ends with its summary, whether it is told alone or the terminal tells its loader too."""
    path = tmp_path / "agent.sock"
    command = [PROJECT / ".venv" / "bin" / "swiftqueue", "rate", "follow", "--agent", path, "--json"]
    choose = (
        "import socket; socket.socket().setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b'sq_rate')"
    )
    anybody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "/usr/bin/python3",
        "-c",
        choose,
    ]
    wait_until(GONE, "another bed runs")
    with (
        agent_of(path, network),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as follow,
    ):
        assert follow.stdout is not None
        ready = json.loads(follow.stdout.readline())
        assert ready == {"event": "ready", "control": CONTROL, "agent": True}
        subprocess.run(anybody, check=True)
        if end == "Ctrl-C":
            os.killpg(follow.pid, signal.SIGINT)
        else:
            follow.send_signal(signal.Signals[end])
        said = json.loads(follow.stdout.read())
        assert follow.wait() == 0
    assert said["event"] == "summary"
    wait_until(GONE, "sq_rate is still there")


def test_the_command_keeps_flows_as_a_round_reads_them(tmp_path: Path, network: Path) -> None:
    path, kept = tmp_path / "agent.sock", tmp_path / "kept"
    words = ["--agent", path, "--keep", kept, "--flows", "3"]
    command = [PROJECT / ".venv" / "bin" / "swiftqueue", "rate", "follow", "--json", *words]
    wait_until(GONE, "another bed runs")
    with (
        agent_of(path, network),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follow,
        hosts() as send,
    ):
        assert follow.stdout is not None
        assert json.loads(follow.stdout.readline())["event"] == "ready"
        sent = send(4, LARGE)
        follow.send_signal(signal.SIGTERM)
        said, found = map(json.loads, follow.stdout)
        assert follow.wait() == 0
    assert (said["lost"], found) == (0, {"event": "kept", "flows": len(sent), "paths": 1})
    flows = load(kept)
    assert [len(flows), flows.x_NSF.shape[1]] == [len(sent), MOST_SAMPLES]
    reached = [sum(packets <= LARGE // 1448 for packets in HORIZONS)] * len(sent)
    assert (~np.isnan(flows.y_NH)).sum(axis=1).tolist() == reached


def test_the_bench_times_a_kernels_flows_from_ack_to_map(tmp_path: Path, network: Path) -> None:
    from swiftqueue.studies.rate.benchmark import kernel_rows

    wait_until(GONE, "another bed runs")
    time_row, share_row = kernel_rows(tmp_path, network, 1)
    assert (time_row.name, time_row.unit) == ("ACK to map, engine in the agent, n = 5, p50", "us")
    assert 0 < time_row.ours < 1000 * RTT_MS
    assert share_row.name == "ACK to map, engine in the agent, n = 5, within a round trip"
    assert 50 < share_row.ours <= 100  # the rest: a busy machine


def test_the_bench_without_a_bed_says_why_and_leaves_the_rows_out(
    tmp_path: Path, network: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from swiftqueue.studies.rate.benchmark import kernel_rows
    from swiftqueue.studies.rate.testbed import flows as rate_flows

    monkeypatch.setattr(rate_flows, "why_not", lambda: "struct_ops: not here")
    assert kernel_rows(tmp_path, network, 1) == []
    assert capsys.readouterr().err == "ACK to map is left out: struct_ops: not here\n"


@pytest.mark.parametrize(
    ("who", "options", "line"),
    [
        ([], ["--samples", "7"], "swiftqueue: --samples 7: a forecast is made from 5, 15, 35\n"),
        (["setpriv", "--bounding-set=-all", "--inh-caps=-all"], [], "are needed): Operation not permitted\n"),
    ],
)
def test_what_rate_follow_cannot_do_is_one_line(who: list[str], options: list[str], line: str) -> None:
    command = [*who, PROJECT / ".venv" / "bin" / "swiftqueue", "rate", "follow", *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr.endswith(line)
    assert len(ran.stderr.splitlines()) == 1
