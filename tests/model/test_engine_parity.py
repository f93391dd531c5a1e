"""The engine computes what the predictor computes: every instruction set, every size of window."""

# Shapes: B batch, W window tokens, F features, D model width, H horizon.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from engine_models import GOLDEN, SIZE, make_model, save, windows

from models.networks.scaling import Target, TargetTransform
from models.networks.transformer import Predictor, Readout
from serving.engine import Engine, Isa

ISAS: tuple[Isa, ...] = ("avx512", "avx2", "portable")
RELATIVE = 1e-5


def engines(folder: Path, *isas: Isa) -> dict[Isa, Engine]:
    """Engines for those instruction sets that this CPU has."""
    found = {}
    for isa in isas:
        try:
            found[isa] = Engine(folder, isa)
        except ValueError as error:
            if "this CPU lacks" not in str(error):
                raise
    return found


def engine(folder: Path, isa: Isa) -> Engine:
    return engines(folder, isa).get(isa) or pytest.skip(f"this CPU lacks {isa}")


def answers(model: Predictor, x_BWF: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    with torch.no_grad():
        return np.concatenate([model(part).numpy() for part in torch.from_numpy(x_BWF).split(256)])  # type: ignore[no-untyped-call]


def worst(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> float:
    return float(np.max(np.abs(ours - theirs) / np.abs(theirs)))


@pytest.mark.parametrize("isa", ISAS)
def test_golden_vectors(tmp_path: Path, isa: Isa) -> None:
    """Committed answers of the predictor in float64 (`python tests/model/engine_models.py` writes them)."""
    golden = json.loads(GOLDEN.read_text())
    ours = engine(save(tmp_path / "m", make_model()), isa)
    for case in golden:
        x_WF = np.array(case["window"], np.float32)
        assert worst(ours.forward(x_WF), np.array([case["latency_us"]])) <= RELATIVE
        np.testing.assert_allclose(ours.features(x_WF)[0, 0], case["features"], atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("padding", [0, 56])
def test_windows_of_the_served_size(tmp_path: Path, isa: Isa, padding: int) -> None:
    model = make_model()
    x_BWF = windows(100, 64, model, padding)
    ours = engine(save(tmp_path / "m", model), isa)
    expected_BH = answers(model, x_BWF)
    assert worst(ours.forward(x_BWF), expected_BH) <= RELATIVE
    assert worst(ours.forward(x_BWF, full_graph=True), expected_BH) <= RELATIVE
    with torch.no_grad():
        feature_BRD = model.encode(torch.from_numpy(x_BWF)).numpy()
    np.testing.assert_allclose(ours.features(x_BWF), feature_BRD, atol=1e-5)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("readout", "anchor"), [("last", None), ("candidates", "last_latency_flow_us")])
def test_ten_thousand_windows(
    tmp_path: Path, readout: Readout, anchor: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(readout=readout, anchor=anchor)
    x_BWF = np.concatenate([windows(5_000, 64, model), windows(5_000, 64, model, 64, seed=1)])
    expected_BH = answers(model, x_BWF)
    for isa, ours in engines(save(tmp_path / "m", model), *ISAS).items():
        error = worst(ours.forward(x_BWF), expected_BH)
        with capsys.disabled():
            print(f"[{isa}, {readout}: worst relative error of 10,000 windows {error:.2g}] ", end="")
        assert error <= RELATIVE, isa


@pytest.mark.parametrize("isa", ISAS)
def test_every_number_of_tokens(tmp_path: Path, isa: Isa) -> None:
    """Vector and block borders: 8..150 tokens of a model for 152, in windows just as long or padded."""
    model = make_model()
    ours = engine(save(tmp_path / "m", model, tokens=152), isa)
    full_BWF = windows(1, 152, model)
    counts = [*range(8, 36), 47, 48, 49, 63, 64, 65, 80, 81, 127, 128, 129, 144, 150]
    for count in counts:
        x_BWF = full_BWF[:, :count]
        expected_BH = answers(model, np.ascontiguousarray(x_BWF))
        assert worst(ours.forward(x_BWF), expected_BH) <= RELATIVE, count
        padded_BWF = np.zeros_like(full_BWF)
        padded_BWF[:, 152 - count :] = x_BWF
        assert np.array_equal(ours.forward(padded_BWF), ours.forward(x_BWF)), count
        assert worst(ours.forward(x_BWF, full_graph=True), expected_BH) <= RELATIVE, count


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("count", "layers", "horizon", "tokens"), [(6, 1, 8, 16), (24, 3, 8, 256), (37, 2, 16, 24), (4, 2, 1, 8)]
)
def test_sizes_come_from_the_artifact(
    tmp_path: Path, isa: Isa, count: int, layers: int, horizon: int, tokens: int
) -> None:
    model = make_model(count, None, layers, horizon)
    x_BWF = windows(20, tokens, model, tokens // 2)
    ours = engine(save(tmp_path / "m", model, tokens), isa)
    assert ours.shape == (tokens, count)
    assert worst(ours.forward(x_BWF), answers(model, x_BWF)) <= RELATIVE


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("anchor", [None, "last_latency_flow_us"])
@pytest.mark.parametrize(
    ("horizon", "transform"), [(8, "log"), (8, "raw"), (16, "log"), (1, "log"), (5, "log")]
)
def test_reading_every_candidate(
    tmp_path: Path, isa: Isa, anchor: str | None, horizon: int, transform: TargetTransform
) -> None:
    """The readout `candidates`, with and without an anchor that may be hidden, and its fallback too."""
    target = Target(transform, *((9.0, 1.0) if transform == "log" else (8_000.0, 15_000.0)))
    model = make_model(target=target, horizon=horizon, readout="candidates", anchor=anchor)
    ours = engine(save(tmp_path / "m", model, tokens=136), isa)
    names = [feature.name for feature in model.features]
    for tokens in (horizon, 17, 64, 67, 136):
        x_BWF = windows(12, max(tokens, horizon), model, max(0, tokens - horizon))
        x_BWF[3:, -horizon::2, names.index("last_latency_flow_us")] = 0
        x_BWF[6:, -horizon::3, names.index("last_latency_us")] = 0
        expected_BH = answers(model, x_BWF)
        for full_graph in (False, True):
            ours_BH = ours.forward(x_BWF, full_graph=full_graph)
            np.testing.assert_allclose(
                ours_BH, expected_BH, rtol=RELATIVE, atol=RELATIVE * 15_000 * (transform == "raw")
            )
        with torch.no_grad():
            feature_BRD = model.encode(torch.from_numpy(x_BWF)).numpy()
        np.testing.assert_allclose(ours.features(x_BWF), feature_BRD, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_raw_target(tmp_path: Path, isa: Isa) -> None:
    model = make_model(target=Target("raw", 5_000.0, 15_000.0))
    x_BWF = windows(200, 64, model, 56)
    ours_BH = engine(save(tmp_path / "m", model), isa).forward(x_BWF)
    theirs_BH = answers(model, x_BWF)
    assert (theirs_BH == 0).any()  # the lower clamp is at work
    np.testing.assert_allclose(ours_BH, theirs_BH, rtol=RELATIVE, atol=RELATIVE * 15_000)


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_values(tmp_path: Path, isa: Isa) -> None:
    """Zeros, tiny, negative and huge inputs; padding anywhere; candidates without a size."""
    model = make_model()
    ours = engine(save(tmp_path / "m", model), isa)
    x_BWF = windows(12, 64, model)
    x_BWF[0] = 0
    x_BWF[1, :, 0] = 1e-7
    x_BWF[2, :, 0] = np.linspace(0, 1, 64)
    x_BWF[3, :, 0] = -5
    x_BWF[4, :, 0] = 3e38
    x_BWF[5, :, 4] = 1e4
    x_BWF[6, 10:40, SIZE] = 0
    x_BWF[7, -8:, SIZE] = 0
    x_BWF[8, :, SIZE] = -1
    x_BWF[9, :56] = 0
    x_BWF[10] = x_BWF[10, -1]
    assert worst(ours.forward(x_BWF), answers(model, x_BWF)) <= RELATIVE


def test_clamped_latencies(tmp_path: Path) -> None:
    model = make_model(target=Target("log", 17.0, 50.0))
    x_BWF = windows(200, 64, model)
    ours_BH = Engine(save(tmp_path / "m", model)).forward(x_BWF)
    assert ours_BH.min() == 1
    assert ours_BH.max() == pytest.approx(60e6)
    # A scale of 50 in the exponent makes 1e-6 of the network's output 5e-5 of the latency.
    np.testing.assert_allclose(ours_BH, answers(model, x_BWF), rtol=1e-3)
