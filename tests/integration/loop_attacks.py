"""What another user of this machine tries with the running live loop.

Each attack once worked: code in Triton, a refused model served, an ingest that died of damaged bytes, a
Triton that died of a large body, a sender expelled by one POST. User `nobody` tries them, who has no password
and no secret, only the ports, and the token of a sender that is nobody else's: damaged batches get no further
without one.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pwd
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mutants
import psutil
from cmdlines import cmdlines
from event_rows import batch
from fault_loop import PROBE, FaultLoop
from of_state import processes_of
from registered import add_version
from waiting import wait_until

from swiftqueue.common.state import scratch
from swiftqueue.feature_store.telemetry.events import ACK, HEADER, SEND, BatchKey, encode, sealed
from swiftqueue.feature_store.telemetry.manifest import load_manifest
from swiftqueue.infra.local import live_options, processes
from swiftqueue.infra.local.parts import PARTS
from swiftqueue.infra.local.status import print_status
from swiftqueue.models.registry.registry import CHAMPION, Registry
from swiftqueue.serving.ingest import senders

SENDER = "stranger"  # its token is its own, and speaks for nobody else

# Runs as nobody from the second line of `become` on; what it imports lies where nobody may not read.
ATTACKS = """
import base64, json, os, pickle, random, socket, sys, urllib.error, urllib.request
import grpc
from ray.serve.generated.serve_pb2 import ASGIRequest
from tritonclient.grpc import service_pb2 as messages, service_pb2_grpc as service
asked = json.load(sys.stdin)
told, dice = {}, random.Random(1)
stub = service.GRPCInferenceServiceStub(grpc.insecure_channel(
    f"127.0.0.1:{asked['triton']}", options=[("grpc.max_send_message_length", -1)]))

def become(uid, gid):
    os.setgroups([]), os.setgid(gid), os.setuid(uid)
    assert os.getresuid() == (uid,) * 3
    assert os.access(os.path.dirname(asked["state"]), os.X_OK)  # so that only its own mode keeps nobody out

def attempt(what, call, *arguments, **options):
    try:
        told.setdefault(what, []).append("done: " + str(call(*arguments, **options))[:200])
    except grpc.RpcError as error:
        told.setdefault(what, []).append(f"{error.code().name}: {error.details()}"[:200])
    except urllib.error.HTTPError as error:
        told.setdefault(what, []).append(f"{error.code}: {error.read(200)!r}")
    except Exception as error:
        told.setdefault(what, []).append(f"{type(error).__name__}: {error}"[:200])

def post(url, body=b"", method="POST", **headers):
    headers.setdefault("Content-Type", "application/json")
    request = urllib.request.Request(url, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status

become(*asked["user"])
senders = f"http://127.0.0.1:{asked['ingest']}/v1/senders"
tokens = {"without": {}, "guessed": {"Authorization": "Bearer " + "0" * 64},
          "of another": {"Authorization": "Bearer " + asked["token"]}}
for name in asked["senders"]:
    for whose, header in tokens.items():
        attempt("session", post, f"{senders}/{name}/sessions", **header)
        for size in (0, 24, 72, 1272, 6 << 20):
            for _ in range(10 if size < 10_000 else 1):
                attempt("batch", post, f"{senders}/{name}/batches", dice.randbytes(size), **header)
own = tokens["of another"]
attempt("own session", post, f"{senders}/{asked['sender']}/sessions", **own)
for body in asked["batches"]:
    attempt("own batch", post, f"{senders}/{asked['sender']}/batches", base64.b64decode(body), **own)
attempt("own large batch", post, f"{senders}/{asked['sender']}/batches", bytes(6 << 20), **own)
load = messages.RepositoryModelLoadRequest(model_name="stranger")
load.parameters["config"].string_param = json.dumps({"backend": "python",
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}]})
load.parameters["file:1/model.py"].bytes_param = f"open({asked['marker']!r}, 'w').write('ran')".encode()
attempt("load", stub.RepositoryModelLoad, load, timeout=60)
attempt("unload", stub.RepositoryModelUnload, messages.RepositoryModelUnloadRequest(model_name="swiftqueue"))
for mib in (6, 8, 100):
    body = messages.ModelInferRequest(model_name="swiftqueue", raw_input_contents=[bytes(mib << 20)])
    attempt("large", stub.ModelInfer, body, timeout=60)
    for port in asked["triton ports"]:
        attempt("large http", post, f"http://127.0.0.1:{port}/v2/models/swiftqueue/infer", bytes(mib << 20))
for port in asked["triton ports"]:
    repository = f"http://127.0.0.1:{port}/v2/repository/models"
    attempt("http", post, f"{repository}/stranger/load", b"{}", Origin="http://evil.example")
    attempt("http", post, f"{repository}/swiftqueue/unload", b"{}")
alias = json.dumps({"name": "swiftqueue", "alias": "champion", "version": str(asked["refused"])}).encode()
mlflow = f"http://127.0.0.1:{asked['mlflow']}"
for base in ("/api/2.0", "/ajax-api/2.0"):
    attempt("alias", post, f"{mlflow}{base}/mlflow/registered-models/alias", alias)
tag = {"name": "swiftqueue", "version": str(asked["refused"]), "key": "gate", "value": "passed"}
attempt("alias", post, f"{mlflow}/api/2.0/mlflow/model-versions/set-tag", json.dumps(tag).encode())
for path in asked["files"]:
    attempt("file", open, path, "rb")
for path in asked["sockets"]:
    attempt("socket", socket.socket(socket.AF_UNIX).connect, path)
attempt("prometheus", post, f"http://127.0.0.1:{asked['prometheus']}/debug/pprof/heap?debug=1", None, "GET")
for path in ("-/quit", "-/reload", "api/v1/admin/tsdb/delete_series?match[]=up"):
    attempt("prometheus", post, f"http://127.0.0.1:{asked['prometheus']}/{path}")
with grpc.insecure_channel(f"127.0.0.1:{asked['ray']}") as channel:
    attempt("ray", channel.unary_unary("/ray.rpc.InternalKVGcsService/InternalKVPut"), b"", timeout=60)
class Code:  # what a replica of Ray Serve unpickles
    def __reduce__(self):
        return open, (asked["marker"], "w")
def speaks_http(port):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"GET /nothing HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nConnection: close\\r\\n\\r\\n")
        try:
            return connection.recv(7) == b"HTTP/1."
        except ConnectionResetError:
            return False

def page(port, path):
    url, json_type = f"http://127.0.0.1:{port}/{path}", {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, b"{}", json_type), timeout=60) as answer:
        return answer.read(60)

for port in asked["ports"]:
    try:
        http = speaks_http(port)
    except ConnectionRefusedError:  # of a job that is over
        continue
    for path in asked["paths"] if http else ():
        attempt("page", page, port, path)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for method in () if http else asked["methods"]:
            body = ASGIRequest(pickled_request_metadata=pickle.dumps(Code())).SerializeToString()
            attempt(method, channel.unary_unary("/" + method), body if "ASGI" in method else b"", timeout=60)
print(json.dumps(told))
"""
METHODS = (  # a replica of Ray Serve, Ray's client server, every worker, the node
    "ray.serve.ASGIService/HandleRequest",
    "ray.rpc.RayletDriver/ClusterInfo",
    "ray.rpc.CoreWorkerService/NumPendingTasks",
    "ray.rpc.NodeManagerService/GetNodeStats",
)
PATHS = (  # of Ray's agents, of MLflow, of nobody
    "api/job_agent/jobs/",
    "api/jobs/",
    "get_or_create_runtime_env",
    "delete_runtime_env_if_possible",
    "api/2.0/mlflow/registered-models/create",
    "nothing",
)


class Arguments(threading.Thread):
    """What every process of the machine was called with, looked at all the while."""

    def __init__(self) -> None:
        super().__init__(name="arguments", daemon=True)
        self.seen: set[bytes] = set()
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.5):
            self.seen |= cmdlines()


@contextlib.contextmanager
def slow_clients_of_nobody(ports: list[int], count: int) -> Iterator[None]:
    """In the block user `nobody` has so many clients at each port, each of which says a letter and waits.

    Those that are ended are there again a moment later.
    """
    program = """
import encodings.idna, json, os, selectors, socket, sys, time
ports, count = json.loads(sys.argv[1])
os.setgroups([]), os.setgid(65534), os.setuid(65534)
waiting = selectors.DefaultSelector()
def come(port):
    one = socket.create_connection(("127.0.0.1", port))
    try:
        one.sendall(b"G")
    except OSError:
        pass
    waiting.register(one, selectors.EVENT_READ, port)
for port in ports:
    for _ in range(count):
        come(port)
print("there", flush=True)
while True:
    time.sleep(0.1)
    for key, _ in waiting.select():
        waiting.unregister(key.fileobj)
        key.fileobj.close()
        come(key.data)
"""
    command = [sys.executable, "-c", program, json.dumps([ports, count])]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as nobody:
        assert nobody.stdout is not None
        assert nobody.stdout.readline() == b"there\n"
        yield
        assert nobody.poll() is None
        nobody.kill()


def attack(loop: FaultLoop, refused: int, marker: Path) -> dict[str, list[str]]:
    """What nobody was told of each attack."""
    nobody = pwd.getpwnam("nobody")
    seen = [path for folder in (loop.state, scratch()) for path in folder.rglob("*")]
    token = senders.add(loop.state / "telemetry", SENDER)
    attacks = {
        "user": [nobody.pw_uid, nobody.pw_gid],
        "state": str(loop.state),
        "triton": loop.ports["SWIFTQUEUE_TRITON_GRPC"],
        "triton ports": listening([loop.process("triton")]),
        "ports": listening(family(loop)),
        "methods": METHODS,
        "paths": PATHS,
        "mlflow": loop.ports["SWIFTQUEUE_MLFLOW_PORT"],
        "ingest": loop.ports["SWIFTQUEUE_INGEST_PORT"],
        "prometheus": loop.ports["SWIFTQUEUE_PROMETHEUS_PORT"],
        "ray": loop.ports["SWIFTQUEUE_RAY_PORT"],
        "senders": victims(loop),
        "sender": SENDER,
        "token": token,
        "batches": [base64.b64encode(one).decode() for one in damaged()],
        "refused": refused,
        "marker": str(marker),
        "files": [str(path) for path in seen if path.is_file()],
        "sockets": [str(path) for path in seen if path.is_socket()],
    }
    assert len(attacks["triton ports"]) > 1
    assert str(live_options.telemetry_socket()) in attacks["sockets"]
    assert {"token", "packets", "mlflow.db", "gate"} & {Path(path).name for path in attacks["files"]}
    command = [sys.executable, "-c", ATTACKS]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    done = subprocess.run(
        command, input=json.dumps(attacks), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return told


def victims(loop: FaultLoop) -> list[str]:
    """Every sender that the store has packets of."""
    found = (loop.state / "telemetry" / "packets").glob("trace=*")
    return sorted({PROBE, *(path.name.removeprefix("trace=") for path in found)} - {SENDER})


def sessions(loop: FaultLoop) -> dict[str, int]:
    """The newest session of each sender."""
    return {name: loop.newest_session(name) for name in victims(loop)}


def gaps(loop: FaultLoop) -> dict[str, int]:
    """How often batches of a sender are missing."""
    return {name: load_manifest(loop.state / "telemetry", name).counts.gaps for name in victims(loop)}


def damaged() -> list[bytes]:
    """Mutants of a good batch, every other one with a checksum that is right again."""
    rows = [
        {
            "kind": SEND,
            "time_ns": 1,
            "packet": 0,
            "size_bytes": 1500,
            "flow_id": 0,
            "receiver_id": 0,
            "queue": 1,
            "ecn": 1,
        },
        {"kind": ACK, "time_ns": 2, "packet": 0, "latency_us": 1000.0},
    ]
    good = [encode(BatchKey(SENDER, 1, 0), batch(rows * 4))]
    found = [mutants.mutant(good, 7, index) for index in range(300)]
    return [
        sealed(one) if index % 2 and len(one) >= HEADER.itemsize else one for index, one in enumerate(found)
    ]


def addresses(parts: list[psutil.Process]) -> Iterator[tuple[str, str, int]]:
    """Where processes listen: name, address and TCP port."""
    for process in parts:
        with contextlib.suppress(psutil.NoSuchProcess):  # a job of a round may be over
            for one in process.net_connections("tcp"):
                if one.status == psutil.CONN_LISTEN:
                    yield process.name(), one.laddr.ip, one.laddr.port


def family(loop: FaultLoop) -> list[psutil.Process]:
    """Every process of the loop; Ray's agents write over what would name its state folder."""
    found = set(processes_of(loop.state))
    for process in list(found):
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= set(process.children(recursive=True))
    return list(found)


def listening(parts: list[psutil.Process]) -> list[int]:
    """Every TCP port at which processes listen."""
    return sorted({port for _, _, port in addresses(parts)})


def running(loop: FaultLoop) -> dict[str, Any]:
    """Which process serves as each part, and as the ingest's replica."""
    found: dict[str, Any] = {name: server.pid for name in PARTS if (server := processes.running(name))}
    return found | {"replica": loop.process("ingest").pid}


def check_a_stranger_changes_nothing(
    loop: FaultLoop, make_artifact: Callable[..., Path], folder: Path
) -> None:
    """Nothing that anybody sees. `folder`: where nobody may write."""
    refused = add_version(make_artifact(2, onnx=True), gate="failed")
    loop.next_good_round(len(loop.rounds()))
    loop.check_sender()
    before, failed, begun_s = running(loop), loop.asking.failed, time.time()
    open_before, gaps_before = sessions(loop), gaps(loop)

    told = attack(loop, refused, folder / "ran")

    # What a sender may do with its own name, and nothing of it is an error of the ingest.
    assert told.pop("own session") == ["done: 201"]
    assert {re.sub(r"^done: ", "", line)[:3] for line in told.pop("own batch")} <= {
        "200",
        "400",
        "409",
        "429",
    }
    # Everything else is refused, for the reason that it is to be refused for.
    reasons = {
        "session": "401",
        "batch": r"401|<urlopen error|Broken|Connection",  # a large body is not read to its end
        "own large batch": r"413|<urlopen error|Broken|Connection",
        # Triton and every port of Ray's but the ingest's close the connection before a byte is read.
        **dict.fromkeys(("load", "unload", "large", "ray", *METHODS), "^UNAVAILABLE: "),
        **dict.fromkeys(("large http", "http"), "URLError|Connection|Broken|BadStatus|RemoteDisconnected"),
        "alias": "401",
        "file": "PermissionError",
        "socket": "PermissionError",
        "prometheus": "401",
        # A page of metrics may give them whatever was asked.
        "page": r"^(40\d|501): |^done: b'# HELP ",
    }
    unlike = {
        what: [
            line
            for line in said
            if not re.search(reasons[what], line) or (line.startswith("done") and what != "page")
        ]
        for what, said in told.items()
    }
    assert {what: lines[:3] for what, lines in unlike.items() if lines} == {}
    assert set(told) == set(reasons)
    assert any(line.startswith("401") for line in told["page"]), told["page"]
    assert not (folder / "ran").exists()
    # No process ended, nobody waited, the senders' sessions went on.
    assert running(loop) == before
    assert loop.asking.failed == failed, loop.asking.last_error
    loop.probe.check()
    loop.check_sender()
    assert sessions(loop) == open_before
    assert gaps(loop) == gaps_before
    # The operator sees what was there before: rounds go on, the champion is served, and not what was refused.
    loop.next_good_round(0, begun_s=begun_s)
    assert Registry("swiftqueue").alias(CHAMPION) != refused
    loop.check_champion()
    assert loop.served() != refused
    assert running(loop) == before
    wait_until(lambda: print_status() == 0, "status is not well")


def check_every_part_listens_on_loopback_alone(loop: FaultLoop) -> None:
    """The workers of the rounds are among them: they stay from one round to the next."""
    loop.next_good_round(0)
    found = sorted(set(addresses(family(loop))))
    names = {name for name, _, _ in found}
    assert {"gcs_server", "raylet", "tritonserver", "swiftqueue-agent"} <= names
    for part in ("WarmActor", "DashboardAgent", "RuntimeEnvAgent", "ServeReplica"):
        assert any(part in name for name in names), (part, names)
    assert [one for one in found if one[1] not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == []


def check_no_process_was_called_with_a_secret(loop: FaultLoop, arguments: Arguments) -> None:
    """Every user may read the arguments of every process."""
    loop.next_good_round(len(loop.rounds()))
    files = [loop.state / "ray" / "token", *(loop.state / "secrets").iterdir()]
    secrets = {path.name: path.read_text().strip().encode() for path in files}
    assert {"token", "triton", "gate", "mlflow", "ingest"} <= secrets.keys()
    assert min(len(secret) for secret in secrets.values()) >= 32
    assert sum(b"tritonserver" in line or b"gcs_server" in line for line in arguments.seen) >= 2
    for name, secret in secrets.items():
        assert [line for line in arguments.seen if secret in line] == [], name
