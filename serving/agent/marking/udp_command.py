"""`swiftqueue udp send|echo`: marked packets and their receiver (docs/how-to/mark-packets.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from serving.agent.bindings.marked_udp import BINARY, why_not_built


def send(
    host: Annotated[str, typer.Argument(help="receiver's numeric address")],
    port: Annotated[int, typer.Argument(help="receiver's port")],
    agent: Annotated[Path | None, typer.Option(help="the agent's socket (default: plain ECT(1))")] = None,
    rate_mbps: Annotated[float, typer.Option(help="of IP packets, all flows together")] = 5.0,
    seconds: Annotated[float, typer.Option(help="how long it sends")] = 10.0,
    bytes_: Annotated[int, typer.Option("--bytes", help="payload of each datagram")] = 1200,
    flows: Annotated[int, typer.Option(help="flows that take turns")] = 1,
    ahead_ms: Annotated[float, typer.Option(help="how long before its time a batch is asked about")] = 5.0,
    poisson: Annotated[bool, typer.Option("--poisson", help="random gaps instead of equal ones")] = False,
    classic: Annotated[bool, typer.Option("--classic", help="Not-ECT flows, which nothing moves")] = False,
    seed: Annotated[int, typer.Option(help="of the random gaps")] = 1,
    log: Annotated[Path | None, typer.Option(help="CSV of every packet")] = None,
) -> None:
    """Send UDP packets at a rate, each with the codepoint that the agent decides; prints a JSON summary.

    Example: swiftqueue udp send 127.0.0.1 4433 --agent var/agent.sock --rate-mbps 20
    """
    options: dict[str, object] = {"host": host, "port": port, "agent": agent, "rate-mbps": rate_mbps}
    options |= {"seconds": seconds, "bytes": bytes_, "flows": flows, "ahead-ms": ahead_ms, "seed": seed}
    flags = [flag for flag, given in (("--poisson", poisson), ("--classic", classic)) if given]
    _become("send", options | {"log": log}, flags)


def echo(
    host: Annotated[str, typer.Option(help="numeric address to listen at")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0: a free one, which is printed")] = 4433,
    seconds: Annotated[float, typer.Option(help="how long it listens; 0: until it is told to end")] = 0.0,
    log: Annotated[Path | None, typer.Option(help="CSV of every packet")] = None,
) -> None:
    """Acknowledge each packet of `udp send` with the codepoint it arrived with.

    Example: swiftqueue udp echo --host :: --port 4433
    """
    _become("echo", {"host": host, "port": port, "seconds": seconds, "log": log}, [])


def _become(what: str, options: dict[str, object], flags: list[str]) -> None:
    """Run the C++ program in this process's place."""
    if reason := why_not_built():
        raise RuntimeError(reason)
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    os.execv(BINARY, [BINARY.name, what, *given, *flags])  # noqa: S606
