"""Flows of `sq_rate` that the agent tells their rates: `swiftqueue rate follow`, and runs on the bed.

The loader (`rate_agent.h`) stands between the kernel and the agent's socket.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from swiftqueue.serving.agent import process as agent_process
from swiftqueue.studies.rate.programs import AGENT, SAMPLER, SAMPLER_OBJECT, why_no_agent, why_no_sampler
from swiftqueue.studies.rate.testbed.flows import CONTROL
from swiftqueue.studies.rate.testbed.kept import keeping
from swiftqueue.testbed.host.programs import wait_for_name
from swiftqueue.testbed.host.tcp import running, summary, urgent

USED: Final = 0  # index in `judged`: sq_verdict of samples/feedback.h


@dataclass
class Sampler:
    """The sampler while it runs; `said` is its summary once it has ended."""

    process: subprocess.Popen[str]
    said: dict[str, Any] = field(default_factory=dict)


@contextmanager
def following(folder: Path, network: Path, samples: int) -> Iterator[Sampler]:
    """Register `sq_rate` for as long as the block lasts; an agent of its own forecasts.

    Args:
        folder: for the agent's socket.
        network: folder of the network that forecasts; the engine must take it.
        samples: number of a flow's samples that a forecast is made from.

    Raises:
        RuntimeError: agent or sampler did not start, or have ended early; the line says why.

    """
    if reason := why_no_agent():
        raise RuntimeError(reason)
    socket = folder / "agent.sock"
    with agent_process.running_agent([f"--listen={socket}", f"--local={network}"], AGENT) as agent:
        next(agent)  # it is ready
        wait_for_name(CONTROL)
        words = [str(word) for word in urgent(SAMPLER, "follow", SAMPLER_OBJECT, socket, samples)]
        with running(words, "the sampler") as (process, _):
            sampler = Sampler(process)
            yield sampler
            process.terminate()
            sampler.said = summary(process)


def follow(
    agent: Annotated[Path, typer.Option(help="the agent's socket")] = Path("var/rate-agent.sock"),
    samples: Annotated[int, typer.Option(help="ACKs of a flow that its forecast is made from")] = 5,
    keep: Annotated[
        Path | None, typer.Option(help="folder for the flows' tables, from which `rate round` learns")
    ] = None,
    flows: Annotated[int, typer.Option(min=1, help="number of flows of each path that is kept")] = 100,
    as_json: Annotated[
        bool, typer.Option("--json", help="print a JSON object when ready, one at the end")
    ] = False,
) -> None:
    """Let the agent tell this machine's flows their rate: those that choose the congestion control sq_rate.

    It is there until Ctrl-C (root). Without an agent its flows are plain BBR.

    Example: swiftqueue rate follow --agent var/rate-agent.sock --keep var/rate/followed
    """
    from swiftqueue.studies.rate.samples.definition import PREFIXES

    if samples not in PREFIXES:
        raise ValueError(f"--samples {samples}: a forecast is made from {', '.join(map(str, PREFIXES))}")
    if reason := why_no_sampler():
        raise RuntimeError(reason)
    words = [str(word) for word in (SAMPLER, "follow", SAMPLER_OBJECT, agent.absolute(), samples)]
    with ExitStack() as stack:
        keeper = stack.enter_context(keeping(keep, flows)) if keep else None
        if keeper:
            words.append(str(keeper.records))
        process = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        # Asked to end, this program asks the loader; the terminal's Ctrl-C reaches both.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: process.terminate())
        for line in process.stdout or ():
            print(line.rstrip() if as_json else _in_words(json.loads(line)), flush=True)
    if keeper and process.returncode == 0:
        said = {"event": "kept", "flows": keeper.flows, "paths": keeper.paths}
        print(json.dumps(said) if as_json else _in_words(said))
    raise typer.Exit(process.returncode)


def _in_words(said: dict[str, Any]) -> str:
    if said["event"] == "ready":
        return f"{CONTROL} is there, and the agent is{'' if said['agent'] else ' not'}; Ctrl-C ends it"
    if said["event"] == "kept":
        return f"{said['flows']} flows in {said['paths']} paths were kept"
    told = said["ack_to_map"]
    times = f"p50 {told['p50_us']:.0f} us, p99 {told['p99_us']:.0f} us from the ACK" if told["count"] else ""
    return (
        f"{said['flows']} flows, {said['asked']} asked about, {told['count']} told their rate, "
        f"{told['within_a_trip']} of them within a round trip, {said['judged'][USED]} used it"
        f"{'; ' + times if times else ''}"
    )
