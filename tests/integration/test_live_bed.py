"""The whole live loop on real packets: `swiftqueue up --live --bed`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import mutants
import pytest
from conftest import PROJECT
from fault_loop import ENDED_WELL, HEAL_S, PORTS
from of_state import processes_of
from waiting import wait_until

from swiftqueue.feature_store.telemetry.manifest import load_manifest
from swiftqueue.infra.local.live_options import BED
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.pipelines.live.rounds_log import LOG_FILE, read
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.ingest.forwarder import sender_id
from swiftqueue.testbed.host import tcp
from swiftqueue.testbed.host.hosts import leftovers

CANNOT = tcp.why_not() or agent_process.why_not_built()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not mutants.ALL, reason="minutes: with SWIFTQUEUE_TEST_ALL=1"),
    pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT)),
]
FIRST = (
    "import sys; from pathlib import Path; import fault_loop; fault_loop.register_champion(Path(sys.argv[1]))"
)
SWIFTQUEUE = Path(sys.executable).with_name("swiftqueue")


def test_a_round_learns_from_a_kernels_connection(make_artifact: Callable[..., Path]) -> None:
    """TCP through the bed, its telemetry in the store, a round of it that ends served, nothing left."""
    folder = Path(tempfile.mkdtemp(prefix="swiftqueue-bed-"))
    ours = ("SWIFTQUEUE_", "RAY_", "MLFLOW_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {name: str(port) for name, port in zip(PORTS, free_ports(len(PORTS)), strict=True)}
    environment |= {"SWIFTQUEUE_STATE": str(folder / "state"), "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        words = list(map(str, command))
        return subprocess.run(
            words, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False
        )

    def rounds() -> list[tuple[str, str]]:
        log = read(folder / "state" / "live" / LOG_FILE)
        return [(one["outcome"], one["reason"]) for one in log]

    try:
        made = run(sys.executable, "-c", FIRST, make_artifact(1, onnx=True))
        assert made.returncode == 0, made.stderr
        up = run(SWIFTQUEUE, "up", "--live", "--bed", "--every=10", "--learn=6", "--judge=3")
        assert up.returncode == 0, up.stdout + up.stderr
        wait_until(
            lambda: any(outcome == "pushed" for outcome, _ in rounds()),
            lambda: f"no round was pushed: {rounds()[-5:]}",
            2 * HEAL_S,
        )
        assert all(outcome in (*ENDED_WELL, "declined", "failed") for outcome, _ in rounds())
        counts = load_manifest(folder / "state" / "telemetry", sender_id(f"{BED}-0")).counts
        assert counts.acks > 0.9 * counts.sends > 1000
        said = (folder / "state" / "agent" / "server.log").read_text()
        assert "a TCP connection at 20 Mbit/s" in said
        down = run(SWIFTQUEUE, "down")
        assert down.returncode == 0, down.stderr
        assert processes_of(folder / "state") == leftovers() == []
    finally:
        for process in processes_of(folder / "state"):
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)
