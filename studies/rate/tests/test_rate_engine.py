"""The engine's forecasts of rates beside PyTorch's, on every instruction set, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from make_golden_rate import flow
from rate_flows import samples_of

from studies.rate.engine import RateEngine
from studies.rate.model import networks
from studies.rate.model.network import RateNetwork, fit_scaling
from studies.rate.samples.definition import NAMES, inputs, schema_hash

ISAS = ("auto", "avx2", "portable")
SIZES = ({}, {"width": 16, "layers": 1, "heads": 2}, {"width": 128, "layers": 3, "heads": 4})


def raw(rate: float = 2e6, rtt_us: int = 50_000, n: int = 35) -> np.ndarray:
    return np.array([list(row.values()) for row in samples_of(rate, rtt_us, n)])


def made_in(root: Path, kind: str = "transformer", **sizes: int) -> tuple[RateNetwork, Path]:
    """A network of random weights and its artifact; its own answer is no longer the guess alone."""
    torch.manual_seed(7)
    features = fit_scaling(np.concatenate([inputs(raw(r, t)) for r, t in ((1e6, 20_000), (9e6, 200_000))]))
    network = networks.KINDS[kind](features, **sizes).eval()
    for name, weight in network.named_parameters():
        if name.startswith(("out", "of_")):
            torch.nn.init.normal_(weight, std=0.2)
    folder = root / f"{kind}-{'-'.join(map(str, sizes.values()))}"
    networks.save(folder, network, {})
    return network, folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[RateNetwork, Path]]:
    """A network and its artifact, by kind and sizes."""
    return partial(made_in, tmp_path_factory.mktemp("networks"))


def engine_of(folder: Path, isa: str) -> RateEngine:
    try:
        return RateEngine(folder, isa)  # type: ignore[arg-type]
    except ValueError as error:
        if "this CPU lacks" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_says_what_pytorch_says_after_each_sample(
    made: Callable[..., tuple[RateNetwork, Path]], sizes: dict[str, int], isa: str
) -> None:
    network, folder = made(**sizes)
    engine, exact = engine_of(folder, isa), network.double()
    draw = np.random.default_rng(3)
    flows = [raw(float(draw.uniform(1e5, 3e7)), int(draw.uniform(5e3, 4e5))) for _ in range(30)]
    for one in flows:
        with torch.no_grad():
            said_SH = exact(torch.from_numpy(inputs(one)).double()[None])[0].exp().numpy()
        np.testing.assert_allclose(engine.forward(one), said_SH, rtol=1e-5)
    network.float()
    for n in (5, 15, 35):
        np.testing.assert_allclose(
            engine.forecast(flows[0][:n]), networks.forecast(network, flows[0][:n]), rtol=1e-5
        )


def test_samples_of_any_size_are_answered_or_refused_by_a_line(
    made: Callable[..., tuple[RateNetwork, Path]],
) -> None:
    network, folder = made()
    engine = RateEngine(folder)
    for seed in range(20):  # numbers that no kernel would tell: the same answer still
        rows = np.array(flow(seed, 35))
        with torch.no_grad():
            said_SH = network(torch.from_numpy(inputs(rows))[None])[0].double().exp().numpy()
        np.testing.assert_allclose(engine.forward(rows), said_SH, rtol=1e-4)
    falling = raw()
    falling[7, NAMES.index("delivered")] = 0
    for samples, line in (
        (raw(n=3), "the flow has 3 samples; a forecast takes 5 to 35"),
        (np.concatenate([raw(), raw()[-1:]]), "the flow has more than 35 samples"),
        (falling, "sample 7: a field is negative, a count falls, or a flag is not 0 or 1"),
        (raw()[:, :27], r"samples of shape \(35, 27\): 28 fields of at least one are needed"),
        (raw()[:0], r"samples of shape \(0, 28\)"),
    ):
        with pytest.raises(ValueError, match=line):
            engine.forecast(samples)


@pytest.mark.parametrize("bias", [1e4, -1e4, 40.0])
def test_a_wild_forecast_is_none(
    made: Callable[..., tuple[RateNetwork, Path]], tmp_path: Path, bias: float
) -> None:
    """Infinite, 0, and 10^17 times too much: plain TCP goes on."""
    network, _ = made()
    torch.nn.init.constant_(network.out.bias, bias)  # type: ignore[union-attr,arg-type]
    networks.save(tmp_path / "wild", network, {})
    with pytest.raises(ValueError, match="not a rate; the sender goes on without it"):
        RateEngine(tmp_path / "wild").forecast(raw(n=5))


def test_artifacts_that_are_not_exactly_right_are_named(
    made: Callable[..., tuple[RateNetwork, Path]], tmp_path: Path
) -> None:
    _, good = made()
    folder = Path(shutil.copytree(good, tmp_path / "net"))
    about = json.loads((folder / "model.json").read_text())
    sizes, features = about["architecture"], about["features"]
    for changed, line in (
        ({"format": 1}, "format"),
        ({"format": "swiftqueue-artifact/2"}, "format 'swiftqueue-artifact/2' is not 'swiftqueue-rate/2'"),
        ({"schema_hash": "0" * 64}, f"made for samples '0+[.]*', not {schema_hash()}; train again"),
        ({"architecture": sizes | {"width": 40}}, "width is 40, the engine knows only multiples of 16"),
        ({"architecture": sizes | {"layers": 3}}, r"weight layers\.2\.linear1\.bias is missing"),
        ({"architecture": sizes | {"layers": 99}}, r"layers is 99, must be in 1\.\.8"),
        ({"features": features[::-1]}, "not the fields of a TCP sample, in their order"),
        ({"target": about["target"] | {"horizons": [62]}}, "other horizons"),
    ):
        (folder / "model.json").write_text(json.dumps(about | changed))
        with pytest.raises(ValueError, match=line) as refused:
            RateEngine(folder)
        assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match=r"unknown architecture 'lstm' .*serve this model with ONNX Runtime"):
        RateEngine(made("lstm")[1])
    (folder / "model.json").write_text(json.dumps(about))
    (folder / "model.safetensors").write_bytes((good / "model.safetensors").read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"model\.safetensors: "):
        RateEngine(folder)
    with pytest.raises(OSError, match=r"model\.json"):
        RateEngine(tmp_path / "nowhere")
