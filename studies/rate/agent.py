"""Runs `swiftqueue-rate-agent`, and keeps its local network fresh: `swiftqueue rate agent`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def agent(
    listen: Annotated[Path, typer.Option(help="unix socket for senders")] = Path("var/rate-agent.sock"),
    local: Annotated[
        bool, typer.Option("--local", help="no server: the engine in the agent's process")
    ] = False,
    server: Annotated[
        list[str] | None,
        typer.Option(help="a Triton, HOST:PORT or unix:PATH; may be repeated (default: deploy's)"),
    ] = None,
    metrics_port: Annotated[int | None, typer.Option(min=0, help="Prometheus port; 0: a free one")] = None,
) -> None:
    """Run the agent: programs report each ACK of a TCP connection and ask how fast it will be.

    Example: swiftqueue rate agent --listen var/rate-agent.sock --local
    """
    from common.settings import settings
    from common.state import state_dir
    from models.registry.registry import Registry
    from serving.agent.command import LocalChampion, attend
    from serving.agent.process import server_options
    from serving.triton.endpoint import grpc_addresses
    from studies.rate.commands import KIND, MODEL
    from studies.rate.programs import AGENT, why_no_agent

    if reason := why_no_agent():
        raise RuntimeError(reason)
    if server and local:
        raise ValueError("--server and --local exclude each other")
    arguments, champion = [f"--listen={listen}"], None
    if metrics_port is not None:
        arguments += [f"--metrics-port={metrics_port}", f"--metrics-address={settings().metrics_address}"]
    if local:
        champion = LocalChampion(Registry(MODEL), state_dir() / "agent" / "rates", KIND)
        print(f"{champion.name} is version {champion.refresh()}", flush=True)
        arguments.append(f"--local={champion.link}")
    else:
        arguments += server_options(server or grpc_addresses())
    sys.exit(attend([str(AGENT), *arguments], champion))
