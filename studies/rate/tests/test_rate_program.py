"""ns-3's flows: a seed fixes every byte, BBR's estimate is BBR's, and a run goes on where it was stopped."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from swiftqueue.pipelines.simulators import build_simulator
from swiftqueue.pipelines.stage import StageError
from swiftqueue.studies.rate.samples.tables import paths_in, read_path
from swiftqueue.studies.rate.stages.simulate import RateSimulateParams, simulate

pytestmark = pytest.mark.slow
HIGH_GAIN, MARGIN = 2.89, 0.99  # BBR's gain in STARTUP, and its margin of pacing


@pytest.fixture(scope="module")
def program() -> Path:
    return build_simulator(program="rate")


def params(**changed: object) -> RateSimulateParams:
    given = {
        "seed": 1, "flows": 3, "receivers": 2, "bytes": 300_000,
        "train_mbps": [20.0], "train_rtt_ms": [40.0], "held_out_mbps": [50.0], "held_out_rtt_ms": [80.0],
        "buffer_bdp": [1.0], "load": [0.3], "cross": [0.1],
    }  # fmt: skip
    return RateSimulateParams(**given | changed)


def test_flows_of_a_path(program: Path, tmp_path: Path) -> None:
    made: list[str] = []
    assert simulate(params(), tmp_path / "a", program, lambda name, *_: made.append(name)) == 2
    assert sorted(made) == ["20mbps-40ms", "50mbps-80ms"]
    assert [about["kind"] for about in paths_in(tmp_path / "a").values()] == ["train", "held-out"]
    simulate(params(), tmp_path / "b", program)
    for name in made:  # a seed fixes every byte
        for one, other in zip(read_path(tmp_path / "a", name), read_path(tmp_path / "b", name), strict=True):
            assert one.equals(other)

    samples, flows = read_path(tmp_path / "a", "20mbps-40ms")
    assert flows["receiver"].is_between(0, 1).all()
    first = samples.filter(pl.col("flow") == 0)
    # In STARTUP the pacing rate follows BBR's own filter, which ours is a copy of, once it has grown.
    grown = first.filter(pl.col("pacing_rate") > pl.col("pacing_rate").min())
    assert len(grown) > 3
    ratio = grown["pacing_rate"].to_numpy() / grown["bbr_bw"].to_numpy()
    assert ratio == pytest.approx(HIGH_GAIN * MARGIN, rel=1e-3)
    # The first ten leave unpaced: their ACKs are a packet of the bottleneck apart.
    gaps_us = np.diff(first["ts"].to_numpy()[:10])
    assert np.median(gaps_us) == pytest.approx(1480 * 8 / 20, rel=0.02)
    assert first["min_rtt"][9] == pytest.approx(40_000, rel=0.08)
    reached = flows["rate_125_bytes_per_s"].drop_nulls()
    assert len(reached)
    assert (reached < 20e6 / 8 * 1.05).all()
    assert flows["rate_2000_bytes_per_s"].null_count() == 3  # 300 kB end before


def test_a_run_goes_on_where_it_was_stopped(program: Path, tmp_path: Path) -> None:
    simulate(params(), tmp_path, program)
    assert simulate(params(), tmp_path, program) == 0
    foreign = tmp_path / "path=office"  # as `swiftqueue rate add` makes one
    shutil.copytree(next(tmp_path.glob("path=*")), foreign)
    about = json.loads((foreign / "path.json").read_text())
    (foreign / "path.json").write_text(json.dumps(about | {"source": "added"}))
    assert simulate(params(held_out_rtt_ms=[90.0]), tmp_path, program) == 1
    assert sorted(paths_in(tmp_path)) == ["20mbps-40ms", "50mbps-90ms", "office"]
    assert simulate(params(seed=2, held_out_rtt_ms=[90.0]), tmp_path, program) == 2
    assert foreign.is_dir()
    (foreign / "path.json").write_text("{")  # damaged: nobody knows whose it is, so it is left alone
    assert simulate(params(seed=2), tmp_path, program) == 1
    assert sorted(path.name for path in tmp_path.glob("path=*")) == [
        *("path=20mbps-40ms", "path=50mbps-80ms", "path=office")
    ]


def test_what_cannot_be_simulated_is_named(program: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="the path of 20 Mbit/s and 40 ms stands twice"):
        params(held_out_mbps=[20.0], held_out_rtt_ms=[40.0]).paths()
    said = subprocess.run(
        [str(program), "--load=0", f"--out={tmp_path}"], capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stderr) == (1, "a value of the path cannot be; see --help\n")
    with pytest.raises(StageError, match=r"false, path \d+mbps-\d+ms: ended with 1"):
        simulate(params(), tmp_path, Path("/bin/false"))
    assert not list(tmp_path.glob("path=*"))
