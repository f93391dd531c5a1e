"""`swiftqueue mark`: the tc/eBPF program that marks TCP packets as decided (docs/TESTBED.md)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from swiftqueue.testbed.host.programs import MARK_OBJECT, MARKER, run_marker, why_not_built

Device = Annotated[str, typer.Argument(help="network device, as eth0", metavar="DEVICE")]
Cookie = Annotated[int, typer.Argument(help="cookie of the flow's socket: getsockopt(SO_COOKIE)")]


def attach(
    device: Device,
    dscp: Annotated[
        str | None,
        typer.Option(
            help="DSCP of alternative 0 and of alternative 1, as 0,46 (default: the DSCP stays as it is)"
        ),
    ] = None,
) -> None:
    """Put the marker on a device, with segmentation offload off (root, or CAP_NET_ADMIN and CAP_SYS_ADMIN).

    Example: swiftqueue mark attach eth0 --dscp 0,46
    """
    words = [] if dscp is None else [f"--dscp={dscp}"]
    _print(run_marker("attach", device, MARK_OBJECT, *words))


def detach(device: Device) -> None:
    """Take the marker off a device, and restore the settings that `attach` changed.

    Example: swiftqueue mark detach eth0
    """
    _print(run_marker("detach", device))


def status(device: Device) -> None:
    """Print whether the marker is on a device, and the counts of each registered flow's packets.

    Example: swiftqueue mark status eth0
    """
    _print(run_marker("status", device))


def set_decision(
    device: Device,
    cookie: Cookie,
    codepoints: Annotated[
        str, typer.Argument(help="8 digits for packets in turn: 0 Not-ECT, 1 ECT(1), 2 ECT(0)")
    ] = "11111111",
    for_ms: Annotated[int, typer.Option(help="ms that the decision is valid; then plain ECT(1)")] = 1000,
) -> None:
    """Register a TCP flow, and set the codepoints of its next packets.

    Example: swiftqueue mark set eth0 4711 11112222 --for-ms 50
    """
    _print(run_marker("set", device, cookie, codepoints, for_ms))


def forget(device: Device, cookie: Cookie) -> None:
    """Leave a registered TCP flow alone again: its packets go out as the kernel sends them.

    Example: swiftqueue mark forget eth0 4711
    """
    _print(run_marker("forget", device, cookie))


def follow(
    device: Device,
    agent: Annotated[Path | None, typer.Option(help="socket of the agent")] = None,
    port: Annotated[
        list[int] | None,
        typer.Option(help="port of flows to follow; may be repeated, 16 at most", min=1, max=65_535),
    ] = None,
    plain_port: Annotated[
        list[int] | None,
        typer.Option(help="port of flows that are ECT(1) without a question", min=1, max=65_535),
    ] = None,
    cookie: Annotated[
        list[int] | None, typer.Option(help="flow to follow: getsockopt(SO_COOKIE) of its socket")
    ] = None,
    name: Annotated[str, typer.Option(help="name of the senders at the agent: NAME-0, NAME-1, ...")] = "tcp",
    ahead: Annotated[int, typer.Option(help="packets before a batch at which it is asked about")] = 8,
    for_ms: Annotated[int, typer.Option(help="longest validity of a decision in ms")] = 1000,
    last_latency_ms: Annotated[
        float | None,
        typer.Option(
            help="ms: without an agent, a flow moves while its L4S latency is this much above its least"
        ),
    ] = None,
    stale_ms: Annotated[float, typer.Option(help="longest age of that latency in ms")] = 100.0,
    seconds: Annotated[float, typer.Option(help="seconds to follow; 0 follows until told to end")] = 0.0,
    log: Annotated[Path | None, typer.Option(help="CSV of every packet, ACK and decision")] = None,
) -> None:
    """Let the agent decide for TCP flows: it gets their packets and ACKs, the marker its decisions.

    Example: swiftqueue mark follow eth0 --agent var/agent.sock --port 443
    """
    if reason := why_not_built(MARKER, MARK_OBJECT):
        raise RuntimeError(reason)
    options: dict[str, object] = {"name": name, "ahead": ahead, "for-ms": for_ms, "seconds": seconds}
    options |= {"log": log} if log else {}
    if last_latency_ms is not None:
        options |= {"last-latency-ms": last_latency_ms, "stale-ms": stale_ms}
    given = [f"--{option}={value}" for option, value in options.items()]
    for option, each in (("port", port), ("plain-port", plain_port), ("cookie", cookie)):
        given += [f"--{option}={one}" for one in each or []]
    os.execv(MARKER, [MARKER.name, "follow", device, str(agent or ""), *given])  # noqa: S606


def _print(said: dict[str, Any]) -> None:
    print(json.dumps(said))
