"""What the stages log in MLflow, on SQLite."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest
from mlflow import MlflowClient
from toy_world import bottleneck_table, write_table

from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.common.state import secret, state_dir
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.pages import page
from swiftqueue.infra.local.servers import with_login
from swiftqueue.models.registry.lineage import folder_set, packet_sets
from swiftqueue.models.registry.runs import PARENT_TAG, stage_run
from swiftqueue.models.registry.store import PASSWORD, TRAINING, USER, tracking_uri

pytestmark = pytest.mark.slow
PARAMS = {
    "architecture": {"name": "event-stream"},
    "event-stream": {"layers": 3, "width": 32, "heads": 2},
    "extract": {"traces": {"a": {"sender": None}}},
    "finetune": {"seed": 7},
    "live": {"reservoir": 5},
    "mlp": {"layers": 2, "width": 16},
}


def test_runs_say_what_they_are_of_and_have_steps(
    serving_state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STUDY", "wide")
    write_table(tmp_path / "packets", bottleneck_table("a", 1))
    (made := tmp_path / "model").mkdir()
    (made / "model.json").write_text("{}")
    with stage_run("pretrain", traces=["a", "b"], params=PARAMS, seed=7) as run:
        run.takes(packet_sets(tmp_path / "packets", ["a", "b"], tmp_path / "dvc.lock"))
        run.takes([folder_set(made, tmp_path / "dvc.lock")])
        run.keep(made, "model")
        for epoch in (1, 2, 3):
            run.log(
                {"loss": 1 / epoch, "nested": {"mae_ms": 2.0}, "not": float("nan"), "nor": None}, step=epoch
            )
    with (
        pytest.raises(ValueError, match="diverged"),
        stage_run("finetune", traces=list("abcd"), params={}, seed=7),
    ):
        raise ValueError("diverged")
    client = MlflowClient(tracking_uri())
    found = client.get_experiment_by_name(TRAINING)
    assert found is not None
    runs = {run.info.run_name: run for run in client.search_runs([found.experiment_id])}
    done = runs["pretrain wide a+b event-stream 3x32x2 seed 7"]
    assert done.info.status == "FINISHED"
    assert (done.data.tags["stage"], done.data.tags["variant"], done.data.tags["traces"]) == (
        "pretrain",
        "wide",
        "a, b",
    )
    # Of its own model only: no other network, no LFQ, and no stage after it.
    assert done.data.params == {
        **{"extract.traces.a.sender": "None", "architecture.name": "event-stream"},
        **{"event-stream.layers": "3", "event-stream.width": "32", "event-stream.heads": "2"},
    }
    assert [file.path for file in client.list_artifacts(done.info.run_id, "model")] == ["model/model.json"]
    taken, other = sorted(done.inputs.dataset_inputs, key=lambda one: one.dataset.name)  # b has no table
    assert (other.dataset.name, other.dataset.profile) == ("model", None)
    assert (taken.dataset.name, taken.tags[0].value) == ("a", "training")
    assert json.loads(taken.dataset.source) == {"uri": "packets/trace=a"}
    assert json.loads(taken.dataset.profile)["num_rows"] > 100
    columns = {one["name"]: one["type"] for one in json.loads(taken.dataset.schema)["mlflow_colspec"]}
    assert columns.items() >= {"packet": "long", "latency_us": "float", "lost": "boolean"}.items()
    assert set(done.data.metrics) == {"loss", "nested.mae_ms"}
    history = client.get_metric_history(done.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert runs["finetune wide 4 traces seed 7"].info.status == "FAILED"


def test_the_stages_of_a_variant_are_nested_under_one_run(
    serving_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for study, seed in (("narrow", 7), ("narrow", 8), ("it's long", 7)):
        monkeypatch.setenv("SWIFTQUEUE_STUDY", study)
        params = PARAMS | {"finetune": {"seed": seed}}
        for stage in ("pretrain", "finetune"):
            with stage_run(stage, traces=["a"], params=params, seed=seed):
                pass
    client = MlflowClient(tracking_uri())
    found = client.get_experiment_by_name(TRAINING)
    assert found is not None
    every = client.search_runs([found.experiment_id])
    parents = [run for run in every if run.data.tags["stage"] == "variant" and run.info.run_name != "wide"]
    assert sorted(run.info.run_name for run in parents) == ["it's long", "narrow", "narrow"]
    for parent in parents:  # other parameters are another variant
        below = [run for run in every if run.data.tags.get(PARENT_TAG) == parent.info.run_id]
        assert sorted(run.data.tags["stage"] for run in below) == ["finetune", "pretrain"]
        assert parent.info.status == "FINISHED"
        assert "finetune.seed" in parent.data.params
        assert "live.reservoir" not in parent.data.params


def test_a_store_that_does_not_answer_stops_no_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with stage_run("evaluate", traces=["a"], params=PARAMS, seed=1) as run:
        run.log({"mae_ms": 1.0})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("MLflow: run 'evaluate a event-stream 3x32x2 seed 1' is not logged: ")
    other = {"architecture": {"name": "mlp"}}
    with stage_run("pretrain", traces=["a"], params=PARAMS | other, seed=1):
        pass
    assert "run 'pretrain a mlp 2x16 seed 1' is not logged" in capsys.readouterr().err


def test_an_experiment_of_dvc_keeps_its_state_with_the_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SWIFTQUEUE_STATE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert state_dir() == tmp_path / "var"
    monkeypatch.setenv("DVC_ROOT", "/srv/project")  # of any stage
    assert state_dir() == tmp_path / "var"
    monkeypatch.setenv("DVC_EXP_NAME", "wide")
    assert state_dir() == Path("/srv/project/var")


@pytest.mark.long
def test_up_mlflow_starts_it_alone_and_prints_where_the_runs_are(
    serving_state: Path, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    """Triton's port is another program's. Without the view in the address MLflow shows no runs."""
    with stage_run("pretrain", traces=["a"], params=PARAMS, seed=3):
        pass

    def up() -> str:
        ran = subprocess.run([SWIFTQUEUE, "up", "--mlflow"], capture_output=True, text=True, cwd=project)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(os.environ["SWIFTQUEUE_TRITON_GRPC"])))
        taken.listen()
        try:
            said, again = up(), up()
            assert processes.running("triton") is None
            link = re.search(
                r"runs of the stages: (http://127.0.0.1:\d+)/#/experiments/(\d+)\?workflowType=(\S+)", said
            )
            assert link is not None, said
            assert link[0] in again
            found = MlflowClient(tracking_uri()).get_experiment_by_name(TRAINING)
            assert found is not None
            assert found.experiment_id == link[2]
            request = with_login(f"{link[1]}/", USER, secret(PASSWORD))
            front = re.findall(r'src="([^"]+\.js)"', page(request) or "")
            scripts = [page(with_login(f"{link[1]}/{one}", USER, secret(PASSWORD))) or "" for one in front]
            known = [one for one in scripts if '"workflowType"' in one and f'"{link[3]}"' in one]
            assert known, "MLflow's pages know the view by that name no more"
        finally:
            processes.stop("mlflow")
