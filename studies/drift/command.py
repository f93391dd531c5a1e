"""`swiftqueue drift`: walk over traces that change, and publish what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Output = Annotated[Path, typer.Option(help="folder of the rows and the simulated tables")]
VAR = Path("var/drift")


def run(
    captures: Annotated[
        list[Path] | None,
        typer.Argument(help="captures to walk over one after another, beside the simulated changes"),
    ] = None,
    seeds: Annotated[str, typer.Option(help="seeds of traces and trainings")] = "801,802,803",
    params: Annotated[Path, typer.Option(help="file of the loop's parameters")] = Path("params.yaml"),
    output: Output = VAR,
) -> None:
    """Compute what the output folder lacks; an interrupted run goes on where it was.

    Example: swiftqueue drift run --seeds 801,802,803
    """
    from swiftqueue.studies.drift.study import Setup, run, seeds_in
    from swiftqueue.studies.drift.walk import Lengths

    found = seeds_in(seeds)
    for capture in captures or []:
        if not capture.is_file():
            raise FileNotFoundError(f"{capture}: no such file; name captures that exist, or none")
    run(Setup.of(params, Lengths()), found, captures or [], output)


def publish(output: Output = VAR) -> None:
    """Put the rows into the study's data; `swiftqueue results` then draws them.

    Example: swiftqueue drift publish --output var/drift
    """
    from swiftqueue.studies.drift.results import DATA, FILE, write
    from swiftqueue.studies.drift.study import rows_of

    write(rows_of(output), DATA / FILE)
