"""`swiftqueue part bed`: the C++ agent and a TCP connection through the test bed that never ends.

The kernel's packets and ACKs are the sender's telemetry, and they are marked as the agent decides
(docs/TESTBED.md). When one of the programs ends, all are started again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from swiftqueue.common.say import say
from swiftqueue.common.state import make_scratch
from swiftqueue.infra.local.live_options import BED
from swiftqueue.infra.local.parts import end_when_told
from swiftqueue.infra.local.ports import LoopbackPort
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.triton.endpoint import grpc_addresses
from swiftqueue.testbed.host import tcp
from swiftqueue.testbed.host.hosts import Bed
from swiftqueue.testbed.host.run import PROFILES

RATE_MBPS: Final = 20.0
DELAY_MS: Final = 10.0
CROSS_MBPS: Final = 5.0
PROFILE: Final = "uncoupled"  # both queues have waiting packets
FOR_EVER_S: Final = 1e9
LOOK_S: Final = 0.2
RETRY_S: Final = 1.0  # pause before a restart after a program ended by itself


def _agent(listen: Path, telemetry: str, metrics_port: int) -> list[str]:
    """Return the command of an agent with the local Triton's models; the agent ends with this process."""
    options = [f"--listen={listen}", *agent_process.server_options(grpc_addresses())]
    options += [f"--telemetry={telemetry}", f"--metrics-port={metrics_port}"]
    options += agent_process.heartbeat_options()
    return ["setpriv", "--pdeathsig", "TERM", str(agent_process.BINARY), *options]


def send_until_something_ends(telemetry: str, metrics_port: int) -> str:
    """Run agent, bed, marker and connection until one of them ends; return a line that names it."""
    listen = make_scratch() / "bed-agent.sock"
    bed = Bed(rate_mbps=RATE_MBPS, delay_ms=DELAY_MS, cross_mbps=CROSS_MBPS, queue=PROFILES[PROFILE])
    with (
        tcp.running(_agent(listen, telemetry, metrics_port), "the agent") as (agent, ready),
        bed,
        tcp.marked(bed, listen, name=BED) as on,
        on.connection(FOR_EVER_S) as connection,
    ):
        try:
            say(f"ready, version {ready['version']} {ready['problem']}".rstrip())
            say(f"a TCP connection at {RATE_MBPS:g} Mbit/s, beside {CROSS_MBPS:g} of others")
            while True:
                time.sleep(LOOK_S)
                if broken := on.broken():
                    return broken
                for name, process in (("agent", agent), ("connection", connection)):
                    if process.poll() is not None:
                        return f"the {name} ended with {process.returncode}"
        finally:
            connection.kill()


def main(
    telemetry: Annotated[str, typer.Option(help="forwarder's socket as unix:PATH")],
    metrics_port: LoopbackPort,
) -> None:
    """Send TCP through the test bed, marked as the C++ agent decides, until SIGTERM.

    Example: swiftqueue part bed --telemetry unix:var/telemetry.sock --metrics-port 9101
    """
    end_when_told()
    while True:
        say(f"{send_until_something_ends(telemetry, metrics_port)}: starting all again")
        time.sleep(RETRY_S)
