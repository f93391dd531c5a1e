"""The laboratory with real runs on real Ray: all controls, resumption, the model in the loop, the report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
import yaml

from feature_store.extract import Job, extract_trace
from feature_store.schema import scan_packets
from infra.lab import execution
from infra.lab.command import Request, run_lab
from infra.lab.packet_table import packets_of
from infra.lab.report import make_report
from infra.lab.results import COMPLETE, NOT_RUN, load
from infra.lab.scenario import CONTROLS
from infra.lab.scenario_file import FOLDER
from infra.lab.scenario_file import load as load_scenario
from infra.lab.train import explore

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program() -> tuple[Path, str]:
    return execution.build()


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., str]:
    """Write a scenario of a few seconds on a slow link; keyword arguments replace its keys."""
    shutil.copy(FOLDER / "default.yaml", tmp_path)
    shutil.copy(FOLDER / "small.yaml", tmp_path)
    base = {
        "extends": "small",
        "about": "a test",
        "seconds": 4,
        "warmup_s": 1,
        "seeds": [1],
        "profiles": ["premise"],
        "controls": ["default"],
        "axis": None,
    }

    def write(name: str = "tiny", **changes: Any) -> str:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(base | changes, sort_keys=False))
        return str(path)

    return write


def figures(output: Path, control: str) -> dict[str, Any]:
    (row,) = load(output).filter(pl.col("control") == control).iter_rows(named=True)
    return row


def test_every_control_is_run_resumed_and_reported(
    ray_cluster: None,
    program: tuple[Path, str],
    tiny: Callable[..., str],
    make_artifact: Callable[..., Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The whole way, with an untrained model: what it chooses does not matter here, that it is asked does."""
    output = tmp_path / "lab"
    willing = {"controls": {"model": {"margin_us": 0, "margin_share": 0}}}
    scenario = tiny(controls=list(CONTROLS), environment=willing)
    request = Request([scenario], artifact=str(make_artifact(3)), truth=True)
    assert run_lab(request, output) == 0
    runs = load(output)
    assert set(runs["control"]) == set(CONTROLS)
    assert set(runs["status"]) == {COMPLETE}
    assert figures(output, "default")["moved_share"] == 0
    assert figures(output, "no_l4s")["queueing_p99_us"] > 0
    assert figures(output, "oracle")["moved_share"] > 0
    assert figures(output, "model")["artifact"]
    assert figures(output, "model")["engine_wall_s"] > 0
    assert figures(output, "random")["share_of"] == "model"
    moved = figures(output, "model")["moved_share"]
    assert figures(output, "random")["moved_share"] == pytest.approx(moved, abs=0.15)
    for row in runs.iter_rows(named=True):
        assert row["s1_goodput_bps"] > 1e6, row["control"]
        assert row["queueing_p50_us"] <= row["queueing_p90_us"] <= row["queueing_p99_us"], row["control"]
        assert row["rtt_p50_us"] >= 40_000, row["control"]  # the base round trip
        assert len(row["queueing_cdf_us"]) == 101
        assert ("RFC 4653" in row["reordering"]) == (row["control"] != "no_l4s")

    truth = pl.read_parquet(output / "runs" / figures(output, "oracle")["run"] / "truth.parquet")
    late_enough = truth.filter(pl.col("sent_ns") >= 1e9, pl.col("default_queue") == "l4s")
    assert (late_enough["queue"] == "classic").mean() == pytest.approx(
        figures(output, "oracle")["moved_share"], abs=0.01
    )
    assert truth["queueing_us"].null_count() < truth.height

    def written() -> dict[Path, float]:
        return {p: p.stat().st_mtime_ns for p in (output / "runs").rglob("*") if p.is_file()}

    before = written()
    capfd.readouterr()
    assert run_lab(request, output) == 0
    assert written() == before  # nothing was run again
    assert "6 of 6 have their result already" in capfd.readouterr().out
    assert load(output).equals(runs)

    page = make_report(output).read_text()
    assert "the model" in page
    assert all(f'<tr class="{control}">' in page for control in CONTROLS)


def test_what_cannot_be_run_stands_in_the_results_with_the_reason(
    ray_cluster: None, program: tuple[Path, str], tiny: Callable[..., str], tmp_path: Path
) -> None:
    flows = {"flows": 2000, "tcp": "udp", "ecn": "not_ect", "receiver": "r1"}
    flows["traffic"] = {"kind": "cbr", "mbps": 0.001, "packet_bytes": 100}
    too_many = {"senders": {"cross": {"groups": {f"g{i}": flows for i in range(11)}}}}
    scenario = tiny(controls=["default", "random", "model"], environment=too_many)
    output = tmp_path / "lab"
    assert run_lab(Request([scenario]), output) == 1
    assert set(load(output)["status"]) == {NOT_RUN}
    assert "20000" in figures(output, "default")["reason"].replace(",", "")
    assert "no --artifact was given" in figures(output, "model")["reason"]
    assert "neither model nor oracle was run" in figures(output, "random")["reason"]
    assert not list((output / "runs").iterdir())
    assert "random: not run" in make_report(output).read_text()


def test_the_head_is_tuned_during_the_run(
    program: tuple[Path, str],
    tiny: Callable[..., str],
    make_artifact: Callable[..., Path],
    ray_cluster: None,
    tmp_path: Path,
) -> None:
    """The program starts the project's own fine-tuning, and the tuned head answers."""
    tuned = {"finetune_every_s": 2.5, "finetune_span_s": 1.0, "finetune_apply_after_s": 0.2}
    scenario = tiny(controls=["default", "model"], environment={"controls": {"model": tuned}})
    output = tmp_path / "lab"
    assert run_lab(Request([scenario], artifact=str(make_artifact(3))), output) == 0
    folder = output / "runs" / figures(output, "model")["run"]
    summary = json.loads((folder / "summary.json").read_text())
    assert [r["version"] for r in summary["finetune"]] == [2]
    assert set(summary["decisions"]["versions"]) == {"1", "2"}


def _processes_of(output: Path) -> list[psutil.Process]:
    named = psutil.process_iter(["cmdline"])
    return [process for process in named if str(output) in " ".join(process.info["cmdline"] or ())]


def _pause_simulations(output: Path, command: int) -> bool:
    """Hold the simulations midway, that none of them ends before the command is killed."""
    held = False
    for process in _processes_of(output):
        if process.pid != command:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
                held = True
    return held


def test_a_killed_command_leaves_nothing_half_and_goes_on(
    ray_cluster: None, program: tuple[Path, str], tiny: Callable[..., str], tmp_path: Path
) -> None:
    output = tmp_path / "lab"
    # a short run that is complete when the long ones are killed
    request = Request([tiny("short", seconds=2), tiny("long", seconds=25, controls=["default", "oracle"])])
    command = [sys.executable, "-c", "from infra.cli import main; main()", "lab", "run", *request.scenarios]
    running = subprocess.Popen([*command, "--output", str(output)], start_new_session=True)
    deadline = time.monotonic() + 300
    while not (load(output).height and _pause_simulations(output, running.pid)):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    deadline = time.monotonic() + 60
    while _processes_of(output):
        assert time.monotonic() < deadline, "a killed command's simulations go with it"
        time.sleep(0.1)
    whole = {p.name for p in (output / "runs").iterdir() if not p.name.startswith(".")}
    assert 1 <= len(whole) < 3
    assert set(load(output)["run"]) <= whole  # it may have been killed between a rename and its row
    for name in whole:
        assert (output / "runs" / name / "summary.json").is_file()
    before = {name: (output / "runs" / name).stat().st_mtime_ns for name in whole}

    assert run_lab(request, output) == 0
    assert set(load(output)["status"]) == {COMPLETE}
    assert load(output).height == 3
    assert {name: (output / "runs" / name).stat().st_mtime_ns for name in whole} == before
    assert not list((output / "runs").glob(".*"))


def test_exploration_traces_explore_and_say_how(
    ray_cluster: None, program: tuple[Path, str], tiny: Callable[..., str], tmp_path: Path
) -> None:
    """A trace per packet and one per burst; about the share that is said is moved."""
    wanted = {"share": 0.2, "burst_packets": [1, 8], "seconds": 4, "seeds": [1001]}
    scenario = load_scenario(Path(tiny(explore=wanted)))
    traces = explore("tiny", scenario, *program, tmp_path / "lab")
    assert traces is not None
    bursts = set()
    for trace, run in traces["premise"].items():
        capture = tmp_path / "lab" / "traces" / f"{trace}.pcap"
        said = json.loads(capture.with_suffix(".json").read_text())["run"]["explore"]
        assert (said["share"], said["seed"]) == (0.2, 1001)
        bursts.add(said["burst_packets"])
        summary = extract_trace(Job(capture, "t", "10.0.0.1"), tmp_path / trace)
        assert summary["latency_known"] > 0.8 * summary["data_packets"]
        packets = scan_packets(tmp_path / trace, "t").collect()
        same = ["packet", "sent_ns", "flow_id", "receiver_id", "size_bytes", "ecn", "queue", "retransmitted"]
        assert packets_of(run, "t").select(same).equals(packets.select(same))
        of_l4s = packets.filter((pl.col("queue") == "l4s").any().over("flow_id"))
        assert (of_l4s["queue"] == "classic").mean() == pytest.approx(0.2, abs=0.08)
    assert bursts == {1, 8}


def test_no_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"no C\+\+ compiler \(no-such-compiler\)") as error:
        run_lab(Request(["small"]), tmp_path / "lab")
    assert "\n" not in str(error.value)


def test_two_commands_do_not_share_an_output(tmp_path: Path) -> None:
    with execution.sole_user(tmp_path), pytest.raises(ValueError, match="in use by another"):
        run_lab(Request(["small"]), tmp_path)


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (Request(["small"], artifact="no/such/folder"), "--artifact no/such/folder: no such folder"),
        (Request(["small"], artifact="tests"), "--artifact tests: no model.json there"),
        (Request(["small"], artifact="tests/data/artifacts/v1-tiny"), "made for features .*train again"),
        (Request(["small"], seeds=0), "--seeds 0: give 1 to 999"),
        (Request(["small"], controls=["model"]), "--controls: default must be among them"),
        (Request(["small"], controls=["default", "magic"]), "--controls: there is no 'magic'"),
        (Request(["small"], seconds=2), "--seconds 2: the first 2 s are left out"),
        (Request(["nothing"]), "nothing: no such scenario; there is .*small"),
    ],
)
def test_a_wrong_request_is_one_line_and_runs_nothing(request_: Request, line: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, OSError), match=line) as error:
        run_lab(request_, tmp_path / "lab")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "lab" / "runs").exists()
