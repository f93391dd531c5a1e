"""`swiftqueue rate completions`: downloads of this kernel, told a forecast or not (README.md)."""

from __future__ import annotations

import json as json_
import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

FORECASTER: Final = Path("data/rate/models/transformer-1")


def completions(
    seeds: Annotated[int, typer.Option(min=1, help="seeds 1 to so many")] = 5,
    artifact: Annotated[
        Path, typer.Option(help="folder of the network that forecasts", metavar="FOLDER")
    ] = FORECASTER,
    rtt: Annotated[list[int] | None, typer.Option(min=1, help="ms, may be repeated (default: 8)")] = None,
    buffer_bdp: Annotated[list[float] | None, typer.Option(help="may be repeated (default: 0.5, 1)")] = None,
    load: Annotated[float | None, typer.Option(help="share of the link that downloads offer")] = None,
    downloads: Annotated[int | None, typer.Option(help="downloads of a run; each second is judged")] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="only these senders beside bbr and oracle, may be repeated (default: all)"),
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="begin no run after so long")] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="folder of the runs, and of fct.json")
    ] = Path("var/bed/fct"),
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON document; what goes on stands in stderr")
    ] = False,
) -> None:
    """Measure what a forecast does to this kernel's downloads (root); goes on where it was stopped.

    Example: swiftqueue rate completions --seeds 5
    """
    of_runs = {"load": load, "flows": downloads}
    say = partial(typer.echo, err=as_json)
    found = _measure(artifact, seeds, rtt, buffer_bdp, of_runs, variant, minutes, output, say)
    if as_json:
        print(json_.dumps(found))


def _measure(
    artifact: Path,
    seeds: int,
    rtts_ms: list[int] | None,
    buffers_bdp: list[float] | None,
    of_runs: dict[str, Any],
    variants: list[str] | None,
    minutes: float | None,
    output: Path,
    say: Callable[[str], None],
) -> dict[str, Any] | None:
    from swiftqueue.common.atomic import write_file
    from swiftqueue.studies.rate.experiments.feedback import (
        BUFFERS_BDP,
        OURS,
        RTTS_MS,
        lines,
        network_at,
        summary,
    )
    from swiftqueue.studies.rate.testbed import completions as fct
    from swiftqueue.testbed.host.lateness import errors_of

    variants = variants or list(fct.VARIANTS)
    if OURS in variants:
        network_at(artifact)  # names what is wrong with it
    traffic = fct.Traffic(**{key: value for key, value in of_runs.items() if value is not None})
    runs = fct.measure(
        output / "runs",
        artifact,
        range(1, seeds + 1),
        say,
        traffic=traffic,
        rtts_ms=rtts_ms or RTTS_MS,
        buffers_bdp=buffers_bdp or BUFFERS_BDP,
        variants=variants,
        seconds=math.inf if minutes is None else 60 * minutes,
    )
    kept = fct.whole(runs)
    if not kept:
        say(f"{len(runs)} runs, none of them beside all its controls: the same command goes on")
        return None
    found = summary(kept) | {"source": "kernel", "traffic": asdict(traffic), "rate_mbps": traffic.rate_mbps}
    found |= {"buffers_bdp": sorted({run.buffer_bdp for run in kept})}
    found["router"] = errors_of([run.router for run in kept])
    write_file(output / "fct.json", json_.dumps(found, indent=1) + "\n")
    for line in (*lines(found), f"all of it: {output / 'fct.json'}"):
        say(line)
    return found
