"""A second run of a stage writes the same bytes, so that `dvc repro` leaves dvc.lock as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import toy_world
import yaml

from swiftqueue.models.scoring.evaluation import stable


def stage(folder: Path, name: str, *options: str) -> None:
    """Run a stage on a folder's traces, as DVC does."""
    project = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", f"swiftqueue.pipelines.{name}", *options]
    own = {**os.environ, "SWIFTQUEUE_STATE": str(folder / "var"), "PYTHONPATH": str(project)}
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def bytes_of(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found
    return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Path:
    """Two toy traces with untrained networks, and parameters of which nothing takes long."""
    folder = tmp_path_factory.mktemp("world")
    tables = [toy_world.bottleneck_table(f"toy-{i}", 10, 400, seed=i, episodes=True) for i in (1, 2)]
    toy_world.write_traces(folder, tables)
    toy_world.write_models(folder)
    params = yaml.safe_load((project / "params.yaml").read_text())
    params["architecture"]["name"] = "mlp"
    params["mlp"] |= {"workers": 1, "width": 8, "epochs": 2}
    params["evaluate"]["xgboost_rounds"] = 5
    params["validate"] |= {"max_shift_psi": 100, "max_unknown_latency": 1}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


@pytest.mark.slow
@pytest.mark.long("the same bytes")
@pytest.mark.parametrize("name", ["validate", "pretrain", "evaluate"])
def test_a_stage_writes_the_same_bytes_again(world: Path, name: str) -> None:
    options = ["--params=params.yaml", "--packets=packets", "--split=split.json"]
    if name == "evaluate":
        options += ["--finetuned=finetuned", "--pretrained=pretrained"]
    made = []
    for _ in range(2):
        output = world / f"{name}-made"
        stage(world, name, *options, f"--output={output}")
        made.append(bytes_of(output))
    assert made[0].keys() == made[1].keys()
    assert [file for file in made[0] if made[0][file] != made[1][file]] == []


def test_a_score_has_no_digit_that_hangs_on_the_order_of_a_sum() -> None:
    tenths = [0.1, 0.2, 0.3]
    forwards, backwards = sum(tenths), sum(reversed(tenths))
    assert forwards != backwards
    assert stable({"all": [forwards, 3, None, "x"]}) == stable({"all": [backwards, 3, None, "x"]})
    assert stable({"all": [1 / 3]}) == {"all": [0.333333333]}
