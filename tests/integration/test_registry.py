"""The registry on SQLite (behind a server: test_untrusted_registry.py), and the stage that fills it."""

from __future__ import annotations

import json
import pickletools
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import toy_world
import yaml

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.feature_store.packets.schema import PACKET_SCHEMA
from swiftqueue.models.sharp import PAPERS

pytestmark = pytest.mark.slow

TAGS = {"git_commit": "b" * 40, "schema_hash": "a" * 64}


@pytest.fixture(scope="module")
def exported(make_artifact: Callable[..., Path]) -> Path:
    return make_artifact(1, onnx=True)


@pytest.fixture(scope="module")
def sqlite(serving_state: Path) -> None:
    """The default store in the tests' state folder."""


def check_round_trip(name: str, exported: Path, folder: Path) -> None:
    from swiftqueue.models.networks import artifact
    from swiftqueue.models.registry.lineage import content_hash
    from swiftqueue.models.registry.registry import CHALLENGER, CHAMPION, GateDecision, Registry
    from swiftqueue.models.registry.saving import INPUTS_FILE
    from swiftqueue.models.registry.store import RegistryError

    registry, content = Registry(name), content_hash(exported)
    assert registry.alias(CHAMPION) is None
    assert registry.find(content) is None
    np.save(exported / INPUTS_FILE, np.zeros((3, len(EVENTS.features)), np.float32))
    reports = folder / "reports"
    (reports / "plots").mkdir(parents=True)
    (reports / "plots" / "curve.csv").write_text("a,b\n1,2\n")
    version = registry.add(
        exported,
        judged=GateDecision(True, "a test", None),
        tags=TAGS,
        params={"event-stream.seed": "1"},
        metrics={"late.ap": 0.5},
        reports=reports,
    )
    assert version == 1
    assert registry.find(content) == version
    assert registry.tags(version).items() >= (TAGS | {"gate": "passed", "content_sha256": content}).items()
    assert registry.refusal(version) == ""
    registry.decide(version, GateDecision(False, "not any more", None))
    assert registry.refusal(version) == f"version {version} did not pass the gate: not any more"
    description = registry._client.get_model_version(name, str(version)).description
    assert description == "**The gate refused it**: not any more."
    registry.set_alias(CHALLENGER, version)
    registry.set_alias(CHAMPION, version)
    assert registry.alias(CHALLENGER) == registry.alias(CHAMPION) == version
    registry.remove_alias(CHALLENGER)
    registry.remove_alias(CHALLENGER)
    assert registry.alias(CHALLENGER) is None
    registry.log_metrics(version, {"gate.challenger.log_mae": 0.25})

    fetched = registry.fetch(version, folder / "fetched")
    for file in ("model.safetensors", "model.json", "model.onnx", INPUTS_FILE):
        assert (fetched / file).read_bytes() == (exported / file).read_bytes()
    artifact.load(fetched)
    with pytest.raises(RegistryError, match="version 99"):
        registry.tags(99)
    check_stored(name, version, folder / "stored")


def packet_table(frame: pd.DataFrame) -> pl.DataFrame:
    """A packet table of a pandas frame."""
    return pl.from_pandas(frame).cast(PACKET_SCHEMA)


def is_pickle(path: Path) -> bool:
    """Whether a file parses as a pickle to its STOP."""
    try:
        return any(opcode.name == "STOP" for opcode, _, _ in pickletools.genops(path.read_bytes()))
    except (ValueError, IndexError, OverflowError):
        return False


def check_stored(name: str, version: int, folder: Path) -> None:
    """What MLflow keeps: a signature its UI shows, a network its own loader runs, and no pickle."""
    import mlflow

    from swiftqueue import load_model

    uri = f"models:/{name}/{version}"
    info = mlflow.models.get_model_info(uri)
    assert info.signature.inputs.input_names() == PACKET_SCHEMA.names()
    assert info.signature.outputs.input_names() == ["predicted_us"]
    served = mlflow.pyfunc.load_model(uri)
    packets = served.input_example
    assert np.isfinite(served.predict(packets)["predicted_us"]).all()
    ours = load_model(version, name=name).predict(packet_table(packets))
    assert (served.predict(packets)["predicted_us"].to_numpy() == ours["predicted_us"].to_numpy()).all()
    unknown = packets.astype({"acked_ns": "Int64"}).assign(acked_ns=pd.NA, latency_us=np.nan)
    assert np.isfinite(served.predict(unknown)["predicted_us"]).all()
    with pytest.raises(mlflow.MlflowException, match="size_bytes"):
        served.predict(packets.drop(columns="size_bytes"))
    mlflow.artifacts.download_artifacts(uri, dst_path=str(folder))
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert {p.suffix for p in files} <= {".safetensors", ".json", ".onnx", ".npy", ".yaml", ".txt", ""}
    assert not [path for path in files if is_pickle(path)]
    client = mlflow.MlflowClient()
    run = client.get_run(client.get_model_version(name, str(version)).run_id)
    assert run.data.params == {"event-stream.seed": "1"}
    assert run.data.metrics["late.ap"] == 0.5
    assert run.data.metrics["gate.challenger.log_mae"] == 0.25
    plots = client.list_artifacts(run.info.run_id, "evaluation/plots")
    assert [plot.path for plot in plots] == ["evaluation/plots/curve.csv"]


def test_round_trip_in_sqlite(sqlite: None, exported: Path, tmp_path: Path) -> None:
    from swiftqueue.models.registry.store import local_store, tracking_uri

    assert tracking_uri() == local_store()[0]
    check_round_trip("round-trip", exported, tmp_path)


def test_versions_that_nobody_needs_leave_nothing(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    from swiftqueue.models.registry import registry as module
    from swiftqueue.models.registry.registry import CHAMPION, GateDecision, Registry
    from swiftqueue.models.registry.retention import collect_garbage, prune
    from swiftqueue.models.registry.store import RegistryError

    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.setattr(module, "PAGE", 2)  # more versions than one answer holds
    registry = Registry("many")
    judged = GateDecision(passed=True, reason="set by a test", champion=None)
    versions = [
        registry.add(exported, judged=judged, tags=TAGS, params={"a": "1"}, metrics={"b": 1.0})
        for _ in range(5)
    ]
    registry.set_alias(CHAMPION, versions[1])
    assert registry.versions() == versions
    store = tmp_path / "mlflow"
    bytes_each = sum(file.stat().st_size for file in (store / "artifacts").rglob("*")) / 5
    assert prune(registry, 2, budget_s=0.0) == []  # no time: the next round goes on
    assert prune(registry, 2) == [versions[2]]  # the first has the champion's encoder, as far as it is known
    assert prune(registry, 2) == []
    assert registry.versions() == [v for v in versions if v != versions[2]]
    with pytest.raises(RegistryError):
        registry.tags(versions[2])
    assert collect_garbage() == 0, "what was deleted a moment ago can still be restored"
    assert collect_garbage("0s") == 2, "a run and a logged model"
    left = sum(file.stat().st_size for file in (store / "artifacts").rglob("*"))
    assert left == pytest.approx(4 * bytes_each, rel=0.05)
    folders = len(list((store / "artifacts").iterdir())) + len(
        list((store / "artifacts" / "models").iterdir())
    )
    assert folders <= 4 + 4 + 1, "no empty folders either"
    with sqlite3.connect(store / "mlflow.db") as rows:
        tables = {"runs": 4, "logged_models": 4, "params": 4, "metrics": 4, "model_version_tags": 4}
        for table, wanted in {**tables, "model_versions": 5, "inputs": 5}.items():  # MLflow keeps these two
            column = "version" if table == "model_version_tags" else "rowid"
            count = f"select count(distinct {column}) from {table}"  # noqa: S608 - names of this test
            assert rows.execute(count).fetchone()[0] == wanted, table
    registry.fetch(versions[0], tmp_path / "fetched")
    registry.remove(versions[-1])
    registry.remove(versions[-2])
    number = registry.add(exported, judged=judged, tags=TAGS, params={}, metrics={})
    assert number == versions[-1] + 1, "that of the removed newest version is not given again"


def test_a_round_frees_what_it_removed_and_not_at_once_again(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounds call `mlflow gc`, as nothing else gives back files of a version in the local store."""
    from swiftqueue.models.registry import retention
    from swiftqueue.models.registry.registry import GateDecision, Registry
    from swiftqueue.pipelines.live.rounds_log import RoundRecord
    from swiftqueue.pipelines.live.runner import Runner

    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.setenv("SWIFTQUEUE_KEEP_VERSIONS", "2")
    monkeypatch.setattr(retention, "GRACE", "0s")
    registry = Registry("rounds")
    judged = GateDecision(passed=True, reason="set by a test", champion=None)

    class Registering(Runner[RoundRecord]):
        def _run(self, record: RoundRecord) -> None:
            record.version = registry.add(exported, judged=judged, tags=TAGS, params={}, metrics={})
            record.outcome = "kept"

    rounds = Registering("rounds", "latency", "rounds.jsonl", RoundRecord, "")
    kept = tmp_path / "mlflow" / "artifacts" / "models"
    there = [len(list(kept.iterdir())) for _ in range(4) if rounds.run().version]
    assert registry.versions() == [3, 4]
    assert there == [1, 2, 2, 3], "freed with the first that was removed, and again an hour later"


def test_the_laboratorys_champion_is_that_of_the_registry_that_is_asked(
    make_artifact: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    """Version 1 of two registries are two models; one that is there already is not fetched again."""
    from swiftqueue.laboratory.learning.champion import champion_folder
    from swiftqueue.models.registry.registry import CHAMPION, GateDecision, Registry

    name = yaml.safe_load((project / "params.yaml").read_text())["register"]["model_name"]
    passed = GateDecision(passed=True, reason="set by a test", champion=None)
    found = {}
    for seed in (1, 2):
        monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / str(seed)))
        artifact = make_artifact(seed, onnx=True)
        registry = Registry(name)
        registry.set_alias(CHAMPION, registry.add(artifact, judged=passed, tags=TAGS, params={}, metrics={}))
        assert registry.alias(CHAMPION) == 1
        found[seed] = champion_folder(tmp_path / "lab")
        weights = (artifact / "model.safetensors").read_bytes()
        assert (found[seed] / "model.safetensors").read_bytes() == weights
    assert found[1] != found[2] == champion_folder(tmp_path / "lab")


def test_a_backup_comes_back_in_its_folder_and_its_versions_may_be_served(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    """As docs/OPERATIONS.md says; a program of its own looks, as after a restart."""
    import subprocess
    import sys

    from swiftqueue.models.registry.registry import GateDecision, Registry

    commands = [
        next(part for part in line.split("#")[0].split("&&") if "tar -" in part)
        for line in (project / "docs" / "OPERATIONS.md").read_text().splitlines()
        if line.startswith("    make down && ") and "tar -" in line
    ]
    assert len(commands) == 2
    (here := tmp_path / "project").mkdir()
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(here / "var"))
    passed = GateDecision(passed=True, reason="set by a test", champion=None)
    version = Registry("backup").add(exported, judged=passed, tags=TAGS, params={}, metrics={})
    subprocess.run(["bash", "-c", commands[0]], cwd=here, check=True)
    assert stat.S_IMODE((tmp_path / "backup.tar").stat().st_mode) == 0o600
    shutil.rmtree(here / "var")
    subprocess.run(["bash", "-c", commands[1]], cwd=here, check=True)
    look = (
        "from pathlib import Path; from swiftqueue.models.registry.registry import Registry; "
        "r = Registry('backup'); "
        f"print(r.refusal({version})); r.fetch({version}, Path('fetched'))"
    )
    found = subprocess.run([sys.executable, "-c", look], cwd=here, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
    assert (here / "fetched" / "model.safetensors").read_bytes() == (
        exported / "model.safetensors"
    ).read_bytes()


def test_a_registry_that_does_not_answer_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.models.registry.store import RegistryError

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        with pytest.raises(RegistryError, match=f"failed at the registry {address}") as raised:
            Registry("nothing").versions()
    assert "\n" not in str(raised.value)


# The stage ------------------------------------------------------------------------------------------


def with_reports(folder: Path) -> Path:
    """Add what the stage `evaluate` and DVC leave beside packets, division and heads."""
    (folder / "evaluation").mkdir()
    (folder / "evaluation" / "metrics.json").write_text('{"n": 5, "model": {"mae_ms": 1.5, "x": null}}')
    hashes = {"data/split.json": "c" * 32, "data/packets/trace=t": "d" * 32}
    lock = {"stages": {"all": {"outs": [{"path": path, "md5": md5} for path, md5 in hashes.items()]}}}
    (folder / "dvc.lock").write_text(yaml.safe_dump(lock))
    return folder


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the earlier stages leave it: packets of one trace, two rounds, an evaluation."""
    table = toy_world.bottleneck_table("t", 9, packets_per_s=200, swing_ms=40, episodes=True)
    folder = toy_world.write_traces(tmp_path_factory.mktemp("short"), [table])
    toy_world.write_models(folder)
    return with_reports(folder)


@pytest.fixture
def data(short: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(short, tmp_path, dirs_exist_ok=True))


def run_stage(data: Path, model_name: str) -> dict[str, Any]:
    from swiftqueue.models.forecasters.traces import read_traces
    from swiftqueue.models.registry.register_params import RegisterParams
    from swiftqueue.pipelines.register import register

    params: dict[str, Any] = {
        "model_name": model_name,
        "trace": "t",
        "keep_versions": 5,
        "experiments": False,
    }
    return register(
        RegisterParams(**params),
        traces=read_traces(data / "packets", data / "split.json", PAPERS),
        packets=data / "packets",
        finetuned=data / "finetuned",
        evaluation=data / "evaluation",
        all_params={"register": params},
        lock=data / "dvc.lock",
    )


def change_head(data: Path, *, share: float, ln: float) -> None:
    """Leave that share of the head's answer, and add so much to the logarithm of each latency."""
    from swiftqueue.models.forecasters import forecaster as door

    source = data / "finetuned" / "t" / "round-1"
    found: Any = door.load(source)
    last = found.model.head[-1]
    last.weight.data *= share
    last.bias.data = last.bias.data * share + ln / found.model.target.scale
    door.save(source, found)


def test_the_stage_registers_judges_and_reuses(sqlite: None, data: Path) -> None:
    from swiftqueue.feature_store.packets.schema import read_packets
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.models.registry.saving import INPUTS_FILE

    change_head(data, share=1, ln=1)
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
    assert not [name for name in tags if name.startswith("dvc.")]  # 45 on the default traces
    assert tags["protocol"] == "short"
    assert tags["parent_version"] == "none"
    assert len(tags["git_commit"].split("+")[0]) == 40
    # A head that is off by a factor e loses to repeating the last latency, and says so.
    assert gate["loses_to"] == ["last_sender", "last_flow", "last_queue"]
    table = read_packets(data / "packets", "t")
    (divided,) = json.loads((data / "split.json").read_text())["traces"].values()
    one, two = divided["rounds"]
    judge = [*range(one["test"][0], two["finetune"][0]), *range(*two["test"])]
    known_BH = table["latency_us"].head(two["test"][1] * 8).is_not_null().to_numpy().reshape(-1, 8)
    assert gate["figures"]["challenger"]["n"] == known_BH[judge].sum()
    inputs_NF = np.load(registry.fetch(1, data / "fetched") / INPUTS_FILE)
    learnt = divided["pretrain"][1] * 8  # packets of the slice for pre-training
    assert inputs_NF.shape == (learnt, len(EVENTS.features))
    names = [each.name for each in EVENTS.features]
    np.testing.assert_array_equal(inputs_NF[:, names.index("size_bytes")], table["size_bytes"].head(learnt))
    assert not inputs_NF[:, names.index("ack")].any()

    version = registry._client.get_model_version("staged", "1")
    run = registry._client.get_run(version.run_id)
    assert run.info.run_name == "version 1 t/round-1"
    assert run.data.tags["dvc.data/split.json"] == "c" * 32
    assert run.data.tags["dvc.data/packets/trace:t"] == "d" * 32
    assert version.description.startswith("**The gate passed it**: no champion yet.\n\nMade from t/round-1, ")
    described = registry._client.search_registered_models("name = 'staged'")[0].description
    assert described.startswith(
        "It takes a packet table and gives each packet's `predicted_us`. The alias `champion` is "
    )
    assert {name: run.data.metrics[name] for name in ("n", "model.mae_ms")} == {"n": 5, "model.mae_ms": 1.5}
    assert len(run.data.metrics) < 50

    again = run_stage(data, "staged")
    assert again["version"] == 1
    assert registry.versions() == [1]
    registry.set_alias("champion", 1)
    registry.remove_alias("challenger")
    assert run_stage(data, "staged")["gate"]["reason"] == "it is the champion already"
    assert registry.alias("challenger") is None

    # A head whose answers are far off becomes a version, and fails the gate.
    change_head(data, share=1, ln=2.5)
    worse = run_stage(data, "staged")
    assert (worse["version"], worse["gate"]["passed"], worse["gate"]["champion"]) == (2, False, 1)
    assert "worse than the champion" in worse["gate"]["reason"]
    assert registry.alias("challenger") == 2
    assert registry.tags(2)["parent_version"] == "1"
    assert registry.tags(2)["gate"] == "failed"
    reason = worse["gate"]["reason"]
    said = registry._client.get_model_version("staged", "2").description
    assert said.startswith(f"**The gate refused it**: {reason}. It was judged against version 1.")


def test_what_served_and_fails_now_may_still_be_gone_back_to(
    sqlite: None, data: Path, tmp_path: Path
) -> None:
    from swiftqueue.models.networks import artifact
    from swiftqueue.models.registry.registry import REPLACED_TAG, GateDecision, Registry

    change_head(data, share=1, ln=2.5)
    first = run_stage(data, "served")["version"]
    source = data / "finetuned" / "t" / "round-1"
    kept = Path(shutil.copytree(source, tmp_path / "first"))
    change_head(data, share=1, ln=-2.5)  # a live round's, far better
    artifact.export_onnx(source)
    registry = Registry("served")
    judged, tags = GateDecision(True, "", first), {"protocol": "live"}
    second = registry.add(source, judged=judged, tags=tags, params={}, metrics={})
    registry.set_alias("champion", second)
    registry.remove_alias("challenger")
    shutil.rmtree(source)
    shutil.copytree(kept, source)  # `make run`, unchanged

    registry.set_tags(first, {REPLACED_TAG: "none"})  # as its deployment left it
    found = run_stage(data, "served")
    assert (found["version"], found["gate"]["passed"]) == (first, False)
    assert registry.refusal(first) == ""
    assert registry.alias("challenger") is None

    registry._client.delete_model_version_tag("served", str(first), REPLACED_TAG)  # it never served
    run_stage(data, "served")
    assert "did not pass the gate: worse than the champion" in registry.refusal(first)
    assert registry.alias("challenger") == first


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of a trace with more rounds."""
    table = toy_world.bottleneck_table("t", seconds=14)
    folder = toy_world.write_traces(tmp_path_factory.mktemp("traced"), [table])
    toy_world.write_models(folder)
    return with_reports(folder)


def other_champion(traced: Path, folder: Path, **sizes: Any) -> Path:
    """An artifact of an untrained event stream of other sizes, or of an `mlp` of these."""
    from swiftqueue.models.forecasters.forecaster import kind_named
    from swiftqueue.models.forecasters.traces import lessons, read_traces
    from swiftqueue.models.networks import artifact

    traces = read_traces(traced / "packets", traced / "split.json", PAPERS)
    folder.mkdir(exist_ok=True)
    if "batch_size" in sizes:
        kind = kind_named("mlp")
        made = kind.fit(lessons(list(traces.values())), kind.Params(**sizes), 5, print)
    else:
        made = toy_world.untrained(traces.values(), **sizes)
    made.export(folder)
    artifact.export_onnx(folder)
    return folder


MLP = {
    "seed": 1,
    "workers": 1,
    "layers": 1,
    "width": 16,
    "dropout": 0.1,
    "anchor": None,
    "left_out": [],
    "batch_size": 128,
    "epochs": 1,
    "learning_rate": 2e-3,
    "weight_decay": 0.01,
    "sharp_weight": 1,
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "sizes", "rows"),
    [
        ("layers", {"layers": 2}, 136),
        ("band", {"band": 128}, 136),
        ("inputs", {"left_out": ["hole_us", "hole_age_us"]}, 72),
        ("median", {"quantiles": [0.1, 0.5, 0.9]}, 72),
        ("mlp", MLP, 16),
    ],
)
def test_a_champion_that_takes_other_rows_is_judged_on_the_same_packets(
    sqlite: None, traced: Path, tmp_path: Path, name: str, sizes: dict[str, Any], rows: int
) -> None:
    """What it says of them is what its served form says of the rows that a sender would have sent."""
    from swiftqueue.models.forecasters.forecaster import load
    from swiftqueue.models.forecasters.traces import read_traces
    from swiftqueue.models.networks import artifact
    from swiftqueue.models.networks.prediction import predict
    from swiftqueue.models.registry import gate
    from swiftqueue.models.registry.registry import GateDecision, Registry
    from swiftqueue.pipelines.live.encoding import event_windows
    from swiftqueue.pipelines.register import held_out_slices, judging, predictions

    folder = other_champion(traced, tmp_path / "other", **sizes)
    champion = artifact.load(folder)
    assert champion.description.tokens == rows
    trace = read_traces(traced / "packets", traced / "split.json", PAPERS)["t"]
    chosen_B = judging(trace)
    tests = sum(len(one.test) for one in trace.slices.rounds)
    assert len(trace.slices.rounds[-1].test) < len(chosen_B) < tests  # of several slices
    x_BWF = np.concatenate(list(event_windows(trace.packets, rows)))
    expected_BH = predict(champion.model, x_BWF[chosen_B])
    found_BH = predictions(load(folder), trace, chosen_B)
    np.testing.assert_allclose(found_BH, expected_BH, rtol=1e-4)
    held_out, _ = held_out_slices(trace, chosen_B)
    came = trace.packets["latency_us"].cast(float).fill_null(np.nan).to_numpy()
    np.testing.assert_array_equal(held_out.y_BH, came[: len(came) // 8 * 8].reshape(-1, 8)[chosen_B])

    registry = Registry(f"other-{name}")
    judged = GateDecision(True, "a test", None)
    version = registry.add(folder, judged=judged, tags={}, params={}, metrics={})
    registry.set_alias("champion", version)
    found = run_stage(traced, registry.model)["gate"]
    assert found["figures"]["champion"]["log_mae"] == pytest.approx(
        gate.score(expected_BH, held_out).figures.log_mae, rel=1e-4
    )
    assert "against" in found["reason"]


@pytest.mark.long
def test_beside_a_champion_of_another_definition_the_naive_baselines_judge(
    sqlite: None, traced: Path, tmp_path: Path
) -> None:
    from swiftqueue.models.registry.registry import GateDecision, Registry

    registry = Registry("gone")
    judged = GateDecision(True, "a test", None)
    other = other_champion(traced, tmp_path / "other")
    described = json.loads((other / "model.json").read_text())
    (other / "model.json").write_text(json.dumps(described | {"schema_hash": "0" * 64}))
    registry.set_alias("champion", registry.add(other, judged=judged, tags={}, params={}, metrics={}))
    found = run_stage(traced, "gone")["gate"]
    assert re.match(r"champion 1 cannot be judged here: .*: made for features 0{64}, but", found["reason"])
    assert found["passed"] == ("below last_" not in found["reason"])


def test_the_reference_is_the_version_that_the_encoder_came_with(
    sqlite: None, exported: Path, tmp_path: Path
) -> None:
    """Named by a signed tag; of rounds of an older program, the oldest version of the same origin."""
    from swiftqueue.models.registry.registry import REFERENCE_TAG, GateDecision, Registry, RegistryError

    registry = Registry("references")

    def add(name: str, **tags: str) -> int:
        folder = Path(shutil.copytree(exported, tmp_path / name))
        described = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps({**described, "protocol": {"name": name}}))
        return registry.add(folder, judged=GateDecision(True, "", None), tags=tags, params={}, metrics={})

    origin = {"dvc.data/split.json": "a" * 32}
    staged = add("staged", **origin, protocol="small")
    older = add("older", **origin, protocol="live")
    live = add("live", **origin, protocol="live", **{REFERENCE_TAG: str(staged)})
    retrained = add("retrained", protocol="live", **{REFERENCE_TAG: "itself"}, **{"retrain.from_ns": "5"})
    assert [registry.reference(one) for one in (staged, older, live, retrained)] == [1, 1, 1, retrained]
    for one in (live, older):  # who moves it, or names one, spoils the decision
        registry.set_tags(one, {REFERENCE_TAG: str(live)})
        assert "do not fit the gate's signature" in registry.refusal(one)
    registry.set_tags(live, {REFERENCE_TAG: "../1"})
    with pytest.raises(RegistryError, match="names a version"):
        registry.reference(live)


@pytest.mark.long
def test_the_stages_challenger_is_not_below_the_reference(sqlite: None, data: Path) -> None:
    """As good as a champion that rounds had made worse little by little, it does not pass."""
    from swiftqueue.models.networks import artifact
    from swiftqueue.models.registry.registry import REFERENCE_TAG, GateDecision, Registry

    change_head(data, share=0, ln=1)
    first = run_stage(data, "floor")["version"]
    change_head(data, share=1, ln=1.5)  # four and a half times as high
    worse = Path(shutil.copytree(data / "finetuned" / "t" / "round-1", data / "worse"))
    artifact.export_onnx(worse)
    registry = Registry("floor")
    tags = {"protocol": "live", REFERENCE_TAG: str(first)}
    champion = registry.add(worse, judged=GateDecision(True, "", 1), tags=tags, params={}, metrics={})
    registry.set_alias("champion", champion)
    change_head(data, share=1, ln=0.001)
    found = run_stage(data, "floor")["gate"]
    assert not found["passed"]
    assert found["reason"].startswith("worse than the reference: ")
    assert found["figures"]["reference"]["log_mae"] < found["figures"]["champion"]["log_mae"]


def test_an_experiment_registers_nothing_unless_it_is_asked_to(
    sqlite: None, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.pipelines import register

    section = {"model_name": "experiment", "trace": "t", "keep_versions": 5, "experiments": False}
    output = data / "registered.json"
    places = (data / name for name in ("params.yaml", "packets", "split.json", "finetuned", "evaluation"))
    given = (*places, output)
    monkeypatch.setenv("DVC_EXP_NAME", "wide")  # as `dvc exp run` sets it
    (data / "params.yaml").write_text(yaml.safe_dump({"register": section}))
    register.main(*given)
    assert "experiment wide registers nothing: register.experiments is false" in capsys.readouterr().out
    assert json.loads(output.read_text())["version"] is None
    assert Registry("experiment").versions() == []
    (data / "params.yaml").write_text(yaml.safe_dump({"register": section | {"experiments": True}}))
    register.main(*given)
    assert json.loads(output.read_text())["version"] == 1


def test_the_stage_names_what_is_missing(sqlite: None, data: Path) -> None:
    from swiftqueue.pipelines.stage import StageError

    (data / "evaluation" / "metrics.json").unlink()
    with pytest.raises(StageError, match=r"metrics\.json is missing; run the stage `evaluate`"):
        run_stage(data, "missing")
    shutil.rmtree(data / "finetuned" / "t")
    with pytest.raises(StageError, match="no fine-tuned model of trace 't' under"):
        run_stage(data, "missing")
