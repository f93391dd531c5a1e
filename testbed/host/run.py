"""`swiftqueue bed run`: sends a real kernel's marked packets through the router, beside cross traffic.

UDP is paced at a rate; TCP is a connection for each flow, as fast as its congestion control lets it.

Each seed runs once for each control, with the same cross traffic: `default` (no agent: every packet ECT(1))
and, where an agent's socket is given, `agent`. A row has the router's figures of our packets and the sender's
summary.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.serving.agent.marking.udp_command import BINARY, why_not_built
from swiftqueue.testbed.host import router_log, tcp
from swiftqueue.testbed.host.checks import capability
from swiftqueue.testbed.host.hosts import ADDRESS_B, TRAFFIC_PRIORITY, Bed, run_folder
from swiftqueue.testbed.host.lateness import lateness

# The queue's parameters by profile, as simulation/helper/queue-profiles.cc has them.
PROFILES: Final[dict[str, Mapping[str, object]]] = {
    "rfc9332": {},
    "uncoupled": {
        "coupling": 0,
        "overload": "delay",
        "delay_input": "classic",
        "l_aqm": "step",
        "l_step_ms": 20,
        "c_weight": 0.5,
        "l_max_bytes": 1_000_000,
        "c_max_bytes": 1_000_000,
        "max_bytes": 2_000_000,
        "draw": "random",
    },
}


@dataclass(frozen=True)
class Plan:
    """The parameters of a run; rates are of IP packets."""

    profile: str = "rfc9332"
    rate_mbps: float = 40.0
    delay_ms: float = 10.0
    jitter_ms: float = 0.0
    cross_mbps: float = 20.0
    send_mbps: float = 18.0
    flows: int = 4
    seconds: float = 10.0
    seeds: int = 1
    agent: Path | None = None
    traffic: str = "udp"  # udp | tcp; send_mbps is for udp alone

    def __post_init__(self) -> None:
        if self.traffic not in ("udp", "tcp"):
            raise ValueError(f"--traffic {self.traffic}: must be udp or tcp")
        if self.profile not in PROFILES:
            raise ValueError(f"--profile {self.profile}: must be one of {', '.join(PROFILES)}")
        if not 0 < self.send_mbps < math.inf:
            raise ValueError(f"--send-mbps {self.send_mbps:g}: must be above 0, and finite")
        for name in ("seeds", "flows"):
            if getattr(self, name) < 1:
                raise ValueError(f"--{name} {getattr(self, name)}: must be 1 or more")


def run(plan: Plan) -> list[dict[str, Any]]:
    """Run every seed with every control; return a row for each.

    Raises:
        RuntimeError: this machine cannot run the bed; the line says why.

    """
    if reason := why_not_built() or capability("router").why_not:
        raise RuntimeError(reason)
    if plan.traffic == "tcp" and (reason := tcp.why_not()):
        raise RuntimeError(reason)
    controls: dict[str, Path | None] = {"default": None} | ({"agent": plan.agent} if plan.agent else {})
    return [
        _run(plan, seed, control, agent)
        for seed in range(1, plan.seeds + 1)
        for control, agent in controls.items()
    ]


def _run(plan: Plan, seed: int, control: str, agent: Path | None) -> dict[str, Any]:
    with run_folder() as folder:
        log = Path(folder) / "router"
        link: dict[str, Any] = {
            "rate_mbps": plan.rate_mbps,
            "delay_ms": plan.delay_ms,
            "jitter_ms": plan.jitter_ms,
        }
        queue = PROFILES[plan.profile]
        with Bed(**link, cross_mbps=plan.cross_mbps, seed=seed, log=log, queue=queue) as bed:
            if plan.traffic == "tcp":
                sent = connect(bed, plan.flows, plan.seconds, agent, Path(folder) / "follow")
            else:
                options = ("--flows", plan.flows, "--seed", seed)
                sent = send(bed, plan.send_mbps, plan.seconds, *options, agent=agent)
        if not bed.summary:
            raise RuntimeError("the router ended before its time: its log is not whole")
        records = router_log.read(log)
    plain = {key: value for key, value in asdict(plan).items() if key not in ("agent", "seeds")}
    ours = tcp.data_packets(records) if plan.traffic == "tcp" else records[records["packet"] >= 0]
    seen = figures(records, ours, (plan.delay_ms + plan.jitter_ms) * 1e6)
    return {"source": "kernel", "seed": seed, "control": control, **plain, **seen, "sender": sent}


def figures(records: NDArray[Any], ours: NDArray[Any], delay_ns: float) -> dict[str, Any]:
    """Return the router's figures of our packets: waiting by queue, marks, drops, and its own lateness."""
    forward = ours[ours["kind"] == router_log.FORWARD]
    lost = np.isin(ours["kind"], (router_log.DROPPED, router_log.REFUSED))
    out: dict[str, Any] = {
        "packets": int(len(forward) + lost.sum()),
        "lost": int(lost.sum()),
        "marked": int((forward["verdict"] >= router_log.FIRST_MARK).sum()),
        "classic_share": float((forward["queue"] == 1).mean()) if len(forward) else None,
        **lateness(forward["written_ns"], forward["due_ns"], records, delay_ns).columns(),
    }
    waits_ms = (forward["started_ns"] - forward["arrived_ns"]) / 1e6
    for name, which in (
        ("", slice(None)),
        ("l4s_", forward["queue"] == 0),
        ("classic_", forward["queue"] == 1),
    ):
        waits = waits_ms[which]
        for quantile, label in ((0.5, "p50"), (0.99, "p99"), (1.0, "max")):
            out[f"{name}wait_{label}_ms"] = float(np.quantile(waits, quantile)) if len(waits) else None
    return out


def connect(bed: Bed, flows: int, seconds: float, agent: Path | None, log: Path) -> dict[str, Any]:
    """Send by several TCP connections from host a, marked as the agent decides; return their summary.

    Raises:
        RuntimeError: one of them failed, or no agent answered.

    """
    with tcp.marked(bed, agent, log=log) as on:
        if agent and not on.agent:  # its packets would be `default` by another name
            raise RuntimeError(f"agent {agent} did not answer")
        said = [tcp.summary(one) for one in [on.connection(seconds) for _ in range(flows)]]
    latency_ms = tcp.latencies_ms(log)
    p50, p99 = np.quantile(latency_ms, [0.5, 0.99]) if len(latency_ms) else (None, None)
    return {
        "goodput_mbps": sum(one["goodput_mbps"] for one in said),
        "retransmitted": sum(one["retransmitted"] for one in said),
        "latency_p50_ms": p50,
        "latency_p99_ms": p99,
    }


def send(
    bed: Bed, rate_mbps: float, seconds: float, *options: object, agent: Path | None = None
) -> dict[str, Any]:
    """Send marked UDP packets from host a to an echo on host b; return the sender's summary.

    Both have a real-time priority where it is given; otherwise a busy machine's bursts would be the traffic.

    Args:
        bed: the running bed.
        rate_mbps: rate of IP packets, Mbit/s.
        seconds: seconds to send.
        options: further words of `swiftqueue-udp send`.
        agent: path of its socket; None: every packet is ECT(1).

    Raises:
        RuntimeError: sender or receiver failed, or no agent answered; the message is its own line.

    """
    urgent = ["chrt", "-f", TRAFFIC_PRIORITY] if capability("real_time").can else []
    receiver = bed.b(*urgent, BINARY, "echo", "--host", ADDRESS_B, "--port", "0")
    with subprocess.Popen(receiver, stdout=subprocess.PIPE, text=True) as echo:
        try:
            line = echo.stdout.readline() if echo.stdout else ""
            if not line:
                raise RuntimeError("the receiver did not start on host b")
            to = ["--host", ADDRESS_B, "--port", json.loads(line)["port"]]
            how = ["--rate-mbps", rate_mbps, "--seconds", seconds, *options]
            asked = ["--agent", agent.resolve()] if agent else []
            command = bed.a(*urgent, BINARY, "send", *to, *how, *asked)
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
        finally:
            echo.terminate()
    if ran.returncode != 0:
        raise RuntimeError(f"the sender: {ran.stderr.strip()}")
    said: dict[str, Any] = json.loads(ran.stdout)
    if agent and said["agent_connections"] == 0:  # its packets would be `default` by another name
        raise RuntimeError(f"the sender: {ran.stderr.strip() or f'agent {agent} did not answer'}")
    return said
