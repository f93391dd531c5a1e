"""Commands of experiments: packet tables and studies of captures, forecasters, benchmarks, results."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from swiftqueue.cli.choices import BatchKnowledge, LatencySource, Overrides, SliceProtocol, Visibility
from swiftqueue.common.given import check_folder

experiments_app = typer.Typer()
Scored = Annotated[Path, typer.Option(help="parameters: lateness, a head's delay, traces that only teach")]
Traces = Annotated[list[str] | None, typer.Option(help="name of a trace (default: all); repeatable")]
Protocol = Annotated[SliceProtocol, typer.Option(help="protocol that sets the slice lengths")]


class Benchmark(StrEnum):
    """The benchmarks of `bench`."""

    extract = "extract"
    finetune = "finetune"
    inference = "inference"
    ingest = "ingest"
    linerate = "linerate"
    live = "live"
    marker = "marker"
    pretrain = "pretrain"
    serving = "serving"
    soak = "soak"
    swap = "swap"


@experiments_app.command()
def extract(
    traces: Annotated[
        list[Path],
        typer.Argument(help="pcap or pcapng files, gzip too; no pipes", metavar="TRACE...", dir_okay=False),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="folder for the packet tables")],
    sender: Annotated[
        str | None, typer.Option(help="sender's address (default: the one that sent most TCP payload)")
    ] = None,
    latency: Annotated[
        LatencySource, typer.Option(help="`timestamps` for captures made at the receiver")
    ] = LatencySource.acks,
    json: Annotated[bool, typer.Option("--json", help="print one JSON list, an object per trace")] = False,
) -> None:
    """Turn captures into packet tables (Parquet by trace and minute).

    A packet that the capture host saw twice counts once; a line says so, and why few latencies are known.

    Example: swiftqueue extract wifi.pcap.gz -o packets
    """
    from swiftqueue.feature_store.packets.extract_many import run_extract

    check_folder(output, "extract")
    sys.exit(run_extract(traces, output, sender=sender, latency=latency.value, as_json=json))


@experiments_app.command()
def study(
    folder: Annotated[Path, typer.Argument(help="folder of the study (made; resumed if it is there)")],
    traces: Annotated[
        list[Path] | None,
        typer.Argument(help="captures (default: simulated traces)", metavar="[TRACE]...", dir_okay=False),
    ] = None,
    protocol: Annotated[
        SliceProtocol | None,
        typer.Option(help="lengths of the slices (default: small, or the longest that fits the captures)"),
    ] = None,
    set_: Overrides = None,
    latency: Annotated[
        LatencySource, typer.Option(help="`timestamps` for captures made at the receiver")
    ] = LatencySource.acks,
    architecture: Annotated[
        str,
        typer.Option(help="kind of forecaster (docs/FORECASTERS.md); auto: the best on the training slice"),
    ] = "auto",
) -> None:
    """Run the whole pipeline on other traces or with other parameters, in a folder of its own.

    Example: swiftqueue study study-wifi capture.pcap.gz --protocol small
    """
    from swiftqueue.pipelines.experiments.study import run_study

    sys.exit(
        run_study(
            folder,
            traces or [],
            protocol=protocol and protocol.value,
            overrides=set_ or [],
            latency=latency.value,
            architecture=architecture,
        )
    )


@experiments_app.command()
def forecasts(
    packets: Annotated[Path, typer.Argument(help="folder of packet tables")] = Path("data/packets"),
    output: Annotated[
        Path, typer.Option("--output", "-o", help="folder of the runs and their summary")
    ] = Path("var/forecasts"),
    trace: Traces = None,
    only: Annotated[
        list[str] | None, typer.Option(help="section of forecasters.yaml (default: all); may be repeated")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="number of training seeds")] = 3,
    protocol: Protocol = SliceProtocol.small,
    against: Annotated[
        str, typer.Option(help="section that differences are taken from; `event-stream` has one layer")
    ] = "event-stream-2",
    choose: Annotated[
        bool, typer.Option("--choose", help="test on the last third of the training slices instead")
    ] = False,
    sections: Annotated[Path, typer.Option(help="the variants")] = Path("forecasters.yaml"),
    told: Annotated[
        BatchKnowledge, typer.Option(help="known inputs of packets 2 to 8 of a batch (docs/FORECASTERS.md)")
    ] = BatchKnowledge.all,
    truth: Annotated[
        list[str] | None,
        typer.Option(
            help="packets' waiting times in either queue, for scoring the choice; one per trace",
            metavar="TRACE=truth.parquet",
        ),
    ] = None,
    visibility: Annotated[
        Visibility, typer.Option(help="latencies known at a decision; previous: the paper's protocol")
    ] = Visibility.acked,
    params: Scored = Path("params.yaml"),
    also: Annotated[Path | None, typer.Option(help="folder of packet tables that teach, too")] = None,
) -> None:
    """Train the forecasters of forecasters.yaml and score them on the same packets; resume where it stopped.

    Example: swiftqueue forecasts data/packets --only event-stream-2 --only xgboost --seeds 3
    """
    if wrong := [each for each in truth or [] if "=" not in each]:
        raise ValueError(f"--truth {wrong[0]}: it must be TRACE=FILE")
    check_folder(output, "forecasts")
    from swiftqueue.benchmarks.forecasts import run_forecasts

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
        params=params,
        told=told.value,
        truths={name: Path(path) for name, path in (each.split("=", 1) for each in truth or [])},
        visibility=visibility.value,
        also=also,
    )


@experiments_app.command()
def tune(
    packets: Annotated[Path, typer.Argument(help="folder of packet tables")] = Path("data/packets"),
    output: Annotated[
        Path, typer.Option("--output", "-o", help="folder of trials, tuned.yaml and tuning.json")
    ] = Path("var/tuning"),
    trace: Traces = None,
    only: Annotated[
        list[str] | None, typer.Option(help="section (default: all that can be tuned); repeatable")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="most trials of a variant; its section is one")] = 16,
    seconds: Annotated[
        float, typer.Option(min=1, help="CPU seconds of a variant after which no trial begins")
    ] = 1800,
    seed: Annotated[int, typer.Option(min=0, help="seed of the proposals")] = 1,
    protocol: Protocol = SliceProtocol.small,
    sections: Annotated[Path, typer.Option(help="the variants")] = Path("forecasters.yaml"),
    params: Scored = Path("params.yaml"),
) -> None:
    """Tune each forecaster on training slices, with one budget for all; resume where it stopped.

    Example: swiftqueue tune data/packets --only event-stream-2 --only xgboost --trials 8 --seconds 240
    Then: swiftqueue forecasts data/packets --sections var/tuning/tuned.yaml
    """
    from swiftqueue.benchmarks.tuning import tune as search

    check_folder(output, "tune")
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
        params=params,
    )


@experiments_app.command()
def bench(
    what: Annotated[Benchmark, typer.Argument(help="the benchmark")],
    rounds: Annotated[int, typer.Option(help="number of rounds; medians are reported")] = 5,
    events: Annotated[
        int | None, typer.Option(min=1, help="ingest: number of events to measure its memory over")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="soak: minutes that the loop runs (default: 120)")
    ] = None,
    gigabytes: Annotated[
        float | None, typer.Option(min=0, help="extract: GB of a capture to measure its memory over")
    ] = None,
    packets: Annotated[
        str | None, typer.Option(help="pretrain: a folder of packet tables, instead of simulated")
    ] = None,
    long: Annotated[
        bool, typer.Option("--long", help="linerate: stretches of a minute, further settings; half an hour")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="print a JSON list of rows")] = False,
    publish: Annotated[bool, typer.Option("--publish", help="put the rows into bench.json, too")] = False,
) -> None:
    """Measure a step beside its reference in the same run.

    Example: swiftqueue bench extract --rounds 3
    """
    from swiftqueue.benchmarks import published
    from swiftqueue.benchmarks.rows import UnsupportedMachineError, run_benchmark
    from swiftqueue.infra.local.under_way import leaving_at_sigterm

    if publish:
        published.load(published.FILE)  # checked before the minutes that a benchmark takes
    try:
        with leaving_at_sigterm():
            rows = run_benchmark(
                what.value,
                rounds=rounds,
                as_json=json,
                events=events,
                minutes=minutes,
                gigabytes=gigabytes,
                packets=packets,
                long=long or None,
            )
    except UnsupportedMachineError as reason:
        print(f"bench {what.value} is left out: {reason}")
        return
    if publish:
        published.publish(what.value, rows)


@experiments_app.command("results")
def draw_results(
    scores: Annotated[
        tuple[str, Path] | None,
        typer.Option(help="publish an evaluation's scores.json under a name first", metavar="NAME FILE"),
    ] = None,
    forecasts: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            help="publish the summary of `forecasts` under a name first; variants of the same packets join",
            metavar="NAME FILE",
        ),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="publish two seconds of what `replay` recorded first", metavar="FILE")
    ] = None,
    tuning: Annotated[
        Path | None, typer.Option(help="publish the tuning.json of `tune` first", metavar="FILE")
    ] = None,
    lab: Annotated[
        tuple[str, Path] | None,
        typer.Option(help="publish a scenario's runs from a folder first", metavar="SCENARIO FOLDER"),
    ] = None,
) -> None:
    """Draw the pages of docs/results and the studies, the README's table and pictures from published data.

    Example: swiftqueue results --scores late-packets data/evaluation/report/scores.json
    """
    from swiftqueue.benchmarks import published
    from swiftqueue.benchmarks.results import evaluations, forecasters, replayed
    from swiftqueue.benchmarks.results import tuning as searches
    from swiftqueue.benchmarks.results.pages import rewrite
    from swiftqueue.laboratory.runs import experience, results
    from swiftqueue.laboratory.scenarios.files import published_in

    published.load(published.FILE)  # checked before anything is published in another folder
    if scores:
        evaluations.take(*scores)
    if forecasts:
        print(forecasters.take(*forecasts))
    if replay:
        replayed.take(replay)
    if tuning:
        searches.take(tuning)
    if lab:
        results.publish(lab[1], lab[0], published_in(lab[0]))
        experience.publish(lab[1], lab[0], published_in(lab[0]))
    for path in rewrite(Path.cwd()):
        print(path)
