"""`swiftqueue study`: what it refuses before anything runs, and a real run of the first stages."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftqueue.benchmarks.synthetic_capture import write_capture
from swiftqueue.common.section import read
from swiftqueue.feature_store.packets.schema import scan_packets
from swiftqueue.models.registry.register_params import RegisterParams
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.training.protocol import PROTOCOLS
from swiftqueue.pipelines.experiments.study import PROJECT, Study, run_study, study_params
from swiftqueue.pipelines.extract import ExtractParams
from swiftqueue.pipelines.params.document import load_yaml, save_yaml
from swiftqueue.pipelines.simulate import SimulateParams, simulate
from swiftqueue.pipelines.simulators import build_simulator


def params_of(protocol: str, *overrides: str, captures: dict[str, Path] | None = None) -> Any:
    return study_params(load_yaml(PROJECT / "params.yaml"), Study(captures or {}, protocol, list(overrides)))


EVENT_STREAM = {"architecture": "event-stream"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_simulated_traces_are_long_enough_for_two_rounds(protocol: str) -> None:
    slices = PROTOCOLS[protocol]
    params = params_of(protocol)
    assert params["split"]["protocol"] == protocol
    assert params["simulate"]["duration_s"] > slices.pretrain_s + 2 * slices.test_s


def test_overrides_reach_their_parameters() -> None:
    params = params_of(
        *("small", "simulate.seeds=[8, 9]", "event-stream.epochs=3", "mlp.layers=1"),
        "event-stream.sharp_weight=2",
    )
    assert params["simulate"]["seeds"] == [8, 9]
    assert set(params["extract"]["traces"]) == {"dumbbell-8", "dumbbell-9"}
    assert params["event-stream"]["epochs"] == 3
    assert params["mlp"]["layers"] == 1  # of another kind than the one that is trained
    assert params["event-stream"]["sharp_weight"] == 2


def test_stages_read_what_a_study_writes(tmp_path: Path) -> None:
    """As DVC does, they read YAML 1.2: what a program writes is a number, and `off` a name."""
    numbers = {"1e-4": 1e-4, "1e-05": 1e-5, "0.00001": 1e-5, "2E-3": 2e-3}
    for text, number in numbers.items():
        params = params_of(
            "small",
            f"finetune.learning_rate={text}",
            "finetune.epochs=010",
            captures={"off": Path("off.pcap")},
        )
        save_yaml(tmp_path / "params.yaml", params)
        assert read(tmp_path / "params.yaml", FinetuneParams).learning_rate == number
        assert read(tmp_path / "params.yaml", FinetuneParams).epochs == 10
        assert list(read(tmp_path / "params.yaml", ExtractParams).traces) == ["off"]
        assert read(tmp_path / "params.yaml", RegisterParams).trace == "off"


@pytest.mark.slow
@settings(max_examples=30)  # each reads params.yaml
@given(
    section=st.sampled_from(["simulate", "event-stream", "none"]),
    key=st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1),
)
def test_an_override_changes_its_own_key_or_is_refused(section: str, key: str) -> None:
    project = yaml.safe_load((PROJECT / "params.yaml").read_text())
    if key in project.get(section, {}):
        return
    with pytest.raises(ValueError, match=r"there is no (section|parameter)"):
        params_of("small", f"{section}.{key}=1")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("event-stream.epochs", "not of the form"),
        ("epochs=3", "not of the form"),
        ("event-stream.epochs=", "not of the form"),
        ("even-stream.epochs=3", r"no section 'even-stream'; did you mean event-stream\?"),
        ("event-stream.epoch=3", r"no parameter event-stream.epoch; did you mean epochs\?"),
        ("event-stream.epochs=many", "event-stream.epochs is 'many'; it must be a whole number"),
        ("simulate.seeds=3", "simulate.seeds is 3; it must be a list"),
        ("simulate.seeds=[0]", "simulate.seeds.0 is 0"),
        ("simulate.seeds=2026-11-27", "simulate.seeds is '2026-11-27'; it must be a list"),
        ("simulate.rtt_ms=0", "simulate.rtt_ms is 0"),
        ("simulate.duration_s=12", "protocol 'small' needs at least 35 s"),
        ("event-stream.epochs=[1", "no YAML value"),
        ("split.protocol=paper", "use --protocol"),
        ("extract.traces={}", "command line"),
    ],
)
def test_a_bad_override_stops_before_anything_runs(override: str, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    with pytest.raises(ValueError, match=message) as error:
        run_study(folder, [], protocol="small", overrides=[override])
    assert "\n" not in str(error.value)
    assert not folder.exists()


def test_where_latencies_come_from_is_part_of_a_study(tmp_path: Path) -> None:
    study = Study({"away": tmp_path / "away.pcap"}, "short", [], "timestamps")
    params = study_params(load_yaml(PROJECT / "params.yaml"), study)
    assert params["extract"]["traces"]["away"]["latency"] == "timestamps"
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.json").write_text(json.dumps(study.settings()))
    (tmp_path / "away.pcap").touch()
    with pytest.raises(ValueError, match=r"away\.pcap: empty file"):  # its protocol and settings are the same
        run_study(
            tmp_path / "study", [tmp_path / "away.pcap"], protocol=None, overrides=[], latency="timestamps"
        )
    with pytest.raises(ValueError, match=r"other settings \(latency: timestamps\)"):
        run_study(tmp_path / "study", [tmp_path / "away.pcap"], protocol="short", overrides=[])


def test_a_study_chooses_its_forecaster_unless_one_is_named(tmp_path: Path) -> None:
    def made(**named: str) -> tuple[str, dict[str, object]]:
        study = Study({"away": tmp_path / "away.pcap"}, "short", [], **named)
        return study_params(load_yaml(PROJECT / "params.yaml"), study)["architecture"][
            "name"
        ], study.settings()

    (auto, settings), (trees, _), (stream, former) = made(), made(architecture="trees"), made(**EVENT_STREAM)
    assert (auto, trees, stream) == ("auto", "trees", "event-stream")
    assert settings["architecture"] == "auto"
    assert "architecture" not in former  # a study from before `auto` goes on with --architecture event-stream
    assert load_yaml(PROJECT / "params.yaml")["architecture"]["name"] == "event-stream"
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.json").write_text(json.dumps(former))
    (tmp_path / "away.pcap").touch()
    with pytest.raises(ValueError, match=r"other settings \(architecture: event-stream\)"):
        run_study(tmp_path / "study", [tmp_path / "away.pcap"], protocol="short", overrides=[])
    with pytest.raises(ValueError, match=r"^architecture.name is 'otto'; it must be one of auto,[^\n]*$"):
        run_study(tmp_path / "new", [], protocol="short", overrides=[], architecture="otto")
    assert not (tmp_path / "new").exists()


def test_bad_folders_and_captures_stop_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.pcap").touch()
    twice = [tmp_path / "a" / "same.pcap", tmp_path / "b" / "same.pcap"]

    def attempt(folder: str, traces: list[Path], protocol: str = "small", latency: str = "acks") -> None:
        run_study(tmp_path / folder, traces, protocol=protocol, overrides=[], latency=latency)

    with pytest.raises(ValueError, match="is a file"):
        attempt("file", [])
    with pytest.raises(ValueError, match="not empty and holds no study"):
        attempt("full", [])
    with pytest.raises(ValueError, match=r"nowhere\.pcap: no such file"):
        attempt("new", [tmp_path / "nowhere.pcap"])
    (tmp_path / "my office.pcap").touch()
    with pytest.raises(ValueError, match=r"'my office' cannot name a trace.*; rename the capture$"):
        attempt("new", [tmp_path / "my office.pcap"])
    (tmp_path / "notes.pcap").write_text("no capture\n" * 100)
    with pytest.raises(ValueError, match=r"notes\.pcap: not a capture"):
        attempt("new", [tmp_path / "notes.pcap"])
    with pytest.raises(ValueError, match="would both be trace 'same'"):
        attempt("new", twice)
    with pytest.raises(ValueError, match="protocol 'long' is unknown"):
        attempt("new", [], protocol="long")
    write_capture(tmp_path / "brief.pcap", 200_000)  # five seconds
    with pytest.raises(ValueError, match=r"brief\.pcap: trace brief lasts .*; protocol 'short' fits"):
        attempt("new", [tmp_path / "brief.pcap"])
    with pytest.raises(ValueError, match="--latency timestamps is of captures, and none is given"):
        attempt("new", [], latency="timestamps")
    with pytest.raises(ValueError, match="no stage 'register'"):
        run_study(tmp_path / "new", [], protocol="small", overrides=[], until="register")
    assert not (tmp_path / "new").exists()
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["thesis.tex"]


@pytest.mark.long
@pytest.mark.slow
def test_a_study_of_simulated_traces_runs_and_resumes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"

    def run(*overrides: str) -> str:
        capfd.readouterr()
        assert run_study(folder, [], protocol="short", overrides=list(overrides), until="extract") == 0
        return capfd.readouterr().out

    overrides = ("simulate.duration_s=8", "simulate.seeds=[4]")
    assert "Running stage 'simulate@4'" in run(*overrides)
    packets = scan_packets(folder / "data/packets").collect()
    assert packets["trace"].unique().to_list() == ["dumbbell-4"]
    assert packets["latency_us"].count() > 1_000

    (folder / "study.json").replace(folder / "study.json.old")
    with pytest.raises(ValueError, match="holds no study"):
        run(*overrides)
    (folder / "study.json.old").replace(folder / "study.json")
    with pytest.raises(ValueError, match=r"other settings \(set: .*simulate\.seeds=\[4\]"):
        run()

    # What is done is not done again; what is lost is.
    assert "Running stage" not in run(*overrides)
    (folder / "dvc.lock").unlink()
    for path in sorted((folder / ".dvc/cache").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert "Running stage 'extract@dumbbell-4'" in run(*overrides)


@pytest.mark.long
@pytest.mark.slow
def test_a_study_of_a_capture_does_not_simulate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    params = yaml.safe_load((PROJECT / "params.yaml").read_text())["simulate"]
    (capture,) = simulate(
        SimulateParams(**params | {"seeds": [6], "duration_s": 7}), tmp_path, build_simulator()
    )
    capture = capture.rename(tmp_path / "wifi.pcap")
    folder = tmp_path / "studies" / "wifi"
    # Seven seconds are too few for `small`, which would stop the study once its folder was made.
    assert run_study(folder, [capture], protocol=None, overrides=[], until="extract") == 0
    assert json.loads((folder / "study.json").read_text())["protocol"] == "short"
    assert "Running stage 'simulate" not in capfd.readouterr().out
    assert (folder / "data/packets/trace=wifi").is_dir()
    assert os.path.samefile(capture, folder / "data/traces/wifi.pcap")
    assert not (folder / "data/traces/simulated").exists()

    params = yaml.safe_load((folder / "params.yaml").read_text())
    assert list(params["extract"]["traces"]) == ["wifi"]
    assert params["register"]["trace"] == "wifi"
    assert params["split"]["protocol"] == "short"
    project = yaml.safe_load((PROJECT / "dvc.yaml").read_text())["stages"]
    assert set(yaml.safe_load((folder / "dvc.yaml").read_text())["stages"]) == set(project) - {
        "simulate",
        "register",
    }


def test_a_capture_without_packets_makes_no_study(tmp_path: Path) -> None:
    capture = tmp_path / "quiet.pcap"
    capture.write_bytes(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
    for asked in (None, "short"):
        with pytest.raises(ValueError, match=r"quiet\.pcap: no packets in it"):
            run_study(tmp_path / "s", [capture], protocol=asked, overrides=[], until="extract")
    assert not (tmp_path / "s").exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_stage_that_fails_stops_the_study_with_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_capture(tmp_path / "brief.pcap", 200_000)
    strict = ["validate.max_latency_s=0.001"]
    brief = [tmp_path / "brief.pcap"]
    assert run_study(tmp_path / "s", brief, protocol="short", overrides=strict, until="validate") != 0
    captured = capfd.readouterr()
    assert "validate: 1 expectations failed" in captured.err
    assert "Traceback" not in captured.out + captured.err
    assert "the same command goes on from there; other settings are another study" in captured.out
