"""Two Ray nodes that share nothing but an S3-compatible storage: work lands on the second, which then dies.

What must be shared, and what need not, is a table of docs/OPERATIONS.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import event_rows
import mutants
import polars as pl
import pytest
import torch
import toy_world
import yaml
from two_nodes import SECOND, TwoNodes, two_nodes
from waiting import wait_until

from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.feature_store.telemetry.events import SEND, Events
from swiftqueue.feature_store.telemetry.manifest import load_manifest
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.laboratory.runs import programs
from swiftqueue.laboratory.runs.results import COMPLETE, load
from swiftqueue.laboratory.scenarios.files import FOLDER
from swiftqueue.models.networks import artifact
from swiftqueue.models.training.protocol import EvaluationProtocol
from swiftqueue.serving.ingest.client import IngestClient, read_token
from swiftqueue.serving.ingest.senders import INSTALLATION

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not mutants.ALL, reason="minutes: make test-all"),
]
EPOCHS = 40
FINETUNE = {
    "seed": 1,
    "workers": 1,
    "epochs": 2,
    "batch_size": 32,
    "learning_rate": 1e-3,
    "sharp_weight": 1,
}
BATCHES, PACKETS = 40, 200
LIMIT_S = 120.0
NETWORK = {"seed": 1, **toy_world.TINY, "epochs": EPOCHS}


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
def own(cluster: TwoNodes) -> Path:
    """Working folder of a program that starts work; the second node does not see it."""
    return Path(tempfile.mkdtemp(dir=cluster.driver))


def named(cluster: TwoNodes, word: str) -> bool:
    """Whether a process of the second node has a word in its command line."""
    return any(word in " ".join(process.cmdline()) for process in cluster.processes(SECOND))


def test_training_goes_on_where_its_node_died_and_ends_with_the_same_weights(
    cluster: TwoNodes, own: Path
) -> None:
    tables = [toy_world.bottleneck_table(f"t{i}", 1.28, seed=i, swing_ms=60) for i in (0, 1)]
    given = toy_world.write_traces(
        own / "traces", tables, protocol=EvaluationProtocol("toy", 0.64, 0.16, 0.21)
    )
    params = {"architecture": {"name": "event-stream"}, "event-stream": NETWORK, "finetune": FINETUNE}
    (given / "params.yaml").write_text(yaml.safe_dump(params))

    def stage(what: str, name: str, environment: dict[str, str], *options: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-u",
            "-m",
            f"swiftqueue.pipelines.{what}",
            "--params",
            str(given / "params.yaml"),
        ]
        command += ["--packets", str(given / "packets"), "--split", str(given / "split.json"), *options]
        with (own / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [*command, "--output", str(own / name)],
                cwd=own,
                env={**environment, "SWIFTQUEUE_STATE": str(own / f"var-{name}")},
                stdout=log,
                stderr=log,
            )

    def pretrain(name: str) -> subprocess.Popen[bytes]:
        return stage("pretrain", name, cluster.environment)

    def finetune(name: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return stage("finetune", name, environment, "--pretrained", str(own / "straight"))

    def said(name: str) -> str:
        return (own / f"{name}.log").read_text()

    killed = pretrain("killed")

    def begun() -> bool:
        assert killed.poll() is None, said("killed")
        return "epoch 4/" in said("killed")

    wait_until(begun, "it does not train")
    assert named(cluster, "ray::RayTrainWorker"), "it trains on the second node"
    cluster.kill_second()
    assert killed.wait() == 0, said("killed")
    assert "resumed at epoch" in said("killed")
    cluster.start_second()
    straight = pretrain("straight")
    assert straight.wait() == 0, said("straight")
    assert same(own / "killed", own / "straight")
    apart = finetune("apart", cluster.environment)
    assert apart.wait() == 0, said("apart")
    alone = finetune("alone", {**os.environ, "RAY_ADDRESS": ""})
    assert alone.wait() == 0, said("alone")
    rounds = sorted(path.relative_to(own / "alone") for path in (own / "alone").glob("*/round-*"))
    assert rounds
    for one in rounds:
        assert same(own / "alone" / one, own / "apart" / one), one
    assert cluster.stored("training") == [], "a job that ended leaves nothing in the storage"


def same(one: Path, other: Path) -> bool:
    """Whether two artifacts have the same weights."""
    ours, theirs = (artifact.load(folder).model.state_dict() for folder in (one, other))
    return all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_a_round_goes_on_where_its_node_died(cluster: TwoNodes, project: Path, own: Path) -> None:
    """The round of test_live_rounds.py, with its Triton and registry, on this cluster."""
    test = "tests/integration/test_live_rounds.py::test_a_round_ends_in_a_served_version"
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", test, f"--basetemp={own / 'test'}"],
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
    cluster: TwoNodes, own: Path
) -> None:
    programs.build()
    scenario = json.loads(json.dumps({"extends": "small", "about": "a test", "seconds": 20, "warmup_s": 1}))
    scenario |= {"seeds": [1], "profiles": ["uncoupled"], "controls": ["default"], "axis": None}
    for name in ("default.yaml", "small.yaml"):
        (own / name).write_bytes((FOLDER / name).read_bytes())
    (own / "tiny.yaml").write_text(yaml.safe_dump(scenario))

    def simulate(output: Path) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-c",
            "from swiftqueue.cli.app import app; app()",
            "lab",
            "run",
            "tiny.yaml",
        ]
        return subprocess.Popen(
            [*command, "--output", str(output)],
            cwd=own,
            env=cluster.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    killed = simulate(own / "killed")

    def begun() -> bool:
        assert killed.poll() is None, killed.communicate()[0]
        return named(cluster, "--run=")

    wait_until(begun, "no simulation runs on the second node")
    time.sleep(0.5)
    assert not load(own / "killed").height, "it was over before its node died"
    cluster.kill_second()
    output, _ = killed.communicate()
    assert killed.returncode == 0, output
    straight = simulate(own / "straight")
    output, _ = straight.communicate()
    assert straight.returncode == 0, output
    one, other = (result(load(own / name)) for name in ("killed", "straight"))
    assert one == other
    assert one["status"] == COMPLETE


def test_replicas_of_the_ingest_go_on_where_their_node_died_and_nothing_acknowledged_is_lost(
    cluster: TwoNodes, own: Path, tmp_path: Path
) -> None:
    """The store is the one folder that both nodes see (docs/OPERATIONS.md)."""
    store, port, log = tmp_path / "store", free_ports(1)[0], own / "log"
    told = {"SWIFTQUEUE_TELEMETRY": str(store), "SWIFTQUEUE_STATE": str(own / "var")}
    told |= {"SWIFTQUEUE_INGEST_PORT": str(port), "SWIFTQUEUE_INGEST_REPLICAS": "4"}
    with log.open("wb") as output:
        server = subprocess.Popen(
            [SWIFTQUEUE, "part", "ingest"],
            env={**cluster.environment, **told},
            stdout=output,
            stderr=output,
        )

    def serves() -> bool:
        assert server.poll() is None, log.read_text()
        return "ingest: http" in log.read_text()

    try:
        wait_until(serves, log.read_text)
        assert named(cluster, "ServeReplica:swiftqueue-ingest:Ingest"), "a replica is on the second node"
        token = read_token(own / "var" / "secrets" / INSTALLATION)
        client = IngestClient(f"http://127.0.0.1:{port}", "two-nodes", token=token)
        for number in range(BATCHES):
            client.send(sends(number))
            if number == BATCHES // 2:
                cluster.kill_second()
        assert client.flush(LIMIT_S)
        client.close()
        wait_until(lambda: load_manifest(store, "two-nodes").counts.batches >= BATCHES, log.read_text)
    finally:
        server.terminate()
        server.wait()
    counts = load_manifest(store, "two-nodes").counts
    assert (counts.batches, counts.sends, counts.gaps) == (BATCHES, BATCHES * PACKETS, 0)
    assert client.shipped.dropped == client.shipped.refused == 0


def sends(number: int) -> Events:
    """A batch of packets that were sent, a millisecond apart."""
    first = number * PACKETS
    sent = {"kind": SEND, "size_bytes": 1500, "flow_id": 1, "receiver_id": 0, "queue": 0}
    return event_rows.batch(
        [{**sent, "time_ns": 10**18 + at * 1_000_000, "packet": at} for at in range(first, first + PACKETS)]
    )


def result(runs: pl.DataFrame) -> dict[str, Any]:
    """What a run found, without how long it took here."""
    (row,) = runs.iter_rows(named=True)
    return {name: value for name, value in row.items() if "wall" not in name and "cpu" not in name}
