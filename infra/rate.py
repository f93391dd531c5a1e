"""`swiftqueue rate`: flows, and the study of forecasts of a TCP connection's rate (docs/RATE.md)."""

from __future__ import annotations

import json as json_
from pathlib import Path
from typing import Annotated

import typer

Flows = Annotated[Path, typer.Argument(help="folder of the flows")]
Params = Annotated[Path, typer.Option(help="parameter file; its rate_* sections are read")]
FLOWS = Path("data/rate/flows")


def simulate(output: Flows = FLOWS, params: Params = Path("params.yaml")) -> None:
    """Simulate the flows of section rate_simulate; goes on where it was stopped.

    Example: swiftqueue rate simulate var/rate/flows
    """
    from rich.progress import Progress

    from models.section import read
    from pipelines.rate_simulate import RateSimulateParams
    from pipelines.rate_simulate import simulate as make
    from pipelines.simulators import build_simulator

    section = read(params, RateSimulateParams)
    wanted = len(section.paths())
    program = build_simulator(program="rate")
    with Progress() as progress:
        task = progress.add_task("paths", total=wanted)

        def report(name: str, done: int, _of: int) -> None:
            progress.update(task, completed=done, description=name)

        made = make(section, output, program, report)
    print(f"{output}: {wanted} paths of {section.flows} flows, {made} of them made now")


def study(
    flows: Flows = FLOWS,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="folder of the networks, and of study.json")
    ] = Path("var/rate"),
    seeds: Annotated[
        int | None, typer.Option(min=1, help="seeds 1 to so many (default: rate_train's)")
    ] = None,
    params: Params = Path("params.yaml"),
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Train the networks on flows and judge them beside all baselines; goes on where it was stopped.

    Example: swiftqueue rate study data/rate/flows --seeds 3 --json
    """
    from feature_store.atomic import write_file
    from models.section import read
    from pipelines.rate_evaluate import RateEvaluateParams, evaluate, said
    from pipelines.rate_train import RateTrainParams, train_all

    section, judged = read(params, RateTrainParams), read(params, RateEvaluateParams)
    if seeds is not None:
        section = RateTrainParams(**section.model_dump() | {"seeds": list(range(1, seeds + 1))})
    models = train_all(section, flows, output / "models", lambda line: typer.echo(line, err=True))
    found = evaluate(judged, flows, models)
    text = json_.dumps(found, indent=1) + "\n"
    write_file(output / "study.json", text)
    print(text if json else "\n".join([*said(found), f"all of it: {output / 'study.json'}"]))
