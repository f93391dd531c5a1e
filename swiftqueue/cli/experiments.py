"""Commands that measure: packet tables and studies of other captures, forecasters, benchmarks, results."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from common.given import check_folder
from swiftqueue.cli.choices import LatencySource, Protocol, Told, Visibility

experiments_app = typer.Typer()
Scored = Annotated[
    Path,
    typer.Option(help="says what is late, when a head answers, and which traces only teach"),
]


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
    reservoir = "reservoir"
    selfcheck = "selfcheck"
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
        str | None, typer.Option(help="sender's address (default: who sent most TCP payload)")
    ] = None,
    latency: Annotated[
        LatencySource, typer.Option(help="`timestamps` for captures made at the receiver")
    ] = LatencySource.acks,
    json: Annotated[bool, typer.Option("--json", help="print one JSON list, an object per trace")] = False,
) -> None:
    """Turn captures into packet tables (Parquet by trace and minute).

    Packets that the capture host saw twice count once. A line says so, and why few latencies are known.

    Example: swiftqueue extract wifi.pcap.gz -o packets
    """
    from feature_store.packets.extract_many import run_extract

    check_folder(output, "extract")
    sys.exit(run_extract(traces, output, sender=sender, latency=latency.value, as_json=json))


@experiments_app.command()
def study(
    folder: Annotated[Path, typer.Argument(help="folder of the study (made; resumed if it is there)")],
    traces: Annotated[
        list[Path] | None,
        typer.Argument(help="captures (default: simulated ones)", metavar="[TRACE]...", dir_okay=False),
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

    Example: swiftqueue study study-wifi capture.pcap.gz --protocol small
    """
    from pipelines.experiments.study import run_study

    sys.exit(
        run_study(folder, traces or [], protocol=protocol.value, overrides=set_ or [], latency=latency.value)
    )


@experiments_app.command()
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
        str, typer.Option(help="the section that differences are taken from; `event-stream` has one layer")
    ] = "event-stream-2",
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
            help="what packets would have waited in either queue, to score the choice; for each trace",
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
    params: Scored = Path("params.yaml"),
    also: Annotated[
        Path | None, typer.Option(help="folder of packet tables of other traces to learn from besides, whole")
    ] = None,
) -> None:
    """Train the forecasters of forecasters.yaml and score them on the same packets; goes on where it stopped.

    Example: swiftqueue forecasts data/packets --only event-stream-2 --only xgboost --seeds 3
    """
    if wrong := [each for each in truth or [] if "=" not in each]:
        raise ValueError(f"--truth {wrong[0]}: it must be TRACE=FILE")
    check_folder(output, "forecasts")
    from pipelines.experiments.forecasts import run_forecasts

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
        explored=explored,
        also=also,
    )


@experiments_app.command()
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
    params: Scored = Path("params.yaml"),
) -> None:
    """Tune each forecaster on training slices, with one budget for all; goes on where it stopped.

    Example: swiftqueue tune data/packets --only event-stream-2 --only xgboost --trials 8 --seconds 240
    Then: swiftqueue forecasts data/packets --sections var/tuning/tuned.yaml
    """
    from pipelines.experiments.tuning import tune as search

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
def paper(
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
        typer.Option(min=2, help="of traffic and training: 1 to so many", show_default="5; 3 if small"),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="folder of traces, rows and their summary")
    ] = Path("var/paper"),
    sections: Annotated[Path, typer.Option(help="the variants")] = Path("forecasters.yaml"),
) -> None:
    """Redo the SwiftQueue paper exhibit by exhibit, each with a verdict; goes on where it stopped.

    Examples: swiftqueue paper --small --seeds 10, and swiftqueue paper figure-7a figure-15
    """
    from infra.paper.exhibits import FULL, SMALL
    from infra.paper.run import run_paper

    check_folder(output, "paper")
    form = SMALL if small else FULL
    form = replace(form, seeds=seeds or form.seeds)
    sys.exit(run_paper(exhibits or [], output, form, sections))


@experiments_app.command()
def bench(
    what: Annotated[Benchmark, typer.Argument(help="the benchmark")],
    rounds: Annotated[int, typer.Option(help="rounds; medians are reported")] = 5,
    events: Annotated[
        int | None, typer.Option(min=1, help="ingest: its memory over so many events, as 50000000")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="soak: how long the loop runs (default: 120)")
    ] = None,
    weeks: Annotated[
        float | None,
        typer.Option(min=0, help="soak: so many simulated weeks of rounds back to back, instead"),
    ] = None,
    gigabytes: Annotated[
        float | None, typer.Option(min=0, help="extract: its memory over one capture of so many GB")
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
    paper: Annotated[
        Path | None, typer.Option(help="publish the rows of `paper` first", metavar="FILE")
    ] = None,
    tuning: Annotated[
        Path | None, typer.Option(help="publish the tuning.json of `tune` first", metavar="FILE")
    ] = None,
    lab: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            help="publish a scenario's runs from the folder of `lab run` first", metavar="SCENARIO FOLDER"
        ),
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option(help="publish the queues of `lab run lfq-traces --truth` first", metavar="FOLDER"),
    ] = None,
) -> None:
    """Draw the pages of docs/results, the README's table and its pictures from the published data.

    Example: swiftqueue results --scores late-packets data/evaluation/report/scores.json
    """
    from benchmarks import published
    from infra.results import evaluations, forecasters, lfq_traces, replayed
    from infra.results import paper as paper_rows
    from infra.results import tuning as searches
    from infra.results.pages import rewrite
    from infra.results.tables import LABORATORY
    from laboratory.runs import results

    published.load(published.FILE)  # before anything is published in another folder
    if scores:
        evaluations.take(*scores)
    if forecasts:
        print(forecasters.take(*forecasts))
    if replay:
        replayed.take(replay)
    if paper:
        paper_rows.take(paper)
    if tuning:
        searches.take(tuning)
    if lab:
        results.publish(lab[1], lab[0], LABORATORY)
    if traces:
        lfq_traces.take(traces)
    for path in rewrite(Path.cwd()):
        print(path)
