"""The registry on SQLite and behind a real MLflow server, and the stage that fills it."""

from __future__ import annotations

import json
import pickletools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

pytestmark = pytest.mark.slow

TAGS = {"content_sha256": "a" * 64, "git_commit": "b" * 40, "gate": "passed"}


@pytest.fixture(scope="module")
def exported(make_artifact: Callable[..., Path]) -> Path:
    return make_artifact(1, onnx=True)


@pytest.fixture(scope="module")
def sqlite(serving_state: Path) -> None:
    """The default store in the tests' state folder."""


@pytest.fixture(scope="module")
def server(serving_state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real MLflow server with a store of its own, started by `up --mlflow`."""
    import os

    from infra import processes, stack
    from serving.endpoint import LOOPBACK

    before = os.environ["SWIFTQUEUE_STATE"]
    os.environ["SWIFTQUEUE_STATE"] = str(tmp_path_factory.mktemp("server-state"))
    stack.start_mlflow()
    record = processes.running("mlflow")
    assert record is not None
    own, os.environ["SWIFTQUEUE_STATE"] = os.environ["SWIFTQUEUE_STATE"], before
    yield f"http://{LOOPBACK}:{record.ports['http']}"
    os.environ["SWIFTQUEUE_STATE"] = own
    processes.stop("mlflow")
    os.environ["SWIFTQUEUE_STATE"] = before


def check_round_trip(exported: Path, folder: Path) -> None:
    from models import artifact
    from models.registry import CHALLENGER, CHAMPION, INPUTS_FILE, Registry, RegistryError

    registry = Registry("round-trip")
    assert registry.alias(CHAMPION) is None
    assert registry.find(TAGS["content_sha256"]) is None
    np.save(exported / INPUTS_FILE, np.zeros((3, 24), np.float32))
    reports = folder / "reports"
    (reports / "plots").mkdir(parents=True)
    (reports / "plots" / "curve.csv").write_text("a,b\n1,2\n")
    version = registry.add(
        exported, tags=TAGS, params={"pretrain.seed": "1"}, metrics={"late.ap": 0.5}, reports=reports
    )
    assert version == 1
    assert registry.find(TAGS["content_sha256"]) == version
    assert registry.tags(version).items() >= TAGS.items()
    registry.set_alias(CHALLENGER, version)
    registry.set_alias(CHAMPION, version)
    assert registry.alias(CHALLENGER) == registry.alias(CHAMPION) == version
    registry.remove_alias(CHALLENGER)
    registry.remove_alias(CHALLENGER)
    assert registry.alias(CHALLENGER) is None
    registry.log_metrics(version, {"gate.challenger.log_mae": 0.25})

    fetched = registry.fetch(version, folder / "fetched")
    for name in ("model.safetensors", "model.json", "model.onnx", INPUTS_FILE):
        assert (fetched / name).read_bytes() == (exported / name).read_bytes()
    artifact.load(fetched)
    with pytest.raises(RegistryError, match="version 99"):
        registry.tags(99)
    check_stored(folder / "stored", version)


def is_pickle(path: Path) -> bool:
    """Whether a file parses as a pickle to its STOP."""
    try:
        return any(opcode.name == "STOP" for opcode, _, _ in pickletools.genops(path.read_bytes()))
    except (ValueError, IndexError, OverflowError):
        return False


def check_stored(folder: Path, version: int) -> None:
    """What MLflow keeps: a signature its UI shows, a network its own loader runs, and no pickle."""
    import mlflow

    uri = f"models:/round-trip/{version}"
    info = mlflow.models.get_model_info(uri)
    assert [(i.name, i.shape[1:]) for i in info.signature.inputs.inputs] == [("window", (64, 24))]
    assert [(o.name, o.shape) for o in info.signature.outputs.inputs] == [("latency_us", (-1, 8))]
    x_BWF = np.zeros((2, 64, 24), dtype=np.float32)
    answer = mlflow.pyfunc.load_model(uri).predict({"window": x_BWF})
    assert answer["latency_us"].shape == (2, 8)
    mlflow.artifacts.download_artifacts(uri, dst_path=str(folder))
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert {p.suffix for p in files} <= {".safetensors", ".json", ".onnx", ".npy", ".yaml", ".txt", ""}
    assert not [path for path in files if is_pickle(path)]
    client = mlflow.MlflowClient()
    run = client.get_run(client.get_model_version("round-trip", str(version)).run_id)
    assert run.data.params == {"pretrain.seed": "1"}
    assert run.data.metrics["late.ap"] == 0.5
    assert run.data.metrics["gate.challenger.log_mae"] == 0.25
    plots = client.list_artifacts(run.info.run_id, "evaluation/plots")
    assert [plot.path for plot in plots] == ["evaluation/plots/curve.csv"]


def test_round_trip_in_sqlite(sqlite: None, exported: Path, tmp_path: Path) -> None:
    from models.registry import local_store, tracking_uri

    assert tracking_uri() == local_store()[0]
    check_round_trip(exported, tmp_path)


def test_round_trip_through_a_server(
    server: str, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.registry import tracking_uri

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    assert tracking_uri() == server
    check_round_trip(exported, tmp_path)


def test_a_registry_that_does_not_answer_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    from models.registry import Registry, RegistryError

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        with pytest.raises(RegistryError, match=f"failed at the registry {address}") as raised:
            Registry("nothing").versions()
    assert "\n" not in str(raised.value)


# The stage ------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path, make_artifact: Callable[..., Path]) -> Path:
    """A folder as the earlier stages leave it: windows of one trace, two rounds, an evaluation."""
    from feature_store.windows import FEATURES, schema_hash

    rng = np.random.default_rng(1)
    names = [f.name for f in FEATURES]
    batches = 64
    x_BWF = np.zeros((batches, 64, len(FEATURES)), dtype=np.float32)
    x_BWF[..., names.index("size_bytes")] = 1500
    for name in ("last_latency_us", "last_latency_flow_us", "last_latency_queue_us"):
        x_BWF[..., names.index(name)] = 10_000
    y_BH = rng.uniform(5_000, 60_000, (batches, 8)).astype(np.float32)
    y_BH[0, 0] = np.nan
    windows = tmp_path / "windows"
    (windows / "t").mkdir(parents=True)
    np.save(windows / "t" / "x_acked.npy", x_BWF)
    np.save(windows / "t" / "y_us.npy", y_BH)
    rounds = [{"finetune": [0, 16], "test": [16, 32]}, {"finetune": [16, 32], "test": [32, 64]}]
    meta = {
        "schema_hash": schema_hash(),
        "tokens": 64,
        "horizon": 8,
        "features": [{"name": f.name, "unit": f.unit} for f in FEATURES],
        "traces": {"t": {"pretrain": [0, 16], "rounds": rounds}},
    }
    (windows / "meta.json").write_text(json.dumps(meta))
    for number in (0, 1):
        shutil.copytree(make_artifact(1 + number), tmp_path / "finetuned" / "t" / f"round-{number}")
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "metrics.json").write_text(
        '{"model": {"mae_ms": 1.5, "interval": [1, 2], "x": null}}'
    )
    (tmp_path / "params.yaml").write_text("register: {model_name: NAME, trace: t, keep_versions: 5}\n")
    lock = {"stages": {"windows": {"outs": [{"path": "data/windows", "md5": "c" * 32}]}}}
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump(lock))
    return tmp_path


def run_stage(data: Path, model_name: str) -> dict[str, object]:
    from pipelines.register import register

    params = {"model_name": model_name, "trace": "t", "keep_versions": 5}
    return register(
        params,
        windows=data / "windows",
        finetuned=data / "finetuned",
        evaluation=data / "evaluation",
        all_params={"register": params},
        lock=data / "dvc.lock",
    )


def change_head(data: Path, *, share: float, bias: float) -> None:
    """Leave that share of the last layer's answer and add `bias`, of which 2 is a factor e."""
    from models import artifact

    source = data / "finetuned" / "t" / "round-1"
    loaded = artifact.load(source)
    last = loaded.model.head[-1]
    last.weight.data *= share
    last.bias.data = last.bias.data * share + bias
    artifact.save(source, loaded.model, loaded.description)


def test_the_stage_registers_judges_and_reuses(sqlite: None, data: Path) -> None:
    from models.registry import INPUTS_FILE, Registry

    first = run_stage(data, "staged")
    gate = first["gate"]
    assert (first["version"], first["round"], gate["passed"], gate["reason"]) == (
        1,
        "round-1",
        True,
        "no champion yet",
    )
    registry = Registry("staged")
    assert registry.alias("challenger") == 1
    tags = registry.tags(1)
    assert tags["dvc.data/windows"] == "c" * 32
    assert tags["protocol"] == "short"
    assert tags["parent_version"] == "none"
    assert len(tags["git_commit"].split("+")[0]) == 40
    # An untrained network loses to repeating the last latency, and says so.
    assert gate["loses_to"] == ["last_sender", "last_flow", "last_queue"]
    assert gate["figures"]["challenger"]["n"] == 32 * 8
    inputs_NF = np.load(registry.fetch(1, data / "fetched") / INPUTS_FILE)
    assert inputs_NF.shape == (16 * 8, 24)  # of the slice for pre-training
    assert set(inputs_NF.max(axis=0)) == {0, 1500, 10_000}

    again = run_stage(data, "staged")
    assert again["version"] == 1
    assert registry.versions() == [1]
    registry.set_alias("champion", 1)
    registry.remove_alias("challenger")
    assert run_stage(data, "staged")["gate"]["reason"] == "it is the champion already"
    assert registry.alias("challenger") is None

    # A head whose answers are far off becomes a version, and fails the gate.
    change_head(data, share=1, bias=5)
    worse = run_stage(data, "staged")
    assert (worse["version"], worse["gate"]["passed"], worse["gate"]["champion"]) == (2, False, 1)
    assert "worse than the champion" in worse["gate"]["reason"]
    assert registry.alias("challenger") == 2
    assert registry.tags(2)["parent_version"] == "1"
    assert registry.tags(2)["gate"] == "failed"


def test_beside_a_champion_with_another_window_the_naive_baselines_judge(
    sqlite: None, data: Path, exported: Path
) -> None:
    from models.registry import Registry

    other = shutil.copytree(exported, data / "other")
    described = json.loads((other / "model.json").read_text())
    described["window"]["tokens"] = 96
    (other / "model.json").write_text(json.dumps(described))
    registry = Registry("other-window")
    tags = {"content_sha256": "d" * 64, "gate": "passed"}
    champion = registry.add(other, tags=tags, params={}, metrics={})
    registry.set_alias("champion", champion)
    why = f"champion {champion} takes other windows (tokens 96, here 64)"
    change_head(data, share=0, bias=2)  # e times the last latency: nearer to what comes than that itself
    gate = run_stage(data, "other-window")["gate"]
    assert (gate["passed"], gate["loses_to"]) == (True, [])
    assert why in gate["reason"]
    change_head(data, share=1, bias=5)
    gate = run_stage(data, "other-window")["gate"]
    assert not gate["passed"]
    assert f"{why}, and it loses to last_" in gate["reason"]


def test_the_stage_names_what_is_missing(sqlite: None, data: Path) -> None:
    from pipelines.stage import StageError

    (data / "evaluation" / "metrics.json").unlink()
    with pytest.raises(StageError, match=r"metrics\.json is missing; run the stage `evaluate`"):
        run_stage(data, "missing")
    shutil.rmtree(data / "finetuned" / "t")
    with pytest.raises(StageError, match="no fine-tuned model of trace 't' under"):
        run_stage(data, "missing")
