"""`swiftqueue part agent TRACE`: the C++ agent and an endless sender, which replays one packet table.

A pass repeats the table for about ten minutes, as one sender's session; then a new pass begins. Its times
are the present: the trace's own would step back with each pass, which no sender's clock does.
"""

from __future__ import annotations

import json
import math
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer

from swiftqueue.common.say import say
from swiftqueue.common.state import private_dir, state_dir
from swiftqueue.infra.local.parts import end_when_told
from swiftqueue.infra.local.ports import LoopbackPort
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.agent.io import frames
from swiftqueue.serving.agent.io.packet_log import PacketLog, open_log
from swiftqueue.serving.triton.endpoint import grpc_addresses

PASS_S: Final = 600.0  # seconds of a pass; a session's first seconds teach nothing, so there are few passes
DEADLINE_US: Final = 5_000  # longer than usual: training runs on the same cores
FIRST_MODEL_S: Final = 5.0
RETRY_S: Final = 1.0  # pause before a restart after an agent ended by itself


def laps(log: PacketLog, count: int, begin_ns: int) -> PacketLog:
    """Return a log with its packets repeated `count` times, the first sent at `begin_ns`.

    Each lap has new flows, so that their ages are those of the trace.
    """
    packets = len(log.sent_ns)
    span_ns = int(log.sent_ns.max() - log.sent_ns[0])
    lap_ns = span_ns + span_ns // max(1, packets - 1)  # and one mean gap to the next lap's first packet
    lap = np.arange(count, dtype=np.int64)[:, None]  # (laps, 1), against packets or ACKs
    shift_ns = begin_ns - int(log.sent_ns[0]) + lap * lap_ns
    acked_ns = (shift_ns + log.acked_ns).ravel()
    ack_packet = (lap * packets + log.ack_packet).ravel()
    order = np.lexsort((ack_packet, acked_ns))  # a lap's last ACKs come in the next lap
    flows = np.int32(log.flow_id.max() + 1)
    return replace(
        log,
        sent_ns=(shift_ns + log.sent_ns).ravel(),
        flow_id=(lap.astype(np.int32) * flows + log.flow_id).ravel(),
        acked_ns=acked_ns[order],
        ack_packet=ack_packet[order],
        size_bytes=np.tile(log.size_bytes, count),
        receiver_id=np.tile(log.receiver_id, count),
        queue=np.tile(log.queue, count),
        ecn=np.tile(log.ecn, count),
        retransmitted=np.tile(log.retransmitted, count),
        latency_us=np.tile(log.latency_us, count),
    )


def laps_of_a_pass(log: PacketLog, pass_s: float) -> int:
    """Return how many laps fill a pass of `pass_s` seconds."""
    return max(1, math.ceil(pass_s * 1e9 / max(1, int(log.sent_ns.max() - log.sent_ns[0]))))


def run_pass(file: Path, options: list[str]) -> int:
    """Let the agent replay a file of frames, which is removed once it is mapped; return its exit code."""
    # A killed (-9) sender takes its agent along: the agent would hold the metrics port until its pass ends.
    command = ["setpriv", "--pdeathsig", "TERM", str(agent_process.BINARY), f"--replay={file}", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        try:
            for line in agent.stdout or ():
                said = json.loads(line)
                if said["event"] == "ready":
                    file.unlink(missing_ok=True)
                    say(f"ready, version {said['version']} {said['problem']}".rstrip())
                elif said["event"] == "summary":
                    say(f"pass ended: {line.strip()}")
        finally:
            agent_process.end(agent)
    return agent.returncode


def send_for_ever(log: PacketLog, speed: float, telemetry: str, metrics_port: int) -> None:
    """Replay passes one after the other until a signal ends the program.

    Raises:
        OSError: the disk is full.
    """
    count = laps_of_a_pass(log, PASS_S * speed)
    file = private_dir(state_dir() / "agent") / "pass.frames"
    options = [
        *agent_process.server_options(grpc_addresses()),
        *(f"--speed={speed}", f"--deadline-us={DEADLINE_US}", f"--wait-model-s={FIRST_MODEL_S}"),
        *(f"--telemetry={telemetry}", f"--metrics-port={metrics_port}"),
        *agent_process.heartbeat_options(),
    ]
    newest_ns = 0
    say(f"{log.trace}: {count} laps of {len(log.sent_ns)} packets in a pass")
    while True:
        one = laps(log, count, max(time.time_ns(), newest_ns))
        newest_ns = int(one.sent_ns[-1])
        try:
            with file.open("wb") as out:
                out.writelines(frames.replay_frames(one))
            del one
            if code := run_pass(file, options):
                say(f"the agent ended with code {code}: starting another")
                time.sleep(RETRY_S)
        finally:
            file.unlink(missing_ok=True)


def main(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="trace of data/packets, or a packet folder")],
    telemetry: Annotated[str, typer.Option(help="forwarder's socket as unix:PATH")],
    metrics_port: LoopbackPort,
    speed: Annotated[float, typer.Option(help="replay speed as a multiple of real time")] = 1.0,
) -> None:
    """Replay a packet table again and again by the C++ agent, until SIGTERM.

    Example: swiftqueue part agent dumbbell-1 --telemetry unix:var/telemetry.sock --metrics-port 9101
    """
    end_when_told()
    send_for_ever(open_log(trace, 0, None), speed, telemetry, metrics_port)
