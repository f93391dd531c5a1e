"""A Ray cluster of two nodes on this machine, each with its own working folder, and what runs on which.

The second node does not see the folder of the programs that start work: what they hand each other goes
through an S3-compatible server (moto's). Only the telemetry store is a folder that both see.

Nodes are told apart by their addresses on loopback (127.0.0.1 Ray would replace by the machine's own, and
then listen on every interface). Nothing runs on the first one as long as it is taken, so what is started
lands on the second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

import psutil
from s3_server import s3_client, s3_server
from waiting import wait_until

from swiftqueue.common.local_ray import ALONE, OBJECT_STORE_BYTES, PATIENCE
from swiftqueue.infra.local.processes import free_ports

FIRST, SECOND = "127.0.0.2", "127.0.0.3"
CPUS: Final = 2
TAKE = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
@ray.remote(num_cpus=2, resources={"first": 1})
class Holder:
    def held(self): return True
holder = Holder.remote()
assert ray.get(holder.held.remote())
print("taken", flush=True)
sys.stdin.read()
"""


class TwoNodes:
    """The cluster, and the program that holds the first node's cores."""

    def __init__(self, root: Path, short: Path) -> None:
        """Nothing is started yet.

        Args:
            root: the nodes' working folders and logs come there.
            short: folder of Ray's own files; a path of at most 40 characters.
        """
        (port,) = free_ports(1)
        self.address = f"{FIRST}:{port}"
        self.driver = root / "driver"  # the programs' folder; the second node finds it empty
        self.driver.mkdir()
        self.bucket = "nodes"
        self._root, self._short = root, short
        self._port = port
        self._storage = contextlib.ExitStack()
        self._s3: dict[str, str] = {}  # once it runs
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._holder: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to work on the cluster."""
        several = {name: value for name, value in os.environ.items() if name not in ALONE}
        told = {"RAY_ADDRESS": self.address, "SWIFTQUEUE_STORAGE": f"s3://{self.bucket}/work"}
        return {**several, **PATIENCE, **self._s3, **told}

    def start(self) -> None:
        """Start the storage and both nodes, and take the first."""
        self._s3 = self._storage.enter_context(s3_server(self.bucket, FIRST))
        own = [f"--temp-dir={self._short / 'first'}", "--include-dashboard=false"]
        self._start(FIRST, "first", ["--head", f"--port={self._port}", *own, '--resources={"first": 1}'])
        self.start_second()

    def start_second(self) -> None:
        """Start the second node; one that was there is gone. The first is taken."""
        hide = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
        hide += ["sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(self.driver)]
        self._start(SECOND, "second", [f"--address={self.address}"], hide)
        taking = [sys.executable, "-c", TAKE, self.address]
        self._holder = subprocess.Popen(
            taking, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment
        )
        out: IO[bytes] | None = self._holder.stdout
        assert out is not None
        assert out.readline().strip() == b"taken"

    def _start(self, node: str, name: str, options: list[str], within: Sequence[str] = ()) -> None:
        folder = self._root / name
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        command = [*within, sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        command += ["--disable-usage-stats"]
        command += [f"--node-ip-address={node}", f"--num-cpus={CPUS}", *options]
        command += [
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--min-worker-port=0",
            "--max-worker-port=0",
        ]
        command += ["--dashboard-agent-listen-port=0", "--include-log-monitor=false"]
        with (folder / "log").open("ab") as log:
            self._nodes[node] = subprocess.Popen(
                command,
                cwd=folder,
                env={**self.environment, "RAY_ADDRESS": "", "TMPDIR": str(folder / "tmp")},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        log_file = folder / "log"

        def runs() -> bool:
            assert self._nodes[node].poll() is None, log_file.read_text()
            return "Ray runtime started" in log_file.read_text()

        wait_until(runs, log_file.read_text)

    def stored(self, what: str) -> list[str]:
        """Names of what lies in the storage below a name; empty ones stand for folders."""
        found = (
            s3_client(self._s3)
            .list_objects_v2(Bucket=self.bucket, Prefix=f"work/{what}/")
            .get("Contents", [])
        )
        return [one["Key"] for one in found if not one["Key"].endswith("/")]

    def processes(self, node: str) -> list[psutil.Process]:
        """What runs on a node."""
        try:
            top = psutil.Process(self._nodes[node].pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill_second(self) -> None:
        """End the second node and all that works there at once, as a power cut does; free the first one."""
        for process in self.processes(SECOND):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self._nodes[SECOND].wait()
        self.free_first()

    def free_first(self) -> None:
        """Let work come to the first node."""
        if self._holder is not None:
            self._holder.kill()
            self._holder.communicate()

    def close(self) -> None:
        """End it all."""
        self.free_first()
        for node in reversed(list(self._nodes)):
            for process in self.processes(node):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._nodes[node].wait()
        self._storage.close()


@contextlib.contextmanager
def two_nodes(root: Path) -> Iterator[TwoNodes]:
    """The cluster for the block, its first node taken."""
    with tempfile.TemporaryDirectory(prefix="sq-", ignore_cleanup_errors=True) as short:
        cluster = TwoNodes(root, Path(short))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()
