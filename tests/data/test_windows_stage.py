"""Stage `windows`: what it writes, and what it says when it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from bottleneck_tables import bottleneck_table, write_table

from feature_store.windows import FEATURES, HORIZON, build_windows, schema_hash
from pipelines import windows as stage
from pipelines.stage import StageError

PARAMS: dict[str, Any] = {
    "protocol": "short",
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


def run_main(packets_dir: Path, output: Path, params: dict[str, Any], monkeypatch: Any) -> None:
    path = output.parent / "params.yaml"
    path.write_text(yaml.safe_dump({"windows": params}))
    arguments = ["windows", "--params", str(path), "--packets", str(packets_dir), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", arguments)
    stage.main()


def test_stage_writes_windows_targets_features_and_split(
    packets_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_main(packets_dir, tmp_path / "out", PARAMS, monkeypatch)
    assert "a: 12" in capsys.readouterr().out
    meta = json.loads((tmp_path / "out" / "meta.json").read_text())
    assert meta["schema_hash"] == schema_hash()
    assert meta["features"] == [{"name": f.name, "unit": f.unit} for f in FEATURES]
    assert meta["protocol"] == {"name": "short", "pretrain_s": 2.5, "finetune_s": 0.5, "test_s": 1}
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
        assert [r["test"][0] for r in described["rounds"]] == [
            np.searchsorted(seconds_B, 2.5 + k) for k in range(len(described["rounds"]))
        ]
        assert len(described["rounds"]) >= 7


def test_features_are_the_candidates_of_the_windows(
    packets_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_main(packets_dir, tmp_path / "out", PARAMS, monkeypatch)
    features = pl.read_parquet(tmp_path / "out" / "a" / "features.parquet")
    x_BHF = np.load(tmp_path / "out" / "a" / "x_acked.npy")[:, -HORIZON:]
    assert features["packet"].to_list() == list(range(features.height))
    assert (features["horizon"] == features["packet"] % HORIZON).all()
    for i, feature in enumerate(FEATURES):
        if feature.name in stage.CONSTANT:
            assert len(np.unique(x_BHF[:, :, i])) == 1  # so leaving it out loses nothing
        else:
            np.testing.assert_array_equal(features[feature.name].to_numpy(), x_BHF[:, :, i].ravel())
    y_BH = np.load(tmp_path / "out" / "a" / "y_us.npy")
    np.testing.assert_array_equal(features["latency_us"].to_numpy(), y_BH.ravel())  # the target
    assert (features["decision_ns"].to_numpy()[::8] == np.load(tmp_path / "out/a/decision_ns.npy")).all()


def test_the_window_follows_the_widest_trace_or_the_parameter(packets_dir: Path, tmp_path: Path) -> None:
    meta = stage.make_windows(packets_dir, tmp_path / "auto", PARAMS)
    widest = max(t["bdp_packets"] for t in meta["traces"].values())
    assert 1.5 * widest + HORIZON <= meta["tokens"] < 1.5 * widest + HORIZON + 8
    fixed = stage.make_windows(packets_dir, tmp_path / "fixed", {**PARAMS, "tokens": 40})
    assert fixed["tokens"] == 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol": "long"}, "protocol 'long' is unknown; take one of short, small, paper"),
        (
            {"protocol": "small"},
            "trace a lasts .* s, and protocol 'small' needs at least 35 s; protocol 'short'",
        ),
        ({"visibility": ["previous"]}, "visibility = .*must be"),
        ({"visibility": "acked"}, "visibility = .*must be"),
        ({"tokens": 50}, "50 tokens: must be a multiple of 8"),
        ({"tokens": "many"}, "tokens = 'many': must be"),
        ({"tokens_min": 256}, "tokens_min = 256, tokens_max = 128"),
    ],
)
def test_bad_parameters_are_named(
    packets_dir: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises((StageError, ValueError), match=message):
        stage.make_windows(packets_dir, tmp_path / "out", {**PARAMS, **change})


def test_no_packet_tables(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="run the stage `extract` first"):
        stage.make_windows(tmp_path / "none", tmp_path / "out", PARAMS)


def test_a_trace_without_acks_is_named(tmp_path: Path) -> None:
    table = bottleneck_table("mute", 8).with_columns(
        acked_ns=pl.lit(None, pl.Int64), latency_us=pl.lit(None, pl.Float32)
    )
    write_table(tmp_path / "packets", table)
    with pytest.raises(ValueError, match="trace mute: no packet has a known latency"):
        stage.make_windows(tmp_path / "packets", tmp_path / "out", PARAMS)


def test_a_full_disk_leaves_the_last_windows_alone(packets_dir: Path, project: Path, tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump({"windows": PARAMS}))
    output = tmp_path / "windows"
    output.mkdir()
    (output / "meta.json").write_text("kept")
    # A limit on the size of files fails a write just as a full disk does.
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); "
        "sys.argv[0] = 'windows'; runpy.run_module('pipelines.windows', run_name='__main__')"
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
