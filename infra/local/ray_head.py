"""The live loop's own Ray head: started on loopback with a token, judged by a real write and read.

    python -m swiftqueue.infra.local.ray_head ADDRESS  # prints the judgement in one line; 0 means well

The judgement is a program of its own, because Ray ends a process whose head does not answer.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import grpc

from swiftqueue.common import door
from swiftqueue.common.local_ray import ALONE, LOOPBACK, OBJECT_STORE_BYTES, PATIENCE, use_token
from swiftqueue.common.settings import settings
from swiftqueue.common.state import stranger_listens
from swiftqueue.infra.local import processes
from swiftqueue.serving.ingest.server import SERVE_PATIENCE

NAME: Final = "ray"
START_TIMEOUT_S: Final = 240.0
CHECK_TIMEOUT_S: Final = 20.0
# Importing Ray takes five seconds of a core. On a busy machine that gives it a tenth of one, a judgement with
# a limit of 20 s would never finish.
START_CHECK_TIMEOUT_S: Final = 120.0
CALL_TIMEOUT_S: Final = 5.0
# Task records would serve only the dashboard, which is off; with them the head grew by 250 MiB an hour.
SYSTEM_CONFIG: Final = {"task_events_report_interval_ms": 0}


def start(folder: Path, temporary: Path) -> processes.ServerProcess:
    """Start a Ray head whose files lie in `folder` (a short path), and wait until it answers.

    Workers' temporary files lie in `temporary`; a killed worker leaves them there.

    Raises:
        OSError: the port is taken.
        RuntimeError: the head did not start.
    """
    number = settings().ray_port
    processes.check_port(number, "ray_port")
    use_token()
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *(f"--node-ip-address={LOOPBACK}", f"--port={number}", f"--temp-dir={folder}"),
        *("--include-dashboard=false", f"--num-cpus={max(2, os.cpu_count() or 1)}"),
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        # By default these are fixed ports and ranges, which a second Ray on the machine would share.
        *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),
        f"--system-config={json.dumps(SYSTEM_CONFIG)}",
        f"--ray-client-server-port={_free_port()}",
        # One machine needs no autoscaler, and no driver shows copies of workers' lines.
        *("--no-monitor", "--include-log-monitor=false"),
    ]
    environment = {
        **PATIENCE,
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # there is no other node for its actors to move to
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(temporary),
        **ALONE,
        **SERVE_PATIENCE,
        **door.variables(settings().ingest_port),
    }
    address = f"{LOOPBACK}:{number}"
    return processes.start(
        NAME,
        command,
        {"gcs": number},
        environment,
        lambda: alive(address) and check(address, START_CHECK_TIMEOUT_S)[0],
        START_TIMEOUT_S,
        nice=processes.BEHIND,
    )


def alive(address: str, timeout_s: float = CALL_TIMEOUT_S) -> bool:
    """Return whether a Ray head answers anything at all; the check is cheap and judges nothing else."""
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        ask = channel.unary_unary("/grpc.health.v1.Health/Check")
        try:
            ask(b"", timeout=timeout_s)
        except grpc.RpcError as error:  # "no token" is an answer too
            return error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
    return True


def check(address: str, timeout_s: float = CHECK_TIMEOUT_S) -> tuple[bool, str]:
    """Return whether a Ray head stores a write, gives it back and has a node; and a line about it."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CALL_TIMEOUT_S).close()
    except OSError:
        return False, f"no answer at {address}"
    if host == LOOPBACK and stranger_listens(int(port)):
        return False, f"another user listens at {address}, and is not told our token"
    use_token()
    command = [sys.executable, "-m", "swiftqueue.infra.local.ray_head", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return False, f"takes connections at {address}, but does not answer"
    lines = (done.stdout or done.stderr).strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else f"ended with code {done.returncode}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def main(address: str) -> None:
    """Judge the head at an address."""
    # GcsClient starts no process, unlike `ray.init`. It is a compiled module: mypy cannot look inside.
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    begin = time.perf_counter()
    client = GcsClient(address=address)
    key, content, space = f"check-{os.getpid()}".encode(), os.urandom(16), b"swiftqueue"
    client.internal_kv_put(key, content, True, space, timeout=CALL_TIMEOUT_S)
    same = client.internal_kv_get(key, space, timeout=CALL_TIMEOUT_S) == content
    client.internal_kv_del(key, False, space, timeout=CALL_TIMEOUT_S)
    took_ms = (time.perf_counter() - begin) * 1e3
    nodes = client.get_all_node_info(timeout=CALL_TIMEOUT_S).values()
    alive = sum(node.state == type(node).ALIVE for node in nodes)
    if not same or not alive:
        sys.exit(f"{alive} nodes; what was written {'came' if same else 'did not come'} back")
    print(f"{alive} node, a write and a read in {took_ms:.0f} ms")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Exception as error:  # Ray's error classes have no common base
        sys.exit(" ".join(str(error).split())[:200] or type(error).__name__)
