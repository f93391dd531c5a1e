"""DualPI2 (RFC 9332) in ns-3: its rules one by one, then its promises with real TCP flows on a link.

The figures behind each bound stand in simulation/doc/dual-pi2.md.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cpp_suite import passed
from mutants import ALL
from sampled import some

from swiftqueue.pipelines.simulators import build_simulator

pytestmark = pytest.mark.slow  # ns-3 programs are compiled and run

TARGET_MS = 15
PACKET_BITS = 1500 * 8
Run = dict[str, Any]
Options = dict[str, float | str]


@pytest.fixture(scope="module")
def program() -> Path:
    return build_simulator(program="dual-pi2-link")


def test_rules_one_by_one() -> None:
    """The C++ suite without a network: classifier, scheduler, AQMs, overload, limits, conservation."""
    assert passed("dual-pi2-queue-disc-test") > 30


@pytest.mark.long
def test_the_routers_link_and_the_disc_decide_alike() -> None:
    """10^6 packets, four settings: no packet's fate or time differs, and every fate occurs."""
    program = build_simulator(program="dual-pi2-parity")
    result = subprocess.run([program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    said = json.loads(result.stdout)
    assert said["different"] == 0
    assert sum(setting["packets"] for setting in said["settings"]) == 1_000_000
    for setting in said["settings"]:
        assert setting["unknown"] == 0
        assert min(setting["dropped"], setting["sent"], setting["marked"]) > 5_000, setting
    assert sum(setting["refused"] for setting in said["settings"]) > 10_000


def simulate(program: Path, **options: float | str) -> Run:
    """One run of the link scenario, its counts checked: no packet of any queue goes missing."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    result = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    run: Run = json.loads(result.stdout)
    run["options"] = options
    counts = run["counts"]
    for queue in (counts["L"], counts["C"]):
        assert queue["enqueued"] == queue["dequeued"] + queue["dropped"] + queue["waiting"], options
        assert (
            queue["enqueued_bytes"]
            == queue["dequeued_bytes"] + queue["dropped_bytes"] + queue["waiting_bytes"]
        ), options
    both = [counts["L"], counts["C"]]
    assert counts["received"] == sum(q["enqueued"] + q["refused"] for q in both), options
    assert sum(run["drops"].values()) == sum(q["dropped"] + q["refused"] for q in both), options
    assert sum(run["marks"].values()) == sum(q["marked"] for q in both), options
    # p_C = (p_CL / k)^2 at every update; k is a power of two, so the division loses nothing
    assert run["controller"]["coupling_error"] == 0, options
    assert run["controller"]["updates"] > 100, options
    return run


def simulate_all(program: Path, runs: Iterable[Options]) -> list[Run]:
    """Several runs, as many at a time as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda options: simulate(program, **options), runs))


def flow_mbps(run: Run, kind: str) -> float:
    """Mean goodput of the flows of one kind."""
    rates = run["goodput_mbps"][kind]
    return float(sum(rates) / len(rates))


def loss(run: Run, queue: str) -> float:
    """Share of a queue's packets that were not sent on, after the warm-up."""
    c = run["counts"][queue]["later"]
    lost = c["dropped"] + c["refused"]
    return float(lost / (lost + c["dequeued"]))


def point(mbps: int, rtt_ms: int, seconds: int, **more: float | str) -> Options:
    """One paced DCTCP flow against one Cubic flow; the first third is left out."""
    return {
        "mbps": mbps,
        "rtt_ms": rtt_ms,
        "pacing": 1,
        "duration_s": seconds,
        "warmup_s": seconds / 3,
        **more,
    }


ECN: Options = {"classic_ecn": 1}
# of sch_dualpi2.c, as far as attributes say them (simulation/doc/dual-pi2.md)
LINUX = "LAqm=Step;LMinPackets=0;CWeight=0.1;Draw=Random;MinBacklogBytes=3000;MaxSize=15000000B"
LONGEST = [point(200, 100, 30)]  # as dear as all others of this list in `make test`
DROPPING = [
    *(
        point(mbps, rtt_ms, 30) for rtt_ms in (5, 20, 100) for mbps in (12, 4)
    ),  # cheap: the sample is among them
    *(point(mbps, rtt_ms, 9) for mbps in (200, 120) for rtt_ms in (20, 5)),
    point(40, 100, 45),
    *(point(40, rtt_ms, 15) for rtt_ms in (5, 20)),
]
MARKING = [
    *(point(40, rtt_ms, 15, **ECN) for rtt_ms in (5, 20)),
    *(point(mbps, rtt_ms, 30, **ECN) for mbps in (12, 4) for rtt_ms in (5, 20, 100)),
]


@pytest.fixture(scope="module")
def grid(program: Path) -> list[Run]:
    """4 to 200 Mbit/s by 5 to 100 ms; the classic flow without ECN, and with it at some points.

    `make test` has one point without and one with it; `make test-all` has all.
    """
    return simulate_all(program, [*(LONGEST if ALL else []), *some(DROPPING, 1), *some(MARKING, 1)])


def is_cubic_mode(run: Run) -> bool:
    """Whether Cubic there has left the Reno mode for which RFC 9332 appendix C derives k = 2."""
    return bool(run["options"]["mbps"] * run["options"]["rtt_ms"] >= 10_000)


def test_classic_and_scalable_share_the_link(grid: list[Run]) -> None:
    """Rates within a factor of 2; beyond Reno's mode Cubic takes more, and the other still gets a sixth."""
    for run in grid:
        scalable, classic = flow_mbps(run, "scalable"), flow_mbps(run, "classic")
        factor = 6 if is_cubic_mode(run) else 2
        assert 1 / factor <= scalable / classic <= factor, (run["options"], scalable, classic)
        # 1448 payload bytes of 1502 on the wire; the rest is what the link lost to idleness
        assert scalable + classic >= 0.93 * run["options"]["mbps"], run["options"]


def test_l_delay_is_under_two_milliseconds(grid: list[Run]) -> None:
    """P99 of L; at 4 Mbit/s two packets alone take 6 ms, and that is the bound."""
    for run in grid:
        two_packets_ms = 2 * PACKET_BITS / run["options"]["mbps"] * 1e-3
        assert run["sojourn_us"]["L"]["packets"] > 500, run["options"]
        assert run["sojourn_us"]["L"]["p99"] * 1e-3 < max(2, two_packets_ms), run["options"]


@pytest.mark.long
def test_l_delay_with_many_flows(program: Path) -> None:
    """10 paced DCTCP and 10 Cubic flows, both schedulers, ramp and step."""
    runs = simulate_all(
        program,
        [
            point(100, 20, 6, scalable=10, classic=10, disc=disc)
            for disc in some(("LAqm=Ramp", "Scheduler=TimeShiftedFifo", "LAqm=Step"), 1)
        ],
    )
    for run in runs:
        assert run["sojourn_us"]["L"]["p99"] < 2000, run["options"]
        assert 0.5 <= flow_mbps(run, "scalable") / flow_mbps(run, "classic") <= 2, run["options"]
        assert run["sojourn_us"]["C"]["mean"] * 1e-3 == pytest.approx(TARGET_MS, abs=3), run["options"]


def test_classic_delay_is_about_its_target(grid: list[Run]) -> None:
    """Mean within 3 ms; where one flow's sawtooth is longer than the target the queue runs empty at times."""
    for run in grid:
        mean_ms = run["sojourn_us"]["C"]["mean"] * 1e-3
        long = run["options"]["rtt_ms"] == 100
        assert (4 if long else TARGET_MS - 3) <= mean_ms <= TARGET_MS + 3, (run["options"], mean_ms)


def test_ecn_spares_the_classic_flow_all_loss(grid: list[Run]) -> None:
    """ECT(0) is marked, Not-ECT dropped, L loses nothing (a slow start that overshoots may saturate both)."""
    for run in grid:
        later = run["counts"]["C"]["later"]
        assert loss(run, "L") == 0, run["options"]
        if "classic_ecn" in run["options"]:
            assert later["dropped"] == 0, run["options"]
            assert later["marked"] > 0, run["options"]
        else:
            assert later["marked"] == 0, run["options"]
            assert "C mark" not in run["marks"], run["options"]
            assert run["drops"]["C drop"] > 0, run["options"]


@pytest.mark.long
def test_without_coupling_the_scalable_flow_takes_the_link(program: Path) -> None:
    """The control of the shares above: k = 0, all else alike."""
    run = simulate(program, **point(40, 20, 12, disc="CouplingFactor=0"))
    assert flow_mbps(run, "scalable") > 5 * flow_mbps(run, "classic")


@pytest.mark.long
def test_overload_by_unresponsive_l4s(program: Path) -> None:
    """ECT(1) that ignores marks, 1.5 times the link: it gets no advantage over classic traffic."""
    link: Options = {"mbps": 40, "rtt_ms": 10, "scalable": 0, "duration_s": 6, "warmup_s": 2}
    flood: Options = {"udp_ect1_mbps": 60}
    voice, tcp_l, tcp_c, delayed = simulate_all(
        program,
        [
            link | flood | {"classic": 0, "udp_notect_mbps": 2},
            link | flood | {"classic": 10},
            link | {"classic": 10, "udp_notect_mbps": 60},
            link | flood | {"classic": 0, "udp_notect_mbps": 2, "disc": "Overload=Delay"},
        ],
    )
    # the same loss in both queues (A.2, p_C), and no more of it than the overload needs
    needed = 1 - 40 / (62 * 1502 / 1448)
    assert loss(voice, "C") == pytest.approx(loss(voice, "L"), abs=0.03)
    assert loss(voice, "C") == pytest.approx(needed, abs=0.05)
    assert voice["sojourn_us"]["C"]["p99"] * 1e-3 < TARGET_MS
    assert voice["sojourn_us"]["L"]["mean"] * 1e-3 == pytest.approx(TARGET_MS, abs=3)
    # ten Cubic flows do no worse than beside the same flood in their own queue
    assert flow_mbps(tcp_l, "classic") >= 0.9 * flow_mbps(tcp_c, "classic")
    # what this saves: with delay instead of drop L stands at the limit and classic loses far more
    assert loss(delayed, "C") > 1.5 * loss(voice, "C")
    assert delayed["sojourn_us"]["L"]["p50"] > 20 * voice["sojourn_us"]["L"]["p50"]


@pytest.mark.long
def test_linuxs_settings_keep_the_promises_where_a_packet_takes_less_than_the_step(program: Path) -> None:
    """At 12 Mbit/s one takes as long, so whoever waits for a single classic packet is marked."""
    fast, slow, flooded = simulate_all(
        program,
        [
            point(40, 20, 15, disc=LINUX),
            point(12, 20, 20, disc=LINUX),
            {"mbps": 40, "rtt_ms": 10, "scalable": 0, "classic": 0, "udp_ect1_mbps": 60, "udp_notect_mbps": 2,
             "duration_s": 6, "warmup_s": 2, "disc": LINUX},
        ],
    )  # fmt: skip
    assert 0.5 <= flow_mbps(fast, "scalable") / flow_mbps(fast, "classic") <= 2
    assert fast["sojourn_us"]["L"]["p99"] < 2000
    assert fast["sojourn_us"]["C"]["mean"] * 1e-3 == pytest.approx(TARGET_MS, abs=3)
    assert flow_mbps(slow, "scalable") < 0.5 * flow_mbps(slow, "classic")
    assert slow["marks"]["L native mark"] > slow["marks"]["L coupled mark"]
    assert loss(flooded, "C") == pytest.approx(loss(flooded, "L"), abs=0.03)


def test_unresponsive_l4s_below_the_link_rate(program: Path) -> None:
    """30 of 40 Mbit/s: two Cubic flows get what is left, and L's delay stays low (RFC 9332 4.2)."""
    run = simulate(
        program, mbps=40, rtt_ms=10, scalable=0, classic=2, udp_ect1_mbps=30, duration_s=9, warmup_s=3
    )
    left = 40 * 1448 / 1502 - 30
    assert sum(run["goodput_mbps"]["classic"]) >= 0.9 * left * 1448 / 1502
    assert run["goodput_mbps"]["udp_ect1"][0] == pytest.approx(30, rel=0.01)
    assert run["sojourn_us"]["L"]["p99"] < 2000


@pytest.mark.long
def test_a_seed_fixes_the_run(program: Path) -> None:
    """Every departure of a run at random is the same with the same seed, and another with another."""
    options: Options = {"mbps": 20, "duration_s": 4, "warmup_s": 1, "disc": "Draw=Random"}
    first, again, other = simulate_all(program, [options | {"seed": seed} for seed in (1, 1, 2)])
    del first["options"], again["options"]
    assert first == again
    assert first["departures"] != other["departures"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--disc=Aim=15ms", "DualPi2QueueDisc takes no Aim=15ms"),
        ("--disc=Target=-1ms", "DualPi2QueueDisc takes no Target=-1ms"),
        ("--disc=MaxSize=1000B", "MaxSize 1000B is less than one packet of Mtu 1500 bytes"),
        ("--mbps=0", "--mbps must be above 0"),
        ("--seed=0", "--seed must be at least 1"),
        ("--warmup-s=100", "--warmup-s must be less than --duration-s"),
    ],
)
def test_bad_settings_are_named(program: Path, option: str, message: str) -> None:
    result = subprocess.run([program, option], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert message in result.stderr
