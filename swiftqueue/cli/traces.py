"""`swiftqueue trace` and `swiftqueue sender`: the traces that the loop learns from, and senders' tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from swiftqueue.cli.choices import LatencySource, TraceProtocol
from swiftqueue.common.given import check_folder
from swiftqueue.common.program import new_app

trace_app = new_app("Manage the project's traces, which DVC versions.")
sender_app = new_app("Manage the tokens of senders on other machines.")


@trace_app.command("add")
def trace_add(
    file: Annotated[Path, typer.Argument(help="capture made at the sender")],
    name: Annotated[str | None, typer.Option(help="name of the trace (default: from the file name)")] = None,
    sender: Annotated[str | None, typer.Option(help="address of the sender (default: the heaviest)")] = None,
    latency: Annotated[LatencySource, typer.Option(help="source of the latencies")] = LatencySource.acks,
    protocol: Annotated[
        TraceProtocol | None,
        typer.Option(help="slice lengths (default: the project's, or what fits); teach: all trains"),
    ] = None,
) -> None:
    """Check a capture, put it under DVC and name it in params.yaml.

    Example: swiftqueue trace add ~/captures/office.pcapng
    """
    from swiftqueue.pipelines.experiments.traces import add_trace

    own = protocol.value if protocol else None
    add_trace(file, name=name, sender=sender, latency=latency.value, protocol=own)


@trace_app.command("remove")
def trace_remove(name: Annotated[str, typer.Argument(help="the trace's name in params.yaml")]) -> None:
    """Take a trace out of params.yaml and DVC, with its capture in data/traces and its packet table.

    Example: swiftqueue trace remove office
    """
    from swiftqueue.pipelines.experiments.traces import remove_trace

    remove_trace(name)


@trace_app.command("simulate")
def trace_simulate(
    output: Annotated[Path, typer.Argument(help="folder for the packet table")],
    seed: Annotated[int, typer.Option(help="seed of the traffic, which no trace of params.yaml has")] = 3,
    seconds: Annotated[float, typer.Option(help="seconds to simulate")] = 660.0,
) -> None:
    """Simulate one more trace of section `simulate` and extract it, for a replay and not for DVC.

    Example: swiftqueue trace simulate var/long --seconds 1950 && swiftqueue up --live --trace var/long
    """
    from swiftqueue.pipelines.experiments.traces import simulate_trace

    check_folder(output, "a packet table")
    sys.exit(simulate_trace(output, seed=seed, seconds=seconds))


@trace_app.command("list")
def trace_list() -> None:
    """List the traces that `params.yaml` names and whether their files are here.

    Example: swiftqueue trace list
    """
    from swiftqueue.pipelines.experiments.traces import list_traces

    list_traces()


@sender_app.command("add")
def sender_add(
    name: Annotated[str, typer.Argument(help="the sender's id: 1 to 64 of A-Z a-z 0-9 . _ -")],
    out: Annotated[
        Path | None, typer.Option(help="new file of mode 0600 for the token (default: it is printed once)")
    ] = None,
) -> None:
    """Make a sender's token; from then on nobody else speaks for it, not even this machine's forwarder.

    Example: swiftqueue sender add agent-7 --out agent-7.token
    """
    from swiftqueue.serving.ingest import senders
    from swiftqueue.serving.ingest.server import telemetry_dir

    token = senders.add(telemetry_dir(), name, out)
    print(f"the token of sender {name} is in {out}" if out else token)


@sender_app.command("remove")
def sender_remove(name: Annotated[str, typer.Argument(help="the sender's id")]) -> None:
    """Take a sender's token back: the running ingest refuses it from then on.

    Example: swiftqueue sender remove agent-7
    """
    from swiftqueue.serving.ingest import senders
    from swiftqueue.serving.ingest.server import telemetry_dir

    senders.remove(telemetry_dir(), name)
    print(f"the token of sender {name} is taken back")


@sender_app.command("list")
def sender_list() -> None:
    """List the senders that have a token of their own.

    Example: swiftqueue sender list
    """
    from swiftqueue.serving.ingest import senders
    from swiftqueue.serving.ingest.server import telemetry_dir

    for name in senders.with_tokens(telemetry_dir()):
        print(name)
