"""A network of the loop in one file: that of docs/add-a-network.md, taken from the page, and two of ours."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest
import torch
import toy_world
import yaml
from models.forecasters.query_job import parts_of
from models.networks.event_transformer import EventArchitecture
from models.networks.event_window import EventWindowPredictor
from models.networks.loop_network import ArchitectureParams, Data, LoopNetwork, chosen, named, names
from models.networks.transformer import Predictor
from models.training.examples import finetuning_examples, pretraining_split
from models.training.finetuning import FinetuneParams, finetune_head
from models.training.pretraining import Pretrainer, PretrainParams, ScaledPrediction, fit_scaling
from models.training.windows import WindowSet, load_windows

from feature_store.events.beginning import NOTHING
from feature_store.events.definition import EVENTS, WINDOW
from laboratory.learning import judged_models
from laboratory.learning.train import IN_THE_ENGINE
from models import loop
from models.networks import artifact, scaling
from models.networks.artifact import Artifact
from models.networks.prediction import predict
from models.networks.scaling import ScaledFeature, Target
from models.registry import gate
from models.section import read
from models.sharp import PAPERS
from pipelines import dependencies
from pipelines import pretrain as pretrain_stage
from pipelines import register as register_stage
from pipelines.live.minute import Minute, tune
from pipelines.live.retrain import stage_params
from pipelines.params import sections
from serving.engine import Engine

NAME = "recurrent"
HEAD = FinetuneParams(seed=1, workers=1, epochs=3, batch_size=64, learning_rate=1e-3, sharp_weight=1)
S = 1_000_000_000
EACH = pytest.mark.parametrize("network", [NAME, "bilstm", "mlp"], indirect=True)


def blocks(project: Path, language: str) -> str:
    """The page's only block of that language."""
    page = (project / "docs/add-a-network.md").read_text()
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", page, re.M | re.S)
    return str(block)


@pytest.fixture
def network(
    request: pytest.FixtureRequest, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LoopNetwork]:
    """One of our own where a test names it, or the file of the page, where the loop finds its networks."""
    if (own := getattr(request, "param", NAME)) != NAME:
        yield named(own)
        return
    folder = tmp_path / "added"
    folder.mkdir()
    (folder / f"{NAME}.py").write_text(blocks(project, "python"))
    monkeypatch.setattr(loop, "__path__", [*loop.__path__, str(folder)])
    importlib.invalidate_caches()
    yield named(NAME)
    del sys.modules[f"models.loop.{NAME}"]
    delattr(loop, NAME)


@pytest.fixture
def params(project: Path, tmp_path: Path, network: LoopNetwork) -> Path:
    """The project's parameters and the section of the page, small; the network is chosen."""
    own = yaml.safe_load((project / "params.yaml").read_text())
    own |= yaml.safe_load(blocks(project, "yaml"))
    quick = own[network.name] | {"width": 16, "layers": 1, "epochs": 2, "workers": 1, "batch_size": 32}
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(own | {"architecture": {"name": network.name}, network.name: quick}))
    return path


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By the definition of their windows."""
    table = toy_world.bottleneck_table("t", 9, seed=3, swing_ms=40, episodes=True)
    return {
        each.name: toy_world.write_windows(tmp_path_factory.mktemp("world"), [table], definition=each)
        for each in (WINDOW, EVENTS)
    }


@pytest.fixture
def world(worlds: dict[str, Path], network: LoopNetwork) -> Path:
    return worlds[network.definition.name]


def opened(world: Path) -> WindowSet:
    return load_windows(world / "windows", world / "split.json")


def untrained(network: LoopNetwork, params: Path, world: Path) -> Artifact:
    """As pre-training begins."""
    section: Any = read(params, network.params())
    windows = opened(world)
    torch.manual_seed(1)
    made: Any = network
    if network.definition is EVENTS:
        data = Data(world / "packets", world / "windows", world / "split.json", world, PAPERS)
        model = made.course()(parts_of(data, section), section, 1).served(None)
    else:
        train, _ = pretraining_split(windows)
        model = made.make(*fit_scaling(windows, train, section), section, windows.horizon).eval()
    with torch.no_grad():  # of an untrained one the forecast is the anchor alone, whatever the encoder says
        model.head[2].weight.normal_(std=0.1)
    return Artifact(
        model, artifact.Description(windows.tokens, windows.schema_hash, "acked", windows.protocol)
    )


def test_its_file_and_its_section_are_all_that_is_asked_for(params: Path, project: Path) -> None:
    assert NAME in names()
    assert chosen(params).name == NAME
    assert chosen(params).tokens(params) is None
    assert NAME in sections.sections()
    assert len(artifact.networks()) == len(names())  # each has a name of its own in model.json
    sections.check({NAME: yaml.safe_load(params.read_text())[NAME]})
    assert dependencies.parameters()["pretrain"][-1] == NAME
    table = toy_world.bottleneck_table("t", 9)
    own = yaml.safe_load(params.read_text())
    retrained = stage_params(own, table)
    assert {"architecture", NAME} < set(retrained)
    assert not {"pretrain", "event-stream"} & set(retrained)
    page = blocks(project, "yaml")
    assert list(yaml.safe_load(page)[NAME]) == list(PretrainParams.model_fields)


def test_an_unknown_name_or_size_is_one_clear_line(params: Path) -> None:
    with pytest.raises(
        ValueError, match="'lstm'; it must be one of bilstm, event-stream, mlp, recurrent, window"
    ) as unknown:
        ArchitectureParams(name="lstm")
    own = yaml.safe_load(params.read_text())
    lines = [str(unknown.value)]
    for change, line in (
        ({"layer": 1}, r"unknown parameter recurrent\.layer; did you mean layers\?"),
        ({"layers": 0}, "recurrent.layers is 0; it must be a whole number from 1"),
        ({"width": 3, "heads": 2}, "recurrent.width is 3; it must be a multiple of recurrent.heads"),
    ):
        params.write_text(yaml.safe_dump(own | {NAME: own[NAME] | change}))
        with pytest.raises(ValueError, match=line) as refused:
            read(params, chosen(params).params())
        lines.append(str(refused.value))
    assert all(len(line.splitlines()) == 1 for line in lines)


@EACH
@pytest.mark.long
@pytest.mark.slow
def test_the_stage_pretrains_it_with_ray_train(
    network: LoopNetwork,
    params: Path,
    world: Path,
    tmp_path: Path,
    ray_cluster: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page's module travels to the workers by value: they do not see the folder of this test."""
    from ray import cloudpickle

    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / "var"))
    module = sys.modules[type(network).__module__]
    cloudpickle.register_pickle_by_value(module)
    try:
        output = tmp_path / "pretrained"
        pretrain_stage.main(params, world / "packets", world / "windows", world / "split.json", output)
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    found = artifact.load(output, network.definition.schema_hash)
    assert artifact.network_of(found.model) is network
    epochs = pl.read_csv(output / "epochs.csv")
    assert epochs["epoch"].to_list() == [1, 2]
    assert epochs["loss"][1] < epochs["loss"][0]
    assert not list((tmp_path / "var").glob("ray/pretrain-*"))  # what a stopped job would go on from


@EACH
@pytest.mark.long
@pytest.mark.slow
def test_it_is_kept_tuned_exported_and_judged_like_any_other(
    network: LoopNetwork, params: Path, world: Path, tmp_path: Path
) -> None:
    windows = opened(world)
    first = untrained(network, params, world)
    artifact.save(tmp_path / "first", first.model, first.description)
    found = artifact.load(tmp_path / "first", windows.schema_hash)
    x_BWF = windows.trace("t").x_BWF[100:140]
    np.testing.assert_array_equal(predict(found.model, x_BWF), predict(first.model, x_BWF))

    examples = finetuning_examples(windows.trace("t"), 0)
    assert examples is not None
    tuned = finetune_head(found.model, examples, HEAD).model
    for name, value in found.model.encoder_state().items():
        assert (value == tuned.encoder_state()[name]).all(), name
    assert (tuned.head[2].weight != found.model.head[2].weight).any()

    artifact.save(tmp_path / "tuned", tuned, found.description)
    session = onnxruntime.InferenceSession(
        str(artifact.export_onnx(tmp_path / "tuned")), providers=["CPUExecutionProvider"]
    )
    (theirs_BH,) = session.run(["latency_us"], {"window": np.array(x_BWF)})
    np.testing.assert_allclose(theirs_BH, predict(tuned, x_BWF), rtol=1e-4)

    judging_B = register_stage.judging(windows, "t")
    held_out, _ = register_stage.held_out_slices(windows, "t", judging_B)
    scored = []
    for one in (artifact.load(tmp_path / "tuned"), of_events()):
        forecast_BH = register_stage.predictions(one, windows, "t", world / "packets", judging_B)
        assert forecast_BH.shape == (len(judging_B), windows.horizon)
        scored.append(gate.score(forecast_BH, held_out))
    verdict = gate.judge(scored[0], scored[1], gate.score_naive(held_out, 2e4), "")
    assert verdict.reason
    assert all(np.isfinite(one.figures.log_mae) for one in scored)


def of_events() -> Artifact:
    """A champion of another architecture, untrained."""
    torch.manual_seed(2)
    scaled = [ScaledFeature(f.name, f.unit, scaling.transform_of(f.unit)) for f in EVENTS.features]
    model = EventWindowPredictor(scaled, scaled, Target("log", 9.0, 0.5), EventArchitecture(width=16))
    return Artifact(model.eval(), artifact.Description(136, EVENTS.schema_hash, "acked"))


@EACH
@pytest.mark.slow
def test_live_rounds_encode_it_by_pytorch_and_the_laboratory_refuses_it(
    network: LoopNetwork, params: Path, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = untrained(network, params, world)
    artifact.save(tmp_path / "first", first.model, first.description)
    packets = pl.read_parquet(sorted((world / "packets").rglob("*.parquet"))).sort("packet")
    tuned = tune(
        Minute(
            packets,
            NOTHING,
            toy_world.START_NS + 2 * S,
            toy_world.START_NS + 6 * S,
            artifact.read_files(tmp_path / "first"),
            HEAD,
            None,
            least_windows=10,
        )
    )
    assert "PyTorch: " in capsys.readouterr().out
    assert tuned.loss_after < tuned.loss_before
    assert tuned.figures["challenger"]["log_mae"] < tuned.figures["champion"]["log_mae"]
    line = f"first: .*unknown architecture .{network.stored}. .known: transformer-encoder, event-stream"
    with pytest.raises(ValueError, match=line) as refused:
        judged_models.models_by_profile(str(tmp_path / "first"), tmp_path)
    assert len(str(refused.value).splitlines()) == 1


def test_an_artifact_of_a_network_that_is_not_there_is_one_clear_line(
    network: LoopNetwork, params: Path, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = untrained(network, params, world)
    artifact.save(tmp_path / "first", first.model, first.description)
    with pytest.raises(ValueError, match=f"made for features {WINDOW.schema_hash}, but this code computes"):
        artifact.load(tmp_path / "first", EVENTS.schema_hash)
    monkeypatch.setattr(loop, "__path__", loop.__path__[:1])
    line = r"unknown architecture 'recurrent-encoder' \(known: bilstm-encoder, .*\)"
    with pytest.raises(ValueError, match=line):
        artifact.load(tmp_path / "first")
    with pytest.raises(ValueError, match="a RecurrentNetwork cannot be kept: no file of models"):
        artifact.save(tmp_path / "again", first.model, first.description)
    assert not (tmp_path / "again").exists()


@pytest.mark.slow
def test_reading_sizes_brings_no_pytorch(project: Path) -> None:
    """The stage `windows` and the command line start at once."""
    import subprocess

    code = (
        "import sys, pathlib; from models.networks.loop_network import chosen;"
        "path = pathlib.Path(sys.argv[1]); print(chosen(path).tokens(path));"
        "import pipelines.windows; print('torch' in sys.modules)"
    )
    own = yaml.safe_load((project / "params.yaml").read_text())
    for name, tokens in (("window", "None"), ("event-stream", "136"), ("mlp", "16")):
        path = project / "build" / f"sizes-{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(own | {"architecture": {"name": name}}))
        said = subprocess.run(
            [sys.executable, "-c", code, str(path)], cwd=project, capture_output=True, text=True, check=True
        ).stdout
        path.unlink()
        assert said.split() == [tokens, "False"]


@EACH
def test_what_the_engine_lacks_is_not_said_to_be_there(
    network: LoopNetwork, params: Path, world: Path, tmp_path: Path
) -> None:
    assert {named(name).stored for name in ("event-stream", "window")} == set(IN_THE_ENGINE)
    assert network.stored not in IN_THE_ENGINE
    made = untrained(network, params, world)
    artifact.save(tmp_path / "model", made.model, made.description)
    with pytest.raises(ValueError, match=f"unknown architecture '{network.stored}'"):
        Engine(tmp_path / "model")


# Inputs left out by name


def test_what_is_left_out_changes_no_bit_of_an_answer_and_the_engine_agrees(
    world: Path, tmp_path: Path
) -> None:
    windows = opened(world)
    out = ["flow_age_us", "in_flight", "latency_us", "receiver_code_0"]
    own = {"layers": 1, "width": 64, "heads": 4, "seed": 1, "workers": 1, "epochs": 1, "batch_size": 64}
    own |= {"warmup_steps": 20, "noam_factor": 0.5, "weight_decay": 1e-5, "sharp_weight": 1, "target": "log"}
    section = PretrainParams(**own, readout="candidates", anchor="last_latency_flow_us", left_out=out)  # type: ignore[arg-type]
    train, validation = pretraining_split(windows)
    features, target = fit_scaling(windows, train, section)
    torch.manual_seed(1)
    model = Predictor(features, target, section.sizes(windows.horizon))
    Pretrainer(model, ScaledPrediction(model), train, validation, section).run_epoch()

    x_BWF = np.array(windows.trace("t").x_BWF[50:90])
    answer_BH = predict(model, x_BWF)
    places = [windows.feature_names.index(name) for name in out]
    other_BWF = x_BWF.copy()
    rng = np.random.default_rng(1)
    other_BWF[..., places] = rng.uniform(-1e7, 1e7, other_BWF[..., places].shape)
    np.testing.assert_array_equal(predict(model, other_BWF), answer_BH)
    seen_BWF = x_BWF.copy()
    seen_BWF[..., windows.feature_names.index("gap_us")] += 1e5
    assert (predict(model, seen_BWF) != answer_BH).any()

    described = artifact.Description(windows.tokens, windows.schema_hash, "acked")
    artifact.save(tmp_path / "model", model, described)
    for given_BWF in (x_BWF, other_BWF):
        np.testing.assert_allclose(Engine(tmp_path / "model").forward(given_BWF), answer_BH, rtol=1e-5)


def test_an_input_that_is_none_cannot_be_left_out(world: Path, params: Path, network: LoopNetwork) -> None:
    windows = opened(world)
    train, _ = pretraining_split(windows)
    section: Any = read(params, network.params())
    wrong = section.model_copy(update={"left_out": ["in_fligth"]})
    line = r"recurrent\.left_out names 'in_fligth', which no window has; did you mean in_flight\?"
    with pytest.raises(ValueError, match=line):
        fit_scaling(windows, train, wrong)
