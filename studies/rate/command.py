"""`swiftqueue rate`: flows, and the study of forecasts of a TCP connection's rate (README.md)."""

from __future__ import annotations

import json as json_
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from swiftqueue.studies.rate.commands import NAME, PARAMS_FILE

Flows = Annotated[Path, typer.Argument(help="folder of the flows")]
Params = Annotated[Path, typer.Option(help="parameter file; its rate_* sections are read")]
FLOWS = Path("data/rate/flows")


def simulate(output: Flows = FLOWS, params: Params = PARAMS_FILE) -> None:
    """Simulate the flows of section rate_simulate; goes on where it was stopped.

    Example: swiftqueue rate simulate var/rate/flows
    """
    from rich.progress import Progress

    from swiftqueue.common.section import read
    from swiftqueue.pipelines.simulators import build_simulator
    from swiftqueue.studies.rate.stages.simulate import RateSimulateParams
    from swiftqueue.studies.rate.stages.simulate import simulate as make

    section = read(params, RateSimulateParams)
    wanted = len(section.paths())
    program = build_simulator(program="rate")
    with Progress() as progress:
        task = progress.add_task("paths", total=wanted)

        def report(name: str, done: int, _of: int) -> None:
            progress.update(task, completed=done, description=name)

        made = make(section, output, program, report)
    print(f"{output}: {wanted} paths of {section.flows} flows, {made} of them made now")


def add(
    file: Annotated[Path, typer.Argument(help="CSV or Parquet: `flow` and the 28 fields, a row an ACK")],
    output: Annotated[Path, typer.Option("--output", "-o", help="folder of the flows")] = FLOWS,
    name: Annotated[str | None, typer.Option(help="name of the path (default: the file's)")] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="a path that no model learns from")] = False,
    json: Annotated[bool, typer.Option("--json", help="print a JSON object")] = False,
) -> None:
    """Add a foreign trace of tcp_info as a path of its own; it stays when flows are simulated.

    Example: swiftqueue rate add trace.csv --name office --held-out
    """
    from swiftqueue.studies.rate.samples.traces import add as make

    called = name or f"added-{file.stem}"
    made = make(file, output, called, "held-out" if held_out else "train")
    if json:
        print(json_.dumps({"path": called, **made}))
    else:
        print(f"{output}: path {called}, {made['flows']} flows of {made['samples']} samples")


def forecast(
    flows: Flows = FLOWS,
    artifact: Annotated[Path, typer.Option(help="folder of a network", metavar="FOLDER")] = Path(
        "data/rate/models/transformer-1"
    ),
    samples: Annotated[int, typer.Option(min=1, max=35, help="first samples of each flow that are used")] = 5,
    json: Annotated[bool, typer.Option("--json", help="print a JSON list, an object a flow")] = False,
) -> None:
    """Forecast the rates of flows by one network; where a flow has no forecast, a line says why.

    Example: swiftqueue rate forecast data/rate/flows --samples 15
    """
    from swiftqueue.studies.rate.samples.definition import HORIZONS, NAMES
    from swiftqueue.studies.rate.samples.tables import paths_in, read_path

    predict, found = _forecaster(artifact), []
    for name in paths_in(flows):
        table, known = read_path(flows, name)
        for flow in known["flow"]:
            raw_SF = table.filter(flow=flow).select(NAMES).to_numpy()[:samples]
            one: dict[str, Any] = {"path": name, "flow": flow}
            try:
                rates = zip(HORIZONS, predict(raw_SF), strict=True)
                one["bytes_per_s"] = {str(packets): round(float(rate)) for packets, rate in rates}
            except ValueError as error:
                one["plain_tcp"] = str(error)
            found.append(one)
    if json:
        print(json_.dumps(found, indent=1))
        return
    for one in found:
        where = f"path {one['path']}, flow {one['flow']}"
        if "plain_tcp" in one:
            print(f"{where}: no forecast, plain TCP goes on: {one['plain_tcp']}")
        else:
            told = ", ".join(f"{8 * rate / 1e6:.1f} at {k}" for k, rate in one["bytes_per_s"].items())
            print(f"{where}: Mbit/s {told}")
    without = sum("plain_tcp" in one for one in found)
    print(f"{len(found)} flows, {without} without a forecast")


def _forecaster(artifact: Path) -> Callable[[Any], Any]:
    """The engine's forecasts; where it does not take a network PyTorch's, and a line says why."""
    from swiftqueue.studies.rate.experiments.feedback import network_at
    from swiftqueue.studies.rate.model import networks

    network = network_at(artifact)
    try:
        from swiftqueue.studies.rate.engine import RateEngine

        return RateEngine(artifact).forecast
    except (ImportError, ValueError) as error:
        print(f"forecasts are PyTorch's: {error}", file=sys.stderr)
        return partial(networks.forecast, network)


def study(
    flows: Flows = FLOWS,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="folder of the networks, and of study.json")
    ] = Path("var/rate"),
    seeds: Annotated[
        int | None, typer.Option(min=1, help="seeds 1 to so many (default: rate_train's)")
    ] = None,
    params: Params = PARAMS_FILE,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Train the networks on flows and judge them beside all baselines; goes on where it was stopped.

    Example: swiftqueue rate study data/rate/flows --seeds 3 --json
    """
    from swiftqueue.common.section import read
    from swiftqueue.studies.rate.stages.evaluate import RateEvaluateParams, evaluate, said
    from swiftqueue.studies.rate.stages.train import RateTrainParams, train_all

    section, judged = read(params, RateTrainParams), read(params, RateEvaluateParams)
    if seeds is not None:
        section = RateTrainParams(**section.model_dump() | {"seeds": list(range(1, seeds + 1))})
    models = train_all(section, flows, output / "models", lambda line: typer.echo(line, err=True))
    found = evaluate(judged, flows, models)
    _keep(output / "study.json", found, said, json)


def plain(
    flows: Annotated[list[Path] | None, typer.Argument(help=f"folders of flows (default: {FLOWS})")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write")] = Path(
        "var/rate/plain.json"
    ),
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Describe flows as they are: their times, and BBR's estimate packet by packet (figures 5 to 7).

    Example: swiftqueue rate plain data/rate/flows && swiftqueue rate results var/rate/plain.json
    """
    from swiftqueue.studies.rate.model.plain import lines, plain

    _keep(output, {"plain": plain(flows or [FLOWS])}, lambda found: lines(found["plain"]), json)


def _keep(
    file: Path, found: dict[str, Any], lines: Callable[[dict[str, Any]], list[str]], json: bool
) -> None:
    """Write what was found, and print it: one object, or lines and where the rest is."""
    from swiftqueue.common.atomic import write_file

    text = json_.dumps(found, indent=1) + "\n"
    write_file(file, text)
    print(text if json else "\n".join([*lines(found), f"all of it: {file}"]))


def rounds(
    flows: Flows = Path("var/rate/kernel"),
    every: Annotated[
        float | None, typer.Option(help="seconds from one round to the next (default: one round)")
    ] = None,
) -> None:
    """Tune the champion's linear head on the flows that came since the last round, judge it, push it.

    Example: swiftqueue rate round var/rate/kernel --every 900
    """
    from swiftqueue.studies.rate.stages.rounds import schedule

    sys.exit(schedule(flows, every))


def feedback(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="folder of the runs, and of feedback.json")
    ] = Path("var/rate-feedback"),
    artifact: Annotated[Path, typer.Option(help="folder of a network", metavar="FOLDER")] = Path(
        "data/rate/models/transformer-1"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="seeds 1 to so many")] = 5,
    rtt: Annotated[list[int] | None, typer.Option(min=1, help="ms; only these, may be repeated")] = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="only these beside BBR, oracle and network; may be repeated")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Feed forecasts back into BBR in ns-3, and compare completion times; goes on where it was stopped.

    Example: swiftqueue rate feedback --seeds 5 --json
    """
    from rich.console import Console
    from rich.progress import Progress

    from swiftqueue.pipelines.simulators import build_simulator
    from swiftqueue.studies.rate.experiments.feedback import (
        RTTS_MS,
        VARIANTS,
        lines,
        measure,
        network_at,
        summary,
    )

    network_at(artifact)  # names what is wrong with it
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("runs")
        runs = measure(
            build_simulator(program="rate"),
            output / "runs",
            artifact,
            range(1, seeds + 1),
            lambda done, of: progress.update(task, completed=done, total=of),
            rtt or RTTS_MS,
            variant or tuple(VARIANTS),
        )
    found = summary(runs)
    _keep(output / "feedback.json", found, lines, json)


def exchange(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="folder of the runs, and of exchange.json")
    ] = Path("var/rate-exchange"),
    seeds: Annotated[int, typer.Option(min=4, help="seeds 1 to so many")] = 8,
    seconds: Annotated[float, typer.Option(min=5, help="simulated seconds of a run")] = 30,
    profile: Annotated[
        list[str] | None, typer.Option(help="uncoupled, rfc9332; may be repeated (default: both)")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Try what latency and rate forecasts gain by each other's inputs; goes on where it was stopped.

    Example: swiftqueue rate exchange --seeds 8 --profile uncoupled --json
    """
    from rich.console import Console
    from rich.progress import Progress

    from swiftqueue.pipelines.simulators import build_simulator
    from swiftqueue.studies.rate.experiments.exchange import compare, lines
    from swiftqueue.studies.rate.experiments.exchange_runs import DOWNLOAD_BYTES, PROFILES, make

    profiles = list(dict.fromkeys(profile or PROFILES))
    if unknown := [name for name in profiles if name not in PROFILES]:
        raise ValueError(f"profile {unknown[0]}: must be one of {', '.join(PROFILES)}")
    answers = {}
    with Progress(console=Console(stderr=True)) as progress:
        simulated = progress.add_task("runs")
        trained = progress.add_task("models")
        program = build_simulator(program="rate-exchange")
        for name in profiles:
            runs = make(
                program,
                output / "runs",
                [(name, seed) for seed in range(1, seeds + 1)],
                seconds,
                lambda done, of: progress.update(simulated, completed=done, total=of),
            )
            answers[name] = compare(runs, lambda done, of: progress.update(trained, completed=done, total=of))
    found = {"exchange": answers, "seconds": seconds, "download_bytes": DOWNLOAD_BYTES}
    _keep(output / "exchange.json", found, lines, json)


def collect(
    output: Flows = Path("var/rate/kernel"),
    rate_mbps: Annotated[list[float] | None, typer.Option(help="may be repeated (default: 20)")] = None,
    rtt_ms: Annotated[list[float] | None, typer.Option(help="may be repeated (default: 50)")] = None,
    buffer_bdp: Annotated[float, typer.Option(help="router's queue, in rate times round trip")] = 1.0,
    jitter_ms: Annotated[float, typer.Option(help="at most so much more from sender to receiver")] = 0.0,
    load: Annotated[float, typer.Option(help="share of the rate that flows offer")] = 0.2,
    flows: Annotated[int, typer.Option(min=1, help="number of flows of each path")] = 20,
    seed: Annotated[int, typer.Option(min=1, help="seed of arrivals and jitter")] = 1,
    seeds: Annotated[int, typer.Option(min=1, help="so many, from --seed on, each path with each")] = 1,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="begin no path after so long (default: all of them)")
    ] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="paths that no model learns from")] = False,
    json: Annotated[bool, typer.Option("--json", help="print a JSON object a path")] = False,
) -> None:
    """Collect flows of this kernel's BBR, a sample at every ACK (root); goes on where it was stopped.

    Example: swiftqueue rate collect var/rate/kernel --rate-mbps 20 --rtt-ms 50 --rtt-ms 100
    """
    import time
    from dataclasses import asdict
    from itertools import product

    from swiftqueue.studies.rate.samples.tables import KERNEL, described, paths_in, source_of
    from swiftqueue.studies.rate.testbed.flows import KernelPath
    from swiftqueue.studies.rate.testbed.flows import collect as make

    begin, kind = time.monotonic(), "held-out" if held_out else "train"
    each_seed = range(seed, seed + seeds)
    asked = [
        KernelPath(rate, trip, buffer_bdp, load, jitter_ms, flows, seed=number)
        for number, rate, trip in product(each_seed, rate_mbps or [20.0], rtt_ms or [50.0])
    ]
    for path in asked:
        _check_same(output / f"path={path.name}", {**asdict(path), "kind": kind})
    for path in asked:
        if (place := output / f"path={path.name}").is_dir():
            print(f"path {path.name}: is there", file=sys.stderr)
            if json:
                print(json_.dumps({"path": path.name, **(described(place) or {})}))
            continue
        if minutes is not None and time.monotonic() - begin > 60 * minutes:
            print("the time is over; the same command goes on from here", file=sys.stderr)
            break
        made = make(path, output, kind)
        if json:
            print(json_.dumps({"path": path.name, **made}))
        else:
            said = f"{made['flows_whole']} of {made['flows_sent']} flows, {made['acks']} ACKs, "
            cost = f"{made['ns_per_ack']:.0f} ns an ACK, {made['bbr_ns_per_ack']:.0f} of them BBR's own work"
            print(f"path {path.name}: {said}{made['lost']} of them lost, {cost}")
    every = [about for about in paths_in(output).values() if source_of(about) == KERNEL]
    print(
        f"{output}: {sum(about['flows_whole'] for about in every)} flows of {len(every)} paths",
        file=sys.stderr,
    )


def _check_same(place: Path, asked: dict[str, Any]) -> None:
    """Refuse a path's folder that was made with other options, most of which its name does not tell."""
    from swiftqueue.studies.rate.samples.tables import described

    if not place.is_dir():
        return
    about = described(place) or {}
    made = {**about.get("options", {}), "kind": about.get("kind")}
    if differ := [name for name, value in asked.items() if made.get(name) != value]:
        raise ValueError(
            f"{place} was made with {differ[0]} {made.get(differ[0])}, and is asked for with "
            f"{asked[differ[0]]}; name another folder"
        )


def results(
    files: Annotated[
        list[Path] | None, typer.Argument(help="publish these first: what study, feedback, ... wrote")
    ] = None,
) -> None:
    """Draw the study's pages and pictures from the published data.

    Example: swiftqueue rate results var/rate/study.json
    """
    from swiftqueue.benchmarks.results.pages import rewrite
    from swiftqueue.studies.rate.results import pages, published

    for file in files or []:
        published.take(file)
    for path in rewrite(Path.cwd(), pages.drawn(Path.cwd())):
        print(path)


def bench(
    rounds: Annotated[int, typer.Option(min=1, help="rounds; medians are reported")] = 5,
    json: Annotated[bool, typer.Option("--json", help="print a JSON list of rows")] = False,
    publish: Annotated[bool, typer.Option("--publish", help="put the rows into the study's results")] = False,
) -> None:
    """Measure a forecast's time beside PyTorch, ONNX Runtime and Triton in the same run.

    Example: swiftqueue rate bench --rounds 3
    """
    from swiftqueue.benchmarks import published
    from swiftqueue.benchmarks.rows import UnsupportedMachineError, print_rows
    from swiftqueue.infra.local.under_way import leaving_at_sigterm
    from swiftqueue.studies.rate.benchmark import measure
    from swiftqueue.studies.rate.results.pages import BENCHMARKS

    if publish:
        published.load(BENCHMARKS)  # before the minutes that a benchmark takes
    try:
        with leaving_at_sigterm():
            rows = measure(rounds)
    except UnsupportedMachineError as reason:
        print(f"rate bench is left out: {reason}")
        return
    print_rows(rows, f"swiftqueue rate bench: medians of {rounds} rounds", as_json=json)
    if publish:
        published.publish(NAME, rows, BENCHMARKS)
