"""The `swiftqueue` command: one typed entry point; heavy imports wait until a command needs them."""

from __future__ import annotations

import importlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from infra.cli_choices import LatencySource, Model, Protocol, Told, Visibility
from infra.cli_laboratory import lab_app
from infra.cli_traces import sender_app, trace_app
from models.program import new_app, one_line
from pipelines.live import DRIFT


def _programs(about: str, **programs: str) -> typer.Typer:
    """Commands that are functions of other modules, `MODULE:FUNCTION`, imported when they are asked for."""

    class Programs(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(programs)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in programs:
                return None
            module, _, function = programs[cmd_name].partition(":")
            app = new_app()
            app.command(cmd_name)(getattr(importlib.import_module(module), function))
            return typer.main.get_command(app)

    return typer.Typer(no_args_is_help=True, help=about, cls=Programs)


app = new_app("Predict each packet's latency before it is sent and mark it for the better L4S queue.")
app.add_typer(trace_app, name="trace")
app.add_typer(
    _programs(
        "One part of the live loop by itself; `up --live` starts them all.",
        agent="infra.local.sender:main",
        bed="infra.local.bed_sender:main",
        forwarder="serving.ingest.forwarder:main",
        ingest="serving.ingest.server:main",
        keeper="infra.local.keeper:main",
        mlflow="infra.local.mlflow_server:main",
    ),
    name="part",
)
app.add_typer(
    _programs(
        "Prometheus here, and the dashboard.",
        dashboard="infra.monitoring.dashboard:main",
        picture="infra.monitoring.picture:main",
        prometheus="infra.local.prometheus:main",
    ),
    name="monitor",
)
app.add_typer(
    _programs(
        "UDP packets that are really marked, and their receiver.",
        send="serving.agent.udp_command:send",
        echo="serving.agent.udp_command:echo",
    ),
    name="udp",
)
app.add_typer(
    _programs(
        "The test bed: a real kernel's packets through a router with DualPI2.",
        check="laboratory.bed.command:check",
        clean="laboratory.bed.command:clean",
        report="laboratory.bed.command:report",
        run="laboratory.bed.command:run",
        selfcheck="laboratory.bed.command:selfcheck",
    ),
    name="bed",
)
app.add_typer(
    _programs(
        "TCP packets that a kernel really marks: a tc/eBPF program on a device.",
        attach="laboratory.bed.mark_command:attach",
        detach="laboratory.bed.mark_command:detach",
        follow="laboratory.bed.mark_command:follow",
        set="laboratory.bed.mark_command:set_decision",
        status="laboratory.bed.mark_command:status",
    ),
    name="mark",
)
app.add_typer(
    _programs(
        "Forecasts of a TCP connection's rate from its first ACKs.",
        add="infra.rate:add",
        collect="infra.rate:collect",
        feedback="infra.rate:feedback",
        forecast="infra.rate:forecast",
        simulate="infra.rate:simulate",
        study="infra.rate:study",
    ),
    name="rate",
)
app.add_typer(lab_app, name="lab")
app.add_typer(sender_app, name="sender")


OfModel = Annotated[Model, typer.Option(help="which model")]


class Benchmark(StrEnum):
    """What `bench` can measure."""

    capacity = "capacity"
    extract = "extract"
    finetune = "finetune"
    gate = "gate"
    intervals = "intervals"
    inference = "inference"
    ingest = "ingest"
    linerate = "linerate"
    live = "live"
    marker = "marker"
    pretrain = "pretrain"
    queues = "queues"
    rate = "rate"
    reservoir = "reservoir"
    serving = "serving"
    soak = "soak"
    swap = "swap"


class Retrain(StrEnum):
    """What `schedule` does when the inputs have drifted."""

    propose = "propose"
    start = "start"


@app.command()
def extract(
    traces: Annotated[list[Path], typer.Argument(help="pcap or pcapng files, gzip too", metavar="TRACE...")],
    output: Annotated[Path, typer.Option("--output", "-o", help="folder for the packet tables")],
    sender: Annotated[
        str | None, typer.Option(help="sender's address (default: who sent most TCP payload)")
    ] = None,
    latency: Annotated[
        LatencySource, typer.Option(help="`timestamps` for captures made at the receiver")
    ] = LatencySource.acks,
    json: Annotated[bool, typer.Option("--json", help="print one JSON list, an object per trace")] = False,
) -> None:
    """Turn captures into packet tables (Parquet by trace and minute).

    Example: swiftqueue extract wifi.pcap.gz -o packets
    """
    from feature_store.packets.extract_many import run_extract

    sys.exit(run_extract(traces, output, sender=sender, latency=latency.value, as_json=json))


@app.command()
def study(
    folder: Annotated[Path, typer.Argument(help="folder of the study (made; resumed if it is there)")],
    traces: Annotated[
        list[Path] | None, typer.Argument(help="captures (default: simulated ones)", metavar="[TRACE]...")
    ] = None,
    protocol: Annotated[Protocol, typer.Option(help="slice lengths")] = Protocol.small,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="override a parameter: SECTION.KEY=VALUE")
    ] = None,
    latency: Annotated[
        LatencySource, typer.Option(help="`timestamps` for captures made at the receiver")
    ] = LatencySource.acks,
) -> None:
    """Run the whole pipeline on other traces or with other parameters, in a folder of its own.

    Example: swiftqueue study studies/wifi capture.pcap.gz --protocol small
    """
    from infra.study import run_study

    sys.exit(
        run_study(folder, traces or [], protocol=protocol.value, overrides=set_ or [], latency=latency.value)
    )


@app.command()
def run(
    speed: Annotated[float, typer.Option(help="replay speed, times real time")] = 1.0,
) -> None:
    """Run the main job: pipeline, deploy to Triton, replay a trace against it, say where to look next."""
    from infra.main_job import run_main_job

    sys.exit(run_main_job(speed=speed))


@app.command()
def up(
    mlflow: Annotated[bool, typer.Option("--mlflow", help="start the MLflow server too")] = False,
    live: Annotated[bool, typer.Option("--live", help="start the whole live loop (docs/LIVE.md)")] = False,
    trace: Annotated[
        str | None, typer.Option(help="--live: what its sender replays (default: register.trace)")
    ] = None,
    speed: Annotated[float, typer.Option(help="--live: of the replay, times real time")] = 1.0,
    every: Annotated[float, typer.Option(help="--live: seconds from one round to the next")] = 300.0,
    learn: Annotated[float, typer.Option(help="--live: seconds that a round learns from")] = 60.0,
    judge: Annotated[float, typer.Option(help="--live: seconds that it is judged on")] = 10.0,
    drift: Annotated[
        float, typer.Option(help="--live: stability index of an input beyond which it has drifted")
    ] = DRIFT,
    retrain: Annotated[
        Retrain, typer.Option(help="--live: a full re-train when the inputs have drifted: say so, or do it")
    ] = Retrain.propose,
    bed: Annotated[
        bool, typer.Option("--bed", help="--live: its sender is a TCP connection through the test bed")
    ] = False,
) -> None:
    """Start the local Triton server (loopback only), or the whole live loop; harmless when it is up.

    Example: swiftqueue up --live --every 60
    """
    from infra.local.servers import say_who_runs_this, start_stack

    say_who_runs_this()
    if live:
        from infra.local.loop import start_loop
        from infra.main_job import make_first_champion

        start_loop(
            trace,
            speed=speed,
            every_s=every,
            learn_s=learn,
            judge_s=judge,
            drift=drift,
            retrain=retrain is Retrain.start,
            bed=bed,
            make_champion=make_first_champion,
        )
    else:
        from infra.local.under_way import under_way

        with under_way():
            start_stack(mlflow=mlflow)


@app.command()
def down() -> None:
    """Stop whatever `up` started, and an `up` or `run` that is under way."""
    from infra.local.loop import stop_stack

    stop_stack()


@app.command()
def status(
    model: Annotated[
        Model | None, typer.Option(help="only what serves this model (default: every part that runs)")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object, a judgement a part")] = False,
) -> None:
    """Judge each part that runs by a real request, and print the served version and its age."""
    from infra.local.status import print_status

    sys.exit(print_status(as_json=json, kind=model.value if model else ""))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def units(
    context: typer.Context,
    memory: Annotated[str, typer.Option(help="what all parts together may have, as 12G or 75%")] = "75%",
) -> None:
    """Write a systemd unit of this user that starts the live loop at boot; further options go to `up --live`.

    Example: swiftqueue units --memory 12G --every 60
    """
    from infra.local.units import NAME, write_unit

    print(f"{write_unit(memory, context.args)} is written; to start it, now and at boot:")
    print(
        f"  systemctl --user daemon-reload && systemctl --user enable --now {NAME} && loginctl enable-linger"
    )


@app.command()
def deploy(
    version: Annotated[int | None, typer.Option(help="registry version (default: the challenger)")] = None,
    model: OfModel = Model.latency,
) -> None:
    """Push a registered version to Triton: stage, load, compare with the local output, then alias.

    Example: swiftqueue deploy --model rate
    """
    from serving.deploy.deployment import deploy_version

    deploy_version(version, kind=model.value)


@app.command()
def rollback(
    hold: Annotated[
        bool, typer.Option("--hold", help="keep that version until `release`, whatever rounds bring")
    ] = False,
    model: OfModel = Model.latency,
) -> None:
    """Put the previous champion back, in the registry and in Triton."""
    from serving.deploy.deployment import rollback_champion

    rollback_champion(and_hold=hold, kind=model.value)


@app.command()
def release(model: OfModel = Model.latency) -> None:
    """Let rounds and `deploy` replace a version again that `rollback --hold` keeps."""
    from serving.deploy import hold

    print("rounds push again" if hold.release(model.value) else "no version was held")


@app.command()
def schedule(
    telemetry: Annotated[
        Path | None, typer.Option(help="the feature store's telemetry (default: where the ingest stores it)")
    ] = None,
    sender: Annotated[
        str | None,
        typer.Option(
            help="whose telemetry (default: of those stored within a minute, the one with most packets)"
        ),
    ] = None,
    every: Annotated[float, typer.Option(help="seconds from one round to the next")] = 300.0,
    learn: Annotated[float, typer.Option(help="seconds of telemetry that a round learns from")] = 60.0,
    judge: Annotated[float, typer.Option(help="seconds after them that it is judged on")] = 10.0,
    least_windows: Annotated[int, typer.Option(help="fewer in either part: the round is declined")] = 200,
    rounds: Annotated[int | None, typer.Option(help="stop after so many (default: never)")] = None,
    metrics_port: Annotated[int, typer.Option(help="Prometheus port on loopback; 0: a free one")] = 0,
    drift: Annotated[
        float, typer.Option(help="stability index of an input beyond which it has drifted")
    ] = DRIFT,
    retrain: Annotated[
        Retrain, typer.Option(help="a full re-train when the inputs have drifted: say so, or do it")
    ] = Retrain.propose,
) -> None:
    """Fine-tune, judge, register and push a new head every few minutes, from telemetry.

    Example: swiftqueue schedule --every 60 --learn 30
    """
    from pipelines.live.command import schedule as run_schedule

    sys.exit(
        run_schedule(
            telemetry,
            sender=sender,
            every_s=every,
            learn_s=learn,
            judge_s=judge,
            least_windows=least_windows,
            limit=rounds,
            metrics_port=metrics_port,
            drift=drift,
            retrain=retrain is Retrain.start,
        )
    )


@app.command()
def replay(
    trace: Annotated[str, typer.Argument(help="trace name from params.yaml, or a packet-table folder")],
    speed: Annotated[float, typer.Option(help="times real time; 0 is as fast as possible")] = 1.0,
    deadline_us: Annotated[
        int, typer.Option(help="a batch is asked about this long before it is due")
    ] = 5_000,
    start: Annotated[float, typer.Option(help="second of the trace to begin at")] = 0.0,
    seconds: Annotated[float | None, typer.Option(help="stop after this much of the trace")] = None,
    server: Annotated[
        list[str] | None, typer.Option(help="HOST:PORT of a Triton server; several in order of preference")
    ] = None,
    local: Annotated[Path | None, typer.Option(help="no server: the engine on this artifact")] = None,
    json: Annotated[bool, typer.Option("--json", help="print the counts as JSON")] = False,
) -> None:
    """Replay a packet table against Triton: what was predicted, what came, which queue was chosen.

    Example: swiftqueue replay dumbbell-a --speed 4
    """
    from serving.agent.replay import replay_trace

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


@app.command()
def agent(
    listen: Annotated[Path, typer.Option(help="unix socket for programs that send (docs/AGENT.md)")],
    server: Annotated[
        list[str] | None, typer.Option(help="HOST:PORT of a Triton server; several in order of preference")
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="no server: the champion in the agent's own process")
    ] = False,
    deadline_us: Annotated[int, typer.Option(help="of batches that do not say when they are due")] = 2_000,
    metrics_port: Annotated[
        int | None, typer.Option(help="Prometheus endpoint on loopback; 0 is any free port")
    ] = None,
    telemetry: Annotated[
        str | None, typer.Option(help="unix:PATH or a file for what is sent and acknowledged")
    ] = None,
    guard: Annotated[
        bool, typer.Option(help="stop moving packets to a receiver where it is not settled to help")
    ] = True,
    guard_packets: Annotated[
        int | None, typer.Option(min=1, max=8, help="packets of a batch that the guard compares (default: 1)")
    ] = None,
    guard_growth: Annotated[
        float | None,
        typer.Option(min=0, max=100, help="most growth of the rate while moved; 0: any (default: 0.5)"),
    ] = None,
    max_moved_unacked: Annotated[
        int | None, typer.Option(min=0, help="most packets moved and not acknowledged yet (default: 128)")
    ] = None,
    max_moved_share: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="or this share of those in flight, if that is more (default: 0.75)"),
    ] = None,
    charge_us: Annotated[
        float | None,
        typer.Option(min=0, help="a packet's predicted gain must be above this, to move (default: 0)"),
    ] = None,
    rates: Annotated[
        bool, typer.Option("--rates", help="forecast connections' rates too (docs/RATE.md)")
    ] = False,
) -> None:
    """Run the sender agent: programs that send ask it which queue to mark each packet for.

    Example: swiftqueue agent --listen var/agent.sock --local
    """
    from serving.agent.command import run_agent

    sys.exit(
        run_agent(
            listen,
            servers=server or [],
            local=local,
            deadline_us=deadline_us,
            metrics_port=metrics_port,
            telemetry=telemetry,
            guard=guard,
            guard_packets=guard_packets,
            guard_growth=guard_growth,
            max_moved_unacked=max_moved_unacked,
            max_moved_share=max_moved_share,
            charge_us=charge_us,
            rates=rates,
        )
    )


@app.command()
def bench(
    what: Annotated[Benchmark, typer.Argument(help="the benchmark")],
    rounds: Annotated[int, typer.Option(help="rounds; medians are reported")] = 5,
    events: Annotated[
        int | None, typer.Option(help="ingest: its memory over so many events, as 50000000")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="soak: how long the loop runs (default: 120)")] = None,
    weeks: Annotated[
        float | None, typer.Option(help="soak: so many simulated weeks of rounds back to back, instead")
    ] = None,
    gigabytes: Annotated[
        float | None, typer.Option(help="extract: its memory over one capture of so many GB")
    ] = None,
    packets: Annotated[
        str | None, typer.Option(help="reservoir, pretrain: a folder of packet tables, instead of simulated")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print a JSON list of rows")] = False,
    publish: Annotated[
        bool, typer.Option("--publish", help="put the rows into docs/results/bench.json too")
    ] = False,
) -> None:
    """Measure a step beside its reference in the same run.

    Example: swiftqueue bench extract --rounds 3
    """
    from benchmarks import published
    from benchmarks.rows import CannotHereError, run_benchmark
    from infra.local.under_way import leaving_at_sigterm

    if publish:
        published.load(published.FILE)  # before the minutes that a benchmark takes
    try:
        with leaving_at_sigterm():
            rows = run_benchmark(
                what.value,
                rounds=rounds,
                as_json=json,
                events=events,
                minutes=minutes,
                weeks=weeks,
                gigabytes=gigabytes,
                packets=packets,
            )
    except CannotHereError as reason:
        print(f"bench {what.value} is left out: {reason}")
        return
    if publish:
        published.publish(what.value, rows)


@app.command()
def forecasts(
    packets: Annotated[Path, typer.Argument(help="folder of packet tables")] = Path("data/packets"),
    output: Annotated[
        Path, typer.Option("--output", "-o", help="folder of the runs and their summary")
    ] = Path("var/forecasts"),
    trace: Annotated[list[str] | None, typer.Option(help="a trace (default: all); may be repeated")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="a section of forecasters.yaml (default: all); may be repeated")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="training seeds: 1 to so many")] = 3,
    protocol: Annotated[Protocol, typer.Option(help="lengths of the slices")] = Protocol.small,
    against: Annotated[
        str, typer.Option(help="the section that differences are taken from")
    ] = "event-stream",
    choose: Annotated[
        bool, typer.Option("--choose", help="test on the last third of the training slices instead")
    ] = False,
    sections: Annotated[Path, typer.Option(help="the variants")] = Path("forecasters.yaml"),
    told: Annotated[
        Told, typer.Option(help="what a sender says of packets 2 to 8 of a batch (docs/MODEL.md)")
    ] = Told.all,
    truth: Annotated[
        list[str] | None,
        typer.Option(
            help="what packets would have waited in either queue, to score the choice; may be repeated",
            metavar="TRACE=truth.parquet",
        ),
    ] = None,
    visibility: Annotated[
        Visibility, typer.Option(help="latencies known at a decision; previous: the paper's offline protocol")
    ] = Visibility.acked,
    explored: Annotated[
        float | None,
        typer.Option(help="share of L4S flows' packets moved at random: estimates what the choice gains"),
    ] = None,
    params: Annotated[
        Path,
        typer.Option(help="its sections `change` and `evaluate` say what is late, and when a head answers"),
    ] = Path("params.yaml"),
    also: Annotated[
        Path | None, typer.Option(help="folder of packet tables of other traces to learn from besides, whole")
    ] = None,
) -> None:
    """Train the forecasters of forecasters.yaml and score them on the same packets; goes on where it stopped.

    Example: swiftqueue forecasts data/packets --only event-stream --only xgboost --seeds 3
    """
    if wrong := [each for each in truth or [] if "=" not in each]:
        raise ValueError(f"--truth {wrong[0]}: it must be TRACE=FILE")
    from infra.forecasts import run_forecasts
    from models.section import read
    from models.sharp import change_of
    from pipelines.evaluate import EvaluateParams

    run_forecasts(
        packets,
        output,
        names=trace or [],
        only=only or [],
        seeds=seeds,
        protocol=protocol.value,
        against=against,
        choose=choose,
        sections=sections,
        told=told.value,
        truths={name: Path(path) for name, path in (each.split("=", 1) for each in truth or [])},
        visibility=visibility.value,
        change=change_of(params),
        round_s=read(params, EvaluateParams).round_s,
        explored=explored,
        also=also,
    )


@app.command()
def tune(
    packets: Annotated[Path, typer.Argument(help="folder of packet tables")] = Path("data/packets"),
    output: Annotated[
        Path, typer.Option("--output", "-o", help="folder of trials, tuned.yaml and tuning.json")
    ] = Path("var/tuning"),
    trace: Annotated[list[str] | None, typer.Option(help="a trace (default: all); may be repeated")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="a section (default: all that have something to tune); may be repeated"),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="most trials of a variant; the first: its section")] = 16,
    seconds: Annotated[
        float, typer.Option(min=1, help="CPU seconds of a variant: after them no trial is begun")
    ] = 1800,
    seed: Annotated[int, typer.Option(min=0, help="of the proposals")] = 1,
    protocol: Annotated[Protocol, typer.Option(help="lengths of the slices")] = Protocol.small,
    sections: Annotated[Path, typer.Option(help="the variants")] = Path("forecasters.yaml"),
) -> None:
    """Tune each forecaster on training slices, with one budget for all; goes on where it stopped.

    Example: swiftqueue tune data/packets --only event-stream --only xgboost --trials 8 --seconds 240
    Then: swiftqueue forecasts data/packets --sections var/tuning/tuned.yaml
    """
    from infra.tuning import tune as search

    search(
        packets,
        output,
        names=trace or [],
        only=only or [],
        trials=trials,
        seconds=seconds,
        seed=seed,
        protocol=protocol.value,
        sections=sections,
    )


@app.command()
def paper(
    exhibits: Annotated[
        list[str] | None,
        typer.Argument(help="as figure-7a, table-1 (default: all)", metavar="[EXHIBIT]..."),
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="short traces, three seeds, the ends of each axis: 20 minutes")
    ] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="folder of traces, rows and their summary")
    ] = Path("var/paper"),
    sections: Annotated[Path, typer.Option(help="the variants")] = Path("forecasters.yaml"),
) -> None:
    """Redo the SwiftQueue paper exhibit by exhibit, each with a verdict; goes on where it stopped.

    Examples: swiftqueue paper --small, and swiftqueue paper figure-7a figure-15
    """
    from infra.paper.exhibits import FULL, SMALL
    from infra.paper.run import run_paper

    sys.exit(run_paper(exhibits or [], output, SMALL if small else FULL, sections))


@app.command("results")
def draw_results(
    scores: Annotated[
        tuple[str, Path] | None,
        typer.Option(help="publish an evaluation's scores.json under a name first", metavar="NAME FILE"),
    ] = None,
    forecasts: Annotated[
        tuple[str, Path] | None,
        typer.Option(help="publish the summary of `forecasts` under a name first", metavar="NAME FILE"),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="publish two seconds of what `replay` recorded first", metavar="FILE")
    ] = None,
    rates: Annotated[
        Path | None, typer.Option(help="publish what `rate study` or `feedback` wrote first", metavar="FILE")
    ] = None,
    paper: Annotated[
        Path | None, typer.Option(help="publish the rows of `paper` first", metavar="FILE")
    ] = None,
    tuning: Annotated[
        Path | None, typer.Option(help="publish the tuning.json of `tune` first", metavar="FILE")
    ] = None,
) -> None:
    """Draw the pages of docs/results, the README's table and its pictures from the published data.

    Example: swiftqueue results --scores late-packets data/evaluation/report/scores.json
    """
    from infra.results import evaluations, forecasters, replayed
    from infra.results import paper as paper_rows
    from infra.results import rates as rate_studies
    from infra.results import tuning as searches
    from infra.results.pages import rewrite

    if scores:
        evaluations.take(*scores)
    if forecasts:
        forecasters.take(*forecasts)
    if replay:
        replayed.take(replay)
    if rates:
        rate_studies.take(rates)
    if paper:
        paper_rows.take(paper)
    if tuning:
        searches.take(tuning)
    for path in rewrite(Path.cwd()):
        print(path)


def main() -> None:
    """Run the command line: one clear line for an expected error, never a traceback."""
    with one_line("swiftqueue"):
        app()
