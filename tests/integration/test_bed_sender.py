"""`swiftqueue part bed` by itself: however it ends, nothing of it stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from of_state import processes_of
from waiting import wait_until

from swiftqueue.common.state import scratch, state_at
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.testbed.host import tcp

CANNOT = tcp.why_not() or agent_process.why_not_built()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))]
SWIFTQUEUE = Path(sys.executable).with_name("swiftqueue")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_of_it_stays(tmp_path: Path, how: signal.Signals, project: Path) -> None:
    log = tmp_path / "log"
    (port,) = free_ports(1)
    options = [f"--telemetry=unix:{tmp_path / 'nobody'}", f"--metrics-port={port}"]
    with (
        log.open("w") as out,
        subprocess.Popen(
            [SWIFTQUEUE, "part", "bed", *options],
            env=os.environ | {"SWIFTQUEUE_STATE": str(tmp_path / "state")},
            stdout=out,
            stderr=out,
            cwd=project,
        ) as part,
    ):
        try:
            wait_until(lambda: "a TCP connection at 20 Mbit/s" in log.read_text(), log.read_text)
            # The agent, the router, the follower, and both ends of the connection.
            wait_until(
                lambda: len(processes_of(tmp_path / "state")) == 6, lambda: processes_of(tmp_path / "state")
            )
            part.send_signal(how)
            part.wait()
            wait_until(lambda: not processes_of(tmp_path / "state"), lambda: processes_of(tmp_path / "state"))
        finally:
            part.kill()
            with state_at(tmp_path / "state"):
                shutil.rmtree(scratch(), ignore_errors=True)  # only what fell with SIGKILL left one
