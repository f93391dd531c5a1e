"""`swiftqueue bed`: the kernel test bed (docs/TESTBED.md)."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from laboratory.bed import checks

MOST_P50_US: Final = 50.0
MOST_P99_US: Final = 250.0
MOST_P999_US: Final = 1000.0
MOST_RATE_ERROR: Final = 0.002
MOST_MASKED: Final = 0.005


def check(as_json: Annotated[bool, typer.Option("--json", help="print one JSON list")] = False) -> None:
    """Say what this machine can do for the test bed, each tried for real, with its reason.

    Example: swiftqueue bed check
    """
    found = checks.check()
    if as_json:
        print(json.dumps([asdict(one) for one in found]))
        return
    for one in found:
        print(f"{'yes' if one.can else 'no':4}{one.name:12}{one.what_for}: {one.reason}")


def selfcheck(
    rates: Annotated[str, typer.Option(help="Mbit/s, by commas")] = "20,50,100",
    seconds: Annotated[float, typer.Option(help="how long at each rate")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON list")] = False,
) -> None:
    """Measure the router's own error against an ideal queue, on this machine, now.

    Example: swiftqueue bed selfcheck --rates 20,50
    """
    from laboratory.bed.hosts import clean as end_leftovers
    from laboratory.bed.selfcheck import selfcheck as measure

    try:
        wanted = [float(rate) for rate in rates.split(",")]
    except ValueError:
        raise ValueError(f"--rates {rates}: must be numbers with commas between, as 20,50") from None
    if min(wanted) <= 0 or seconds < 1:
        raise ValueError(f"--rates {rates} --seconds {seconds:g}: rates above 0, and a second at least")
    end_leftovers()
    found = [measure(rate, seconds) for rate in wanted]
    if as_json:
        print(json.dumps([asdict(one) for one in found]))
        return
    limits = f"p50/p99/p99.9 {MOST_P50_US:.0f}/{MOST_P99_US:.0f}/{MOST_P999_US:.0f} us"
    print(f"wanted: {limits}, rate {MOST_RATE_ERROR:.1%}, masked {MOST_MASKED:.1%}")
    for one in found:
        held = (
            one.error_p50_us <= MOST_P50_US
            and one.error_p99_us <= MOST_P99_US
            and one.error_p999_us <= MOST_P999_US
            and abs(one.rate_error) <= MOST_RATE_ERROR
            and one.masked_share <= MOST_MASKED
        )
        quantiles = f"{one.error_p50_us:.0f}/{one.error_p99_us:.0f}/{one.error_p999_us:.0f} us"
        stalls = (
            f"{one.stalls} stalls, {one.stalled_ms:.1f} ms; with them p99.9 {one.unmasked_p999_us:.0f} us"
        )
        said = f"rate {one.rate_error:+.3%}, masked {one.masked_share:.2%} ({stalls})"
        print(f"{one.rate_mbps:g} Mbit/s, {'held' if held else 'not held'}: {quantiles}, {said}")
        print(f"    {one.packets} packets; real-time priority: {one.priority}")


def run(
    profile: Annotated[str, typer.Option(help="of the queue: rfc9332 or uncoupled")] = "rfc9332",
    rate_mbps: Annotated[float, typer.Option(help="of the link")] = 40.0,
    delay_ms: Annotated[float, typer.Option(help="one way, both ways")] = 10.0,
    jitter_ms: Annotated[float, typer.Option(help="at most so much more, at random")] = 0.0,
    cross_mbps: Annotated[float, typer.Option(help="classic Poisson traffic in the same queue")] = 20.0,
    send_mbps: Annotated[float, typer.Option(help="of the marked sender")] = 18.0,
    flows: Annotated[int, typer.Option(help="of the marked sender")] = 4,
    seconds: Annotated[float, typer.Option(help="of each run")] = 10.0,
    seeds: Annotated[int, typer.Option(help="how many")] = 1,
    traffic: Annotated[
        str, typer.Option(help="udp, paced at --send-mbps; or tcp, a connection a flow")
    ] = "udp",
    agent: Annotated[Path | None, typer.Option(help="the agent's socket: each seed again with it")] = None,
    output: Annotated[Path | None, typer.Option(help="file for the rows as JSON too")] = None,
) -> None:
    """Send a real kernel's marked packets through the router; prints a JSON row for each run.

    Example: swiftqueue bed run --profile uncoupled --agent var/agent.sock --seeds 5
    """
    from feature_store.atomic import write_file
    from laboratory.bed.hosts import clean as end_leftovers
    from laboratory.bed.run import Plan
    from laboratory.bed.run import run as run_plan

    link = {"rate_mbps": rate_mbps, "delay_ms": delay_ms, "jitter_ms": jitter_ms, "cross_mbps": cross_mbps}
    sender = {"send_mbps": send_mbps, "seconds": seconds}
    plan = Plan(profile, **link, **sender, flows=flows, seeds=seeds, agent=agent, traffic=traffic)
    end_leftovers()
    rows = run_plan(plan)
    if output is not None:
        write_file(output, json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(json.dumps(row))


def clean() -> None:
    """End routers of this project that outlived who started them; by design there are none.

    Example: swiftqueue bed clean
    """
    from laboratory.bed.hosts import clean as end_leftovers

    ended = end_leftovers()
    print(f"ended: {', '.join(map(str, ended))}" if ended else "nothing was left")
