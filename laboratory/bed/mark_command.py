"""`swiftqueue mark`: the tc/eBPF program that marks TCP packets as decided (docs/TESTBED.md)."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from laboratory.bed.programs import MARK_OBJECT, run_marker

Device = Annotated[str, typer.Argument(help="network device, as eth0", metavar="DEVICE")]


def attach(device: Device) -> None:
    """Put the marker on a device and turn its segmentation offload off (as root).

    Example: swiftqueue mark attach eth0
    """
    _print(run_marker("attach", device, MARK_OBJECT))


def detach(device: Device) -> None:
    """Take the marker off a device, and put back what `attach` changed there.

    Example: swiftqueue mark detach eth0
    """
    _print(run_marker("detach", device))


def status(device: Device) -> None:
    """Say whether the marker is on a device, and what became of each registered flow's packets.

    Example: swiftqueue mark status eth0
    """
    _print(run_marker("status", device))


def set_decision(
    device: Device,
    cookie: Annotated[int, typer.Argument(help="of the flow's socket: getsockopt(SO_COOKIE)")],
    codepoints: Annotated[
        str, typer.Argument(help="8 digits, by turns: 0 Not-ECT, 1 ECT(1), 2 ECT(0)")
    ] = "11111111",
    for_ms: Annotated[int, typer.Option(help="how long the decision is valid; then plain ECT(1)")] = 1000,
) -> None:
    """Register a TCP flow, and say what its next packets get.

    Example: swiftqueue mark set eth0 4711 11112222 --for-ms 50
    """
    _print(run_marker("set", device, cookie, codepoints, for_ms))


def _print(said: dict[str, Any]) -> None:
    print(json.dumps(said))
