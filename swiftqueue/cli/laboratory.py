"""`swiftqueue lab`: the laboratory's commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from swiftqueue.cli.choices import Overrides, SliceProtocol
from swiftqueue.common.given import check_folder
from swiftqueue.common.program import new_app

lab_app = new_app("Run the L4S laboratory: simulations and their report.")


LabOutput = Annotated[Path, typer.Option(help="folder of runs, results, models and the report")]


@lab_app.command("scenarios")
def lab_scenarios() -> None:
    """List the scenarios, a line each.

    Example: swiftqueue lab scenarios
    """
    from swiftqueue.laboratory.command import list_scenarios

    list_scenarios()


@lab_app.command("run")
def lab_run(
    scenarios: Annotated[
        list[str] | None, typer.Argument(help="scenarios' names, or YAML files", metavar="SCENARIO...")
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="the full laboratory: figure 8 (tuned heads too), all sweeps and maps, many flows"
        ),
    ] = False,
    seeds: Annotated[int | None, typer.Option(help="number of seeds (default: the scenario's)")] = None,
    seconds: Annotated[float | None, typer.Option(help="simulated seconds (default: the scenario's)")] = None,
    controls: Annotated[
        str | None, typer.Option(help="controls to run, as `default,model` (default: the scenario's)")
    ] = None,
    points: Annotated[
        list[str] | None, typer.Option(help="pattern of the points to run, as `Confucius, *`; repeatable")
    ] = None,
    until_settled: Annotated[
        bool,
        typer.Option("--until-settled", help="look at planned numbers of seeds; stop where it is settled"),
    ] = False,
    artifact: Annotated[str | None, typer.Option(help="model's folder, or the registry's `champion`")] = None,
    truth: Annotated[bool, typer.Option("--truth", help="keep each packet's truth as Parquet")] = False,
    pcap: Annotated[bool, typer.Option("--pcap", help="keep S1's captures: `extract` reads them")] = False,
    output: LabOutput = Path("var/lab"),
) -> None:
    """Simulate scenarios with their controls, on Ray; resumes where it stopped.

    Example: swiftqueue lab run figure8 --artifact var/lab/models/figure8
    """
    from swiftqueue.laboratory.command import Request, run_lab
    from swiftqueue.laboratory.scenarios.files import full as full_laboratory

    if full == bool(scenarios):
        raise typer.BadParameter("name scenarios, or give --full", param_hint="SCENARIO...")
    check_folder(output, "the laboratory")
    named = full_laboratory() if full else scenarios or []
    chosen = None if controls is None else controls.split(",")
    request = Request(named, seeds, seconds, artifact, truth, chosen, pcap, points or None, until_settled)
    sys.exit(run_lab(request, output))


@lab_app.command("train")
def lab_train(
    scenario: Annotated[str, typer.Argument(help="name, or a YAML file")],
    protocol: Annotated[SliceProtocol, typer.Option(help="slice lengths")] = SliceProtocol.small,
    set_: Overrides = None,
    artifact: Annotated[
        str | None,
        typer.Option(help="model that the sender follows in extra traces: a folder, or `champion`"),
    ] = None,
    output: LabOutput = Path("var/lab"),
) -> None:
    """Train a model for each queue profile on a scenario's exploration traces.

    Example: swiftqueue lab train figure8
    """
    from swiftqueue.laboratory.learning.train import train

    sys.exit(train(scenario, protocol=protocol.value, overrides=set_ or [], output=output, artifact=artifact))


@lab_app.command("explain")
def lab_explain(
    scenario: Annotated[str, typer.Argument(help="scenario's name, or a YAML file")],
    artifact: Annotated[str, typer.Option(help="model's folder, or `champion` of the registry")],
    profile: Annotated[str, typer.Option(help="queue profile")] = "uncoupled",
    point: Annotated[str, typer.Option(help="point of a sweep, as `50`")] = "",
    seed: Annotated[int, typer.Option(help="seed of the traffic")] = 1,
    seconds: Annotated[float | None, typer.Option(help="simulated seconds (default: the scenario's)")] = None,
    output: LabOutput = Path("var/lab"),
) -> None:
    """Run one seed with the model, and explain the tail: predictions beside outcomes.

    Example: swiftqueue lab explain receivers --artifact var/lab/models/figure8 --profile rfc9332
    """
    from swiftqueue.laboratory.explain import explain

    sys.exit(
        explain(
            scenario,
            artifact=artifact,
            profile=profile,
            point=point,
            seed=seed,
            seconds=seconds,
            output=output,
        )
    )


@lab_app.command("canary")
def lab_canary() -> None:
    """Prove that the program reproduces the published results, and list it as its equal.

    Example: swiftqueue lab canary
    """
    from swiftqueue.laboratory.runs.canary import prove

    sys.exit(prove())


@lab_app.command("tune", hidden=True)
def lab_tune(
    run: Annotated[Path, typer.Option(help="folder of the run so far")],
    from_ns: Annotated[int, typer.Option("--from-ns", help="first simulated time of the round's data")],
    to_ns: Annotated[int, typer.Option("--to-ns", help="last simulated time of the round's data")],
    artifact: Annotated[Path, typer.Option(help="artifact whose head is tuned further")],
    number: Annotated[int, typer.Option("--round", help="the round's number")],
    output: Annotated[Path, typer.Option(help="folder of the new artifact")],
) -> None:
    """Tune the head on a running simulation's last seconds; the program of `lab run` starts this."""
    from swiftqueue.laboratory.learning.finetune_round import print_round

    print_round(number, run, (from_ns, to_ns), artifact, output)


@lab_app.command("report")
def lab_report(
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(help="scenarios to report (default: all results)", metavar="SCENARIO..."),
    ] = None,
    output: LabOutput = Path("var/lab"),
) -> None:
    """Draw the results into one page and a Markdown table, with their verdicts.

    Example: swiftqueue lab report small
    """
    from swiftqueue.laboratory.report.page import make_report

    page, answer = make_report(output, scenarios or [])
    print("\n".join([*answer, f"report: {page}"]))
