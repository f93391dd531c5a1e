"""Stage `simulate`: what it refuses, that a seed fixes every byte, and what the traces hold."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from cpp_suite import passed
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_until

from swiftqueue.common.section import schema_at
from swiftqueue.feature_store.packets.extract import ExtractJob, extract_trace
from swiftqueue.feature_store.packets.schema import scan_packets
from swiftqueue.feature_store.packets.truth import read_waits
from swiftqueue.pipelines.experiments.traces import simulate_trace
from swiftqueue.pipelines.simulate import SimulateParams, simulate
from swiftqueue.pipelines.simulators import build_simulator
from swiftqueue.pipelines.stage import StageError

SECOND_TRACE = "ead6c83db291a3e77ac89876041be7c11ee107b490ce3531ba5b75a678f2d306"  # its first two seconds


@pytest.fixture(scope="module")
def params(project: Path) -> dict[str, Any]:
    section: dict[str, Any] = yaml.safe_load((project / "params.yaml").read_text())["simulate"]
    return section


@pytest.fixture(scope="module")
def program() -> Path:
    return build_simulator()


RANGES = {
    name: about for name, about in schema_at(SimulateParams, [])["properties"].items() if name != "seeds"
}


@given(name=st.sampled_from(sorted(RANGES)), beyond=st.floats(0.001, 1e6), above=st.booleans())
def test_a_value_out_of_range_is_named(name: str, beyond: float, above: bool) -> None:
    params: dict[str, Any] = {"seeds": [1]} | {n: about["minimum"] for n, about in RANGES.items()}
    params["dctcp_flows"] = 1
    SimulateParams(**params)
    low, high = RANGES[name]["minimum"], RANGES[name]["maximum"]
    step = max(1, int(beyond)) if RANGES[name]["type"] == "integer" else beyond
    params[name] = high + step if above else low - step
    with pytest.raises(ValueError, match=rf"simulate\.{name} is .*; it must be a .*number from .* at most"):
        SimulateParams(**params)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": []}, "seeds"),
        ({"seeds": [1, 1]}, "twice"),
        ({"seeds": [0]}, r"simulate\.seeds\.0 is 0; it must be a whole number from 1"),
        ({"seeds": ["a"]}, "whole number"),
        ({"seeds": 3}, "list"),
        ({"receivers": 2.5}, "whole number"),
        ({"duration_s": "long"}, "number"),
        ({"duration_s": float("nan")}, "number"),
        ({"rtt_ms": True}, "number"),
        ({"dctcp_flows": 0, "cubic_flows": 0}, "nothing to capture"),
    ],
)
def test_bad_parameters_get_one_clear_line(
    params: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        SimulateParams(**params | change)
    assert "\n" not in str(error.value)


@pytest.fixture
def unbuilt(project: Path, tmp_path: Path) -> Path:
    """A project folder with the simulator's sources and nothing built."""
    shutil.copytree(project / "simulation", tmp_path / "simulation")
    rules = Path("serving/engine/kernels.mk")
    (tmp_path / rules).parent.mkdir(parents=True)
    shutil.copy2(project / rules, tmp_path / rules)
    return tmp_path


def test_no_compiler_is_said_in_one_line(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(StageError, match=r"no C\+\+ compiler \(no-such-compiler\)"):
        build_simulator(unbuilt)


def test_no_ns3_is_said_in_one_line(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StageError, match=r"ns-3 wheel is not installed.*make setup"):
        build_simulator(unbuilt)


def test_no_make_is_said_in_one_line(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(unbuilt))
    with pytest.raises(StageError, match="make is needed"):
        build_simulator(unbuilt)


def test_make_alone_builds_what_the_traces_need(unbuilt: Path) -> None:
    """A user's first run compiles no test; `tests` names them."""

    def compiled(*targets: str) -> set[str]:
        make = ["make", "--dry-run", "-C", str(unbuilt / "simulation"), f"PYTHON={sys.executable}", *targets]
        said = subprocess.run(make, capture_output=True, text=True, check=True).stdout
        return set(re.findall(r"compiling simulation/(\S+?)\.cc", said))

    needed = compiled()
    assert needed == compiled("lab")
    assert "programs/lab" in needed
    assert not {name for name in needed if name.startswith("test")}
    sources = {str(p.relative_to(unbuilt / "simulation")) for p in unbuilt.rglob("*.cc")}
    assert {f"{name}.cc" for name in compiled("tests") | needed} == sources


@pytest.mark.slow
def test_the_stage_depends_on_every_source_of_its_program(project: Path, program: Path) -> None:
    """`dvc.yaml` names what was compiled into it, so that an edit is simulated, and no tests or docs."""
    deps = yaml.safe_load((project / "dvc.yaml").read_text())["stages"]["simulate"]["do"]["deps"]
    of_simulator = [Path(d).relative_to("simulation") for d in deps if Path(d).parts[0] == "simulation"]
    rules = [program.parent / "programs" / f"{program.name}.d"]
    rules += [p for folder in ("model", "helper") for p in (program.parent / folder).glob("*.d")]
    rules += (program.parent / "programs" / "laboratory").glob("*.d")
    # a rule is `TARGET.o: SOURCE HEADER ...`
    sources = {
        Path(os.path.normpath(Path("simulation", word)))
        for rule in rules
        for word in rule.read_text().replace("\\\n", " ").split()
        # The engine and the agent answer nothing in a trace.
        if word.endswith((".cc", ".h")) and not Path(word).is_absolute()
    }
    assert Path("simulation/programs/lab.cc") in sources
    assert len(sources) > 5
    for source in sources:
        assert any(source.is_relative_to(dep) for dep in deps), source
    assert not {Path(), Path("test"), Path("doc")} & set(of_simulator)


@pytest.mark.slow
def test_exploration_keeps_its_rules() -> None:
    """The C++ suite: whole batches, data only, its share."""
    assert passed("mark-queue-disc-test") == 2  # a case and its suite


@pytest.mark.slow
def test_a_seed_fixes_every_byte(params: dict[str, Any], program: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        simulate(SimulateParams(**params | {"seeds": [1, 2], "duration_s": 2}), folder, program)
    # As the first version of the simulator made it: whoever has the traces keeps them.
    assert hashlib.sha256((first / "dumbbell-2.pcap").read_bytes()).hexdigest() == SECOND_TRACE
    one, two = (first / "dumbbell-1.pcap").read_bytes(), (first / "dumbbell-2.pcap").read_bytes()
    assert one == (second / "dumbbell-1.pcap").read_bytes()
    assert one != two
    magic, _, _, _, _, snaplen, linktype = struct.unpack_from("<IHHiIII", one)
    assert (magic, snaplen, linktype) == (0xA1B23C4D, 96, 101)  # nanoseconds, headers only, raw IP
    described = json.loads((first / "dumbbell-2.json").read_text())
    assert described["explore"] == {"share": params["explore_share"], "burst_packets": 8, "seed": 2}
    assert described["dctcp_dupack_threshold"] == 12  # explored packets overtake
    given = {name: value for name, value in params.items() if name not in ("seeds", "explore_share")}
    assert described.items() >= (given | {"duration_s": 2, "seed": 2}).items()


def test_a_failing_simulation_is_named(params: dict[str, Any], program: Path, tmp_path: Path) -> None:
    (tmp_path / "dumbbell-1").mkdir()
    with pytest.raises(StageError, match=r"lab, seed 1: .*dumbbell-1 exists already"):
        simulate(SimulateParams(**params | {"duration_s": 1, "seeds": [1]}), tmp_path, program)


def test_a_full_disk_is_said(params: dict[str, Any], program: Path, tmp_path: Path) -> None:
    limited = tmp_path / "limited"
    limited.write_text(f"#!/bin/sh\ntrap '' XFSZ\nulimit -f 8\nexec {program} \"$@\"\n")
    limited.chmod(0o755)
    with pytest.raises(StageError, match=r"seed 1: cannot write all of .*s1.pcap: is the disk full"):
        simulate(SimulateParams(**params | {"duration_s": 1, "seeds": [1]}), tmp_path, limited)
    assert not (tmp_path / "dumbbell-1.pcap").exists()


@pytest.mark.slow
def test_one_more_trace_is_a_packet_table_and_a_bad_one_leaves_nothing(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    output = tmp_path / "long"
    assert simulate_trace(output, seed=7, seconds=3) == 0
    packets = scan_packets(output, "dumbbell-7").collect()
    assert packets.height > 1_000
    assert packets["latency_us"].is_not_null().mean() > 0.9  # type: ignore[operator]


@pytest.mark.parametrize(
    ("seed", "seconds", "line"),
    [
        (401, 3, "--seed 401: dumbbell-401 is a trace of params.yaml"),
        (0, 3, r"--seed 0 .*simulate\.seeds\.0 is 0"),
        (7, -4, r"--seconds -4: simulate\.duration_s is -4"),
    ],
)
def test_a_trace_that_cannot_be_simulated_leaves_no_folder(
    seed: int, seconds: float, line: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    with pytest.raises(ValueError, match=line):
        simulate_trace(tmp_path / "long", seed=seed, seconds=seconds)
    assert not (tmp_path / "long").exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_stage_leaves_nothing_half_written(project: Path, program: Path, tmp_path: Path) -> None:
    text = yaml.safe_load((project / "params.yaml").read_text())
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(text))
    command = [
        sys.executable,
        "-m",
        "swiftqueue.pipelines.simulate",
        "--params",
        "params.yaml",
        "--output",
        "traces",
    ]
    stage = subprocess.Popen(command, cwd=tmp_path)
    partial = tmp_path / "traces" / "..done-1.partial" / "dumbbell-1.partial" / "s1.pcap"
    wait_until(lambda: partial.exists() and partial.stat().st_size > 100_000)
    stage.send_signal(signal.SIGKILL)
    stage.wait()
    assert [p.name for p in (tmp_path / "traces").iterdir()] == [partial.parent.parent.name]

    text["simulate"] |= {"duration_s": 1, "seeds": [1]}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(text))
    subprocess.run(command, cwd=tmp_path, check=True)
    names = [f"dumbbell-1.{end}" for end in ("json", "parquet", "pcap")]
    assert sorted(p.name for p in (tmp_path / "traces").iterdir()) == names

    # One seed beside another leaves that alone.
    before = (tmp_path / "traces" / "dumbbell-1.pcap").read_bytes()
    subprocess.run([*command, "--seed", "7"], cwd=tmp_path, check=True)
    assert (tmp_path / "traces" / "dumbbell-1.pcap").read_bytes() == before
    assert len(list((tmp_path / "traces").iterdir())) == 2 * len(names)


@pytest.mark.slow
def test_a_capture_says_what_the_simulator_knows(
    params: dict[str, Any], program: Path, tmp_path: Path
) -> None:
    """Selective ACKs of the capture give, to the nanosecond, the times in the simulator's own log of S1."""
    (capture,) = simulate(SimulateParams(**params | {"seeds": [1], "duration_s": 6}), tmp_path, program)
    extract_trace(ExtractJob(capture, "dumbbell", latency="selective"), tmp_path / "packets")
    packets = scan_packets(tmp_path / "packets", "dumbbell").collect()
    truth = pl.read_parquet(capture.with_suffix(".parquet"))
    assert packets.select("sent_ns", "acked_ns").equals(truth.select("sent_ns", "acked_ns"))
    assert packets["latency_us"].is_null().equals(truth["latency_us"].is_null())
    waits = read_waits(capture.with_suffix(".parquet"), packets)
    assert 0.4 < waits.movable_N.mean() < 0.8
    extract_trace(ExtractJob(capture, "hidden"), tmp_path / "packets")
    hidden = scan_packets(tmp_path / "packets", "hidden").collect()
    assert (hidden["acked_ns"] >= packets["acked_ns"]).all()
    moved = packets.with_columns(cumulative_us=hidden["latency_us"]).filter(waits.movable_N, queue="classic")
    assert moved["cumulative_us"].mean() > moved["latency_us"].mean() + 5_000  # type: ignore[operator]


@pytest.mark.long
@pytest.mark.slow
def test_the_default_traces_are_worth_predicting(
    params: dict[str, Any], program: Path, tmp_path: Path
) -> None:
    """Several flows in both queues, tens of ms of queueing, sharp changes, and the other queue explored."""
    seconds = 20
    (capture,) = simulate(SimulateParams(**params | {"seeds": [1], "duration_s": seconds}), tmp_path, program)
    summary = extract_trace(ExtractJob(capture, "dumbbell"), tmp_path / "packets")
    packets = scan_packets(tmp_path / "packets", "dumbbell").collect()

    # 60,000 to 200,000 data packets in a whole trace
    per_trace = summary["data_packets"] * params["duration_s"] / seconds
    assert 60_000 < per_trace < 200_000
    assert summary["flows"] == params["dctcp_flows"] + params["cubic_flows"]
    assert summary["receivers"] == params["receivers"]
    assert summary["latency_known"] > 0.95 * summary["data_packets"]
    assert summary["sharp_changes"] > 50
    assert summary["skipped"] == {}

    ms = (
        packets.drop_nulls("latency_us")
        .group_by("queue")
        .agg(
            low=pl.col("latency_us").quantile(0.01) / 1e3,
            high=pl.col("latency_us").quantile(0.99) / 1e3,
        )
    )
    assert set(ms["queue"]) == {"l4s", "classic"}
    assert (ms["low"] >= params["rtt_ms"]).all()
    assert (ms["high"] - ms["low"] > 30).all()

    l4s_flows = (
        packets.group_by("flow_id").agg(l4s=(pl.col("queue") == "l4s").mean()).filter(pl.col("l4s") > 0)
    )
    assert len(l4s_flows) == params["dctcp_flows"]
    of_l4s_flows = packets.join(l4s_flows, on="flow_id")
    explored = (of_l4s_flows["queue"] == "classic").mean()
    assert explored == pytest.approx(params["explore_share"], abs=0.02)
