"""`swiftqueue lab`: the laboratory's commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from common.given import check_folder, given
from swiftqueue.cli.choices import SliceProtocol

lab_app = typer.Typer(
    no_args_is_help=True, help="Run the L4S laboratory: simulations with controls, and the report."
)


BENCH_QUEUES: Final = "bench-queues"  # the scenario whose verdict is on a published benchmark
LabOutput = Annotated[Path, typer.Option(help="folder of runs, results, models and the report")]


@lab_app.command("scenarios")
def lab_scenarios() -> None:
    """List the scenarios, a line each.

    Example: swiftqueue lab scenarios
    """
    from laboratory.command import list_scenarios

    list_scenarios()


@lab_app.command("run")
def lab_run(
    context: typer.Context,
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
    artifact: Annotated[
        str | None, typer.Option(help="model's folder, or `champion` of the registry")
    ] = None,
    truth: Annotated[bool, typer.Option("--truth", help="keep each packet's truth as Parquet")] = False,
    pcap: Annotated[bool, typer.Option("--pcap", help="keep S1's captures: `extract` reads them")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="lfq-400: override of a key of lfq.yaml, KEY=VALUE")
    ] = None,
    output: LabOutput = Path("var/lab"),
) -> None:
    """Simulate scenarios with their controls, on Ray; resumes where it stopped.

    Example: swiftqueue lab run figure8 --artifact var/lab/models/figure8
    """
    from laboratory.command import Request, run_lab
    from laboratory.scenarios.files import LFQ_TABLE
    from laboratory.scenarios.files import full as full_laboratory

    if full == bool(scenarios):
        raise typer.BadParameter("name scenarios, or give --full", param_hint="SCENARIO...")
    check_folder(output, "the laboratory")
    named = full_laboratory() if full else scenarios or []
    chosen = None if controls is None else controls.split(",")
    if LFQ_TABLE in named:
        from laboratory.lfq.table import run_table

        if len(named) > 1:
            raise typer.BadParameter(f"{LFQ_TABLE} runs alone", param_hint="SCENARIO")
        if given(context, ["seeds", "seconds", "truth", "pcap", "points", "until_settled"]):
            raise typer.BadParameter("lfq-400 has its own flows: use --set", param_hint="SCENARIO")
        sys.exit(run_table(artifact, chosen, set_ or [], output))
    if set_:
        raise typer.BadParameter("only lfq-400 has keys to set", param_hint="--set")
    request = Request(named, seeds, seconds, artifact, truth, chosen, pcap, points or None, until_settled)
    sys.exit(run_lab(request, output))


@lab_app.command("paper")
def lab_paper(
    exhibits: Annotated[
        list[str] | None,
        typer.Argument(help="exhibit as figure-7b (default: all)", metavar="[EXHIBIT]..."),
    ] = None,
    artifact: Annotated[
        str, typer.Option(help="model's folder, or `champion` of the registry")
    ] = "docs/laboratory/models/figure8",
    small: Annotated[bool, typer.Option("--small", help="30 s a run, two points of each axis")] = False,
    output: LabOutput = Path("var/lab"),
) -> None:
    """Redo the SwiftQueue paper's P99 figures, each with a verdict; resume where it stopped.

    Examples: swiftqueue lab paper --small, and swiftqueue lab paper figure-7b
    """
    from infra.paper.waits import run_waits

    sys.exit(run_waits(exhibits or [], artifact, output, small=small))


@lab_app.command("train")
def lab_train(
    context: typer.Context,
    scenario: Annotated[str, typer.Argument(help="scenario's name, or a YAML file")],
    protocol: Annotated[SliceProtocol, typer.Option(help="slice lengths")] = SliceProtocol.small,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="override of a parameter, SECTION.KEY=VALUE")
    ] = None,
    artifact: Annotated[
        str | None,
        typer.Option(help="model that the sender follows in extra traces: a folder, or `champion`"),
    ] = None,
    output: LabOutput = Path("var/lab"),
) -> None:
    """Train a model for each queue profile on a scenario's exploration traces; or `lfq`, a router's limits.

    Example: swiftqueue lab train figure8
    """
    if scenario == "lfq":
        from laboratory.lfq.learning import train as train_lfq

        if taken := given(context, ["protocol", "artifact"]):
            raise typer.BadParameter("lfq has no slices and follows no model: use --set", param_hint=taken[0])
        sys.exit(train_lfq(set_ or [], output))
    from laboratory.learning.train import train

    sys.exit(train(scenario, protocol=protocol.value, overrides=set_ or [], output=output, artifact=artifact))


@lab_app.command("register")
def lab_register(
    weights: Annotated[
        Path,
        typer.Argument(
            exists=True, dir_okay=False, help="weight file of `lab train lfq`, its JSON beside it"
        ),
    ],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="override of a key of lfq.yaml, KEY=VALUE")
    ] = None,
    output: LabOutput = Path("var/lab"),
) -> None:
    """Put a network of LFQ into the registry, judged beside the champion and the best single limit.

    Example: swiftqueue lab register var/lab/models/lfq/counterfactual-10.safetensors
    """
    from laboratory.lfq.registering import register

    sys.exit(register(weights, set_ or [], output))


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
    from laboratory.explain import explain

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
    from laboratory.runs.canary import prove

    sys.exit(prove())


@lab_app.command("verdict")
def lab_verdict(
    scenario: Annotated[str, typer.Argument(help="scenario's name, as `confucius-web`, or `bench-queues`")],
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
    output: LabOutput = Path("var/lab"),
) -> None:
    """Print whether a scenario holds each target, does not or is not settled; exit with 1 if it does not.

    Example: swiftqueue lab verdict confucius-web --json
    """
    from laboratory.report.verdicts import of_scenario, print_verdicts

    if scenario == BENCH_QUEUES:
        from benchmarks.published import FILE, load
        from benchmarks.queues import verdicts

        entry = load(FILE).get("queues")
        if entry is None:
            raise ValueError(f"{FILE} has no queues: swiftqueue bench queues --publish")
        sys.exit(print_verdicts(verdicts(entry.rows), as_json=as_json))
    sys.exit(print_verdicts(of_scenario(scenario, output), as_json=as_json))


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
    from laboratory.learning.finetune_round import print_round

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
    from laboratory.report.page import make_report

    page, answer = make_report(output, scenarios or [])
    print("\n".join([*answer, f"report: {page}"]))
