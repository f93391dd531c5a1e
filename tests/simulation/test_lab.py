"""The laboratory with real runs on real Ray: all controls, resumption, the model in the loop, the report."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import pytest
import yaml
from safetensors.numpy import load_file
from waiting import wait_until

from swiftqueue.feature_store.packets.extract import ExtractJob, extract_trace
from swiftqueue.feature_store.packets.schema import scan_packets
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.laboratory import command
from swiftqueue.laboratory.command import Request, run_lab
from swiftqueue.laboratory.explain import explain
from swiftqueue.laboratory.learning.judged_models import models_by_profile
from swiftqueue.laboratory.learning.packet_table import packets_of
from swiftqueue.laboratory.learning.train import explore
from swiftqueue.laboratory.report import comparison, looks
from swiftqueue.laboratory.report.page import make_report
from swiftqueue.laboratory.runs import execution, programs
from swiftqueue.laboratory.runs.resolve import Model
from swiftqueue.laboratory.runs.results import COMPLETE, FILE, NOT_RUN, load
from swiftqueue.laboratory.scenarios.controls import CONTROLS
from swiftqueue.laboratory.scenarios.files import FOLDER
from swiftqueue.laboratory.scenarios.files import load as load_scenario
from swiftqueue.models.networks.files import WEIGHTS_FILE

pytestmark = pytest.mark.slow


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
        "profiles": ["uncoupled"],
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


@pytest.mark.long
def test_every_control_is_run_resumed_and_reported(
    ray_cluster: None,
    tiny: Callable[..., str],
    make_artifact: Callable[..., Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The whole way, with an untrained model: what it chooses does not matter here, that it is asked does."""
    output = tmp_path / "lab"
    willing = {"controls": {"model": {"margin_us": 0, "margin_share": 0}}}
    scenario = tiny(controls=list(CONTROLS), environment=willing)
    request = Request([scenario], artifact=str(make_artifact(3)), truth=True, pcap=True)
    assert run_lab(request, output) == 0
    assert "of which ACKs' latencies it learned is not known (it has no" in capfd.readouterr().out
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

    def truth_of(control: str) -> pl.DataFrame:
        return pl.read_parquet(output / "runs" / figures(output, control)["run"] / "truth.parquet")

    def p99(values_us: pl.Series) -> float:
        sorted_us = values_us.drop_nulls().sort()  # float32
        return float(sorted_us[min(int(0.99 * len(sorted_us)), len(sorted_us) - 1)])

    l4s_flows = truth_of("default").filter(pl.col("default_queue") == "l4s")["flow_id"].unique()
    for row in runs.iter_rows(named=True):
        sent = truth_of(row["control"]).filter(pl.col("sent_ns") >= 1e9, pl.col("flow_id").is_in(l4s_flows))
        movable = sent.filter(pl.col("default_queue") == "l4s")["queue"]
        assert np.float32(row["queueing_p99_us"]) == p99(sent["queueing_us"]), row["control"]
        assert np.float32(row["rtt_p99_us"]) == p99(sent["latency_us"]), row["control"]
        assert row["moved_share"] == (movable == "classic").mean(), row["control"]
        assert (row["unforeseen_share"] is not None) == (row["control"] == "model")
    model = figures(output, "model")
    decisions = json.loads((output / "runs" / model["run"] / "summary.json").read_text())["decisions"]
    assert model["unforeseen_share"] == decisions["unforeseen"] / truth_of("model").height > 0

    truth = truth_of("oracle")
    assert truth["queueing_us"].null_count() < truth.height
    capture = output / "runs" / figures(output, "oracle")["run"] / execution.CAPTURE
    assert extract_trace(ExtractJob(capture, "t", "10.0.0.1"), tmp_path / "t")["data_packets"] == truth.height

    def written() -> dict[Path, float]:
        return {p: p.stat().st_mtime_ns for p in (output / "runs").rglob("*") if p.is_file()}

    before = written()
    capfd.readouterr()
    assert run_lab(request, output) == 0
    assert written() == before  # nothing was run again
    assert "6 of 6 have their result already" in capfd.readouterr().out
    assert load(output).equals(runs)

    # what --controls leaves out keeps its rows, random's share too
    assert run_lab(replace(request, controls=["default", "oracle"]), output) == 0
    assert written() == before
    assert load(output).equals(runs)

    page = make_report(output)[0].read_text()
    assert all(f'<tr class="{control}">' in page for control in CONTROLS)


def test_a_run_is_explained_once_simulated(
    ray_cluster: None,
    tiny: Callable[..., str],
    make_artifact: Callable[..., Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "lab"
    points = {name: {"at": ms, "set": {"rtt_ms": ms}} for name, ms in (("near", 20), ("far", 50))}
    scenario = tiny(axis={"label": "RTT, ms", "points": points})
    asked: dict[str, Any] = {
        "artifact": str(make_artifact(3)),
        "profile": "uncoupled",
        "point": "far",
        "seed": 2,
        "seconds": 3.0,
        "output": output,
    }
    said = []
    for _ in range(2):
        assert explain(scenario, **asked) == 0
        said.append(capfd.readouterr().out)
    assert said[0] == said[1]
    assert len(list((output / execution.RUNS).iterdir())) == 1
    assert "tiny, far, uncoupled, model, seed 2, 3 s" in said[0]
    row = next(line for line in said[0].splitlines() if " r1 " in line)
    _, receiver, least, moved, packets, *_ = (cell.strip() for cell in row.split("│"))
    assert receiver == "r1"
    assert 49 < float(least) < 52
    assert moved.endswith("%")
    assert int(packets.replace(",", "")) > 20
    assert re.search(r"P99 of queueing delay [\d.]+ ms: the \d+ packets above it left in \d+ epi", said[0])
    for key, value, line in (
        ("point", "", "--point .none.: tiny has .*near, far"),
        ("profile", "rfc9332", "--profile rfc9332: tiny has uncoupled"),
        ("seed", 0, "--seed 0: give 1 to"),
        ("seconds", 1.0, "--seconds 1: the first 1 s are left out"),
    ):
        with pytest.raises(ValueError, match=line):
            explain(scenario, **asked | {key: value})


@pytest.mark.long
def test_rows_alone_will_do_where_their_runs_are_not_at_hand(
    ray_cluster: None,
    tiny: Callable[..., str],
    make_artifact: Callable[..., Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    scenario = tiny(seconds=2, controls=["default", "model", "random", "no_l4s"])
    request = Request([scenario], artifact=str(make_artifact(3)), controls=["default", "model", "random"])
    assert run_lab(request, tmp_path / "lab") == 0
    rows = load(tmp_path / "lab").filter(pl.col("status") == COMPLETE)
    published = tmp_path / "published"
    published.mkdir()
    shutil.copy(tmp_path / "lab" / FILE, published)
    capfd.readouterr()
    assert run_lab(replace(request, controls=["default", "no_l4s"]), published) == 0  # one more
    said = capfd.readouterr().out
    assert "runs: 2 of 3 have their result already" in said
    assert "random marking and placebos: 1 of 1 have their result already" in said
    whole = load(published)
    assert set(whole["status"]) == {COMPLETE}
    assert whole.filter(pl.col("control") != "no_l4s").equals(rows)
    # a row has no packets: these are run
    assert run_lab(replace(request, controls=["default"], truth=True), published) == 0
    assert (published / "runs" / figures(published, "default")["run"] / execution.TRUTH_PARQUET).is_file()


def test_what_cannot_be_run_stands_in_the_results_with_the_reason(
    ray_cluster: None,
    tiny: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    gone = Model(tmp_path / "gone", "c0ffee", "selective")  # since it was looked at
    monkeypatch.setattr(command, "models_by_profile", lambda *_: {"uncoupled": gone})
    output = tmp_path / "lab"
    scenario = tiny(seconds=2, controls=["default", "random", "model"], profiles=["rfc9332", "uncoupled"])
    assert run_lab(Request([scenario], artifact="given"), output) == 1
    assert "model: 1 run left out: --artifact has no rfc9332/\n" in capfd.readouterr().out
    rows = {(r["profile"], r["control"]): r for r in load(output).iter_rows(named=True)}
    assert {key for key, row in rows.items() if row["status"] == COMPLETE} == {
        ("rfc9332", "default"),
        ("uncoupled", "default"),
    }
    assert "gone" in rows["uncoupled", "model"]["reason"]
    assert "--artifact has no rfc9332/" in rows["rfc9332", "model"]["reason"]
    assert "neither model nor oracle was run" in rows["uncoupled", "random"]["reason"]
    assert len(list((output / "runs").iterdir())) == 2
    assert "random: not run" in make_report(output)[0].read_text()


@pytest.mark.long
def test_a_scenario_of_another_disc_is_run_without_its_oracle(
    ray_cluster: None, tiny: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_disc(kind: str, **attributes: Any) -> str:
        disc = {"type": kind, "attributes": attributes}
        link = {"mbps": 25, "buffer_bdp": 8, "disc": disc}
        controls = ["default", "oracle", "oracle_late"]
        return tiny(environment={"bottlenecks": [link]}, controls=controls, seconds=2, regret=True)

    assert run_lab(Request([with_disc("ns3::FqCoDelQueueDisc")]), tmp_path / "lab") == 0
    rows = {row["control"]: row for row in load(tmp_path / "lab").iter_rows(named=True)}
    assert rows["default"]["status"] == COMPLETE
    assert rows["default"]["choice_right_share"] is None
    for control in ("oracle", "oracle_late"):
        assert rows[control]["reason"] == "ns3::FqCoDelQueueDisc gives no view of its queues"

    asked: list[object] = []
    check = execution.check
    monkeypatch.setattr(execution, "check", lambda *given: asked.append(given) or check(*given))
    for kind, attributes, line in (
        ("ns3::Nothing", {}, "type: there is no queue disc ns3::Nothing"),
        (
            "ns3::FifoQueueDisc",
            {"Size": 1},
            "attributes.Size: ns3::FifoQueueDisc has no such attribute, it has",
        ),
    ):
        with pytest.raises(ValueError, match=rf"^tiny\.yaml: environment: bottlenecks\.0\.disc\.{line}"):
            run_lab(Request([with_disc(kind, **attributes)]), tmp_path / "wrong")
    assert len(asked) == 2  # seeds and controls have one network
    assert not (tmp_path / "wrong" / FILE).exists()


def test_points_left_out_stand_with_the_reason_until_they_are_run(
    ray_cluster: None, tiny: Callable[..., str], tmp_path: Path
) -> None:
    """Only what the pattern names is run; what was run before counts."""
    output = tmp_path / "lab"
    points: dict[str, Any] = {str(ms): {"set": {"rtt_ms": ms}} for ms in (8, 16)}
    lost = {"kind": "replay", "packets": "no/such", "trace": None}
    points["replay"] = {"set": {"senders.s1.groups.l4s.traffic": lost}}
    axis = {"label": "x", "parts": {"all": points}, "only": list(points)}  # none of those of `small`
    request = Request([tiny(axis=axis)])
    reasons = lambda: dict(load(output).sort("point").select("point", "reason").iter_rows())  # noqa: E731
    assert run_lab(replace(request, points=["8"]), output) == 0
    left_out = "left out by --points"
    assert reasons() == {"8": None, "16": left_out, "replay": left_out}
    assert run_lab(replace(request, points=["1?"]), output) == 0
    assert reasons() == {"8": None, "16": None, "replay": left_out}
    with pytest.raises(ValueError, match="no/such: no such folder of packet tables"):
        run_lab(request, output)


@pytest.mark.long
def test_a_point_gets_further_seeds_only_until_its_change_is_settled(
    ray_cluster: None,
    tiny: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without L4S the wait is many times as long; with the same marking twice there is nothing to settle."""
    monkeypatch.setattr(comparison, "FEWEST_PACKETS", 1)  # of runs that are short for a test's sake
    output, seeds = tmp_path / "lab", list(range(1, 7))
    axis = {
        "label": "x",
        "points": {  # in the place of those of `small`
            "3": {"set": {}, "controls": ["default", "no_l4s"]},
            "9": {"set": {"controls.random.share": 0.0}, "controls": ["default", "random"]},
        },
    }
    controls = ["default", "no_l4s", "random"]
    request = Request([tiny(seconds=3, seeds=seeds, profiles=["rfc9332"], controls=controls, axis=axis)])
    assert run_lab(replace(request, until_settled=True), output) == 0
    assert dict(looks.load(output).select("point", "settled_at").iter_rows()) == {"3": 5, "9": None}
    run = load(output).group_by("point").agg(pl.col("seed").n_unique())
    assert dict(run.iter_rows()) == {"3": 5, "9": 6}


@pytest.mark.long
def test_controls_left_out_stand_with_the_reason_until_they_are_run(
    ray_cluster: None, tiny: Callable[..., str], tmp_path: Path
) -> None:
    output = tmp_path / "lab"
    request = Request([tiny(seconds=2, controls=["default", "no_l4s", "oracle"])])
    some = replace(request, controls=["default", "oracle"])
    assert run_lab(some, output) == 0
    assert figures(output, "no_l4s")["status"] == NOT_RUN
    assert figures(output, "no_l4s")["reason"] == "left out by --controls"
    assert run_lab(request, output) == 0
    runs = load(output)
    assert set(runs["status"]) == {COMPLETE}
    assert run_lab(some, output) == 0
    assert load(output).equals(runs)
    # another length is another run: nothing of the whole ones is put beside it
    assert run_lab(replace(some, seconds=3), output) == 0
    assert figures(output, "no_l4s")["status"] == NOT_RUN
    assert set(load(output).filter(pl.col("status") == COMPLETE)["seconds"]) == {3.0}


@pytest.mark.long
def test_the_head_is_tuned_during_the_run(
    tiny: Callable[..., str],
    make_artifact: Callable[..., Path],
    ray_cluster: None,
    tmp_path: Path,
) -> None:
    """The program starts the project's own fine-tuning, and the tuned head answers."""
    tuned = {"finetune_every_s": 2.5, "finetune_span_s": 1.0, "finetune_apply_after_s": 0.2}
    scenario = tiny(controls=["default", "model"], environment={"controls": {"model": tuned}})
    output = tmp_path / "lab"
    parent = make_artifact(3)
    assert run_lab(Request([scenario], artifact=str(parent)), output) == 0
    folder = output / "runs" / figures(output, "model")["run"]
    summary = json.loads((folder / "summary.json").read_text())
    assert [r["version"] for r in summary["finetune"]] == [2]
    assert set(summary["decisions"]["versions"]) == {"1", "2"}
    # a round that knew no latency would have kept the head
    before = load_file(parent / WEIGHTS_FILE)
    after = load_file(folder / summary["finetune"][0]["artifact"] / WEIGHTS_FILE)
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name].tobytes() != after[name].tobytes()}
    assert changed == {name for name in before if name.startswith("head.")}


@pytest.fixture
def other_cluster() -> Iterator[tuple[str, Path]]:
    """A Ray cluster that the command does not start: its address, and its folder, which its nodes name."""
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # short: a socket's path has 107 characters at most
    address = f"127.0.0.1:{free_ports(1)[0]}"
    start = [Path(sys.executable).parent / "ray", "start", "--head", "--block", f"--port={address[10:]}"]
    options = ["--node-ip-address=127.0.0.1", "--num-cpus=1", "--include-dashboard=false"]
    running = subprocess.Popen([*start, *options, f"--temp-dir={folder}"], start_new_session=True)
    try:
        yield address, folder
    finally:
        running.terminate()
        running.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.long
def test_the_same_command_uses_a_cluster(
    other_cluster: tuple[str, Path], tiny: Callable[..., str], tmp_path: Path
) -> None:
    """With RAY_ADDRESS the simulation is a child of that cluster's, not of one of the command's own."""
    address, folder = other_cluster
    command = [
        sys.executable,
        "-c",
        "from swiftqueue.cli.app import app; app()",
        "lab",
        "run",
        tiny(seconds=30),
    ]
    environment = {**os.environ, "RAY_ADDRESS": address}
    where: set[bool] = set()
    while not where:  # again while the cluster is not up yet, or if on a busy machine nothing was seen
        output = Path(tempfile.mkdtemp(dir=tmp_path))
        running = subprocess.Popen([*command, "--output", str(output)], env=environment)
        while running.poll() is None:
            for process in _simulations_of(output):
                with suppress(psutil.NoSuchProcess):  # it has just ended
                    where.add(_is_below(process, folder))
            time.sleep(0.05)
    assert running.returncode == 0
    assert figures(output, "default")["status"] == COMPLETE
    assert where == {True}


def _simulations_of(output: Path) -> list[psutil.Process]:
    return [process for process in _processes_of(output) if process.info["cmdline"][0].endswith("/lab")]


def _is_below(process: psutil.Process, folder: Path) -> bool:
    """Whether one of the processes that started it names the folder."""
    return any(str(folder) in " ".join(parent.cmdline()) for parent in process.parents())


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


@pytest.mark.long
def test_a_killed_command_leaves_nothing_half_and_goes_on(
    ray_cluster: None, tiny: Callable[..., str], tmp_path: Path
) -> None:
    output = tmp_path / "lab"
    # a short run that is complete when the long one is killed
    request = Request([tiny("short", seconds=2), tiny("long", seconds=300)])
    command = [
        sys.executable,
        "-c",
        "from swiftqueue.cli.app import app; app()",
        "lab",
        "run",
        *request.scenarios,
    ]
    running = subprocess.Popen([*command, "--output", str(output)], start_new_session=True)

    def held() -> bool:
        assert running.poll() is None, "it ended before it could be killed"
        return bool(load(output).height and _pause_simulations(output, running.pid))

    wait_until(held)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    wait_until(lambda: not _processes_of(output), "a killed command's simulations go with it")
    whole = {p.name for p in (output / "runs").iterdir() if not p.name.startswith(".")}
    assert len(whole) == 1
    assert set(load(output)["run"]) == whole
    for name in whole:
        assert (output / "runs" / name / "summary.json").is_file()
    before = {name: (output / "runs" / name).stat().st_mtime_ns for name in whole}

    assert run_lab(request, output) == 0
    assert set(load(output)["status"]) == {COMPLETE}
    assert load(output).height == 2
    assert {name: (output / "runs" / name).stat().st_mtime_ns for name in whole} == before
    assert not list((output / "runs").glob(".*"))


def test_exploration_traces_explore_and_say_how(
    ray_cluster: None, tiny: Callable[..., str], tmp_path: Path
) -> None:
    """A trace per packet and one per burst; about the share that is said is moved."""
    wanted = {"share": 0.2, "burst_packets": [1, 8], "seconds": 4, "seeds": [1001]}
    scenario = load_scenario(Path(tiny(explore=wanted)))
    traces = explore("tiny", scenario, *programs.build(), tmp_path / "lab")
    assert traces is not None
    bursts = set()
    for trace, run in traces["uncoupled"].items():
        capture = tmp_path / "lab" / "traces" / f"{trace}.pcap"
        said = json.loads(capture.with_suffix(".json").read_text())["run"]["explore"]
        assert (said["share"], said["seed"]) == (0.2, 1001)
        bursts.add(said["burst_packets"])
        summary = extract_trace(ExtractJob(capture, "t", "10.0.0.1"), tmp_path / trace)
        assert summary["latency_known"] > 0.8 * summary["data_packets"]
        packets = scan_packets(tmp_path / trace, "t").collect()
        same = ["packet", "sent_ns", "flow_id", "receiver_id", "size_bytes", "ecn", "queue", "retransmitted"]
        assert packets_of(run, "t").select(same).equals(packets.select(same))
        assert pl.read_parquet(capture.with_suffix(".parquet"))["sent_ns"].equals(packets["sent_ns"])
        of_l4s = packets.filter((pl.col("queue") == "l4s").any().over("flow_id"))
        assert (of_l4s["queue"] == "classic").mean() == pytest.approx(0.2, abs=0.08)
    assert bursts == {1, 8}


def test_a_model_is_explored_at_each_point_and_by_a_sender_that_follows_one(
    ray_cluster: None, tiny: Callable[..., str], make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    wanted = {"share": 0.2, "burst_packets": [8], "seconds": 4, "seeds": [1001], "points": True}
    points = {"near": {"set": {}}, "far": {"set": {"rtt_ms": 60}}}
    axis = {"label": "x", "points": points, "only": list(points)}
    scenario = load_scenario(Path(tiny(explore=wanted, axis=axis)))
    followed = models_by_profile(str(make_artifact(3)), tmp_path)
    traces = explore("tiny", scenario, *programs.build(), tmp_path / "lab", followed)
    assert traces is not None
    found = {name: packets_of(run, name) for name, run in traces["uncoupled"].items()}
    names = [f"tiny-uncoupled-point{n}-1001-burst8{who}" for n in (1, 2) for who in ("", "-model")]
    assert list(found) == names
    least_ms = [packets["latency_us"].min() / 1e3 for packets in found.values()]
    assert max(least_ms[:2]) < 60 <= min(least_ms[2:])
    runs = [json.loads((run / "trace.json").read_text())["run"] for run in traces["uncoupled"].values()]
    assert [run["control"]["kind"] for run in runs] == ["default", "model"] * 2
    assert [run["explore"]["share"] for run in runs] == [0.2] * 4


def test_no_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"no C\+\+ compiler \(no-such-compiler\)") as error:
        run_lab(Request(["small"]), tmp_path / "lab")
    assert "\n" not in str(error.value)


def test_a_model_that_learned_from_other_acks_is_refused(
    make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    shutil.copytree(make_artifact(3), tmp_path / "model")
    (tmp_path / "model" / "origin.json").write_text('{"acks": "cumulative"}')
    with pytest.raises(ValueError, match=r"of cumulative ACKs, .* selective ones in small") as error:
        run_lab(Request(["small"], artifact=str(tmp_path / "model")), tmp_path / "lab")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "lab" / "runs").exists()


def test_two_commands_do_not_share_an_output(tmp_path: Path) -> None:
    with execution.sole_user(tmp_path), pytest.raises(ValueError, match="in use by another"):
        run_lab(Request(["small"]), tmp_path)


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (Request(["small"], artifact="no/such/folder"), "--artifact no/such/folder: no such folder"),
        (Request(["small"], artifact="tests"), "--artifact tests: no model.json there"),
        (
            Request(["small"], artifact="tests/data/artifacts/v1-tiny"),
            "v1-tiny.* ebbf31e4",
        ),
        (Request(["small"], seeds=4, until_settled=True), "--until-settled: 4 seeds settle nothing"),
        (Request(["small"], seeds=0), "--seeds 0: give 1 to 999"),
        (Request(["small"], controls=["model"]), "--controls: default must be among them"),
        (Request(["small"], controls=["default", "magic"]), "--controls: there is no 'magic'"),
        (Request(["small"], seconds=2), "--seconds 2: the first 2 s are left out"),
        (Request(["small"], seconds=1e6), "--seconds 1e\\+06: give 100000 at most"),
        (
            Request(["sweep-rtt"], points=["8, *"]),
            "--points '8, \\*': no point is named so; there is 10 ms; 20",
        ),
        (Request(["nothing"]), "nothing: no such scenario; .*`swiftqueue lab scenarios` lists them"),
    ],
)
def test_a_wrong_request_is_one_line_and_runs_nothing(request_: Request, line: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, OSError), match=line) as error:
        run_lab(request_, tmp_path / "lab")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "lab" / "runs").exists()
