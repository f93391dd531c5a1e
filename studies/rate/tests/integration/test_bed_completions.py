"""Forecasts fed back into a kernel's BBR: what is said, what is bounded, what stays when somebody dies."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from killed_runs import check_nothing_stays
from typer.testing import CliRunner
from waiting import wait_until

from swiftqueue.cli.app import app
from swiftqueue.studies.rate.experiments.feedback import WINDOWS, Run
from swiftqueue.studies.rate.programs import SAMPLER, SAMPLER_OBJECT
from swiftqueue.studies.rate.samples.definition import NAMES
from swiftqueue.studies.rate.testbed import completions as fct
from swiftqueue.studies.rate.testbed.flows import CONTROL, RECORD, why_not
from swiftqueue.testbed.host import tcp_traffic
from swiftqueue.testbed.host.hosts import ADDRESS_B, Bed
from swiftqueue.testbed.host.selfcheck import NO_AQM
from swiftqueue.testbed.host.tcp import PORT, running, summary

CANNOT = why_not()
needs_bed = pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))
pytestmark = pytest.mark.usefixtures("kernels_controls_alone")
CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
USED, NOT_A_RATE, STALE, TOO_LATE, _, NOTHING_NEW = range(6)  # sq_verdict
RTT_MS = 60
GONE: Callable[[], bool] = lambda: CONTROL not in CONTROLS.read_text().split()  # noqa: E731


def test_each_variant_says_what_its_name_says(tmp_path: Path) -> None:
    traffic = fct.Traffic(cross=0.2, bytes=5000)

    def says(variant: str, records: Path = Path("none")) -> float | None:
        return fct.answers(variant, traffic, "seed 1", None)(12e6, records)

    for without in ("bbr", "initial-window-32", "cubic"):
        assert says(without) is None
    assert says("oracle") == 10e6
    assert says("half-oracle") == 5e6
    assert says("dispersion") == 12e6
    told = np.zeros(3, RECORD)  # one flow is at its end, a later one is not
    told["port"], told["flow"] = PORT, [0, 0, 1]
    told["fields"][:, NAMES.index("bytes_acked")] = [5000, 5001, 2000]
    told["fields"][:, NAMES.index("bbr_bw")] = [1_000_000, 2_000_000, 3_000_000]
    told.tofile(tmp_path / "records")
    assert says("previous-flow", tmp_path / "records") == 2e6
    told[[0, 2]].tofile(tmp_path / "records")  # none has ended yet
    assert says("previous-flow", tmp_path / "records") == 12e6
    random = fct.answers("random", traffic, "seed 1", None)
    assert not isinstance(random, Path)
    drawn = [random(12e6, tmp_path) or 0.0 for _ in range(200)]
    assert len(drawn) == 200
    assert 1e6 < min(drawn) < 2e6 < 5e7 < max(drawn) < 1e8
    other = fct.answers("random", traffic, "seed 2", None)
    assert not isinstance(other, Path)
    assert [other(12e6, tmp_path) for _ in range(200)] != drawn
    arrivals = Random(1)  # arrivals of the downloads: tcp_traffic.py draws from its seed
    assert np.corrcoef(np.log(drawn), [arrivals.random() for _ in drawn])[0, 1] < 0.3
    with pytest.raises(ValueError, match="variant slow: must be one of bbr, "):
        fct.answers("slow", traffic, "seed 1", None)


def test_only_what_stands_beside_all_its_controls_is_summed_up() -> None:
    def run(variant: str, rtt: int, window: str, seed: int) -> Run:
        return Run(variant, rtt, 1.0, window, seed, [1.0], [1.0], 10, 0, 0, 0)

    every = [run(v, 100, w, s) for v in fct.VARIANTS for w in WINDOWS for s in (1, 2)]
    more = [run(v, 200, "default", 1) for v in fct.VARIANTS] + [run("bbr", 100, "default", 3)]
    assert fct.whole(every + more) == every
    assert fct.whole([]) == fct.whole(more) == []
    two = [one for one in every if one.variant in {"bbr", "oracle"} or one.seed == 1]
    assert fct.whole(two) == two  # seed 2 has no other variant
    assert fct.whole(two[:-1]) == [one for one in two if one.seed == 2]  # one run of seed 1 is missing


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"load": 0}, "--load 0: must be above 0, and finite"),
        ({"load": math.nan}, "--load nan: must be above 0, and finite"),
        ({"rate_mbps": math.inf}, "rate_mbps inf: must be above 0, and finite"),
        ({"bytes": 0}, "bytes 0: must be above 0, and finite"),
        ({"cross": 1.0}, "cross 1: must be 0 or more, and below 1"),
        ({"flows": 1}, "--downloads 1: must be 2 or more, each second is judged"),
    ],
)
def test_downloads_that_cannot_be_are_refused_before_any_run(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(line)}$"):
        fct.Traffic(**wrong)


@pytest.mark.parametrize(
    ("buffer_bdp", "line"),
    [
        *((buffer_bdp, "must be above 0") for buffer_bdp in (0, math.nan, math.inf)),
        (1e-6, "at 50 ms that is 1 bytes; the router's buffer has 1,500 to 1,000,000,000"),
        (1e6, "bytes; the router's buffer has 1,500 to 1,000,000,000"),
    ],
)
def test_a_buffer_that_cannot_be_is_refused_before_any_run(
    tmp_path: Path, buffer_bdp: float, line: str
) -> None:
    with pytest.raises(ValueError, match=f"--buffer-bdp {re.escape(f'{buffer_bdp:g}')}: .*{line}"):
        fct.measure(tmp_path / "runs", tmp_path, [1], print, buffers_bdp=[1, buffer_bdp])
    assert not list(tmp_path.iterdir())


@contextmanager
def hosts() -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """A bed with a receiver; what starts so many downloads there."""
    wait_until(GONE, "another bed runs")
    queue = NO_AQM | {"max_bytes": round(20e6 / 8 * RTT_MS / 1e3)}
    take = [sys.executable, tcp_traffic.__file__, "take", ADDRESS_B, PORT]
    with Bed(rate_mbps=20, delay_ms=RTT_MS / 2, queue=queue) as bed, running(bed.b(*take), "the receiver"):
        words = [sys.executable, tcp_traffic.__file__, "flows", ADDRESS_B, PORT, 600_000]
        yield lambda count: subprocess.Popen(
            bed.a(*words, count, 0.5, 1, CONTROL), stdout=subprocess.PIPE, text=True
        )


@pytest.mark.long
@needs_bed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (lambda _: 0.0, NOT_A_RATE),
        (lambda _: math.inf, NOT_A_RATE),
        (lambda _: math.nan, NOT_A_RATE),
        (lambda _: -1e6, NOT_A_RATE),
        (lambda _: 1e3, NOTHING_NEW),
        (lambda d: time.sleep(1.5 * RTT_MS / 1e3) or d, STALE),
        (lambda _: 1e10, USED),  # wild: bounded by the dispersion
    ],
)
def test_a_forecast_that_is_none_leaves_bbr_alone(
    tmp_path: Path, said: Callable[[float], float], verdict: int
) -> None:
    answer = lambda dispersion, _: said(dispersion)  # noqa: E731
    with hosts() as start, fct.sampling(tmp_path / "log", answer) as sampler:
        each = summary(start(2))["each"]
    assert len(each) == 2
    judged = sampler.said["judged"]
    late = 0 if verdict == STALE else judged[STALE]  # a busy machine is late
    assert judged[verdict] > 0
    assert judged[verdict] + late == sum(judged) == 2
    assert all(one["seconds"] < 10 for one in each)
    if verdict == USED:  # never more than 5/4 of what the first ACKs showed: half a BDP of buffer bears it
        assert sum(one["retransmitted"] for one in each) < 0.1 * sum(one["segments"] for one in each)
    else:
        assert sum(sampler.said["ended"]) == 0
    wait_until(GONE, "sq_rate is still there")


@needs_bed
@pytest.mark.slow
def test_judged_downloads_alone_have_another_initial_window() -> None:
    windows: list[int] = []

    def look(_dispersion: float, records: Path) -> None:
        seen = np.fromfile(records, RECORD)  # records that came before a question are in the file
        begins = seen["fields"][(seen["number"] == 0) & (seen["port"] == PORT), NAMES.index("snd_cwnd")]
        windows.append(begins[-1])

    small = fct.Traffic(rate_mbps=20, load=0.5, flows=4, bytes=200_000)
    for initial in (0, 32):
        each, said, _ = fct.download(small, RTT_MS, 1, 0, 1, look, initial_window=initial)
        assert len(each) == 4
        assert said["flows"] == 2
    assert all(plain < 32 <= larger for plain, larger in zip(windows[:2], windows[2:], strict=True))


@needs_bed
@pytest.mark.slow
def test_senders_without_the_network_are_run_in_the_smallest_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fct, "WINDOWS", {"default": 0})
    small = fct.Traffic(rate_mbps=20, load=0.5, flows=4, bytes=200_000)
    asked = ["half-oracle", "previous-flow", "initial-window-32", "cubic"]
    said: list[str] = []

    def runs() -> list[Run]:
        return fct.measure(
            tmp_path / "runs", tmp_path, [1], said.append,
            traffic=small, rtts_ms=[RTT_MS], buffers_bdp=[1], variants=asked,
        )  # fmt: skip

    first = runs()
    assert [run.variant for run in first] == ["bbr", "oracle", *asked]
    assert len(said) == len(first)
    assert all(len(run.own_s) == len(run.others_s) == 2 for run in first)
    assert all(run.used == 0 for run in first if "forecast" not in fct.VARIANTS[run.variant])
    assert runs() == first
    assert len(said) == len(first)


@needs_bed
def test_a_sampler_that_ended_before_its_run_is_said(tmp_path: Path) -> None:
    def killed() -> None:
        with fct.sampling(tmp_path / "log", lambda _samples, _records: None) as sampler:
            sampler.process.kill()

    with pytest.raises(RuntimeError, match=r"^the sampler ended with -9$"):
        killed()
    wait_until(GONE, "sq_rate is still there")


@needs_bed
@pytest.mark.slow
@pytest.mark.parametrize("who", ["agent", "sampler"])
def test_who_dies_leaves_plain_bbr_behind(tmp_path: Path, who: str) -> None:
    """Nobody answers, or the sampler is killed under flows that run: they end as plain BBR's do."""
    command = [str(word) for word in (SAMPLER, "collect", SAMPLER_OBJECT, tmp_path / "log", fct.SAMPLES)]
    with hosts() as start:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        ) as sampler:
            assert sampler.stdout is not None
            sampler.stdout.readline()
            if who == "agent":
                sampler.stdout.close()  # its questions reach nobody
            sent = start(1)
            if who == "sampler":
                assert "dispersion" in sampler.stdout.readline()  # the flow runs, and asks
                sampler.kill()
            (one,) = summary(sent)["each"]
            assert sampler.poll() is None or who == "sampler"
            if who == "agent":
                with Path(f"/proc/{sampler.pid}/fd/1").open() as told:  # somebody reads again
                    sampler.terminate()
                    said = json.loads(told.read().splitlines()[-1])
                assert said["flows"] == 1
                assert sum(said["judged"]) == sum(said["ended"]) == 0
        assert one["seconds"] < 10
    wait_until(GONE, "sq_rate is still there")


def captured(path: Path, pattern: str) -> str:
    found = re.search(pattern, path.read_text(), re.DOTALL)
    assert found, f"{path.name} has no {pattern}"
    return found[1]


def test_the_buffers_that_are_refused_are_those_that_the_router_refuses(project: Path) -> None:
    options = project / "testbed" / "router" / "options.h"
    for place, value in enumerate((fct.LEAST_BYTES, fct.MOST_BYTES)):
        bounds = captured(options, r'name == "max_bytes"\)\s*plain\(p.max_bytes, (.*?)\);')
        assert float(bounds.split(",")[place]) == value


OWNERS = {
    "completions": """
from swiftqueue.studies.rate.testbed import completions
completions.download(completions.Traffic(flows=20), 50, 1, 0, 1, lambda samples, records: None)
""",
    "collect": """
from swiftqueue.studies.rate.testbed.flows import KernelPath, collect
collect(KernelPath(rate_mbps=20, rtt_ms=40, flows=50), folder)
""",
}
KILLED = [("completions", 1), ("completions", 3), ("completions", 5)]
KILLED += [("collect", 1), ("collect", 3), ("collect", 4)]


@pytest.mark.long
@needs_bed
@pytest.mark.slow
@pytest.mark.parametrize(("run", "programs"), KILLED)
def test_nothing_stays_of_a_run_that_is_killed(
    tmp_path: Path, project: Path, run: str, programs: int
) -> None:
    check_nothing_stays(OWNERS[run], programs, {CONTROL}, tmp_path, project)


def test_bad_options_are_one_line() -> None:
    for words, line in (
        ("--artifact here", "no network at here; `dvc repro studies/rate/dvc.yaml` makes it"),
        ("--variant suss", "variant suss: must be one of bbr, oracle, half-oracle"),
        ("--rtt 0", "'--rtt': Input should be greater than or equal to 1"),
        ("--minutes nan", "'--minutes': Input should be greater than or equal to 0"),
        ("--seeds 0", "'--seeds': Input should be greater than or equal to 1"),
        ("--load 0 --variant random", "--load 0: must be above 0, and finite"),
    ):
        said = CliRunner().invoke(app, ["rate", "completions", *words.split()])
        assert said.exit_code != 0
        assert line in f"{said.exception} {said.output}"
