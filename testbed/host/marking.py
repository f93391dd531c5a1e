"""The marker of the L4S flows of a bed's scenario: an agent, the follower's own rule, or none."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.laboratory.runs.resolve import Model
from swiftqueue.serving.agent.process import BINARY as AGENT
from swiftqueue.testbed.host import router_log, tcp
from swiftqueue.testbed.host.hosts import Bed
from swiftqueue.testbed.host.programs import DCTCP
from swiftqueue.testbed.host.tcp import PORT, Rule, running, summary, urgent

CONTROLLER: Final = (*("margin_us", "margin_share", "max_moved_unacked", "max_moved_share", "guard"),)
# Defaults of a simulated run (simulation/programs/laboratory/run.cc); the agent ships others.
UNSAID: Final = {"guard": "off", "max_moved_share": 0.0}


@contextmanager
def marked(
    bed: Bed,
    control: Mapping[str, Any],
    groups: Sequence[Mapping[str, Any]],
    model: Model | None,
    folder: Path,
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Mark S1's L4S flows as the control decides and all others ECT(1); yield the marking programs."""
    ports = [group["port"] for group in groups if group["control"] == DCTCP]
    if not ports:
        yield {}
        return
    programs: dict[str, subprocess.Popen[str]] = {}
    agent, rule = None, None
    with ExitStack() as stack:
        if control["kind"] == "model" and model is not None:
            agent = folder / "agent.sock"
            words = [str(word) for word in urgent(*agent_words(agent, model.folder, control))]
            programs["the agent"], _ = stack.enter_context(running(words, "the agent"))
        elif control["kind"] == "last_latency":
            rule = Rule(control["threshold_us"] / 1e3, control["stale_us"] / 1e3)
        asked = [PORT] if agent or rule else []
        plain = [port for port in ports if port not in asked]
        following = tcp.following(bed, agent, ports=asked, plain_ports=plain, rule=rule)
        programs["the follower"], greeted = stack.enter_context(following)
        if agent and not greeted:  # its packets would be `default` by another name
            raise RuntimeError("the agent did not answer")
        yield programs


def agent_words(socket: Path, model: Path, control: Mapping[str, Any]) -> list[object]:
    """Return the command of an agent of the model in its own process, with the laboratory's controller."""
    options = UNSAID | {name: control[name] for name in CONTROLLER if name in control}
    given = {"listen": socket, "local": model} | {name.replace("_", "-"): v for name, v in options.items()}
    return [AGENT, *(f"--{name}={value}" for name, value in given.items())]


def ended(programs: Mapping[str, subprocess.Popen[str]]) -> dict[str, Any]:
    """Check that all programs marked to the end; return the follower's summary, empty without a follower."""
    for name, process in programs.items():
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended before the run, with {process.returncode}")
    if "the follower" not in programs:
        return {}
    programs["the follower"].terminate()
    return summary(programs["the follower"])


def unforeseen_share(
    followed: Mapping[str, Any], records: NDArray[Any], groups: Sequence[Mapping[str, Any]]
) -> float:
    """Return the share of S1's L4S packets without a decision, including the warm-up."""
    ports = [group["port"] for group in groups if group["s1"]]
    back = np.isin(records["kind"], (router_log.BACK, router_log.STALL, router_log.CROSS))
    data = ~back & np.isin(records["destination_port"], ports) & (records["bytes"] > records["headers"])
    return float((followed["packets"] - followed["decided"]) / data.sum())
