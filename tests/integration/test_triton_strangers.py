"""What a client of Triton can do: ask. Nothing it sends runs code, unloads a model or ends the server."""

# Shapes: B windows, W tokens, F features, H horizon (8 packets).

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bombs
import grpc
import mutants
import numpy as np
import psutil
import pytest
from strangers import NOBODY, crowd
from test_triton_leftovers import Python
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as service
from typer.testing import CliRunner

from swiftqueue.benchmarks.served_models import served, write_model
from swiftqueue.cli.app import app
from swiftqueue.infra.local import keeper, processes, servers
from swiftqueue.infra.local.servers import MAX_MESSAGE_BYTES, start_stack
from swiftqueue.serving.triton.config import Backend
from swiftqueue.serving.triton.endpoint import (
    CONTROL_KEY,
    CONTROL_SECRET,
    LOOPBACK,
    Triton,
    TritonError,
    control_secret_file,
)
from swiftqueue.serving.triton.repository import MODEL

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
MIB = 1 << 20
# 0.3 ms each, beside one good question in a thousand: a minute. More show nothing new: what reads them is
# protobuf's own parser, and behind it a few dozen checks of Triton's, which these reach within seconds.
MUTANTS = 100_000 if mutants.ALL else 2_000
AT_ONCE = 16
CONNECTIONS = 10_000 if mutants.ALL else 1_000
GROWTH_BYTES = 200 * MIB  # that no attack takes
INFER = "inference.GRPCInferenceService/ModelInfer"
STREAM = "inference.GRPCInferenceService/ModelStreamInfer"
SECRET_KEY = f"triton-grpc-protocol-{CONTROL_KEY}"


@dataclass(frozen=True)
class Served:
    """A Triton with a model on the native backend, a client of it without a secret, and what it is asked."""

    address: str
    process: psutil.Process
    stub: Any
    window_BWF: np.ndarray[Any, Any]
    latency_BH: np.ndarray[Any, Any]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def check(self) -> None:
        """It is the same process still, and answers as before."""
        assert self.process.is_running()
        assert self.process.status() != psutil.STATUS_ZOMBIE
        with Triton(self.address) as triton:
            answer = triton.infer(self.window_BWF)
        assert answer.y_BH.tobytes() == self.latency_BH.tobytes()

    def request(self, raw: bytes | None = None, **changes: Any) -> Any:
        """A good question, or one that says otherwise than it carries."""
        shape = changes.pop("shape", self.window_BWF.shape)
        request = messages.ModelInferRequest(model_name=MODEL, **changes)
        request.inputs.add(name="window", datatype="FP32", shape=shape)
        request.raw_input_contents.append(self.window_BWF.tobytes() if raw is None else raw)
        return request

    def told(self, request: Any, **options: Any) -> list[str]:
        """What a call and a stream are told, the one after the other; empty where there is an answer."""
        told = []
        try:
            told.append(self._answered(self.stub.ModelInfer(request, timeout=60, **options)))
        except grpc.RpcError as error:
            told.append(str(error.details()))
        try:
            [answer] = self.stub.ModelStreamInfer(iter([request]), timeout=60, **options)
            told.append(answer.error_message or self._answered(answer.infer_response))
        except grpc.RpcError as error:
            told.append(str(error.details()))
        return told

    def _answered(self, answer: Any) -> str:
        assert answer.raw_output_contents[0] == self.latency_BH.tobytes()
        return ""


@pytest.fixture(scope="module")
def asked(
    serving_state: Path, tmp_path_factory: pytest.TempPathFactory, make_artifact: Callable[..., Path]
) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("strangers")
    write_model(root / "repository", MODEL, make_artifact(1), Backend.NATIVE)
    name = "triton-strangers"
    with served(root, [MODEL], name=name) as address, Triton(address) as triton:
        tokens, features = triton.config().input[0].dims
        window_BWF = np.zeros((1, tokens, features), np.float32)
        server = processes.running(name)
        assert server is not None
        process = server.process()
        assert process is not None
        with grpc.insecure_channel(address, [("grpc.max_send_message_length", -1)]) as channel:
            stub = service.GRPCInferenceServiceStub(channel)
            yield Served(address, process, stub, window_BWF, triton.infer(window_BWF).y_BH)


@pytest.fixture(autouse=True)
def lives_on(asked: Served) -> Iterator[None]:
    """Whatever was sent: the same process answers afterwards."""
    yield
    asked.check()


def test_the_secret_is_seen_in_no_argument_no_variable_and_no_log(asked: Served) -> None:
    secret = control_secret_file().read_text().strip()
    folder = Path("/proc") / str(asked.process.pid)
    seen = {name: (folder / name).read_bytes() for name in ("cmdline", "environ")}
    seen |= {"log": processes.log_path("triton-strangers").read_bytes()}
    assert f"=@{control_secret_file()}".encode() in seen["cmdline"]  # it was really given so
    assert [name for name, text in seen.items() if secret.encode() in text] == []
    assert control_secret_file().stat().st_mode & 0o777 == 0o600
    assert control_secret_file().parent.stat().st_mode & 0o777 == 0o700


def test_it_listens_for_grpc_and_scrapes_on_loopback_and_for_nothing_else(asked: Served) -> None:
    """HTTP is off: a body of 6 MB ended the server there."""
    server = processes.running("triton-strangers")
    assert server is not None
    listening = [c.laddr for c in asked.process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    found = {(at.ip.removeprefix("::ffff:"), at.port) for at in listening}  # gRPC's is an IPv6 socket
    assert set(server.ports) == {"grpc", "metrics"}
    assert found == {(LOOPBACK, port) for port in server.ports.values()}


def test_what_triton_starts_is_not_given_its_front(serving_state: Path, tmp_path: Path) -> None:
    python = Python("triton-stub", tmp_path)
    try:
        stubs = psutil.Process(python.server.pid).children(recursive=True)
        assert stubs
        assert [stub for stub in stubs if "LD_PRELOAD" in stub.environ()] == []
    finally:
        python.kill()
        processes.stop(python.name)


# What a sender has no use for, with the request of the call.
CONTROL = {
    "load": ("RepositoryModelLoad", messages.RepositoryModelLoadRequest(model_name=MODEL)),
    "unload": ("RepositoryModelUnload", messages.RepositoryModelUnloadRequest(model_name=MODEL)),
    "index": ("RepositoryIndex", messages.RepositoryIndexRequest()),
    "system memory": (
        "SystemSharedMemoryRegister",
        messages.SystemSharedMemoryRegisterRequest(name="m", key="/stranger", byte_size=64),
    ),
    "system memory status": ("SystemSharedMemoryStatus", messages.SystemSharedMemoryStatusRequest()),
    "system memory end": ("SystemSharedMemoryUnregister", messages.SystemSharedMemoryUnregisterRequest()),
    "CUDA memory": (
        "CudaSharedMemoryRegister",
        messages.CudaSharedMemoryRegisterRequest(name="m", raw_handle=b"0" * 64, byte_size=64),
    ),
    "trace": ("TraceSetting", messages.TraceSettingRequest()),
    "log": ("LogSettings", messages.LogSettingsRequest()),
    "statistics": ("ModelStatistics", messages.ModelStatisticsRequest()),
}


@pytest.mark.parametrize("call", CONTROL)
def test_control_is_refused_without_the_secret(asked: Served, call: str) -> None:
    name, request = CONTROL[call]
    for metadata in ((), ((SECRET_KEY, "guess"),), ((SECRET_KEY, ""),)):
        with pytest.raises(grpc.RpcError, match="This protocol is restricted"):
            getattr(asked.stub, name)(request, metadata=metadata, timeout=10)


def test_who_has_the_secret_controls_the_server(asked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with Triton(asked.address) as triton:
        triton.load(MODEL)
        monkeypatch.setenv(CONTROL_SECRET, str(control_secret_file()))
        triton.load(MODEL)


def test_another_secret_is_named_in_the_refusal(
    asked: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "other"
    file.write_text("of another server\n")
    file.chmod(0o600)
    monkeypatch.setenv(CONTROL_SECRET, str(file))
    with Triton(asked.address) as triton:
        with pytest.raises(TritonError, match=f"wants another control secret; {CONTROL_SECRET} names"):
            triton.load(MODEL)
        file.chmod(0o644)
        with pytest.raises(TritonError, match=f"{file}: every user may read this secret; chmod"):
            triton.load(MODEL)
        monkeypatch.setenv(CONTROL_SECRET, str(tmp_path / "none"))
        with pytest.raises(TritonError, match="none: no such file"):
            triton.unload(MODEL)


def test_servers_elsewhere_are_not_told_our_own_secret(
    monkeypatch: pytest.MonkeyPatch, serving_state: Path
) -> None:
    from swiftqueue.serving.triton.endpoint import SERVERS, control_headers

    assert control_headers("10.0.0.7:8001")
    monkeypatch.setenv(SERVERS, "10.0.0.7:8001")
    assert control_headers("10.0.0.7:8001") == {}


ATTACK = """
import json, os, sys
import grpc
from tritonclient.grpc import service_pb2 as messages, service_pb2_grpc as service
address, model, marker, secret = sys.argv[1:]
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
assert os.getresuid() == (65534,) * 3
stub = service.GRPCInferenceServiceStub(grpc.insecure_channel(address))
told = {}
def attempt(what, call, *arguments, **options):
    try:
        told[what] = f"done: {call(*arguments, **options)}"[:200]
    except Exception as error:
        told[what] = error.details() if isinstance(error, grpc.RpcError) else repr(error)
code = (f"open({marker!r}, 'w').write('ran')\\nclass TritonPythonModel:\\n"
        "    def execute(self, requests):\\n        return []\\n")
load = messages.RepositoryModelLoadRequest(model_name="stranger")
load.parameters["config"].string_param = json.dumps({"backend": "python",
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}]})
load.parameters["file:1/model.py"].bytes_param = code.encode()
attempt("load", stub.RepositoryModelLoad, load, timeout=60)
attempt("unload", stub.RepositoryModelUnload, messages.RepositoryModelUnloadRequest(model_name=model))
attempt("infer", stub.ModelInfer, messages.ModelInferRequest(model_name=model))
attempt("live", stub.ServerLive, messages.ServerLiveRequest())
attempt("secret", open, secret)
attempt("environment", open, f"/proc/{os.environ['SERVER_PID']}/environ")
command = open(f"/proc/{os.environ['SERVER_PID']}/cmdline").read()
guess = command.partition("swiftqueue=")[2].partition("\\0")[0]
attempt("guess", stub.RepositoryModelUnload, messages.RepositoryModelUnloadRequest(model_name=model),
        metadata=(("triton-grpc-protocol-swiftqueue", guess),))
print(json.dumps(told))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_is_told_nothing(
    asked: Served, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each call ends at the connection. A Python model in a load request once ran with the server's user."""
    marker = tmp_path_factory.mktemp("marker") / "ran"
    ran = subprocess.run(
        [sys.executable, "-c", ATTACK, asked.address, MODEL, str(marker), str(control_secret_file())],
        env={**os.environ, "SERVER_PID": str(asked.process.pid)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    reached = {
        what: said for what, said in told.items() if "failed to connect" not in said and "closed" not in said
    }
    assert reached.keys() == {"secret", "environment"}, reached
    assert {"secret", "environment"} == {what for what, said in told.items() if "PermissionError" in said}
    assert not marker.exists()


@pytest.mark.parametrize("mib", [4, 6, 8, 64, 100])
def test_a_message_that_is_too_large_is_refused(asked: Served, mib: int) -> None:
    told = asked.told(asked.request(bytes(mib * MIB)))
    assert ["Received message larger than max" in line for line in told] == [True, True]


def test_a_small_message_that_unpacks_to_a_large_one_is_refused(asked: Served) -> None:
    request = asked.request(bytes(64 * MIB))
    told = asked.told(request, compression=grpc.Compression.Gzip)
    assert ["Compression algorithm 'gzip' is disabled" in line for line in told] == [True, True]


@contextmanager
def grows_by_less(asked: Served, most_bytes: int = GROWTH_BYTES) -> Iterator[None]:
    """The server's memory never has so much more in the block than at its beginning."""
    before = bombs.peak_bytes(asked.process.pid)
    yield
    assert bombs.peak_bytes(asked.process.pid) - before < most_bytes


@pytest.mark.parametrize("method", [INFER, STREAM])
def test_a_compressed_message_is_refused_before_it_is_inflated(asked: Served, method: str) -> None:
    """Four of 1 MB, of which each becomes 1 GiB: they took 4.35 GB."""
    assert len(bombs.bomb()) < 1.1 * MIB
    with grows_by_less(asked):
        bombs.throw_together(asked.port, method)


@pytest.mark.long
def test_cancelled_streams_of_large_requests_leave_no_memory_behind(asked: Served) -> None:
    """They took 2.9 GB, and kept it: of each request that was ever under way its memory."""
    body = asked.request(bytes(asked.window_BWF.nbytes * 64), shape=(64, *asked.window_BWF.shape[1:]))
    message = body.SerializeToString()

    def send_and_cancel() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(asked.address, options) as channel:
            stream = channel.stream_stream("/" + STREAM)
            for _ in range(3):
                ended = threading.Event()
                call = stream(message for _ in range(200) if not ended.is_set())
                time.sleep(1)
                ended.set()
                call.cancel()

    with grows_by_less(asked):
        senders = [threading.Thread(target=send_and_cancel) for _ in range(8)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        asked.check()


def test_what_is_beyond_the_inputs_that_may_wait_is_refused_at_once(
    asked: Served, make_artifact: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with room for 32 windows: each answer and each refusal makes its room free again."""
    monkeypatch.setattr(servers, "MAX_WAITING_BYTES", 32 * asked.window_BWF.nbytes)
    write_model(tmp_path / "repository", MODEL, make_artifact(1), Backend.NATIVE)
    with served(tmp_path, [MODEL], name="triton-narrow") as address, Triton(address) as triton:
        for _ in range(50):
            assert triton.infer(np.repeat(asked.window_BWF, 32, axis=0)).y_BH.shape == (32, 8)
            with pytest.raises(TritonError, match="too many requests are under way; ask again later"):
                triton.infer(np.repeat(asked.window_BWF, 33, axis=0))


def test_connections_of_another_user_are_closed(asked: Served) -> None:
    """Idle ones, and slow ones that have begun to speak: none stays, and others are answered."""
    files = asked.process.num_fds()
    with grows_by_less(asked):
        assert crowd(asked.port, CONNECTIONS, 0, slow=b"PRI * HTTP/2.0") == 0
        asked.check()
    assert asked.process.num_fds() < files + 100


def test_the_largest_request_of_ours_is_answered(asked: Served) -> None:
    x_BWF = np.repeat(asked.window_BWF, 64, axis=0)
    assert x_BWF.nbytes * 2 < MAX_MESSAGE_BYTES  # 128 tokens, too
    with Triton(asked.address) as triton:
        assert triton.infer(x_BWF).y_BH.shape == (64, 8)


def hostile(asked: Served) -> Iterator[tuple[str, Any]]:
    """Requests below the bound that say otherwise than they carry; of a few Triton reads what is right."""
    _, tokens, features = asked.window_BWF.shape
    for batch in (-1, 0, 65, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)):
        yield f"batch {batch}", asked.request(shape=(batch, tokens, features))
    yield "overflow", asked.request(shape=(2**32, 2**32, features))
    yield "no shape", asked.request(shape=())
    yield "100,000 dimensions", asked.request(shape=(1,) * 100_000)
    for size in (0, 1, 6143, 6145, 3 * MIB):
        yield f"{size} bytes", asked.request(bytes(size))
    two = asked.request()
    two.raw_input_contents.append(b"more")
    yield "more contents than inputs", two
    none = asked.request()
    del none.raw_input_contents[:]
    yield "no contents", none
    typed = asked.request()
    del typed.raw_input_contents[:]
    typed.inputs[0].contents.fp32_contents.extend([1.0] * 3)
    yield "few values", typed
    both = asked.request()
    both.inputs[0].contents.fp32_contents.extend([1.0] * 3)
    yield "both kinds of contents", both
    text = asked.request(b"\xff\xff\xff\x7f" * tokens * features)
    text.inputs[0].datatype = "BYTES"
    yield "strings longer than the message", text
    strings = asked.request()
    del strings.raw_input_contents[:]
    strings.inputs[0].datatype = "BYTES"
    strings.inputs[0].contents.bytes_contents.extend([b"x" * 1000] * 3000)
    yield "strings", strings
    for kind in ("FP64", "INT8", "FP16", "nonsense", "x" * MIB):
        other = asked.request()
        other.inputs[0].datatype = kind
        yield f"type {kind[:8]}", other
    many = messages.ModelInferRequest(model_name=MODEL)
    for number in range(10_000):
        many.inputs.add(name=f"input {number}", datatype="FP32", shape=[1])
        many.raw_input_contents.append(b"0000")
    yield "10,000 inputs", many
    same = asked.request()
    for _ in range(10_000):
        same.inputs.add().CopyFrom(same.inputs[0])
    yield "one input 10,000 times", same
    asking = asked.request()
    for number in range(10_000):
        asking.outputs.add(name=f"output {number}")
    yield "10,000 outputs", asking
    shared = asked.request()
    del shared.raw_input_contents[:]
    shared.inputs[0].parameters["shared_memory_region"].string_param = "m"
    shared.inputs[0].parameters["shared_memory_byte_size"].int64_param = 2**62
    yield "memory that nobody registered", shared
    for name, value in (("sequence_id", "x" * MIB), ("priority", "x"), ("timeout", "x")):
        parameter = asked.request()
        parameter.parameters[name].string_param = value
        yield f"parameter {name}", parameter
    yield "a model of a long name", asked.request(id="x", model_version="9" * MIB)
    yield "a version that is no number", asked.request(model_version="../../1")


def test_requests_that_say_otherwise_than_they_carry_end_nothing(asked: Served) -> None:
    refused = 0
    for what, request in hostile(asked):
        if len(request.SerializeToString()) >= MAX_MESSAGE_BYTES:
            pytest.fail(f"{what} is refused for its size alone")
        told = asked.told(request)
        refused += all(told)
        assert asked.process.is_running(), what
        asked.check()
    assert refused > 30


def test_others_are_answered_while_a_stranger_sends_what_is_refused(asked: Served) -> None:
    """A bounded count of large and of broken requests from four connections."""
    broken = [request.SerializeToString() for _, request in hostile(asked)] + [bytes(8 * MIB)]
    with bombarding(asked.address, broken), Triton(asked.address) as triton:
        for _ in range(200):
            assert triton.infer(asked.window_BWF).y_BH.tobytes() == asked.latency_BH.tobytes()


@contextmanager
def bombarding(address: str, bodies: list[bytes]) -> Iterator[None]:
    """Send bodies as inferences from four connections at once while the caller works; wait for their end."""
    channels = [
        grpc.insecure_channel(
            address, [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        )
        for _ in range(4)
    ]
    futures = [
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(body, timeout=60)
        for body in bodies
        for channel in channels
    ]
    yield
    codes = {error.code() if (error := future.exception()) else None for future in futures}
    assert grpc.StatusCode.UNAVAILABLE not in codes
    assert {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED} <= codes
    for channel in channels:
        channel.close()


def seeds(asked: Served) -> list[bytes]:
    """Good questions of several forms, for mutants of all that Triton reads in one."""
    plain = asked.request(id="7")
    typed = asked.request()
    del typed.raw_input_contents[:]
    typed.inputs[0].contents.fp32_contents.extend(asked.window_BWF.ravel())
    rich = asked.request(id="8", model_version="1")
    rich.parameters["priority"].uint64_param = 1
    rich.parameters["timeout"].int64_param = 10**6
    rich.parameters["triton_enable_empty_final_response"].bool_param = True
    output = rich.outputs.add(name="latency_us")
    output.parameters["classification"].int64_param = 3
    inputs = asked.request(bytes(8))
    for number in range(3):
        one = inputs.inputs.add(name=f"x{number}", datatype="BYTES", shape=[1, 2])
        one.parameters["shared_memory_region"].string_param = "m"
        inputs.raw_input_contents.append(b"\x02\0\0\0ab")
    # In a window's payload a change is only another number: most mutants are of what is around it.
    small = [
        request.SerializeToString() for request in (asked.request(b"0123", shape=[1, 1, 1]), rich, inputs)
    ]
    head = rich.SerializeToString()[: -asked.window_BWF.nbytes]
    return [plain.SerializeToString(), typed.SerializeToString(), *small, *[head] * 3, *small[::2] * 3]


def test_no_mutant_of_a_good_question_ends_the_server(asked: Served) -> None:
    """On calls and on streams, raw bytes, some at once; the failure is the server's end."""
    good = seeds(asked)
    told = {"answered": 0, "refused": 0}
    waiting: list[Any] = []
    with grpc.insecure_channel(asked.address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")

        def settle(index: int) -> None:
            for future in waiting:
                error = future.exception(timeout=60)
                told["refused" if error else "answered"] += 1
                if error and error.code() == grpc.StatusCode.UNAVAILABLE:
                    begin = index - len(waiting) + 1
                    assert asked.process.is_running(), f"one of mutants {begin} to {index} of seed 1 ended it"
            waiting.clear()

        for index in range(MUTANTS):
            body = mutants.mutant(good, 1, index)
            if index % 50 == 0:
                with suppress(grpc.RpcError):
                    list(stream(iter([good[0], body]), timeout=60))
            waiting.append(call.future(body, timeout=60))
            if len(waiting) == AT_ONCE:
                settle(index)
            if index % 1000 == 0:
                asked.check()
        settle(MUTANTS - 1)
    assert sum(told.values()) == MUTANTS
    assert min(told.values()) > 0, told  # both are really reached


@pytest.mark.long
def test_a_keeper_finds_the_champion_unloaded_and_serves_it_again(champion: int) -> None:
    server = processes.running("triton")
    assert server is not None
    with Triton() as triton:
        triton.unload(MODEL)
        assert triton.served_version() is None
        assert not keeper.ANSWERS["triton"](server)
        assert keeper._serves_nothing(server)
        start_stack()
        assert triton.served_version() == champion
    assert not keeper._serves_nothing(server)
    assert processes.running("triton") == server  # the same process


NOT_ROOT = """
import os
from swiftqueue.infra.local.servers import start_stack
from swiftqueue.infra.local.loop import stop_stack
from swiftqueue.serving.triton.endpoint import Triton
assert os.geteuid() == 65534
start_stack()
with Triton() as triton:
    triton.require_live()
stop_stack()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="this test run is of no root itself: every test here shows it")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv (Debian: apt-get install util-linux)")
def test_no_root_is_needed(tmp_path_factory: pytest.TempPathFactory, project: Path) -> None:
    """A user without any right but to read this checkout, which may lie in root's home."""
    state = tmp_path_factory.mktemp("not-root")
    os.chown(state, NOBODY, NOBODY)
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    reading = [f"--{kind}=-all,+dac_read_search" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
    grpc_port, metrics = processes.free_ports(2)
    settings = {
        "SWIFTQUEUE_STATE": str(state),
        "SWIFTQUEUE_TRITON_GRPC": str(grpc_port),
        "SWIFTQUEUE_TRITON_METRICS": str(metrics),
        "HOME": str(state),
    }
    ran = subprocess.run(
        ["setpriv", *user, *reading, sys.executable, "-c", NOT_ROOT],
        env=os.environ | settings,
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "triton is up" in ran.stdout
    assert (state / "secrets" / "triton").stat().st_uid == NOBODY


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is told")
def test_up_says_that_root_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STATE", "none")
    monkeypatch.setenv("SWIFTQUEUE_TRITON_GRPC", "none")  # it ends at the port
    said = CliRunner().invoke(app, ["up"])
    assert said.stdout.startswith("running as root, which nothing here needs")
    assert "SWIFTQUEUE_TRITON_GRPC='none'" in str(said.exception)
