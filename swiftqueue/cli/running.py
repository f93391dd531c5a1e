"""Commands of the running loop: its servers, versions, rounds, and the agent."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast

import typer

from swiftqueue.cli.choices import AgentRule
from swiftqueue.common.given import given
from swiftqueue.infra.local.ports import MOST_PORT
from swiftqueue.pipelines.live import DRIFT
from swiftqueue.serving.triton.repository import LATENCY, MODELS

running_app = typer.Typer()

# Options of `up`.
LIVE_ONLY = ("trace", "speed", "every", "learn", "judge", "drift", "retrain", "bed", "foreground")


def _known_model(name: str | None) -> str | None:
    """Return the model that an option names.

    Raises:
        typer.BadParameter: there is none of that name.
    """
    if name is not None and name not in MODELS:
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(MODELS)}")
    return name


OF_MODEL = typer.Option(callback=_known_model, help=f"kind of model: {', '.join(MODELS)}")
OfModel = Annotated[str, OF_MODEL]
METRICS_PORT = typer.Option(
    min=0, max=MOST_PORT, help="Prometheus port, at SWIFTQUEUE_METRICS_ADDRESS; 0 takes a free one"
)


class DriftResponse(StrEnum):
    """The reaction of `schedule` to drifted inputs."""

    propose = "propose"
    start = "start"


@running_app.command()
def run(speed: Annotated[float, typer.Option(help="multiple of real time to replay at")] = 1.0) -> None:
    """Run the main job: pipeline, deploy to Triton, replay a trace against it, say where to look next.

    Example: swiftqueue run --speed 4
    """
    from swiftqueue.infra.local.main_job import run_main_job

    sys.exit(run_main_job(speed=speed))


@running_app.command()
def up(
    context: typer.Context,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="start the MLflow server alone")] = False,
    live: Annotated[bool, typer.Option("--live", help="start the whole live loop")] = False,
    trace: Annotated[
        str | None, typer.Option(help="--live: trace that its sender replays (default: register.trace)")
    ] = None,
    speed: Annotated[float, typer.Option(help="--live: replay speed as a multiple of real time")] = 1.0,
    every: Annotated[float, typer.Option(help="--live: seconds from one round to the next")] = 300.0,
    learn: Annotated[float, typer.Option(help="--live: seconds that a round learns from")] = 60.0,
    judge: Annotated[float, typer.Option(help="--live: seconds that a round is judged on")] = 10.0,
    drift: Annotated[
        float, typer.Option(help="--live: stability index of an input beyond which it has drifted")
    ] = DRIFT,
    retrain: Annotated[
        DriftResponse, typer.Option(help="--live: full re-train after drift: only proposed, or done")
    ] = DriftResponse.propose,
    bed: Annotated[
        bool, typer.Option("--bed", help="--live: take a TCP connection through the test bed as sender")
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="--live: stay as its keeper, for systemd or a container")
    ] = False,
) -> None:
    """Start the local Triton server (loopback only), MLflow's, or the live loop; do nothing where it is up.

    Example: swiftqueue up --live --every 60
    """
    from swiftqueue.infra.local.servers import say_who_runs_this, start_mlflow, start_stack

    if not live and (only := given(context, LIVE_ONLY)):
        raise typer.BadParameter("only --live takes this", param_hint=", ".join(only))
    say_who_runs_this()
    if live:
        _check_live(context)
        from swiftqueue.infra.local.loop import start_loop, stay_as_keeper
        from swiftqueue.infra.local.main_job import make_first_champion

        # The parts must not be children of the process that stays: it would not reap those that end.
        if foreground and (child := os.fork()):
            stay_as_keeper(child)
        start_loop(
            trace,
            speed=speed,
            every_s=every,
            learn_s=learn,
            judge_s=judge,
            drift=drift,
            retrain=retrain is DriftResponse.start,
            bed=bed,
            make_champion=make_first_champion,
            keeper=not foreground,
        )
    else:
        from swiftqueue.infra.local.under_way import under_way

        with under_way():
            (start_mlflow if mlflow else start_stack)()


def _check_live(context: typer.Context) -> None:
    """Refuse options that `up --live` cannot carry out."""
    from swiftqueue.infra.local.live_options import LiveOptions

    told = context.params
    if told["bed"] and (idle := given(context, ("trace", "speed"))):
        raise typer.BadParameter("--bed replays no trace", param_hint=", ".join(idle))
    LiveOptions("", told["speed"], told["every"], told["learn"], told["judge"], told["drift"])


@running_app.command()
def down() -> None:
    """Stop whatever `up` started, and an `up` or `run` that is under way.

    Example: swiftqueue down
    """
    from swiftqueue.infra.local.loop import stop_stack

    stop_stack()


@running_app.command()
def status(
    model: Annotated[
        str | None, typer.Option(callback=_known_model, help="only what serves this model (default: all)")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object, a judgement a part")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="judge again every two seconds")] = False,
) -> None:
    """Judge each part that runs by a real request: what is not well, what to do, and what is well.

    Example: swiftqueue status --watch
    """
    from swiftqueue.infra.local.status import print_status, watch_status

    if watch and json:
        raise typer.BadParameter("one of the two", param_hint="--watch, --json")
    if watch:
        return watch_status(model or "")
    sys.exit(print_status(as_json=json, kind=model or ""))


@running_app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def units(
    context: typer.Context,
    memory: Annotated[str, typer.Option(help="most memory of all parts together, as 12G or 75%")] = "75%",
) -> None:
    """Write a systemd unit of this user that starts the live loop at boot; further options go to `up --live`.

    Example: swiftqueue units --memory 12G --every 60
    """
    from swiftqueue.infra.local.units import NAME, write_unit

    # Otherwise the unit would fail at boot, where nobody reads why.
    commands = typer.main.get_group(running_app)
    up_live = commands.commands["up"].make_context("swiftqueue up --live", ["--live", *context.args])
    _check_live(cast(typer.Context, up_live))  # typer's name for its own context
    print(f"{write_unit(memory, context.args)} is written; to start it, now and at boot:")
    enable = f"systemctl --user enable --now {NAME}"
    print(f"  systemctl --user daemon-reload && {enable} && loginctl enable-linger")


@running_app.command()
def deploy(
    version: Annotated[int | None, typer.Option(help="registry version (default: the challenger)")] = None,
    model: OfModel = LATENCY,
) -> None:
    """Push a registered version to Triton: stage, load, compare with the local output, then alias.

    Example: swiftqueue deploy --version 3
    """
    from swiftqueue.serving.deploy.deployment import deploy_version

    deploy_version(version, kind=model)


@running_app.command()
def rollback(
    hold: Annotated[
        bool, typer.Option("--hold", help="keep that version until `release`, whatever rounds bring")
    ] = False,
    model: OfModel = LATENCY,
) -> None:
    """Put the previous champion back, in the registry and in Triton.

    Example: swiftqueue rollback --hold
    """
    from swiftqueue.serving.deploy.deployment import rollback_champion

    rollback_champion(and_hold=hold, kind=model)


@running_app.command()
def hold(model: OfModel = LATENCY) -> None:
    """Keep the version that is served now until `release`, whatever rounds bring.

    Example: swiftqueue hold
    """
    from swiftqueue.serving.deploy.deployment import hold_champion

    hold_champion(model)


@running_app.command()
def release(model: OfModel = LATENCY) -> None:
    """Let rounds and `deploy` replace a version again that `hold` or `rollback --hold` keeps.

    Example: swiftqueue release
    """
    from swiftqueue.serving.deploy import hold as deploy_hold

    print("rounds push again" if deploy_hold.release(model) else "no version was held")


@running_app.command()
def schedule(
    telemetry: Annotated[
        Path | None,
        typer.Option(help="folder of the telemetry (default: where the ingest stores it)", file_okay=False),
    ] = None,
    sender: Annotated[
        str | None, typer.Option(help="sender to learn from (default: by turns, see SWIFTQUEUE_SENDERS)")
    ] = None,
    every: Annotated[float, typer.Option(help="seconds from one round to the next")] = 300.0,
    learn: Annotated[float, typer.Option(help="seconds of telemetry that a round learns from")] = 60.0,
    judge: Annotated[float, typer.Option(help="seconds after them that a round is judged on")] = 10.0,
    least_decisions: Annotated[
        int, typer.Option(min=1, help="least decisions in either part; with fewer the round is declined")
    ] = 200,
    rounds: Annotated[int | None, typer.Option(min=1, help="rounds to stop after (default: never)")] = None,
    metrics_port: Annotated[int, METRICS_PORT] = 0,
    drift: Annotated[float, typer.Option(help="stability index beyond which an input has drifted")] = DRIFT,
    retrain: Annotated[
        DriftResponse, typer.Option(help="full re-train after drift: only proposed, or done")
    ] = DriftResponse.propose,
) -> None:
    """Fine-tune, judge, register and push a new head every few minutes, from telemetry.

    Example: swiftqueue schedule --every 60 --learn 30
    """
    from swiftqueue.pipelines.live.command import schedule as run_schedule

    sys.exit(
        run_schedule(
            telemetry,
            sender=sender,
            every_s=every,
            learn_s=learn,
            judge_s=judge,
            least_decisions=least_decisions,
            limit=rounds,
            metrics_port=metrics_port,
            drift=drift,
            retrain=retrain is DriftResponse.start,
        )
    )


@running_app.command()
def replay(
    trace: Annotated[str, typer.Argument(help="trace of data/packets, or a packet-table folder")],
    speed: Annotated[
        float, typer.Option(help="replay speed as a multiple of real time; 0 is as fast as possible")
    ] = 1.0,
    deadline_us: Annotated[int, typer.Option(help="µs from a question about a batch to its time")] = 5_000,
    start: Annotated[float, typer.Option(help="second of the trace to begin at")] = 0.0,
    seconds: Annotated[float | None, typer.Option(help="seconds to replay (default: all)")] = None,
    server: Annotated[
        list[str] | None, typer.Option(help="HOST:PORT of a Triton server; several in order of preference")
    ] = None,
    local: Annotated[Path | None, typer.Option(help="artifact for the engine, instead of a server")] = None,
    json: Annotated[bool, typer.Option("--json", help="print the counts as JSON")] = False,
) -> None:
    """Replay a packet table against Triton, and show predictions, outcomes and chosen queues.

    Example: swiftqueue replay dumbbell-1 --speed 4
    """
    from swiftqueue.serving.agent.replay import replay_trace

    sys.exit(
        replay_trace(
            trace,
            speed=speed,
            deadline_us=deadline_us,
            start=start,
            seconds=seconds,
            as_json=json,
            servers=server or [],
            local=local,
        )
    )


@running_app.command()
def agent(
    listen: Annotated[Path, typer.Option(help="unix socket for programs that send (docs/AGENT.md)")],
    server: Annotated[
        list[str] | None, typer.Option(help="HOST:PORT of a Triton server; several in order of preference")
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="ask the champion in the agent's own process instead of a server")
    ] = False,
    rule: Annotated[
        AgentRule | None, typer.Option(help="decide by a rule instead of a model, as for two uplinks")
    ] = None,
    deadline_us: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="µs to decide a batch that names no due time")
    ] = 2_000,
    metrics_port: Annotated[int | None, METRICS_PORT] = None,
    telemetry: Annotated[
        str | None, typer.Option(help="unix:PATH or a file for packets sent and acknowledged")
    ] = None,
    guard: Annotated[
        bool | None,
        typer.Option(
            "--guard/--no-guard",
            help="stop moving packets to a receiver where it is not settled to help (default: unless --rule)",
        ),
    ] = None,
    guard_growth: Annotated[
        float | None,
        typer.Option(min=0, max=100, help="most growth of the rate while moved; 0: any (default: 0.5)"),
    ] = None,
    guard_advantage: Annotated[
        float | None,
        typer.Option(min=0, max=100, help="most gain of moved flows on classic ones; 0: any (default: 0.5)"),
    ] = None,
    max_moved_unacked: Annotated[
        int | None, typer.Option(min=0, help="most packets moved and not acknowledged yet (default: 128)")
    ] = None,
    max_moved_share: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="or this share of those in flight, if that is more (default: 0.75)"),
    ] = None,
    rule_stands_in: Annotated[
        bool,
        typer.Option("--rule-stands-in", help="let the virtual queue decide batches that have no answer"),
    ] = False,
) -> None:
    """Run the sender agent: programs ask it which alternative (queue or uplink) to mark each packet for.

    Example: swiftqueue agent --listen var/agent.sock --local
    """
    from swiftqueue.serving.agent.command import run_agent

    sys.exit(
        run_agent(
            listen,
            servers=server or [],
            local=local,
            rule=rule.value if rule else None,
            deadline_us=deadline_us,
            metrics_port=metrics_port,
            telemetry=telemetry,
            guard=guard,
            guard_growth=guard_growth,
            guard_advantage=guard_advantage,
            max_moved_unacked=max_moved_unacked,
            max_moved_share=max_moved_share,
            rule_stands_in=rule_stands_in,
        )
    )
