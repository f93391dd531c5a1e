"""The network of a fine-tuned artifact made from its parent's: what a whole export gives."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from benchmarks.inference_references import typical_features
from feature_store.events.windows import FEATURES, schema_hash
from models.networks import artifact, onnx_head
from models.networks.scaling import Target
from models.networks.transformer import Architecture, Predictor

pytestmark = pytest.mark.slow  # exports take seconds

DESCRIPTION = artifact.Description(64, schema_hash(), "acked", {"name": "small"})
FORMS = {
    "the served form": Architecture(readout="candidates", anchor="last_latency_flow_us"),
    "the paper's form": Architecture(),
}


def make_model(sizes: Architecture) -> Predictor:
    torch.manual_seed(1)
    return Predictor(typical_features(FEATURES), Target("log", 9.0, 0.5), sizes).eval()


def changed(model: Predictor, part: str) -> Predictor:
    torch.manual_seed(2)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name.startswith(part):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return other


@pytest.fixture(scope="module", params=list(FORMS))
def parent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent") / "model"
    artifact.save(folder, make_model(FORMS[request.param]), DESCRIPTION)
    artifact.export_onnx(folder)
    return folder


def tensors(path: Path) -> dict[str, np.ndarray]:
    graph = onnx.load(str(path)).graph
    return {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}


@pytest.mark.long
def test_a_new_head_gives_the_network_that_a_whole_export_gives(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = changed(artifact.load(parent).model, "head.")
    artifact.save(tmp_path / "tuned", tuned, DESCRIPTION)
    artifact.save(tmp_path / "whole", tuned, DESCRIPTION)
    whole = tensors(artifact.export_onnx(tmp_path / "whole"))
    monkeypatch.setattr(artifact, "export_onnx", lambda folder: pytest.fail("a whole export was made"))
    path = onnx_head.export_onnx(tmp_path / "tuned", parent)
    ours = tensors(path)
    assert ours.keys() == whole.keys()
    assert all(np.array_equal(ours[name], value) for name, value in whole.items())
    onnx.checker.check_model(str(path), full_check=True)
    check_answers(path, tuned)


def check_answers(network: Path, model: Predictor) -> None:
    """The exported network computes what the model does."""
    x_BWF = np.abs(np.random.default_rng(0).normal(0, 100, (5, 64, len(FEATURES)))).astype(np.float32)
    session = onnxruntime.InferenceSession(str(network), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected_BH = model(torch.from_numpy(x_BWF)).numpy()
    (answer_BH,) = session.run(["latency_us"], {"window": x_BWF})
    np.testing.assert_allclose(answer_BH, expected_BH, rtol=1e-4)


@pytest.mark.long
def test_another_encoder_means_a_whole_export(parent: Path, tmp_path: Path) -> None:
    other = changed(artifact.load(parent).model, "embedding.")
    artifact.save(tmp_path / "other", other, DESCRIPTION)
    check_answers(onnx_head.export_onnx(tmp_path / "other", parent), other)


def test_a_network_that_is_not_the_parents_is_left_alone(parent: Path) -> None:
    network = onnx.load(str(parent / "model.onnx"))
    before = network.SerializeToString()
    stranger = changed(artifact.load(parent).model, "head.").state_dict()
    head = {name: value.numpy() for name, value in stranger.items() if name.startswith("head.")}
    assert not onnx_head.put_head(network, head, head)
    assert network.SerializeToString() == before
