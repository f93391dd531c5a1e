"""The artifact: what was saved is what is loaded, and anything else is refused by one clear line."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.networks import artifact
from models.networks.artifact import Description
from models.networks.scaling import ScaledFeature, Target
from models.networks.transformer import Architecture, Predictor

COMMITTED = Path(__file__).resolve().parent.parent / "data" / "artifacts" / "v1-tiny"
TOKENS = 16
FEATURES = [
    ScaledFeature("age_us", "us", "log1p", 9.5, 2.0),
    ScaledFeature("latency_us", "us", "log1p", 4.0, 3.0),
    ScaledFeature("latency_visible", "flag"),
    ScaledFeature("size_bytes", "bytes", "log1p", 7.0, 0.5),
]
TINY = Architecture(width=8, heads=2, feed_forward=16)
DESCRIPTION = Description(TOKENS, "a" * 64, "acked", {"name": "small", "pretrain_s": 30})


def make_model(seed: int = 0) -> Predictor:
    torch.manual_seed(seed)
    return Predictor(FEATURES, Target("log", 9.0, 1.0), TINY).eval()


def window(batch: int, padding: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(batch)
    x_BWF = rng.uniform(0, 1500, (batch, TOKENS, len(FEATURES))).astype(np.float32)
    x_BWF[:, :padding] = 0
    return torch.from_numpy(x_BWF)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    artifact.save(tmp_path / "model", make_model(), DESCRIPTION)
    return tmp_path / "model"


def edit_json(folder: Path, **changes: object) -> None:
    path = folder / "model.json"
    described = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del described[key]
        else:
            described[key] = value
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
    loaded = artifact.load(folder, "a" * 64)
    assert loaded.description == DESCRIPTION
    assert loaded.model.features == tuple(FEATURES)
    assert not loaded.model.training
    x_BWF = window(5, 3)
    with torch.no_grad():
        assert torch.equal(loaded.model(x_BWF), make_model()(x_BWF))
    assert sorted(p.name for p in folder.iterdir()) == ["model.json", "model.safetensors"]


def test_saving_again_replaces_all_of_it(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"of the old weights")
    artifact.save(folder, make_model(1), DESCRIPTION)
    assert sorted(p.name for p in folder.iterdir()) == ["model.json", "model.safetensors"]
    assert [p.name for p in folder.parent.iterdir()] == ["model"]
    assert torch.equal(artifact.load(folder).model.embedding.weight, make_model(1).embedding.weight)


def test_a_model_trained_to_nan_is_not_saved(tmp_path: Path) -> None:
    model = make_model()
    with torch.no_grad():
        model.embedding.bias[0] = torch.nan
    with pytest.raises(ValueError, match=r"weight embedding\.bias holds NaN"):
        artifact.save(tmp_path / "model", model, DESCRIPTION)
    assert list(tmp_path.iterdir()) == []


def test_another_schema_hash_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=f"made for features {'a' * 64}, but this code computes bbb"):
        artifact.load(folder, "bbb")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": None}, "key 'target' is missing"),
        ({"extra": 1}, "unknown key 'extra'"),
        ({"format": "swiftqueue-artifact/9"}, "format 'swiftqueue-artifact/9' is not"),
        ({"window": {"tokens": 4, "horizon": 8}}, "shorter than its horizon"),
        ({"window": {"tokens": 64}}, "window: key 'horizon' is missing"),
        ({"target": {"transform": "sqrt", "shift": 0, "scale": 1}}, "unknown transform 'sqrt'"),
        ({"target": {"transform": "log", "shift": 0, "scale": 0}}, "scale above zero|scale 0"),
        ({"architecture": {"name": "lstm"}}, "unknown architecture 'lstm'"),
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
        ({"embedding__bias": None}, r"weight embedding\.bias is missing"),
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


def test_yesterdays_artifact_still_loads_and_predicts_the_same() -> None:
    """Backward compatibility: a committed artifact with the answers it gave when it was written."""
    loaded = artifact.load(COMMITTED)
    expected = json.loads((COMMITTED / "answers.json").read_text())
    with torch.no_grad():
        latency_BH = loaded.model(torch.tensor(expected["window"], dtype=torch.float32))
    torch.testing.assert_close(latency_BH, torch.tensor(expected["latency_us"]), rtol=1e-4, atol=0)


@pytest.mark.long
@pytest.mark.slow
def test_onnx_answers_as_the_model_does(folder: Path) -> None:
    import onnxruntime

    path = artifact.export_onnx(folder)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [(i.name, i.shape[1:]) for i in session.get_inputs()] == [("window", [TOKENS, len(FEATURES)])]
    assert [(o.name, o.shape[1:]) for o in session.get_outputs()] == [("latency_us", [8])]
    model = artifact.load(folder).model
    for batch, padding in ((1, 0), (2, 5), (7, 8), (64, 3), (3, TOKENS)):
        x_BWF = window(batch, padding)
        with torch.no_grad():
            ours_BH = model(x_BWF).numpy()
        theirs_BH = session.run(["latency_us"], {"window": x_BWF.numpy()})[0]
        np.testing.assert_allclose(theirs_BH, ours_BH, rtol=1e-4)


@pytest.mark.long
@pytest.mark.slow
def test_onnx_of_a_full_size_model_answers_as_the_model_does(tmp_path: Path) -> None:
    import onnxruntime

    torch.manual_seed(3)
    artifact.save(tmp_path / "m", Predictor(FEATURES, Target("raw", 2e4, 1e4)), DESCRIPTION)
    session = onnxruntime.InferenceSession(str(artifact.export_onnx(tmp_path / "m")))
    x_BWF = window(9, 4)
    with torch.no_grad():
        ours_BH = artifact.load(tmp_path / "m").model(x_BWF).numpy()
    np.testing.assert_allclose(session.run(None, {"window": x_BWF.numpy()})[0], ours_BH, rtol=1e-4)
