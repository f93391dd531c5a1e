"""The artifact: what was saved is what is loaded, and anything else is refused by one clear line."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import toy_world
from safetensors.torch import load_file, save_file

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.models.event_stream.network import EventArchitecture, EventPredictor
from swiftqueue.models.networks import artifact
from swiftqueue.models.networks.scaling import TargetScaling

ARTIFACTS = Path(__file__).resolve().parent.parent / "data" / "artifacts"
TINY = EventArchitecture(layers=1, band=64, width=8, heads=2, feed_forward=16)
PROTOCOL = {"name": "small", "pretrain_s": 30}
TOKENS = 72


def make_model(seed: int = 0, sizes: EventArchitecture = TINY) -> EventPredictor:
    torch.manual_seed(seed)
    model = EventPredictor(*toy_world.scaled_inputs(), TargetScaling("log", 9.0, 1.0), sizes)
    torch.nn.init.normal_(model.head[2].weight, std=0.1)
    return model.eval()


def window(batch: int, padding: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(batch)
    x_BWF = rng.uniform(0, 1500, (batch, TOKENS, len(EVENTS.features))).astype(np.float32)
    x_BWF[:, :padding] = 0
    return torch.from_numpy(x_BWF)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    artifact.save(tmp_path / "model", make_model(), PROTOCOL)
    return tmp_path / "model"


def edit_json(folder: Path, **changes: object) -> None:
    path = folder / "model.json"
    described = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del described[key]
        else:
            described[key] = {**described[key], **value} if key == "architecture" else value  # type: ignore[dict-item]
    path.write_text(json.dumps(described))


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    state = load_file(path)
    for key, value in changes.items():
        name = key.replace("__", ".")
        if value is None:
            del state[name]
        else:
            state[name] = value
    save_file(state, path)


def test_round_trip_keeps_every_bit(folder: Path) -> None:
    loaded = artifact.load(folder)
    assert loaded.description == artifact.Description(TOKENS, EVENTS.schema_hash, "acked", PROTOCOL)
    assert loaded.model.scalings() == make_model().scalings()
    assert not loaded.model.training
    x_BWF = window(5, 3)
    with torch.no_grad():
        assert torch.equal(loaded.model(x_BWF), make_model()(x_BWF))
    assert sorted(p.name for p in folder.iterdir()) == ["model.json", "model.safetensors"]
    described = json.loads((folder / "model.json").read_text())
    assert (described["architecture"]["name"], loaded.model.sizes) == ("event-stream", TINY)
    names = [{each["name"] for each in described[rows]} for rows in ("features", "queries")]
    assert names[0] - names[1] == {"latency_us", "latency_visible", "previous_latency_flow_us"}
    assert names[1] - names[0] == {"place"}


def test_saving_again_replaces_all_of_it(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"of the old weights")
    artifact.save(folder, make_model(1), PROTOCOL)
    assert sorted(p.name for p in folder.iterdir()) == ["model.json", "model.safetensors"]
    assert [p.name for p in folder.parent.iterdir()] == ["model"]
    assert torch.equal(artifact.load(folder).model.send.weight, make_model(1).send.weight)


def test_a_model_trained_to_nan_is_not_saved(tmp_path: Path) -> None:
    model = make_model()
    with torch.no_grad():
        model.send.bias[0] = torch.nan
    with pytest.raises(ValueError, match=r"weight send\.bias holds NaN"):
        artifact.save(tmp_path / "model", model, PROTOCOL)
    assert list(tmp_path.iterdir()) == []


def test_another_schema_hash_is_refused(folder: Path) -> None:
    edit_json(folder, schema_hash="bbb")
    with pytest.raises(
        ValueError, match=f"made for features bbb, but this code computes {EVENTS.schema_hash}"
    ):
        artifact.load(folder)


@pytest.mark.parametrize(
    "old", [{"name": "transformer-encoder"}, {"name": "bilstm"}, {"name": "query-mlp"}, {"queries": None}]
)
def test_a_network_of_a_former_form_names_the_commit_that_serves_it(
    folder: Path, old: dict[str, str | None]
) -> None:
    edit_json(folder, **({"architecture": old} if "name" in old else old))
    with pytest.raises(ValueError, match=r"of the old form, .* commit ebbf31e4 is the last one") as refused:
        artifact.load(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": None}, "key 'target' is missing"),
        ({"extra": 1}, "unknown key 'extra'"),
        ({"format": "swiftqueue-artifact/9"}, "format 'swiftqueue-artifact/9' is not"),
        ({"window": {"tokens": 4, "horizon": 8}}, "the window must be 64 events and 8 queries"),
        ({"window": {"tokens": 64}}, "window: key 'horizon' is missing"),
        ({"target": {"transform": "sqrt", "shift": 0, "scale": 1}}, "unknown transform 'sqrt'"),
        ({"target": {"transform": "log", "shift": 0, "scale": 0}}, "scale above zero|scale 0"),
        ({"window": {"tokens": 72, "horizon": 16}}, "the window must be 64 events and 8 queries"),
        ({"architecture": {"name": "lstm"}}, "unknown architecture 'lstm' .known: event-stream, mlp, trees"),
        ({"architecture": {"layers": 2}}, "the window must be 128 events and 8 queries"),
        ({"architecture": {"band": 192}}, "the window must be 192 events"),
        ({"architecture": {"band": 10**9}}, "band is 1000000000; it must be a whole number"),
        ({"architecture": {"readout": "last"}}, "architecture: unknown key 'readout'"),
        ({"queries": []}, "features is 0; it must be a whole number from 1"),
        ({"features": [{"name": "age_us", "unit": "us"}]}, "feature: key 'scale' is missing"),
        ({"features": 7}, "malformed"),
    ],
)
def test_a_wrong_description_is_refused(folder: Path, changes: dict[str, object], message: str) -> None:
    edit_json(folder, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        artifact.load(folder)
    assert "model.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"send__bias": None}, r"weight send\.bias is missing"),
        ({"stranger": torch.zeros(1)}, "unknown weight stranger"),
        ({"head__0__bias": torch.zeros(9)}, r"weight head\.0\.bias is torch\.float32 \(9,\), expected"),
        ({"head__0__bias": torch.zeros(8, dtype=torch.float64)}, r"is torch\.float64 \(8,\), expected"),
        ({"head__0__bias": torch.full((8,), torch.nan)}, r"weight head\.0\.bias holds NaN"),
        ({"head__0__bias": torch.full((8,), torch.inf)}, r"weight head\.0\.bias holds NaN"),
    ],
)
def test_wrong_weights_are_refused(
    folder: Path, changes: dict[str, torch.Tensor | None], message: str
) -> None:
    edit_weights(folder, **changes)
    with pytest.raises(ValueError, match=message):
        artifact.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.99])
def test_a_truncated_file_is_refused(folder: Path, name: str, keep: float) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(ValueError, match=rf"{name}: truncated"):
        artifact.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name}: no such file"):
        artifact.load(folder)


def test_an_artifact_of_windows_that_was_committed_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"of the old form, a network over windows of packets") as refused:
        artifact.load(ARTIFACTS / "v1-tiny")
    assert "\n" not in str(refused.value)


def test_yesterdays_artifact_still_loads_and_predicts_the_same() -> None:
    """A committed artifact that lists some inputs in any order, with the answers that it gave."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "model"))
    import engine_models  # what wrote it

    committed = ARTIFACTS / "some-features"
    expected_BH = np.array(json.loads((committed / "answers.json").read_text()))
    got_BH = engine_models.exact(artifact.load(committed).model, engine_models.windows())  # type: ignore[arg-type]
    np.testing.assert_allclose(got_BH, expected_BH, rtol=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_onnx_answers_as_the_model_does(folder: Path) -> None:
    import onnxruntime

    path = artifact.export_onnx(folder)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [(i.name, i.shape[1:]) for i in session.get_inputs()] == [
        ("window", [TOKENS, len(EVENTS.features)])
    ]
    assert [(o.name, o.shape[1:]) for o in session.get_outputs()] == [("latency_us", [8])]
    model = artifact.load(folder).model
    for batch, padding in ((1, 0), (2, 5), (7, 8), (64, 3), (3, TOKENS - 8)):
        x_BWF = window(batch, padding)
        with torch.no_grad():
            ours_BH = model(x_BWF).numpy()
        theirs_BH = session.run(["latency_us"], {"window": x_BWF.numpy()})[0]
        np.testing.assert_allclose(theirs_BH, ours_BH, rtol=1e-4)


@pytest.mark.long
@pytest.mark.slow
def test_onnx_of_a_full_size_model_answers_as_the_model_does(tmp_path: Path) -> None:
    import onnxruntime

    model = make_model(3, EventArchitecture(anchor=None))
    artifact.save(tmp_path / "m", model, PROTOCOL)
    session = onnxruntime.InferenceSession(str(artifact.export_onnx(tmp_path / "m")))
    rows = np.repeat(window(9, 4).numpy(), 2, axis=1)[:, : model.rows]
    with torch.no_grad():
        ours_BH = artifact.load(tmp_path / "m").model(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(session.run(None, {"window": rows})[0], ours_BH, rtol=1e-4)
