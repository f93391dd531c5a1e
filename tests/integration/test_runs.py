"""What the stages log in MLflow, on SQLite."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

import browser
import numpy as np
import pytest
from mlflow import MlflowClient
from toy_world import bottleneck_table, write_table
from waiting import wait_until

from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.common.state import secret, state_dir
from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.pages import page
from swiftqueue.infra.local.servers import with_login
from swiftqueue.models.networks.artifact import read_files
from swiftqueue.models.registry import live_runs
from swiftqueue.models.registry.bars import Verdict
from swiftqueue.models.registry.lineage import folder_set, packet_sets
from swiftqueue.models.registry.registry import GateDecision, Registry
from swiftqueue.models.registry.runs import stage_run
from swiftqueue.models.registry.store import (
    LIVE_ROUNDS,
    PARENT_TAG,
    PASSWORD,
    TRAINING,
    USER,
    connect,
    tracking_uri,
)
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.pipelines.live import challenger
from swiftqueue.pipelines.live.minute import TuningResult
from swiftqueue.pipelines.live.rounds_log import DeclinedError, RoundRecord
from swiftqueue.pipelines.live.runner import Runner, timed

pytestmark = pytest.mark.slow
FINETUNE = FinetuneParams(seed=1, workers=1, epochs=1, batch_size=8, learning_rate=1e-3, sharp_weight=1)
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


class Registering(Runner[RoundRecord]):
    """Rounds that register an artifact each, with what a round of the loop records."""

    def __init__(self, artifacts: list[Path]) -> None:
        super().__init__("rounds", "latency", "registering.jsonl", RoundRecord, "")
        self._artifacts = artifacts

    def _run(self, record: RoundRecord) -> None:
        if not self._artifacts:
            raise DeclinedError("no telemetry")
        artifact, packets = self._artifacts.pop(0), bottleneck_table("live", 1)
        record.figures = {"challenger": {"log_mae": 1 / record.number, "late_recall": None}}
        record.loss, record.psi, record.packets = (0.5, 0.25), {"size": 0.1, "queue": 0.3}, packets.height
        with timed(record, "register"):
            record.version = challenger.register(
                Registry(self._model),
                TuningResult(
                    files=read_files(artifact),
                    verdict=Verdict(True, "set by a test", ()),
                    figures=record.figures,
                    loss=record.loss,
                    psi=record.psi,
                    trained_on=np.zeros((3, len(EVENTS.features)), np.float32),
                    slices=(),
                    remembered=0,
                    reservoir=None,
                    seconds={},
                ),
                state_dir() / f"challenger-{record.number}",
                champion=1,
                parent=artifact,
                packets=packets,
                finetune=FINETUNE,
                retrained=None,
            )
        record.outcome = "pushed" if record.number > 1 else "kept"


@pytest.fixture(scope="module")
def live_rounds(serving_state: Path, make_artifact: Callable[..., Path]) -> list[RoundRecord]:
    """Three rounds in the registry; the last one registered nothing."""
    first, stages = make_artifact(1, onnx=True), GateDecision(True, "set by a test", None)
    Registry("rounds").add(first, judged=stages, tags={}, params={}, metrics={})
    artifacts = []
    for number in (1, 2):
        folder = shutil.copytree(first, state_dir() / f"tuned-{number}")
        described = json.loads((folder / "model.json").read_text())
        described["protocol"]["name"] = f"round-{number}"  # other content is another version
        (folder / "model.json").write_text(json.dumps(described))
        artifacts.append(folder)
    rounds = Registering(artifacts)
    return [rounds.run() for _ in range(3)]


def test_live_rounds_are_steps_of_their_days_run_and_their_versions_lie_below_it(
    live_rounds: list[RoundRecord],
) -> None:
    assert [(one.outcome, one.version) for one in live_rounds] == [
        ("kept", 2),
        ("pushed", 3),
        ("declined", None),
    ], [one.reason for one in live_rounds]
    client = MlflowClient(tracking_uri())
    found = client.get_experiment_by_name(LIVE_ROUNDS)
    assert found is not None
    every = client.search_runs([found.experiment_id])
    # Other tests' rounds may be there too.
    (day,) = [run for run in every if re.fullmatch(r"rounds of \d{4}-\d\d-\d\d, rounds", run.info.run_name)]
    assert day.data.tags["stage"] == "rounds"
    assert "step of each metric is the round's number" in day.data.tags["mlflow.note.content"]

    def points(name: str) -> list[tuple[int, float]]:
        return [(one.step, one.value) for one in client.get_metric_history(day.info.run_id, name)]

    assert points("gate.challenger.log_mae") == [(1, 1.0), (2, 0.5)]
    assert points("pushed") == [(1, 0), (2, 1)]
    assert points("version") == [(1, 2), (2, 3)]
    assert {"loss.before", "loss.after", "drift_psi", "packets", "seconds.register"} < set(day.data.metrics)
    versions = {run.info.run_name: run for run in every if run.data.tags.get(PARENT_TAG) == day.info.run_id}
    assert set(versions) == {"version 2 telemetry/live", "version 3 telemetry/live"}
    for run in versions.values():
        (taken,) = run.inputs.dataset_inputs
        assert (taken.dataset.name, json.loads(taken.dataset.source)) == ("live", {"uri": "telemetry/live"})
        assert json.loads(taken.dataset.profile)["num_rows"] == live_rounds[0].packets
        assert all(name.startswith("finetune.") for name in run.data.params)
    apart = client.get_experiment_by_name("swiftqueue")
    assert apart is not None
    names = {str(run.info.run_name) for run in client.search_runs([apart.experiment_id])}
    assert "version 1" in names  # and those that other tests register
    assert not names & set(versions)


def test_a_new_day_removes_the_runs_of_old_days(
    live_rounds: list[RoundRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_runs, "DAYS", 3)
    client = connect()

    def days() -> list[str]:
        where = live_runs.day_run(client, "short")[0]
        found = client.search_runs([where], "tags.stage = 'rounds' and tags.model = 'short'")
        return sorted(run.data.tags["day"] for run in found)

    (today,) = days()
    where = live_runs.day_run(client, "short")[0]
    for run in client.search_runs([where], f"tags.day = '{today}' and tags.model = 'short'"):
        client.delete_run(run.info.run_id)
    for day in ("2001-01-01", "2001-01-03", "2001-01-02"):
        client.create_run(where, tags={"stage": "rounds", "model": "short", "day": day})
    assert days() == ["2001-01-02", "2001-01-03", today]
    assert client.search_runs([where], "tags.stage = 'rounds' and tags.model = 'rounds'")


def test_a_store_that_does_not_answer_stops_no_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    rounds = Registering([])
    rounds._log(RoundRecord(7, 0.0, version=3))
    assert "round 7: not logged in MLflow: " in capsys.readouterr().out
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
def test_up_mlflow_starts_it_alone_and_its_pages_show_the_runs(
    live_rounds: list[RoundRecord], monkeypatch: pytest.MonkeyPatch, project: Path, tmp_path: Path
) -> None:
    """Triton's port is another program's. Without the view in the address MLflow shows no runs."""
    pictures = ("precision_recall.png", "error_by_horizon.png")
    for study, layers in (("narrow", 1), ("wide", 3)):
        monkeypatch.setenv("SWIFTQUEUE_STUDY", f"compared-{study}")
        params = PARAMS | {"event-stream": {"layers": layers, "width": 32, "heads": 2}}
        with stage_run("pretrain", traces=["a"], params=params, seed=3) as run:
            for epoch in range(1, 6):
                run.log({"loss": layers / epoch}, step=epoch)
        with stage_run("evaluate", traces=["a"], params=params, seed=3) as run:
            run.log({"late": {"average_precision": 0.1 * layers}})
            (report := tmp_path / study / "report").mkdir(parents=True)
            for name in pictures:
                shutil.copyfile(project / "docs/pictures/dashboard.png", report / name)
            (report / "report.html").write_text("<h1>The report</h1>")
            run.keep(report.parent, "evaluation")

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
            client = MlflowClient(tracking_uri())
            links = {}
            for what, name in (("runs of the stages", TRAINING), ("live rounds", LIVE_ROUNDS)):
                view = r"#/experiments/(\d+)\?workflowType=(\S+)"
                link = re.search(rf"{what}: (http://127.0.0.1:\d+)/{view}", said)
                assert link is not None, said
                assert link[0] in again
                assert client.get_experiment_by_name(name).experiment_id == link[2]
                links[what] = link
            link = links["runs of the stages"]
            request = with_login(f"{link[1]}/", USER, secret(PASSWORD))
            front = re.findall(r'src="([^"]+\.js)"', page(request) or "")
            scripts = [page(with_login(f"{link[1]}/{one}", USER, secret(PASSWORD))) or "" for one in front]
            known = [one for one in scripts if '"workflowType"' in one and f'"{link[3]}"' in one]
            assert known, "MLflow's pages know the view by that name no more"
            if browser.CHROMIUM is not None:
                look_at_runs(client, {what: found[0].partition(": ")[2] for what, found in links.items()})
        finally:
            processes.stop("mlflow")


def look_at_runs(client: MlflowClient, links: Mapping[str, str]) -> None:
    """Open the lists of runs and the comparison of two variants in a browser."""
    with browser.browser() as shown:
        login = with_login("http://localhost", USER, secret(PASSWORD)).headers
        shown.call("Network.setExtraHTTPHeaders", headers=login)

        def look(url: str, picture: str, *wanted: str) -> None:
            shown.open("about:blank")
            shown.open(url)
            wait_until(
                lambda: all(one in shown.text() for one in wanted),
                lambda: f"{url} shows {shown.text()!r}, without one of {wanted}",
            )
            browser.keep(shown, picture)

        shown.size(1500, 1100)
        look(links["runs of the stages"], "mlflow-runs", "compared-narrow", "compared-wide")
        look(links["live rounds"], "mlflow-live", "rounds of 20")
        where = client.get_experiment_by_name(TRAINING)
        runs = client.search_runs(
            [where.experiment_id], "tags.stage = 'pretrain' and tags.variant LIKE 'compared-%'"
        )
        chosen = json.dumps([run.info.run_id for run in runs])
        compare = f"{links['runs of the stages'].partition('#')[0]}#/compare-runs?runs={quote(chosen)}"
        compare += f"&experiments={quote(json.dumps([where.experiment_id]))}"
        look(compare, "mlflow-compare", "pretrain compared-narrow a", "event-stream.layers", "loss")
        assert len(runs) == 2
