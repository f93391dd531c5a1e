"""`swiftqueue lfq`: train its networks, run the table of 400, judge, register, publish."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

Keys = Annotated[
    list[str] | None, typer.Option("--set", help="override a key of studies/lfq/lfq.yaml, KEY=VALUE")
]
Output = Annotated[Path, typer.Option(help="the laboratory's folder of runs, results and models")]
VAR = Path("var/lab")


def train(set_: Keys = None, output: Output = VAR) -> None:
    """Train a network for each rule of learning and each alpha.

    Example: swiftqueue lfq train --set environments=100
    """
    from swiftqueue.studies.lfq.learning import train as run

    sys.exit(run(set_ or [], output))


def table(
    artifact: Annotated[
        str | None, typer.Option(help="the networks: a folder, or `champion` of the registry")
    ] = None,
    controls: Annotated[str | None, typer.Option(help="run only these rules, as `FqCoDel,fq 100`")] = None,
    set_: Keys = None,
    output: Output = VAR,
) -> None:
    """Run the table of 400: 100 rates and 100 round trips of two TCPs, for each rule.

    Example: swiftqueue lfq table --artifact var/lab/models/lfq
    """
    from swiftqueue.studies.lfq.table import run_table

    sys.exit(run_table(artifact, None if controls is None else controls.split(","), set_ or [], output))


def register(
    weights: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="weight file of `lfq train`, its JSON beside it"),
    ],
    set_: Keys = None,
    output: Output = VAR,
) -> None:
    """Put a network into the registry, judged beside the champion and the best single limit.

    Example: swiftqueue lfq register var/lab/models/lfq/counterfactual-10.safetensors
    """
    from swiftqueue.studies.lfq.registering import register as run

    sys.exit(run(weights, set_ or [], output))


def verdict(
    study: Annotated[str, typer.Argument(help="`lfq-400` or `lfq`")],
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
    output: Output = VAR,
) -> None:
    """Say of each figure to reach: held, not held or not settled; 1 if one is not held.

    Example: swiftqueue lfq verdict lfq-400 --output studies/lfq/data
    """
    from swiftqueue.laboratory.report.verdict import print_verdicts
    from swiftqueue.studies.lfq.verdicts import of_study

    sys.exit(print_verdicts(of_study(study, output), as_json=as_json))


def publish(
    folder: Annotated[
        Path, typer.Argument(help="output folder of `lab run lfq-traces --truth`", file_okay=False)
    ],
) -> None:
    """Put the queues of a run's traces into the study's data; `swiftqueue results` then draws them.

    Example: swiftqueue lfq publish var/lab
    """
    from swiftqueue.studies.lfq.queues import take

    take(folder)
