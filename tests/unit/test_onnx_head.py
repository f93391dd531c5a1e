"""The network of a fine-tuned artifact made from its parent's: what a whole export gives."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import toy_world

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.models.event_stream.network import EventArchitecture, EventPredictor
from swiftqueue.models.mlp.network import MlpArchitecture, QueryMlp
from swiftqueue.models.networks import artifact, onnx_head
from swiftqueue.models.networks.query_network import QueryNetwork
from swiftqueue.models.networks.scaling import TargetScaling

pytestmark = pytest.mark.slow  # exports take seconds

TARGET = TargetScaling("log", 9.0, 0.5)


def make_model(name: str) -> QueryNetwork:
    torch.manual_seed(1)
    events, queries = toy_world.scaled_inputs()
    if name == "mlp":
        return QueryMlp((), queries, TARGET, MlpArchitecture()).eval()
    return EventPredictor(events, queries, TARGET, EventArchitecture(layers=1)).eval()


def changed(model: QueryNetwork, part: str) -> QueryNetwork:
    torch.manual_seed(2)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name.startswith(part):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return other


@pytest.fixture(scope="module", params=["event-stream", "mlp"])
def parent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent") / "model"
    artifact.save(folder, make_model(request.param), {})
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
    artifact.save(tmp_path / "tuned", tuned, {})
    artifact.save(tmp_path / "whole", tuned, {})
    whole = tensors(artifact.export_onnx(tmp_path / "whole"))
    monkeypatch.setattr(artifact, "export_onnx", lambda folder: pytest.fail("a whole export was made"))
    path = onnx_head.export_onnx(tmp_path / "tuned", parent)
    ours = tensors(path)
    assert ours.keys() == whole.keys()
    assert all(np.array_equal(ours[name], value) for name, value in whole.items())
    onnx.checker.check_model(str(path), full_check=True)
    check_answers(path, tuned)


def check_answers(network: Path, model: QueryNetwork) -> None:
    """The exported network computes what the model does."""
    x_BWF = np.abs(np.random.default_rng(0).normal(0, 100, (5, model.rows, len(EVENTS.features)))).astype(
        np.float32
    )
    session = onnxruntime.InferenceSession(str(network), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected_BH = model(torch.from_numpy(x_BWF)).numpy()
    (answer_BH,) = session.run(["latency_us"], {"window": x_BWF})
    np.testing.assert_allclose(answer_BH, expected_BH, rtol=1e-4)


@pytest.mark.long
def test_another_encoder_means_a_whole_export(parent: Path, tmp_path: Path) -> None:
    loaded = artifact.load(parent).model
    other = changed(loaded, "send." if isinstance(loaded, EventPredictor) else "body.")
    artifact.save(tmp_path / "other", other, {})
    check_answers(onnx_head.export_onnx(tmp_path / "other", parent), other)


def test_a_network_that_is_not_the_parents_is_left_alone(parent: Path) -> None:
    network = onnx.load(str(parent / "model.onnx"))
    before = network.SerializeToString()
    stranger = changed(artifact.load(parent).model, "head.").state_dict()
    head = {name: value.numpy() for name, value in stranger.items() if name.startswith("head.")}
    assert not onnx_head.put_head(network, head, head)
    assert network.SerializeToString() == before
