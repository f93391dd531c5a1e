"""What the stages log in MLflow, on SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from feature_store.state import state_dir
from models.registry.runs import EXPERIMENT, stage_run
from models.registry.store import tracking_uri

pytestmark = pytest.mark.slow
PARAMS = {"pretrain": {"layers": 3, "width": 32, "heads": 2}, "extract": {"traces": {"a": {"sender": None}}}}


def test_runs_say_what_they_are_of_and_have_steps(
    serving_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STUDY", "wide")
    with stage_run("pretrain", traces=["a", "b"], params=PARAMS, seed=7) as run:
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
    found = client.get_experiment_by_name(EXPERIMENT)
    assert found is not None
    runs = {run.info.run_name: run for run in client.search_runs([found.experiment_id])}
    done = runs["pretrain wide a+b 3x32x2 seed 7"]
    assert done.info.status == "FINISHED"
    assert (done.data.tags["stage"], done.data.tags["variant"], done.data.tags["traces"]) == (
        "pretrain",
        "wide",
        "a, b",
    )
    assert done.data.params["pretrain.layers"] == "3"
    assert done.data.params["extract.traces.a.sender"] == "None"
    assert set(done.data.metrics) == {"loss", "nested.mae_ms"}
    history = client.get_metric_history(done.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert runs["finetune wide 4 traces ?x?x? seed 7"].info.status == "FAILED"


def test_a_store_that_does_not_answer_stops_no_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with stage_run("evaluate", traces=["a"], params=PARAMS, seed=1) as run:
        run.log({"mae_ms": 1.0})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("MLflow: run 'evaluate a 3x32x2 seed 1' is not logged: ")
    events = {
        "architecture": {"name": "event-stream"},
        "event-stream": {"layers": 1, "width": 64, "heads": 4},
    }
    with stage_run("pretrain", traces=["a"], params=PARAMS | events, seed=1):
        pass
    assert "run 'pretrain a event-stream 1x64x4 seed 1' is not logged" in capsys.readouterr().err


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
