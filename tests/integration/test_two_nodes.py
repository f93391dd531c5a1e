"""Two Ray nodes that share nothing but the folders of the work: it lands on the second, which then dies.

What must be shared, and what need not, is a table of docs/OPERATIONS.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import toy_world
import yaml
from two_nodes import SECOND, TwoNodes, two_nodes
from waiting import wait_until

from laboratory.runs import programs
from laboratory.runs.results import COMPLETE, load
from laboratory.scenarios.files import FOLDER
from models.networks import artifact
from models.training.protocol import Protocol
from models.training.ray_job import PROGRESS_FILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.environ.get("SWIFTQUEUE_TEST_ALL") != "1", reason="minutes: make test-all"),
]
EPOCHS = 20
PRETRAIN = {
    "layers": 2,
    "width": 64,
    "heads": 4,
    "seed": 1,
    "workers": 1,
    "epochs": EPOCHS,
    "batch_size": 32,
    "warmup_steps": 40,
    "noam_factor": 0.5,
    "weight_decay": 1e-5,
    "sharp_weight": 10,
    "target": "log",
    "readout": "candidates",
    "anchor": "last_latency_us",
}


@pytest.fixture(scope="module")
def one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as cluster:
        yield cluster


@pytest.fixture
def cluster(one_cluster: TwoNodes) -> TwoNodes:
    """Both nodes, whatever the test before did to the second one."""
    if not one_cluster.processes(SECOND):
        one_cluster.start_second()
    return one_cluster


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Working folder of a program that starts work: it holds nothing of the project, or of a node."""
    folder = tmp_path / "driver"
    folder.mkdir()
    return folder


def named(cluster: TwoNodes, word: str) -> bool:
    """Whether a process of the second node has a word in its command line."""
    return any(word in " ".join(process.cmdline()) for process in cluster.processes(SECOND))


def test_training_goes_on_where_its_node_died_and_ends_with_the_same_weights(
    cluster: TwoNodes, elsewhere: Path, tmp_path: Path
) -> None:
    tables = [toy_world.bottleneck_table(f"t{i}", 1.28, seed=i, swing_ms=60) for i in (0, 1)]
    shared = toy_world.write_windows(tmp_path / "shared", tables, protocol=Protocol("toy", 0.64, 0.16, 0.21))
    (shared / "params.yaml").write_text(yaml.safe_dump({"pretrain": PRETRAIN}))

    def pretrain(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-u", "-m", "pipelines.pretrain", "--params", str(shared / "params.yaml")]
        for given in ("packets", "windows", "split.json"):
            command += [f"--{Path(given).stem}", str(shared / given)]
        environment = {**cluster.environment, "SWIFTQUEUE_STATE": str(shared / f"var-{name}")}
        command += ["--output", str(shared / name)]
        return subprocess.Popen(
            command,
            cwd=elsewhere,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    killed = pretrain("killed")

    def begun() -> bool:
        assert killed.poll() is None, killed.communicate()[0]
        found = shared.glob(f"var-killed/ray/*/{PROGRESS_FILE}")
        return any('"epoch": 4' in path.read_text() for path in found)

    wait_until(begun, "it does not train")
    assert named(cluster, "ray::RayTrainWorker"), "it trains on the second node"
    cluster.kill_second()
    output, _ = killed.communicate()
    assert killed.returncode == 0, output
    assert "resumed at epoch" in output
    straight = pretrain("straight")  # on the first node
    output, _ = straight.communicate()
    assert straight.returncode == 0, output
    one, other = (artifact.load(shared / name).model.state_dict() for name in ("killed", "straight"))
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def test_a_round_goes_on_where_its_node_died(cluster: TwoNodes, project: Path) -> None:
    """The round of test_live_rounds.py, with its Triton and registry, on this cluster."""
    test = "tests/integration/test_live_rounds.py::test_a_round_ends_in_a_served_version"
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", test],
        cwd=project,
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def begun() -> bool:
        assert running.poll() is None, running.communicate()[0]
        return named(cluster, "ray::WarmActor")

    wait_until(begun, "its worker is not on the second node")
    cluster.kill_second()
    output, _ = running.communicate()
    assert running.returncode == 0, output


def test_a_laboratory_run_goes_on_where_its_node_died_and_has_the_same_result(
    cluster: TwoNodes, elsewhere: Path, tmp_path: Path
) -> None:
    programs.build()
    scenario = json.loads(json.dumps({"extends": "small", "about": "a test", "seconds": 20, "warmup_s": 1}))
    scenario |= {"seeds": [1], "profiles": ["uncoupled"], "controls": ["default"], "axis": None}
    for name in ("default.yaml", "small.yaml"):
        (elsewhere / name).write_bytes((FOLDER / name).read_bytes())
    (elsewhere / "tiny.yaml").write_text(yaml.safe_dump(scenario))

    def simulate(output: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from infra.cli import main; main()", "lab", "run", "tiny.yaml"]
        return subprocess.Popen(
            [*command, "--output", str(output)],
            cwd=elsewhere,
            env=cluster.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    killed = simulate(tmp_path / "killed")

    def begun() -> bool:
        assert killed.poll() is None, killed.communicate()[0]
        return named(cluster, str(tmp_path / "killed" / "runs"))

    wait_until(begun, "no simulation runs on the second node")
    time.sleep(0.5)
    assert not load(tmp_path / "killed").height, "it was over before its node died"
    cluster.kill_second()
    output, _ = killed.communicate()
    assert killed.returncode == 0, output
    straight = simulate(tmp_path / "straight")
    output, _ = straight.communicate()
    assert straight.returncode == 0, output
    one, other = (result(load(tmp_path / name)) for name in ("killed", "straight"))
    assert one == other
    assert one["status"] == COMPLETE


def result(runs: pl.DataFrame) -> dict[str, Any]:
    """What a run found, without how long it took here."""
    (row,) = runs.iter_rows(named=True)
    return {name: value for name, value in row.items() if "wall" not in name and "cpu" not in name}
