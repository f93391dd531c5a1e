"""`swiftqueue trace add` and `list`: a capture joins whole, or nothing changes."""

from __future__ import annotations

import gzip
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

from swiftqueue.benchmarks.synthetic_capture import write_capture
from swiftqueue.common.section import read_all
from swiftqueue.pipelines.experiments.traces import _divided, add_trace, check_name, list_traces, remove_trace
from swiftqueue.pipelines.extract import ExtractParams
from swiftqueue.pipelines.params.document import load_yaml, parse_value, save_yaml
from swiftqueue.pipelines.simulate import SimulateParams, simulate
from swiftqueue.pipelines.simulators import build_simulator


@pytest.fixture(scope="module")
def capture(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight seconds of a sender: long enough for protocol `short` only."""
    params = yaml.safe_load((project / "params.yaml").read_text())["simulate"]
    folder = tmp_path_factory.mktemp("capture")
    (path,) = simulate(SimulateParams(**params | {"seeds": [5], "duration_s": 8}), folder, build_simulator())
    return path.rename(folder / "office.pcap")


@pytest.fixture
def checkout(project: Path, tmp_path: Path) -> Path:
    """A git repository with the project's DVC settings and parameters, protocol `short`."""
    root = tmp_path / "checkout"
    (root / "data" / "traces").mkdir(parents=True)
    shutil.copytree(
        project / ".dvc", root / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp", "config.local")
    )
    for name in ("data/.gitignore", "data/traces/.gitignore", ".dvcignore"):
        shutil.copyfile(project / name, root / name)
    text = (project / "params.yaml").read_text()
    (root / "params.yaml").write_text(text.replace("protocol: small ", "protocol: short "))
    subprocess.run(["git", "init", "--quiet", root], check=True)
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in root.rglob("*")
        if p.is_file() and not {".git", "cache", "tmp"} & set(p.relative_to(root).parts)
    }


@pytest.mark.long
@pytest.mark.slow
def test_a_capture_joins(checkout: Path, capture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (checkout / "params.yaml").read_text()
    add_trace(capture, sender="10.0.0.1", project=checkout)
    copy = checkout / "data/traces/office.pcap"
    assert copy.read_bytes() == capture.read_bytes()
    assert yaml.safe_load(copy.with_name("office.pcap.dvc").read_text())["outs"][0]["path"] == "office.pcap"
    ignored = subprocess.run(["git", "check-ignore", "--quiet", copy], cwd=checkout, check=False)
    assert ignored.returncode == 0  # git holds office.pcap.dvc, DVC the capture

    after = (checkout / "params.yaml").read_text()
    assert yaml.safe_load(after)["extract"]["traces"]["office"] == {
        "file": "data/traces/office.pcap",
        "sender": "10.0.0.1",
        "latency": "acks",
    }
    added = [line for line in after.splitlines() if line not in before.splitlines()]
    assert added == ["    office: {file: data/traces/office.pcap, sender: 10.0.0.1, latency: acks}"]
    assert set(before.splitlines()) <= set(after.splitlines())  # comments too

    capsys.readouterr()
    list_traces(project=checkout)
    listed = capsys.readouterr().out
    assert "office" in listed
    assert "MB" in listed
    assert "dvc repro simulate" in listed  # the default ones have not been made here
    copy.unlink()
    list_traces(project=checkout)
    assert "dvc pull" in capsys.readouterr().out

    # The same bytes under another name, and the same name once more.
    shutil.copyfile(capture, copy)
    unchanged = contents(checkout)
    with pytest.raises(ValueError, match="is trace 'office' already, byte for byte"):
        add_trace(capture, name="again", project=checkout)
    with pytest.raises(ValueError, match=r"a trace 'office' already.*--name"):
        add_trace(capture, project=checkout)
    assert contents(checkout) == unchanged


@pytest.mark.slow
def test_a_short_capture_joins_with_a_protocol_of_its_own(
    checkout: Path, capture: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copyfile(project / "params.yaml", checkout / "params.yaml")  # the project's protocol is `small`
    before = contents(checkout)
    with pytest.raises(
        ValueError, match=r"office.pcap: trace office lasts \d.\d s, and protocol 'small' needs at least 35 s"
    ):
        add_trace(capture, protocol="small", project=checkout)
    assert contents(checkout) == before
    add_trace(capture, project=checkout)
    assert "its own protocol is 'short' (the project's: 'small')" in capsys.readouterr().out
    params = yaml.safe_load((checkout / "params.yaml").read_text())
    assert params["split"]["protocol"] == "small"
    assert params["extract"]["traces"]["office"]["protocol"] == "short"
    ExtractParams(**params["extract"])
    list_traces(project=checkout)
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == [
        *["small"] * 2,
        *["teach"] * 4,
        "short",
    ]


@pytest.mark.slow
def test_a_trace_that_joined_goes_again_and_leaves_nothing(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = tmp_path / "office.pcap"
    write_capture(capture, 200_000)  # five seconds
    before = contents(checkout)
    add_trace(capture, project=checkout)
    table = checkout / "data" / "packets" / "trace=office" / "minute=0"
    table.mkdir(parents=True)
    config = (checkout / ".dvc" / "config").read_bytes()
    joined = contents(checkout)
    (checkout / ".dvc" / "config").write_text("[core\n")
    with pytest.raises(ValueError, match=r"^dvc remove: "):
        remove_trace("office", project=checkout)
    (checkout / ".dvc" / "config").write_bytes(config)
    assert contents(checkout) == joined
    remove_trace("office", project=checkout)
    assert "removed trace 'office'" in capsys.readouterr().out
    left = {name: data for name, data in contents(checkout).items() if name != "data/traces/.gitignore"}
    assert left == {name: data for name, data in before.items() if name != "data/traces/.gitignore"}
    assert "office" not in (checkout / "data/traces/.gitignore").read_text()
    assert not table.parent.exists()
    assert capture.is_file()
    add_trace(capture, project=checkout)  # and may come back


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("home", "params.yaml has no trace 'home'; known: dumbbell-1, "),
        ("dumbbell-1", "register.trace is 'dumbbell-1', whose head is served; name another trace there"),
        ("dumbbell-2", "'dumbbell-2' is simulated: take its seed out of simulate.seeds"),
    ],
)
def test_a_trace_that_cannot_go_stays(checkout: Path, name: str, message: str) -> None:
    before = contents(checkout)
    with pytest.raises(ValueError, match=re.escape(message)):
        remove_trace(name, project=checkout)
    assert contents(checkout) == before


@pytest.mark.slow
def test_a_failing_dvc_leaves_nothing(checkout: Path, capture: Path) -> None:
    (checkout / ".dvc" / "config").write_text("[core\n")
    before = contents(checkout)
    with pytest.raises(ValueError, match=r"^dvc add: "):
        add_trace(capture, project=checkout)
    assert contents(checkout) == before


def _empty(folder: Path, _: Path) -> Path:
    path = folder / "empty.pcap"
    path.touch()
    return path


def _text(folder: Path, _: Path) -> Path:
    path = folder / "notes.pcap"
    path.write_text("a note, and no capture\n" * 100)
    return path


def _missing(folder: Path, _: Path) -> Path:
    return folder / "missing.pcap"


def _short(folder: Path, capture: Path) -> Path:
    path = folder / "short.pcap.gz"
    path.write_bytes(gzip.compress(capture.read_bytes()[:400_000], 1))
    return path


def _ill_named(folder: Path, capture: Path) -> Path:
    path = folder / "my office.pcap"
    shutil.copyfile(capture, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_empty, "empty.pcap: "),
        (_text, "notes.pcap: not a capture"),
        (_missing, "missing.pcap: no such file"),
        (_short, r"short.pcap.gz: trace short lasts \d\.\d s, and protocol 'short' needs at least"),
        (_ill_named, "'my office' cannot name a trace.*--name"),
    ],
)
def test_what_is_no_trace_is_refused_and_leaves_nothing(
    checkout: Path, capture: Path, tmp_path: Path, make: object, message: str
) -> None:
    before = contents(checkout)
    with pytest.raises(ValueError, match=message) as error:
        add_trace(make(tmp_path, capture), project=checkout)  # type: ignore[operator]
    assert "\n" not in str(error.value)
    assert contents(checkout) == before


def test_the_decisions_are_divided_and_not_the_packets() -> None:
    """The last packets of a trace may be no whole batch, and its sender may be silent where it counts."""
    nearly_ns_B = np.arange(0, 34_900, 100) * 1_000_000
    assert _divided(nearly_ns_B, "office", None, "small").protocol.name == "short"
    long_ns_B = np.arange(0, 35_100, 100) * 1_000_000
    assert _divided(long_ns_B, "office", None, "small").protocol.name == "small"
    with pytest.raises(ValueError, match=r"lasts 34\.8 s, and protocol 'small' needs at least 35 s"):
        _divided(nearly_ns_B, "office", "small", "short")
    silent_ns_B = np.array([0, 31, 36, 100]) * 1_000_000_000
    with pytest.raises(ValueError, match=r"silent in the first 30 s"):
        _divided(silent_ns_B, "office", None, "small")
    with pytest.raises(ValueError, match="fewer than 8 packets, so no decision"):
        _divided(np.array([], np.int64), "office", "teach", "small")


def test_a_capture_whose_first_acks_come_too_late_is_refused(checkout: Path, tmp_path: Path) -> None:
    ends = bytes((192, 0, 2, 1)), bytes((198, 51, 100, 1))
    records = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 101)
    for n in range(800):  # in 8 s; protocol `short` trains on 2.5
        for source, destination, payload in ((*ends, 100), (*ends[::-1], 0))[: 2 if n > 300 else 1]:
            ip = struct.pack(">BBHHHBBH4s4s", 0x45, 1, 40 + payload, 0, 0, 64, 6, 0, source, destination)
            numbers = (1, 2, n * 100, 1) if payload else (2, 1, 1, n * 100)
            tcp = struct.pack(">HHIIBBHHH", *numbers, 5 << 4, 0x10, 65_535, 0, 0)
            records += struct.pack("<IIII", n // 100, n % 100 * 10_000, 40, 40 + payload) + ip + tcp
    (tmp_path / "late.pcap").write_bytes(records)
    before = contents(checkout)
    with pytest.raises(
        ValueError, match=r"late\.pcap: trace late: no latency is known in the time to train on"
    ):
        add_trace(tmp_path / "late.pcap", project=checkout)
    assert contents(checkout) == before


@pytest.mark.parametrize("name", ["off", "no", "2026-11-27", "2026-13-45", "1e3", "office"])
def test_a_name_is_the_same_to_dvc_and_to_stages(name: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    save_yaml(path, {name: 1})
    assert list(read_all(path)) == list(load_yaml(path)) == [name]


def test_a_sender_that_is_not_in_it_is_refused(checkout: Path, capture: Path) -> None:
    before = contents(checkout)
    with pytest.raises(ValueError, match=r"192\.0\.2\.1"):
        add_trace(capture, sender="192.0.2.1", project=checkout)
    assert contents(checkout) == before


def test_an_entry_that_lacks_something_is_named(checkout: Path) -> None:
    path = checkout / "params.yaml"
    path.write_text(path.read_text().replace("dumbbell-2.pcap, sender: null,", "dumbbell-2.pcap,"))
    with pytest.raises(ValueError, match=r"parameter extract\.traces\.dumbbell-2\.sender is missing"):
        list_traces(project=checkout)


def test_outside_a_project_it_says_so(capture: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"params\.yaml: no such file; run this in the project's folder"):
        add_trace(capture, project=tmp_path)


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a=b", "a b", "é", "a" * 101])
def test_names_that_make_no_folder_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a trace"):
        check_name(name)


def test_the_params_file_survives_a_round_trip(project: Path, tmp_path: Path) -> None:
    for name in ("params.yaml",):
        shutil.copyfile(project / name, tmp_path / name)
        save_yaml(tmp_path / name, load_yaml(tmp_path / name))
        assert (tmp_path / name).read_text() == (project / name).read_text()
    with pytest.raises(ValueError, match="no YAML value"):
        parse_value("[1, 2")
