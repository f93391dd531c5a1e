"""Stage `windows`: what it writes, and what it says when it cannot."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from models.training.windows import load_windows
from toy_world import bottleneck_table, write_table

from feature_store.events.definition import WINDOW
from feature_store.events.windows import FEATURES, HORIZON, build_windows, schema_hash
from pipelines import split as split_stage
from pipelines import windows as stage
from pipelines.stage import StageError

PARAMS: dict[str, Any] = {
    "visibility": ["acked", "previous"],
    "tokens": "auto",
    "tokens_min": 32,
    "tokens_max": 128,
}


@pytest.fixture(scope="module")
def packets_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packets")
    for name, seed in (("a", 1), ("b", 2)):
        write_table(folder, bottleneck_table(name, 10, seed=seed))
    return folder


def run_main(packets_dir: Path, output: Path) -> None:
    path = output.parent / "params.yaml"
    path.write_text(yaml.safe_dump({"windows": PARAMS, "split": {"protocol": "short"}}))
    stage.main(path, packets_dir, output)


def test_stage_writes_windows_targets_features_and_split(
    packets_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_main(packets_dir, tmp_path / "out")
    assert "a: 12" in capsys.readouterr().out
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert meta["schema_hash"] == schema_hash()
    assert meta["features"] == [{"name": f.name, "unit": f.unit} for f in FEATURES]
    divided = split_stage.split(split_stage.SplitParams(protocol="short"), tmp_path / "out")
    assert sorted(meta["traces"]) == ["a", "b"]
    for name, described in meta["traces"].items():
        folder = tmp_path / "out" / name
        table = pl.read_parquet(packets_dir / f"trace={name}" / "**" / "*.parquet").sort("packet")
        for visibility in ("acked", "previous"):
            expected = build_windows(table, meta["tokens"], visibility)
            x_BWF = np.load(folder / f"x_{visibility}.npy", mmap_mode="r")
            assert x_BWF.tobytes() == expected.x_BWF.tobytes()
        assert len(expected.x_BWF) == described["windows"]
        np.testing.assert_array_equal(np.load(folder / "y_us.npy"), expected.y_BH)
        np.testing.assert_array_equal(np.load(folder / "y_acked_ns.npy"), expected.y_acked_ns_BH)
        decision_ns_B = np.load(folder / "decision_ns.npy")
        np.testing.assert_array_equal(decision_ns_B, expected.decision_ns_B)
        np.testing.assert_array_equal(np.load(folder / "first_packet.npy"), expected.first_packet_B)
        seconds_B = (decision_ns_B - decision_ns_B[0]) / 1e9
        lengths = {"name": "short", "pretrain_s": 2.5, "finetune_s": 0.5, "test_s": 1}
        assert divided["traces"][name]["protocol"] == lengths
        rounds = divided["traces"][name]["rounds"]
        assert [r["test"][0] for r in rounds] == [
            np.searchsorted(seconds_B, 2.5 + k) for k in range(len(rounds))
        ]
        assert len(rounds) >= 7


def test_features_are_the_candidates_of_the_windows(packets_dir: Path, tmp_path: Path) -> None:
    run_main(packets_dir, tmp_path / "out")
    features = pl.read_parquet(tmp_path / "out" / "a" / "features.parquet")
    x_BHF = np.load(tmp_path / "out" / "a" / "x_acked.npy")[:, -HORIZON:]
    assert features["packet"].to_list() == list(range(features.height))
    assert (features["horizon"] == features["packet"] % HORIZON).all()
    for i, feature in enumerate(FEATURES):
        if feature.name in WINDOW.not_of_candidates:
            assert len(np.unique(x_BHF[:, :, i])) == 1  # so leaving it out loses nothing
        else:
            np.testing.assert_array_equal(features[feature.name].to_numpy(), x_BHF[:, :, i].ravel())
    y_BH = np.load(tmp_path / "out" / "a" / "y_us.npy")
    np.testing.assert_array_equal(features["latency_us"].to_numpy(), y_BH.ravel())  # the target
    assert (features["decision_ns"].to_numpy()[::8] == np.load(tmp_path / "out/a/decision_ns.npy")).all()


def test_the_window_follows_the_widest_trace_or_the_parameter(packets_dir: Path, tmp_path: Path) -> None:
    meta = stage.make_windows(packets_dir, tmp_path / "auto", stage.WindowsParams(**PARAMS))
    widest = max(t["bdp_packets"] for t in meta["traces"].values())
    assert 1.5 * widest + HORIZON <= meta["tokens"] < 1.5 * widest + HORIZON + 8
    fixed = stage.make_windows(
        packets_dir, tmp_path / "fixed", stage.WindowsParams(**PARAMS | {"tokens": 40})
    )
    assert fixed["tokens"] == 40


def test_only_the_training_slice_sizes_the_window(tmp_path: Path) -> None:
    """Were it the whole trace, a link that is faster after the slice would show in W."""
    table = bottleneck_table("t", 6, seed=1)
    end_ns = int(table["sent_ns"][0]) + 2_500_000_000
    seen = pl.col("acked_ns") <= end_ns
    slower = table.with_columns(
        latency_us=pl.when(seen).then("latency_us").otherwise(pl.col("latency_us") * 5 + 200_000),
        acked_ns=pl.when(seen).then("acked_ns").otherwise(pl.col("acked_ns") + 300_000_000),
    )
    sizes = {}
    for name, each in (("t", table), ("slower", slower)):
        write_table(tmp_path / name, each)
        run_main(tmp_path / name, tmp_path / f"{name}-windows")
        meta = json.loads((tmp_path / f"{name}-windows" / "meta.json").read_text())
        sizes[name] = meta["tokens"], meta["traces"]["t"]["bdp_packets"]
    assert sizes["slower"] == sizes["t"]
    assert stage.measure(slower, "t") > 2 * stage.measure(slower, "t", 2.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"visibility": ["previous"]}, r"windows\.visibility is \['previous'\]; it must be \[acked\] or"),
        ({"visibility": "acked"}, r"windows\.visibility is 'acked'; it must be a list"),
        ({"tokens": 50}, r"windows\.tokens is 50; it must be `auto` or .* a multiple of 8"),
        ({"tokens": "many"}, r"windows\.tokens is 'many'; it must be `auto` or"),
        ({"tokens_min": 256}, r"tokens_min is 256; .*tokens_max, which is 128"),
    ],
)
def test_bad_parameters_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stage.WindowsParams(**PARAMS | change)


def test_a_division_that_cannot_be_is_named(packets_dir: Path, tmp_path: Path) -> None:
    stage.make_windows(packets_dir, tmp_path / "out", stage.WindowsParams(**PARAMS))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}
    with pytest.raises(ValueError, match=r"split\.protocol is 'long'; it must be one of short, small, paper"):
        split_stage.SplitParams(protocol="long")
    with pytest.raises(
        ValueError, match=r"trace a lasts .* s, and protocol 'small' needs .*; protocol 'short'"
    ):
        split_stage.split(split_stage.SplitParams(protocol="small"), tmp_path / "out")
    with pytest.raises(StageError, match="run the stage `windows` first"):
        split_stage.split(split_stage.SplitParams(protocol="small"), tmp_path / "none")
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "out").rglob("*")}


def test_a_trace_may_have_a_protocol_of_its_own(
    packets_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path / "packets", bottleneck_table("long", 40, packets_per_s=200, seed=3))
    shutil.copytree(packets_dir, tmp_path / "packets", dirs_exist_ok=True)
    stage.make_windows(tmp_path / "packets", tmp_path / "windows", stage.WindowsParams(**PARAMS))
    entry: dict[str, Any] = {"file": "x.pcap", "sender": None, "latency": "acks"}
    traces = {"long": entry, "a": entry | {"protocol": "short"}, "b": entry | {"protocol": "short"}}
    params = {"split": {"protocol": "small"}, "extract": {"traces": traces}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    split_stage.main(tmp_path / "params.yaml", tmp_path / "windows", tmp_path / "split.json")
    assert "rounds of short" in (said := capsys.readouterr().out)
    assert "s, 1 rounds of small" in said
    windows = load_windows(tmp_path / "windows", tmp_path / "split.json")
    assert windows.protocol == {"name": "short+small"}
    assert windows.traces["a"].slices.protocol.name == "short"


def test_no_packet_tables(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="run the stage `extract` first"):
        stage.make_windows(tmp_path / "none", tmp_path / "out", stage.WindowsParams(**PARAMS))


def test_a_trace_without_acks_is_named(tmp_path: Path) -> None:
    table = bottleneck_table("mute", 8).with_columns(
        acked_ns=pl.lit(None, pl.Int64), latency_us=pl.lit(None, pl.Float32)
    )
    write_table(tmp_path / "packets", table)
    with pytest.raises(ValueError, match="trace mute: no latency is known in the time to train on"):
        stage.make_windows(tmp_path / "packets", tmp_path / "out", stage.WindowsParams(**PARAMS))


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_windows_alone(packets_dir: Path, project: Path, tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump({"windows": PARAMS, "split": {"protocol": "short"}}))
    output = tmp_path / "windows"
    output.mkdir()
    (output / "meta.json").write_text("kept")
    # A limit on the size of files fails a write just as a full disk does.
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); "
        "sys.argv[0] = 'windows'; runpy.run_module('pipelines.windows', run_name='__main__', alter_sys=True)"
    )
    paths = ["--params", str(params), "--packets", str(packets_dir), "--output", str(output)]
    done = subprocess.run(
        [sys.executable, "-c", limited, *paths], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "windows: " in done.stderr
    assert "x_acked.npy" in done.stderr
    assert "File too large" in done.stderr
    assert (output / "meta.json").read_text() == "kept"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["params.yaml", "windows"]
