"""`swiftqueue bed`: the kernel test bed (docs/TESTBED.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from swiftqueue.common.given import given
from swiftqueue.testbed.host import checks

BED: Final = Path("var/bed")
PUBLISHED: Final = Path("docs/laboratory")
SCENARIOS: Final = ("bed-figure8",)
TAKES: Final = {  # options of `run` beside --output, by scenario
    None: (
        *("profile", "rate_mbps", "delay_ms", "jitter_ms", "cross_mbps", "send_mbps", "flows", "seconds"),
        *("seeds", "traffic", "agent"),
    ),
    "figure8": ("profile", "seconds", "seeds", "artifact"),
    "uplinks": ("uplink", "dscp", "cut", "frame_packets", "send_mbps", "seconds", "seeds", "agent"),
}


def check(as_json: Annotated[bool, typer.Option("--json", help="print one JSON list")] = False) -> None:
    """Check what this machine can do for the test bed, each capability tried for real, with its reason.

    Example: swiftqueue bed check
    """
    found = checks.check()
    if as_json:
        print(json.dumps([asdict(one) for one in found]))
        return
    for one in found:
        print(f"{'yes' if one.can else 'no':4}{one.name:12}{one.what_for}: {one.reason}")


def selfcheck(
    rates: Annotated[str, typer.Option(help="rates in Mbit/s, separated by commas")] = "20,50,100",
    seconds: Annotated[float, typer.Option(help="seconds at each rate")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON list")] = False,
) -> None:
    """Measure the router's own error against an ideal queue, on this machine, now.

    Example: swiftqueue bed selfcheck --rates 20,50
    """
    from swiftqueue.testbed.host.selfcheck import WANTED
    from swiftqueue.testbed.host.selfcheck import selfcheck as measure

    try:
        wanted = [float(rate) for rate in rates.split(",")]
    except ValueError:
        raise ValueError(f"--rates {rates}: must be numbers with commas between, as 20,50") from None
    if not (all(0 < rate < math.inf for rate in wanted) and 1 <= seconds < math.inf):
        raise ValueError(f"--rates {rates} --seconds {seconds:g}: rates above 0, a second at least; finite")
    found = [measure(rate, seconds) for rate in wanted]
    if as_json:
        print(json.dumps([asdict(one) | {"held": one.held} for one in found]))
        return
    p50, p99, p999, rate, masked = WANTED.values()
    print(f"wanted: p50/p99/p99.9 {p50:.0f}/{p99:.0f}/{p999:.0f} us, rate {rate:.1%}, masked {masked:.1%}")
    for one in found:
        quantiles = f"{one.error_p50_us:.0f}/{one.error_p99_us:.0f}/{one.error_p999_us:.0f} us"
        stalls = (
            f"{one.stalls} stalls, {one.stalled_ms:.1f} ms; with them p99.9 {one.unmasked_p999_us:.0f} us"
        )
        said = f"rate {one.rate_error:+.3%}, masked {one.masked_share:.2%} ({stalls})"
        print(f"{one.rate_mbps:g} Mbit/s, {'held' if one.held else 'not held'}: {quantiles}, {said}")
        print(f"    {one.packets} packets; real-time priority: {one.priority}")


def run(
    context: typer.Context,
    scenario: Annotated[
        str | None, typer.Argument(help="figure8, or uplinks; none: one marked sender on one link")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="queue profile: rfc9332 or uncoupled (default: rfc9332; figure8: both)")
    ] = None,
    rate_mbps: Annotated[float, typer.Option(help="rate of the link in Mbit/s")] = 40.0,
    delay_ms: Annotated[float, typer.Option(help="one-way delay in ms, in both directions")] = 10.0,
    jitter_ms: Annotated[float, typer.Option(help="largest random additional delay in ms")] = 0.0,
    cross_mbps: Annotated[
        float, typer.Option(help="classic Poisson traffic in the same queue, Mbit/s")
    ] = 20.0,
    send_mbps: Annotated[
        float | None,
        typer.Option(help="rate of the marked UDP sender in Mbit/s (default: 18; uplinks: 2.4)"),
    ] = None,
    flows: Annotated[int, typer.Option(help="flows of the marked sender")] = 4,
    seconds: Annotated[
        float | None, typer.Option(help="seconds of each run (default: 10, or the scenario's)")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="how many (default: 1, or the scenario's)")] = None,
    traffic: Annotated[
        str, typer.Option(help="transport: udp, paced at --send-mbps; or tcp, a connection a flow")
    ] = "udp",
    agent: Annotated[
        Path | None, typer.Option(help="socket of the agent, with which each seed runs again")
    ] = None,
    uplink: Annotated[
        list[str] | None,
        typer.Option(
            help="uplink 0, and given again uplink 1: Mbit/s, ms of delay, Mbit/s of cross traffic "
            "(default: 20:10:12 and 20:15:12)",
            metavar="RATE:DELAY:CROSS",
        ),
    ] = None,
    dscp: Annotated[
        str, typer.Option(help="DSCP of alternative 0 and of alternative 1, by which uplinks routes")
    ] = "0,46",
    cut: Annotated[
        str | None, typer.Option(help="an uplink that dies, and at which second of each run, as 1@5")
    ] = None,
    frame_packets: Annotated[int, typer.Option(min=1, help="packets of a call's frame on uplinks")] = 8,
    artifact: Annotated[
        Path | None,
        typer.Option(
            help="folder of the model of figure8, as `lab train bed-figure8-flows` makes it (default: none)",
            metavar="FOLDER",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="JSON file for the rows; for a scenario its folder"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON document; progress goes to stderr")
    ] = False,
) -> None:
    """Send a real kernel's marked packets through the router; a scenario resumes where it was stopped.

    Example: swiftqueue bed run figure8 --seeds 5
    """
    from swiftqueue.testbed.host.run import Plan
    from swiftqueue.testbed.host.run import run as run_plan

    if scenario not in TAKES:
        raise ValueError(f"scenario {scenario}: the bed has {', '.join(filter(None, TAKES))}")
    taken = ("scenario", "output", "as_json", *TAKES[scenario])
    say = partial(typer.echo, err=as_json)
    if foreign := given(context, [name for name in context.params if name not in taken]):
        raise ValueError(f"{foreign[0]}: not an option of {scenario or 'a run without a scenario'}")
    if seconds is not None and not 0 < seconds < math.inf:
        raise ValueError(f"--seconds {seconds:g}: must be above 0, and finite")
    if traffic == "tcp" and given(context, ["send_mbps"]):
        raise ValueError(
            "--send-mbps: of UDP; a TCP connection sends as fast as its congestion control lets it"
        )
    if scenario == "uplinks":
        from swiftqueue.testbed.host import uplinks as bed

        seconds = 10.0 if seconds is None else seconds
        asked = bed.UplinkPlan(
            bed.uplinks_of(uplink or ("20:10:12", "20:15:12")),
            bed.dscp_of(dscp),
            send_mbps=2.4 if send_mbps is None else send_mbps,
            frame_packets=frame_packets,
            seconds=seconds,
            seeds=seeds or 1,
            agent=agent,
            cut=bed.cut_of(cut, seconds) if cut else None,
        )
        _print_rows(bed.run(asked), output, as_json=as_json)
        return
    if scenario is not None:
        made = _run_scenario(scenario, profile, seconds, seeds, artifact, output or BED, say)
        if as_json:
            print(json.dumps(made))
        return
    link = {"rate_mbps": rate_mbps, "delay_ms": delay_ms, "jitter_ms": jitter_ms, "cross_mbps": cross_mbps}
    sender = {
        "send_mbps": 18.0 if send_mbps is None else send_mbps,
        "seconds": 10.0 if seconds is None else seconds,
    }
    seeds = 1 if seeds is None else seeds
    plan = Plan(
        profile or "rfc9332", **link, **sender, flows=flows, seeds=seeds, agent=agent, traffic=traffic
    )
    _print_rows(run_plan(plan), output, as_json=as_json)


def _print_rows(rows: list[dict[str, Any]], output: Path | None, *, as_json: bool) -> None:
    from swiftqueue.common.atomic import write_file

    if output is not None:
        write_file(output, json.dumps(rows, indent=1) + "\n")
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(json.dumps(row))


def _run_scenario(
    name: str,
    profile: str | None,
    seconds: float | None,
    seeds: int | None,
    artifact: Path | None,
    output: Path,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    from swiftqueue.laboratory.command import Request, adjusted
    from swiftqueue.laboratory.learning.judged_models import check_acks, models_by_profile
    from swiftqueue.laboratory.scenarios.files import load, path_of
    from swiftqueue.testbed.host import scenario as bed
    from swiftqueue.testbed.host.runs import FILE

    wanted = adjusted(load(path_of(f"bed-{name}")), Request([f"bed-{name}"], seeds, seconds))
    if profile is not None:
        if profile not in wanted.profiles:
            raise ValueError(f"--profile {profile}: must be one of {', '.join(wanted.profiles)}")
        wanted = wanted.model_copy(update={"profiles": [profile]})
    models = models_by_profile(str(artifact), output) if artifact else {}
    check_acks(models, {f"bed-{name}": wanted})
    rows = bed.run(f"bed-{name}", wanted, output, say, models=models)
    say(f"{output / FILE}: {len(rows)} rows")
    return rows.to_dicts()


def report(
    output: Annotated[Path, typer.Option("--output", "-o", help="folder of the bed's rows")] = BED,
    laboratory: Annotated[
        Path | None,
        typer.Option(help="laboratory's folder, whose rows of the bed's scenarios are included"),
    ] = None,
    publish: Annotated[bool, typer.Option("--publish", help="put all rows into docs/laboratory")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object instead: rows, directions, router's error")
    ] = False,
) -> None:
    """Report where kernel and simulator agree in direction, and how late the router was in the kernel's runs.

    Example: swiftqueue lab run bed-figure8; swiftqueue bed report --laboratory var/lab
    """
    from swiftqueue.testbed.host import runs as bed
    from swiftqueue.testbed.host.report import agreement, pairs, router_errors, router_table

    if laboratory is not None:
        for name in SCENARIOS:
            bed.keep(output, bed.simulated(name, laboratory))
    rows = bed.load(output)
    if publish:
        bed.keep(PUBLISHED, rows.rows(named=True))
    if as_json:
        directions = [one.as_json() for one in pairs(rows)]
        print(json.dumps({"rows": rows.to_dicts(), "directions": directions, "router": router_errors(rows)}))
        return
    print(*agreement(rows), sep="\n")
    if len(rows.filter(source="kernel")):
        print("", "**The router's own error**", "", *router_table(rows), sep="\n")


def clean(as_json: Annotated[bool, typer.Option("--json", help="print one JSON list")] = False) -> None:
    """Remove the files of killed runs, and end a router whose run has gone.

    Example: swiftqueue bed clean
    """
    from swiftqueue.testbed.host.hosts import clean as remove_leftovers

    removed = [str(one) for one in remove_leftovers()]
    if as_json:
        print(json.dumps(removed))
    else:
        print(f"ended or removed: {', '.join(removed)}" if removed else "nothing was left")
