"""`swiftqueue paper`: what the paper shows of forecasts and of waits."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from swiftqueue.common.given import check_folder

Output = Annotated[Path, typer.Option("--output", "-o", help="folder of traces, rows and their summary")]


def forecasts(
    exhibits: Annotated[
        list[str] | None,
        typer.Argument(
            help="as figure-7a, numbered as in arXiv's first version (default: all)", metavar="[EXHIBIT]..."
        ),
    ] = None,
    small: Annotated[
        bool,
        typer.Option(
            "--small",
            help="short traces, three seeds, the ends of each axis; 14 minutes on two cores",
        ),
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(min=2, help="number of seeds of traffic and training", show_default="5; 3 if small"),
    ] = None,
    output: Output = Path("var/paper"),
    sections: Annotated[Path, typer.Option(help="the variants")] = Path("forecasters.yaml"),
) -> None:
    """Redo what the paper shows of forecasts, each exhibit with a verdict; goes on where it stopped.

    Examples: swiftqueue paper forecasts --small --seeds 10, and swiftqueue paper forecasts figure-7a
    """
    from swiftqueue.studies.swiftqueue.exhibits import FULL, SMALL
    from swiftqueue.studies.swiftqueue.run import run_paper

    check_folder(output, "paper")
    form = SMALL if small else FULL
    form = replace(form, seeds=seeds or form.seeds)
    sys.exit(run_paper(exhibits or [], output, form, sections))


def waits(
    exhibits: Annotated[
        list[str] | None,
        typer.Argument(help="as figure-7b (default: all)", metavar="[EXHIBIT]..."),
    ] = None,
    artifact: Annotated[
        str, typer.Option(help="the model: a folder, or `champion` of the registry")
    ] = "docs/laboratory/models/figure8",
    small: Annotated[bool, typer.Option("--small", help="30 s a run, two points of each axis")] = False,
    output: Annotated[Path, typer.Option(help="folder of runs and results")] = Path("var/lab"),
) -> None:
    """Redo what the paper says of P99, each figure with a verdict; goes on where it stopped.

    Examples: swiftqueue paper waits --small, and swiftqueue paper waits figure-7b
    """
    from swiftqueue.studies.swiftqueue.waits import run_waits

    sys.exit(run_waits(exhibits or [], artifact, output, small=small))


def publish(
    summary: Annotated[Path, typer.Argument(help="summary that `swiftqueue paper forecasts` wrote")],
) -> None:
    """Put the rows of a form into the study's data; `swiftqueue results` then draws them.

    Example: swiftqueue paper publish var/paper/small.json
    """
    from swiftqueue.studies.swiftqueue.paper import take

    take(summary)
