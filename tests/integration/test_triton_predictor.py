"""The C++ client on real Tritons: failover, recovery, errors of one question alone.

`round_trip` (serving/agent) asks as the agent does; the identity backend answers, so servers start at once.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from bombs import bombing
from grpc import server as grpc_server
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from swiftqueue.benchmarks.inference_references import make_windows, save
from swiftqueue.benchmarks.served_models import IDENTITY, PROJECT, backends, build, served, write_model
from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.infra.local.servers import triton_command
from swiftqueue.serving.triton.config import Backend
from swiftqueue.serving.triton.endpoint import LOOPBACK, Triton, TritonError, control_headers
from swiftqueue.serving.triton.repository import MODEL

pytestmark = pytest.mark.slow
RATE = 200  # questions a second
RECOVERY_S = 2.5  # reconnection waits a second at most, and a server that was slow rests for one
INFLATED_BYTES = 5 << 20  # a client takes 4 MiB: too large, were it inflated
REACH = make_windows(1).shape[1] - HORIZON  # events that the network looks back at
DEADLINE_US = 100_000  # far above an answer's time, even on a busy machine


@pytest.fixture(scope="module")
def program() -> Path:
    for backend in ("identity", "native"):  # harmless when they are built
        subprocess.run(["make", "-s", "-C", str(PROJECT / "serving" / "triton" / backend)], check=True)
    return build("round_trip") / "round_trip"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained artifact of the real size."""
    return save(tmp_path_factory.mktemp("artifact") / "event-stream")


@dataclass
class Replica:
    """A Triton that can be killed, paused and started again at the same port."""

    name: str
    root: Path
    ports: dict[str, int]

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.ports['grpc']}"

    def start(self) -> None:
        environment = backends(self.root / "backends")
        command = triton_command(environment, self.root / "repository", self.ports)
        command.append(f"--load-model={MODEL}")
        with Triton(self.address) as triton:
            processes.start(self.name, command, self.ports, environment.variables, triton.live, 60)

    def signal(self, number: int) -> None:
        server = processes.running(self.name)
        assert server is not None
        os.kill(server.pid, number)

    def kill(self) -> None:
        """End it at once, as a crash does; harmless when it is gone."""
        if server := processes.running(self.name):
            process = server.process()
            assert process is not None
            process.kill()
            process.wait(10)
            processes.stop(self.name)


@pytest.fixture(scope="module")
def replicas(
    serving_state: Path, source: Path, tmp_path_factory: pytest.TempPathFactory, program: Path
) -> Iterator[tuple[Replica, Replica]]:
    """Two running servers, the preferred one with version 1, the other with 2; tests leave them running."""
    both = []
    for version in (1, 2):
        root = tmp_path_factory.mktemp("replica")
        write_model(root / "repository", MODEL, source, IDENTITY, version)
        ports = dict(zip(("grpc", "metrics"), free_ports(2), strict=True))
        both.append(Replica(f"triton-replica-{version}", root, ports))
    for replica in both:
        replica.start()
    yield both[0], both[1]
    for replica in both:
        replica.kill()


class Asking:
    """A client that asks at a steady rate in the background until it is stopped."""

    def __init__(self, program: Path, servers: list[str], *more: str, deadline_us: int = DEADLINE_US) -> None:
        named = [word for server in servers for word in ("--server", server)]
        options = ("--rate", str(RATE), "--deadline-us", str(deadline_us), "--alternatives", "2")
        self.process = subprocess.Popen(
            [str(program), *named, "--questions", "1000000", *options, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()

    def stop(self) -> dict[str, Any]:
        """What became of its questions."""
        self.process.send_signal(signal.SIGINT)
        output, error = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, error
        found: dict[str, Any] = json.loads(output)
        assert found["asked"] == found["in_time"] + found["late"] + found["failed"]
        return found


@pytest.mark.parametrize("trouble", ["killed", "paused"])
def test_a_server_in_trouble_is_left_for_the_next_and_preferred_again_when_it_is_well(
    program: Path, replicas: tuple[Replica, Replica], trouble: str
) -> None:
    first, second = replicas
    # On a busy machine any server is slow for a moment, and one that was slow rests for a second.
    last: list[int] = []
    while 0 not in last:
        assert len(last) < 3, "it was not preferred again"
        asking = Asking(program, [first.address, second.address])
        time.sleep(1)
        first.kill() if trouble == "killed" else first.signal(signal.SIGSTOP)
        time.sleep(1)
        first.start() if trouble == "killed" else first.signal(signal.SIGCONT)
        time.sleep(RECOVERY_S)
        found = asking.stop()
        assert found["gap_ms"] < 1000
        assert set(found["servers"]) == {"0", "1"}
        assert set(found["versions"]) == {"1", "2"}
        assert found["silent_ms"] < 1000
        assert found["in_time"] > 0.8 * found["asked"]
        last.append(found["last_server"])


def test_the_only_server_is_found_again_after_a_restart(
    program: Path, replicas: tuple[Replica, Replica]
) -> None:
    first, _ = replicas
    asking = Asking(program, [first.address])
    time.sleep(1)
    first.kill()
    time.sleep(1)
    first.start()
    time.sleep(RECOVERY_S)
    found = asking.stop()
    assert found["failed"] > 0
    assert found["last_server"] == 0
    assert found["silent_ms"] < 1000


class Answers(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A server whose model says that it can be asked, and whose answers may be something else."""

    def __init__(self, version: int) -> None:
        self.version, self.first_bytes = version, np.float32(1).tobytes()

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        config = model_config_pb2.ModelConfig(name=MODEL, max_batch_size=64)
        fp32 = model_config_pb2.TYPE_FP32
        config.input.add(name="window", data_type=fp32, dims=make_windows(1).shape[1:])
        config.output.add(name="latency_us", data_type=fp32, dims=[HORIZON])
        config.parameters["schema_hash"].string_value = EVENTS.schema_hash
        return service_pb2.ModelConfigResponse(config=config)

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = service_pb2.ModelInferResponse(model_version=str(self.version), id=request.id)
        y_BH = np.ones((request.inputs[0].shape[0], HORIZON), np.float32)
        answer.outputs.add(name="latency_us", datatype="FP32", shape=y_BH.shape)
        answer.raw_output_contents.append(self.first_bytes + y_BH.tobytes()[4:])
        return answer

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        for request in requests:
            answer = self.ModelInfer(request, context)
            yield service_pb2.ModelStreamInferResponse(infer_response=answer)


class Sessions(Answers):
    """A server that keeps sessions, as far as its answers tell; it writes down what it is sent."""

    def __init__(self, forgets: set[int]) -> None:
        super().__init__(1)
        self.forgets = forgets  # the messages, by number, that find their session gone
        self.messages: list[dict[str, Any]] = []

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = super().ModelConfig(request, context)
        config, features = response.config, make_windows(1).shape[2]
        config.input[0].optional = True
        config.input.add(name="session", data_type=model_config_pb2.TYPE_INT64, dims=[-1], optional=True)
        for name in ("events", "queries"):
            config.input.add(
                name=name, data_type=model_config_pb2.TYPE_FP32, dims=[-1, features], optional=True
            )
        config.output.add(name="resend", data_type=model_config_pb2.TYPE_INT64, dims=[1])
        return response

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        tensors = {
            tensor.name: raw for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        if "window" in tensors:
            return super().ModelInfer(request, context)
        first, *rest = np.frombuffer(tensors["session"], np.int64).tolist()
        self.messages.append(
            {
                "id": request.parameters["sequence_id"].int64_param,
                "start": request.parameters["sequence_start"].bool_param,
                "first": first,
                "end": first + sum(rest[::2]),
                "rows": len(tensors.get("events", b"")) // (4 * make_windows(1).shape[2]),
                "bytes": request.ByteSize(),
            }
        )
        lost = len(self.messages) in self.forgets
        wanted = max(first + rest[0] - REACH, 0) if lost else -1
        answer = service_pb2.ModelInferResponse(model_version="1", id=request.id)
        answer.outputs.add(name="resend", datatype="INT64", shape=[1, 1])
        answer.raw_output_contents.append(np.int64(wanted).tobytes())
        if not lost:
            y_BH = np.ones((sum(rest[1::2]) // HORIZON, HORIZON), np.float32)
            answer.outputs.add(name="latency_us", datatype="FP32", shape=y_BH.shape)
            answer.raw_output_contents.append(y_BH.tobytes())
        return answer


@contextmanager
def answering(answers: Answers) -> Iterator[str]:
    server = grpc_server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(answers, server)
    port = server.add_insecure_port(f"{LOOPBACK}:0")
    server.start()
    yield f"{LOOPBACK}:{port}"
    server.stop(0)


def test_a_compressed_answer_is_refused_before_it_is_inflated(program: Path) -> None:
    """By the agent's client and by that in Python; which of two lines of gRPC says so differs by run."""
    with bombing(INFLATED_BYTES) as port:
        address, line = f"{LOOPBACK}:{port}", "'gzip' is disabled|not supported: gzip"
        for connect_ms in (1_000, 10_000, 60_000):  # it asks until then; a busy machine needs more
            command = [str(program), "--server", address, f"--connect-ms={connect_ms}"]
            told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
            if re.search(line, told):
                break
        assert re.search(line, told), told
        with Triton(address, 60) as triton, pytest.raises(TritonError, match=line):
            triton.config()


def test_each_event_is_sent_once_and_a_question_is_at_most_eight_kilobytes(program: Path) -> None:
    """Unless the server lost them: then the next message has all that the model looks back at."""
    ids = set()
    for _ in range(2):
        server = Sessions({300, 500})
        with answering(server) as address:
            options = ("--questions", "200", "--alternatives", "2", "--deadline-us", "60000000")
            subprocess.run([str(program), "--server", address, *options], check=True, stdout=subprocess.PIPE)
        said = server.messages
        assert len(said) == 500 + 200 + 2, "each that was lost is asked once more"
        assert said[0]["start"]
        for number, (before, message) in enumerate(itertools.pairwise(said), 1):
            assert message["rows"] == message["end"] - message["first"]
            if number in server.forgets:
                assert message["start"]
                assert message["end"] == before["end"], "the question that met it is asked again"
                assert message["rows"] == min(message["end"], REACH)
                assert message["bytes"] < 32_768
            else:
                assert not message["start"]
                assert message["first"] == before["end"]
                assert message["rows"] == 16
                assert message["bytes"] <= 8_192
        ids |= {message["id"] for message in said}
    assert len(ids) == 2, "one for each client"
    assert not ids & set(range(1 << 20)), "numbers that nobody guesses"


@pytest.mark.parametrize("first_bytes", [b"", np.float32("nan").tobytes()], ids=["short", "nan"])
def test_a_server_whose_answers_are_none_is_left_for_the_next(program: Path, first_bytes: bytes) -> None:
    first, second = Answers(1), Answers(2)
    with answering(first) as one, answering(second) as two:
        asking = Asking(program, [one, two])
        time.sleep(1)
        first.first_bytes = first_bytes
        time.sleep(1)
        found = asking.stop()
    assert 0 < found["failed"] < 10
    assert found["in_time"] > 0.8 * found["asked"]
    assert found["last_server"] == 1
    assert re.fullmatch(r"the answer is not \d+ x 8 latencies of a version", found["error"])


def test_one_bad_question_gets_an_error_and_those_sent_with_it_get_answers(
    program: Path, source: Path, serving_state: Path, tmp_path: Path
) -> None:
    write_model(tmp_path / "repository", MODEL, source, Backend.NATIVE)
    path = tmp_path / "t.sock"
    with served(tmp_path, [MODEL], name="triton-bad-question", socket_path=path) as address:
        asked = 4000
        options = ("--rate", "20000", "--alternatives", "2", "--deadline-us", "20000000", "--poison", "500")
        ran = subprocess.run(
            [str(program), "--server", address, "--questions", str(asked), *options],
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(ran.stdout.splitlines()[-1])
        assert found["failed"] == asked / 500
        assert found["in_time"] == asked - found["failed"]
        assert "is NaN or outside" in found["error"]
        # Questions were sent together, else this shows little; the probe of health is a request, too.
        with grpc.InferenceServerClient(address) as client:
            statistics = client.get_inference_statistics(MODEL, headers=control_headers()).model_stats[0]
        requests = statistics.inference_stats.success.count
        assert requests < asked / 2


def test_what_is_wrong_is_one_line(
    program: Path, source: Path, serving_state: Path, tmp_path: Path, replicas: tuple[Replica, Replica]
) -> None:
    nobody = f"{LOOPBACK}:{free_ports(1)[0]}"
    first, _ = replicas
    config = first.root / "repository" / MODEL / "config.pbtxt"
    config.write_text(
        config.read_text().replace(
            '"schema_hash" value { string_value: "', '"schema_hash" value { string_value: "0'
        )
    )
    with Triton(first.address) as triton:
        triton.load(MODEL)
    for server, line in (
        (nobody, "Connection refused"),
        (first.address, "the served model takes features 0"),
        ("localhost", "write it as host:port or unix:PATH"),
        (f"unix:{tmp_path}/nobody", "No such file"),
    ):
        ran = subprocess.run(
            [str(program), "--server", server, "--connect-ms", "1500"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 1
        assert line in ran.stderr
        own = [said for said in ran.stderr.splitlines() if not said.startswith("swiftqueue-agent: ")]
        assert len(own) == 1  # beside what the predictor has to say of a refused model
