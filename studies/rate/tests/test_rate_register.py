"""The gate of networks that forecast rates, and their way into the registry."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rate_flows import write_flows

from models.registry.bars import NO_CHAMPION
from studies.rate.model import gate
from studies.rate.model.flows import Flows, load
from studies.rate.samples.definition import HORIZONS, PREFIXES, schema_hash
from studies.rate.stages.register import RateRegisterParams
from studies.rate.stages.train import RateTrainParams, train_all

NAMES = {place: f"p{place}" for place in range(8)}
TRAINING = {
    "seeds": [1, 2], "epochs": 2, "batch_size": 8, "lstm_units": 6, "width": 8, "layers": 1, "heads": 2,
    "dropout": 0.0, "learning_rate": 2e-3, "fields": [], "pairs": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Flows:
    folder = tmp_path_factory.mktemp("flows")
    write_flows(folder, train=4, held_out=4, flows=24, short=2)
    return load(folder)


def scored(held_out: gate.HeldOut, factor: float, spread: float = 0.3) -> gate.Scored:
    """Forecasts that err by a factor and by chance."""
    y_NPH = np.repeat(held_out.flows.y_NH[:, None], len(PREFIXES), 1)
    draw = np.random.default_rng(1)
    return gate.score(y_NPH * factor * np.exp(spread * draw.standard_normal((len(y_NPH), 1, 1))), held_out)


def test_only_flows_of_held_out_paths_judge(every: Flows) -> None:
    held_out = gate.HeldOut.of(every, NAMES, ())
    assert set(held_out.flows.path_N) == {4, 5, 6, 7}
    assert (held_out.flows.samples_N >= 5).all()  # the short flows have no forecast
    assert set(gate.HeldOut.of(every, NAMES, {"p5", "p1"}).flows.path_N) == {4, 6, 7}
    with pytest.raises(ValueError, match="no flow of a held-out path is left to judge by"):
        gate.HeldOut.of(every, NAMES, {"p4", "p5", "p6", "p7"})


def test_figures_are_those_of_a_literal_reading(every: Flows) -> None:
    held_out = gate.HeldOut.of(every, NAMES, ())
    flows = held_out.flows
    rates = np.random.default_rng(1).uniform(1e5, 1e7, (len(flows), len(PREFIXES), len(HORIZONS)))
    found = gate.score(rates, held_out).figures
    cells = [
        np.mean([abs(rates[i, p, h] / flows.y_NH[i, h] - 1) for i in range(len(flows))])
        for p in range(len(PREFIXES))
        for h in range(len(HORIZONS))
    ]
    assert found.grid_mape == pytest.approx(np.mean(cells))
    assert found.pair_mape == pytest.approx(cells[5])
    assert found.over == pytest.approx(np.mean(rates[:, 0, 5] > flows.y_NH[:, 5]))
    assert found.blocks == 4 * 6  # 22 flows a path, four a block


def test_a_worse_network_fails_and_a_like_one_passes(every: Flows) -> None:
    held_out = gate.HeldOut.of(every, NAMES, ())
    champion, like, worse = (scored(held_out, factor) for factor in (1.0, 1.001, 1.15))
    naive = {"linear": scored(held_out, 2.0)}
    assert gate.judge(like, champion, naive, "").passed
    failed = gate.judge(worse, champion, naive, "")
    assert failed.reason.startswith("worse than the champion: error over all pairs ")
    assert not gate.judge(scored(held_out, 3.0), scored(held_out, 3.0), naive, "").passed  # below linear
    assert gate.judge(scored(held_out, 2.5), scored(held_out, 5.0), naive, "").passed  # but on its way up
    first = gate.judge(scored(held_out, 3.0), None, naive, NO_CHAMPION)
    assert (first.passed, first.loses_to) == (True, ("linear",))
    assert not gate.judge(like, champion, naive, "", scored(held_out, 0.9, 0.1)).passed  # the reference
    none = gate.HeldOut(replace(held_out.flows, y_NH=held_out.flows.y_NH * np.nan))
    nothing = scored(none, 1.0)
    assert gate.judge(nothing, nothing, {}, "").reason == "no flow that judges has a rate"


@pytest.mark.parametrize("bad", [0.0, np.inf, np.nan, -1.0])
def test_forecasts_that_are_none_are_counted(every: Flows, bad: float) -> None:
    held_out = gate.HeldOut.of(every, NAMES, ())
    rates = np.full((len(held_out.flows), len(PREFIXES), len(HORIZONS)), 1e6)
    rates[3, 1, 2] = bad
    with pytest.raises(ValueError, match=r"1 of 1584 forecasts are 0, or no finite numbers"):
        gate.score(rates, held_out)


class Stage:
    """Flows and two networks of each kind, and the stage on them."""

    def __init__(self, root: Path) -> None:
        self.root, self.flows, self.models = root, root / "flows", root / "models"
        write_flows(self.flows, train=6, held_out=3)
        train_all(RateTrainParams(**TRAINING), self.flows, self.models, lambda _line: None)  # type: ignore[arg-type]
        (root / "study.json").write_text('{"headline": {"seen": {"mape": {"mean": 0.2, "low": null}}}}')

    def run(self, network: str = "transformer", seed: int = 1) -> dict[str, Any]:
        from studies.rate.stages.register import register

        params: dict[str, Any] = {"model_name": "swiftqueue-rate", "network": network, "seed": seed}
        return register(
            RateRegisterParams(**params, keep_versions=2, experiments=False),
            flows=self.flows,
            models=self.models,
            study=self.root / "study.json",
            all_params={"rate_register": params},
            lock=self.root / "dvc.lock",
        )


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    return Stage(tmp_path)


@pytest.mark.long
@pytest.mark.slow
def test_the_stage_registers_judges_and_reuses(stage: Stage, tmp_path: Path) -> None:
    from models.registry.registry import Registry
    from studies.rate.model.networks import load as load_network

    first = stage.run()
    assert (first["version"], first["gate"]["passed"], first["gate"]["reason"]) == (1, True, NO_CHAMPION)
    assert set(first["gate"]["figures"]) == {"challenger", *gate.NAIVE}
    registry = Registry("swiftqueue-rate")
    assert registry.alias("challenger") == 1
    tags = registry.tags(1)
    assert tags["schema_hash"] == schema_hash()
    assert tags["source"] == "transformer-1"
    fetched = registry.fetch(1, tmp_path / "fetched")
    assert sorted(file.name for file in fetched.iterdir()) == [
        "model.json",
        "model.onnx",
        "model.safetensors",
    ]
    network, about = load_network(fetched)
    assert about["architecture"]["name"] == "transformer"
    assert all(feature.scale > 0 for feature in network.features)  # the scaling travels with the weights
    run = registry._client.get_run(registry._client.get_model_version("swiftqueue-rate", "1").run_id)
    assert run.data.params["rate_register.seed"] == "1"
    assert [one.dataset.name for one in run.inputs.dataset_inputs] == ["flows"]
    assert run.data.metrics["study.seen.mape.mean"] == 0.2
    assert run.data.metrics["gate.challenger.flows"] == first["gate"]["figures"]["challenger"]["flows"]

    assert stage.run()["version"] == 1
    registry.set_alias("champion", 1)
    assert stage.run()["gate"]["reason"] == "it is the champion already"
    other = stage.run("lstm", 2)
    assert (other["version"], other["gate"]["champion"]) == (2, 1)
    assert set(other["gate"]["figures"]) == {"challenger", "champion", *gate.NAIVE}
    assert registry.tags(2)["parent_version"] == "1"

    (fetched / "model.json").write_text(json.dumps(about | {"schema_hash": "0" * 64}))
    described = registry._client.get_model_version("swiftqueue-rate", "1")
    stored = (
        tmp_path / "state" / "mlflow" / "artifacts" / "models" / described.source.removeprefix("models:/")
    )
    shutil.copy(fetched / "model.json", stored / "artifacts" / "model.json")  # somebody swapped it there
    with pytest.raises(OSError, match=r"model\.json is not the file that was registered"):
        registry.fetch(1, tmp_path / "again")


@pytest.mark.slow
def test_what_the_stage_needs_is_named(stage: Stage) -> None:
    from pipelines.stage import StageError

    with pytest.raises(StageError, match=r"no network lstm-7 under .* \(there: lstm-1, lstm-2, transf"):
        stage.run("lstm", 7)
    source = stage.models / "lstm-1" / "model.json"
    about = json.loads(source.read_text())
    source.write_text(json.dumps(about | {"schema_hash": "0" * 64}))
    with pytest.raises(ValueError, match=r"made for samples 0000.*; train again"):
        stage.run("lstm", 1)
    (stage.root / "study.json").unlink()
    with pytest.raises(StageError, match=r"study\.json is missing; run the stage `rate_evaluate`"):
        stage.run()
    shutil.rmtree(stage.flows / "path=p0")
    with pytest.raises(StageError, match="transformer-1 was trained on other flows than"):
        stage.run()
