"""TCP Prague in ns-3: its rules one by one, then real flows through DualPI2 (RFC 9332's defaults).

The figures behind each bound stand in simulation/doc/tcp-prague.md; DCTCP's, of the same runs, in
simulation/doc/dual-pi2.md.
"""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cpp_suite import passed
from mutants import ALL
from sampled import some

from swiftqueue.pipelines.simulators import build_simulator

pytestmark = pytest.mark.slow  # ns-3 programs are compiled and run
runs_are_dear = pytest.mark.long("runs of TCP Prague")

Run = dict[str, Any]
Options = dict[str, float | str]

RUNS: dict[str, Options] = {  # the longest first
    "40 Mbit/s, 100 ms": {"mbps": 40, "rtt_ms": 100, "duration_s": 30, "warmup_s": 10},
    "10 at 20 ms": {"mbps": 100, "rtt_ms": 20, "scalable": 10, "classic": 0, "duration_s": 5, "warmup_s": 2},
    "10 at 10 ms": {"mbps": 100, "rtt_ms": 10, "scalable": 10, "classic": 0, "duration_s": 5, "warmup_s": 2},
    "10 beside 10": {
        "mbps": 100,
        "rtt_ms": 20,
        "scalable": 10,
        "classic": 10,
        "duration_s": 5,
        "warmup_s": 2,
    },
    "40 Mbit/s, 20 ms": {"mbps": 40, "rtt_ms": 20, "duration_s": 12, "warmup_s": 4},
    "12 Mbit/s, 100 ms": {"mbps": 12, "rtt_ms": 100, "duration_s": 24, "warmup_s": 8},
    "12 Mbit/s, 5 ms": {"mbps": 12, "rtt_ms": 5, "duration_s": 12, "warmup_s": 4},
    "10 and 80 ms": {
        "mbps": 20,
        "rtt_ms": 10,
        "scalable": 2,
        "classic": 0,
        "scalable_extra_rtt_ms": "0,70",
        "duration_s": 24,
        "warmup_s": 8,
    },
    "60 flows": {"mbps": 20, "rtt_ms": 10, "scalable": 60, "classic": 0, "duration_s": 6, "warmup_s": 2},
}
DEAREST = "40 Mbit/s, 100 ms"
# By commit; `make test-all` has all.
CHOSEN = [
    *([DEAREST] if ALL else []),
    *some([name for name in RUNS if "Mbit/s" in name and name != DEAREST], 1),
    *some([name for name in RUNS if name.startswith("10 ")], 1),
    "60 flows",
]
SHARES = [name for name in CHOSEN if "Mbit/s" in name]
ALONE = [name for name in CHOSEN if name.startswith("10 at")]


@pytest.fixture(scope="module")
def program() -> Path:
    return build_simulator(program="dual-pi2-link")


def simulate(program: Path, options: Options) -> Run:
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    result = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    run: Run = json.loads(result.stdout)
    return run


@pytest.fixture(scope="module")
def runs(program: Path) -> dict[str, Run]:
    """Every run with Prague as the scalable flows, as many at a time as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(lambda name: simulate(program, RUNS[name] | {"prague": 1}), CHOSEN)
        return dict(zip(CHOSEN, done, strict=True))


def rates(run: Run, kind: str = "scalable") -> list[float]:
    values: list[float] = run["goodput_mbps"][kind]
    return values


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.long
def test_rules_one_by_one() -> None:
    """The C++ suite: alpha, window, RTT independence, loss, pacing, small windows, two hosts and a link."""
    assert passed("tcp-prague-test") > 14


@runs_are_dear
def test_every_data_packet_is_l4s(runs: dict[str, Run]) -> None:
    """Alone, nothing reaches C and nothing is lost; the result names the congestion control."""
    for name, run in runs.items():
        assert run["scalable_tcp"] == "ns3::TcpPrague", name
        assert run["dupack_threshold"] == 3, name
        if not rates(run, "classic"):
            assert run["counts"]["C"]["enqueued"] == 0, name
            assert run["counts"]["L"]["later"]["dropped"] == 0, name


@runs_are_dear
@pytest.mark.parametrize("name", SHARES)
def test_shares_with_cubic_are_near_equal(runs: dict[str, Run], name: str) -> None:
    """Within a factor of 2 (ours; DCTCP's tests have the same)."""
    prague, cubic = mean(rates(runs[name])), mean(rates(runs[name], "classic"))
    assert 0.5 <= prague / cubic <= 2, (prague, cubic)
    assert prague + cubic >= 0.85 * float(RUNS[name]["mbps"])


@runs_are_dear
@pytest.mark.parametrize("name", sorted({"10 beside 10"} & set(CHOSEN)))
def test_ten_flows_beside_ten_cubic_flows(runs: dict[str, Run], name: str) -> None:
    run = runs[name]
    assert 0.5 <= mean(rates(run)) / mean(rates(run, "classic")) <= 2
    assert min(rates(run) + rates(run, "classic")) >= 100 / 20 / 4  # nobody is starved
    assert run["sojourn_us"]["L"]["p99"] < 2000


@runs_are_dear
@pytest.mark.parametrize("name", ALONE)
def test_ten_flows_alone_keep_the_l_queue_short(runs: dict[str, Run], name: str) -> None:
    """P99 of L under 2 ms at 10 ms; at 20 ms the ten grow by 0.8 ms of the link before a mark is answered."""
    # The ramp ends at 1.2 ms, and a flow of 20 ms gains (20/25)^2 segments in its round trip.
    growth_us = 10 * (20 / 25) ** 2 * 1500 * 8 / 100
    most_us = 2000 if name == "10 at 10 ms" else 1200 + 1.4 * growth_us
    assert runs[name]["sojourn_us"]["L"]["p99"] < most_us
    assert min(rates(runs[name])) > 0.6 * max(rates(runs[name]))
    assert sum(rates(runs[name])) > 90  # of 96.4


@runs_are_dear
@pytest.mark.parametrize("name", sorted({"10 and 80 ms"} & set(CHOSEN)))
def test_flows_of_10_and_80_ms_share_more_equally_than_dctcp(
    program: Path, runs: dict[str, Run], name: str
) -> None:
    """DCTCP's long flow is starved; Prague's has what a window of equal size gives beside 25 ms."""
    options = RUNS[name] | {"pacing": 1}
    dctcp_short, dctcp_long = rates(simulate(program, options))
    short, long = rates(runs[name])
    assert short / long < 0.5 * dctcp_short / dctcp_long
    assert short / long < 1.8 * 80 / 25


@runs_are_dear
def test_no_flow_starves_where_windows_are_small(runs: dict[str, Run]) -> None:
    """60 flows, 0.33 Mbit/s or a quarter of a segment a round trip each."""
    shares = rates(runs["60 flows"])
    assert min(shares) > 0.3 * mean(shares)
    assert runs["60 flows"]["counts"]["L"]["later"]["dropped"] == 0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--scalable-attributes=Alpha=1", "ns3::TcpPrague takes no Alpha=1"),
        ("--scalable-attributes=VirtualRtt=-1ms", "ns3::TcpPrague takes no VirtualRtt=-1ms"),
        ("--scalable-extra-rtt-ms=1,x", "--scalable-extra-rtt-ms: x is not a time in milliseconds"),
        ("--dupack-threshold=0", "--dupack-threshold must be at least 1"),
    ],
)
def test_bad_settings_are_named(program: Path, option: str, message: str) -> None:
    result = subprocess.run([program, "--prague", option], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert message in result.stderr
