"""The predictor: its size, its exactness against torch's own encoder, and its behaviour."""

# Shapes: B batch, W window tokens, F features, D model width, H horizon.

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.finetune import torch_encoder
from models.networks.prediction import BATCH, predict
from models.networks.scaling import SCALE_FLOOR, ScaledFeature, Target, fit_features, fit_target
from models.networks.transformer import Architecture, Predictor
from models.networks.window_network import MAX_LATENCY_US

NAMES = ["age_us", "latency_us", "latency_visible", "candidate", "size_bytes", "in_flight"]
UNITS = ["us", "us", "flag", "flag", "bytes", "packets"]


def windows(batch: int, tokens: int, padding: int = 0, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    x_BWF = np.zeros((batch, tokens, len(NAMES)), dtype=np.float32)
    x_BWF[..., 0] = np.sort(rng.uniform(0, 1e5, (batch, tokens)))[:, ::-1]
    x_BWF[..., 1] = rng.lognormal(9, 1, (batch, tokens))
    x_BWF[..., 2] = rng.integers(0, 2, (batch, tokens))
    x_BWF[:, -8:, 3] = 1
    x_BWF[..., 4] = rng.integers(60, 1500, (batch, tokens))
    x_BWF[..., 5] = rng.integers(0, 200, (batch, tokens))
    x_BWF[:, :padding] = 0
    return torch.from_numpy(x_BWF)


def make_predictor(**sizes: object) -> Predictor:
    torch.manual_seed(0)
    x_BWF = windows(32, 24).numpy()
    model = Predictor(fit_features(x_BWF, NAMES, UNITS), Target("log", 9.0, 1.0), Architecture(**sizes))  # type: ignore[arg-type]
    return model.eval()


def test_six_features_give_the_papers_parameter_count() -> None:
    assert sum(p.numel() for p in make_predictor().parameters()) == 105_096


@pytest.mark.parametrize(("readout", "read"), [("last", 1), ("candidates", 8)])
@pytest.mark.parametrize("padding", [0, 5, 16])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_read_tokens_equal_torchs_encoder(padding: int, layers: int, readout: str, read: int) -> None:
    model = make_predictor(layers=layers, readout=readout)
    x_BWF = windows(16, 24, padding)
    mask_BW = x_BWF[..., model.size_index] == 0
    with torch.no_grad():
        theirs_BWD = torch_encoder(model)(model.embedding(model.scale(x_BWF)), src_key_padding_mask=mask_BW)
        ours_BRD = model.encode(x_BWF)
    assert ours_BRD.shape[1] == read
    torch.testing.assert_close(ours_BRD, theirs_BWD[:, -read:], atol=1e-5, rtol=1e-5)


def test_gradients_equal_torchs_encoder() -> None:
    model, x_BWF = make_predictor(), windows(4, 24, 3)
    encoder = torch_encoder(model)
    mask_BW = x_BWF[..., model.size_index] == 0
    model.encode(x_BWF).square().sum().backward()
    encoder(model.embedding(model.scale(x_BWF)).detach(), src_key_padding_mask=mask_BW)[
        :, -1
    ].square().sum().backward()
    for (name, ours), theirs in zip(
        model.layers.named_parameters(), encoder.layers.parameters(), strict=True
    ):
        assert ours.grad is not None, name
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("readout", ["last", "candidates"])
def test_forward_is_encode_head_to_us(readout: str) -> None:
    model, x_BWF = make_predictor(readout=readout), windows(4, 24)
    with torch.no_grad():
        assert torch.equal(model(x_BWF), model.to_us(model.head(model.encode(x_BWF))))
        assert model(x_BWF).shape == (4, 8)


@pytest.mark.parametrize("readout", ["last", "candidates"])
def test_the_head_is_two_linear_layers(readout: str) -> None:
    """Latency h is output h of the plain two layers on token h (on the only token, with one)."""
    model, x_BWF = make_predictor(readout=readout), windows(4, 24)
    inner, relu, outer = model.head
    with torch.no_grad():
        features_BRD = model.encode(x_BWF)
        plain_BRH = outer(relu(inner(features_BRD)))
        token = [h if readout == "candidates" else 0 for h in range(8)]
        wanted_BH = torch.stack([plain_BRH[:, token[h], h] for h in range(8)], dim=1)
        torch.testing.assert_close(model.head(features_BRD), wanted_BH, atol=1e-6, rtol=1e-5)


def swapped_candidates(x_BWF: torch.Tensor) -> torch.Tensor:
    return torch.cat([x_BWF[:, :-8], x_BWF[:, -8:][:, [6, 1, 2, 3, 4, 5, 0, 7]]], dim=1)


def test_the_papers_readout_cannot_tell_the_first_candidates_apart() -> None:
    """Why `candidates` exists: swapping the packets 0 and 6 does not move any of the 8 latencies."""
    model, x_BWF = make_predictor(), windows(4, 24)
    swapped_BWF = swapped_candidates(x_BWF)
    with torch.no_grad():
        torch.testing.assert_close(model(swapped_BWF), model(x_BWF), rtol=1e-4, atol=1e-2)


def test_the_readout_by_candidates_follows_the_packets() -> None:
    model, x_BWF = make_predictor(readout="candidates"), windows(4, 24)
    swapped_BWF = swapped_candidates(x_BWF)
    with torch.no_grad():
        features_BRD, swapped_BRD = model.encode(x_BWF), model.encode(swapped_BWF)
        torch.testing.assert_close(swapped_BRD[:, 0], features_BRD[:, 6], rtol=1e-4, atol=1e-5)
        assert (model(swapped_BWF)[:, 0] - model(x_BWF)[:, 0]).abs().min() > 0


def test_an_untrained_anchored_network_forecasts_its_anchor() -> None:
    names = [*NAMES, "last_latency_flow_us", "last_latency_us"]
    x_BWF = windows(3, 24)
    latencies = torch.tensor([[30_000.0, 20_000.0], [0.0, 20_000.0], [0.0, 0.0]])
    x_BWF = torch.cat([x_BWF, latencies[:, None].expand(3, 24, 2)], dim=2)
    features = fit_features(x_BWF.numpy(), names, [*UNITS, "us", "us"])
    for target in (Target("log", 9.0, 0.7), Target("raw", 8_000.0, 5_000.0)):
        sizes = Architecture(readout="candidates", anchor="last_latency_flow_us")
        model = Predictor(features, target, sizes).eval()
        mean_us = float(model.to_us(torch.zeros(1)))  # nothing visible: the mean in target space
        wanted_BH = torch.tensor([[30_000.0], [20_000.0], [mean_us]]).expand(3, 8)
        with torch.no_grad():
            torch.testing.assert_close(model(x_BWF), wanted_BH, rtol=1e-4, atol=1.0)


def test_an_anchor_must_be_an_input() -> None:
    with pytest.raises(ValueError, match="the anchor needs the input last_latency_flow_us"):
        make_predictor(anchor="last_latency_flow_us")


@pytest.mark.slow
@given(padding=st.integers(0, 16), garbage=st.floats(-1e6, 1e6), seed=st.integers(0, 5))
def test_padding_changes_nothing(padding: int, garbage: float, seed: int) -> None:
    """Neither how much padding stands before the history nor what it holds (size 0 apart) matters."""
    model, x_BWF = make_predictor(), windows(2, 40, 16, seed)
    dirty_BWF = x_BWF.clone()
    dirty_BWF[:, :padding, :4] = garbage
    with torch.no_grad():
        expected = model(x_BWF)
        torch.testing.assert_close(model(x_BWF[:, padding:]), expected, rtol=1e-4, atol=0)
        torch.testing.assert_close(model(dirty_BWF), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("transform", ["log", "raw"])
@pytest.mark.parametrize("value", [0.0, 1e9])
def test_any_finite_window_gives_finite_latencies_in_range(transform: str, value: float) -> None:
    features = make_predictor().features
    model = Predictor(features, Target(transform, 9.0, 1.0)).eval()  # type: ignore[arg-type]
    latency_BH = model(torch.full((3, 24, 6), value))
    assert torch.isfinite(latency_BH).all()
    assert (latency_BH >= 0).all()
    assert (latency_BH <= MAX_LATENCY_US * 1.001).all()


@pytest.mark.slow
@given(st.floats(1, 1e7), st.sampled_from(["log", "raw"]))
def test_to_us_inverts_the_target(latency_us: float, transform: str) -> None:
    target = Target(transform, 8.5, 1.3)  # type: ignore[arg-type]
    model = Predictor(make_predictor().features, target)
    scaled = target.apply(np.array([latency_us], dtype=np.float32))
    assert model.to_us(torch.from_numpy(scaled)).item() == pytest.approx(latency_us, rel=1e-4)


def test_scaling_is_fitted_on_real_tokens_only() -> None:
    x_BWF = windows(64, 24).numpy()
    padded_BWF = np.concatenate([np.zeros((64, 40, 6), dtype=np.float32), x_BWF], axis=1)
    assert fit_features(padded_BWF, NAMES, UNITS) == fit_features(x_BWF, NAMES, UNITS)


def test_scaled_features_are_standardised_and_flags_untouched() -> None:
    model, x_BWF = make_predictor(), windows(32, 24)
    scaled_NF = model.scale(x_BWF).reshape(-1, 6)
    for f, feature in enumerate(model.features):
        if feature.transform == "identity":
            assert torch.equal(scaled_NF[:, f], x_BWF[..., f].reshape(-1))
        else:
            assert abs(float(scaled_NF[:, f].mean())) < 1e-3
            assert float(scaled_NF[:, f].std()) == pytest.approx(1, abs=1e-2)


def test_a_constant_feature_keeps_a_sane_scale() -> None:
    x_BWF = windows(8, 24).numpy()
    x_BWF[..., 4] = 1500
    size = fit_features(x_BWF, NAMES, UNITS)[4]
    assert size.scale == SCALE_FLOOR


def test_bad_inputs_are_refused() -> None:
    x_BWF = windows(2, 24).numpy()
    with pytest.raises(ValueError, match="do not hold the 5 features"):
        fit_features(x_BWF, NAMES[:5], UNITS[:5])
    with pytest.raises(ValueError, match="hold no packet"):
        fit_features(np.zeros_like(x_BWF), NAMES, UNITS)
    x_BWF[0, 0, 1] = np.nan
    with pytest.raises(ValueError, match=r"feature latency_us .* NaN"):
        fit_features(x_BWF, NAMES, UNITS)
    with pytest.raises(ValueError, match="no known latency"):
        fit_target(np.full((3, 8), np.nan, dtype=np.float32), "log")
    with pytest.raises(ValueError, match="unknown transform 'sqrt'"):
        ScaledFeature("age_us", "us", "sqrt")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hold size_bytes"):
        Predictor([ScaledFeature("age_us", "us")], Target())
    with pytest.raises(ValueError, match="heads must divide"):
        Architecture(width=63)


def test_windows_are_predicted_in_batches_as_the_model_predicts_them() -> None:
    """In eval mode, from what cannot be written to, and the last batch is shorter."""
    model, x_BWF = make_predictor(readout="candidates").train(), windows(BATCH + 3, 16).numpy()
    x_BWF.setflags(write=False)
    us_BH = predict(model, x_BWF)
    assert not model.training
    with torch.no_grad():
        for part in (slice(0, BATCH), slice(BATCH, None)):
            np.testing.assert_array_equal(us_BH[part], model(torch.from_numpy(x_BWF[part].copy())).numpy())
