"""`swiftqueue udp send|echo`: marked packets and their receiver (docs/how-to/mark-packets.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from swiftqueue.common import native

FOLDER: Final = Path(__file__).resolve().parents[1]
BINARY: Final = FOLDER / "_build" / "swiftqueue-udp"


def why_not_built() -> str | None:
    """Build the sending program if it is missing; return a line if it still is, else None."""
    if not BINARY.is_file():
        native.build_room(FOLDER, "udp")
    return None if BINARY.is_file() else f"{BINARY} is not built; `make -C {FOLDER} udp` says what is missing"


def send(
    host: Annotated[str, typer.Argument(help="numeric address of the receiver")],
    port: Annotated[int, typer.Argument(help="receiver's port")],
    agent: Annotated[Path | None, typer.Option(help="socket of the agent (default: plain ECT(1))")] = None,
    rate_mbps: Annotated[float, typer.Option(help="rate of IP packets in Mbit/s, all flows together")] = 5.0,
    seconds: Annotated[float, typer.Option(help="seconds to send")] = 10.0,
    bytes_: Annotated[int, typer.Option("--bytes", help="payload bytes of each datagram")] = 1200,
    flows: Annotated[int, typer.Option(help="number of flows that take turns")] = 1,
    frame_packets: Annotated[
        int, typer.Option(help="packets of a frame, which leave at once; the summary has frame latencies")
    ] = 1,
    dscp: Annotated[
        str | None,
        typer.Option(help="DSCP of alternative 0 and of alternative 1, as 0,46 (default: DSCP 0 for both)"),
    ] = None,
    ahead_ms: Annotated[float, typer.Option(help="ms between the question about a batch and its time")] = 5.0,
    poisson: Annotated[bool, typer.Option("--poisson", help="random gaps instead of equal ones")] = False,
    classic: Annotated[bool, typer.Option("--classic", help="Not-ECT flows, which nothing moves")] = False,
    seed: Annotated[int, typer.Option(help="seed of the random gaps")] = 1,
    log: Annotated[Path | None, typer.Option(help="CSV of every packet")] = None,
) -> None:
    """Send UDP packets at a rate, each marked for the alternative that the agent decides; print a summary.

    Example: swiftqueue udp send 127.0.0.1 4433 --agent var/agent.sock --rate-mbps 20
    """
    options: dict[str, object] = {"host": host, "port": port, "agent": agent, "rate-mbps": rate_mbps}
    options |= {"seconds": seconds, "bytes": bytes_, "flows": flows, "ahead-ms": ahead_ms, "seed": seed}
    options |= {"frame-packets": frame_packets, "dscp": dscp}
    flags = [flag for flag, given in (("--poisson", poisson), ("--classic", classic)) if given]
    _become("send", options | {"log": log}, flags)


def echo(
    host: Annotated[str, typer.Option(help="numeric address to listen at")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="port; 0 takes and prints a free one")] = 4433,
    seconds: Annotated[float, typer.Option(help="seconds to listen; 0: until told to end")] = 0.0,
    log: Annotated[Path | None, typer.Option(help="CSV of every packet")] = None,
) -> None:
    """Acknowledge each packet of `udp send` with the codepoint and the DSCP that it arrived with.

    Example: swiftqueue udp echo --host :: --port 4433
    """
    _become("echo", {"host": host, "port": port, "seconds": seconds, "log": log}, [])


def _become(what: str, options: dict[str, object], flags: list[str]) -> None:
    """Replace this process by the C++ program."""
    if reason := why_not_built():
        raise RuntimeError(reason)
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    os.execv(BINARY, [BINARY.name, what, *given, *flags])  # noqa: S606
