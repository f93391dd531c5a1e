"""The networks that forecast rates: what they see, how they are kept, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rate_flows import samples_of, write_flows

from studies.rate.model import networks
from studies.rate.model.flows import load, split
from studies.rate.model.network import RateNetwork, fit_scaling, path_guess
from studies.rate.samples.definition import NAMES, inputs


def raw(rate: float = 2e6, rtt_us: int = 50_000, n: int = 35) -> np.ndarray:
    return np.array([list(row.values()) for row in samples_of(rate, rtt_us, n)])


def made(kind: str) -> RateNetwork:
    torch.manual_seed(1)
    return networks.KINDS[kind](fit_scaling(np.concatenate([inputs(raw(r)) for r in (1e6, 9e6)]))).eval()


def test_the_first_acks_tell_the_path() -> None:
    x = torch.from_numpy(inputs(raw(2e6, 50_000)))[None]
    dispersion, trip = path_guess(x)
    assert dispersion[0, 4:].exp().numpy() == pytest.approx(2e6, rel=0.01)
    assert trip[0].exp().numpy() == pytest.approx(1440 / 0.05, rel=0.01)
    assert dispersion[0, 0].exp().item() == pytest.approx(1440 / 0.05072, rel=0.01)  # no gap yet: BBR's own


@pytest.mark.parametrize("kind", networks.KINDS)
def test_a_forecast_sees_nothing_that_comes_later(kind: str) -> None:
    x = torch.from_numpy(inputs(raw()))[None]
    network = made(kind)
    with torch.no_grad():
        whole, cut = network(x), network(x[:, :15])
        other = x.clone()
        other[:, 15:] *= 3
        assert torch.allclose(whole[:, :15], cut, atol=1e-5)
        assert torch.allclose(network(other)[:, :15], cut, atol=1e-5)
        assert not torch.allclose(network(other)[:, 34], whole[:, 34], atol=1e-3)


def test_an_untrained_transformer_says_the_smaller_of_both_guesses() -> None:
    rates = networks.forecast(made("transformer"), raw(2e6, 50_000))
    growing = np.array([62, 125, 250, 500, 1000, 2000]) / 2 * 1440 / 0.05
    smaller = np.minimum(2e6, growing)
    assert (rates <= smaller * 1.01).all()
    assert (rates >= smaller * 0.84).all()  # a smooth minimum: 2 ** -0.25 where both are the same


@pytest.mark.parametrize("kind", networks.KINDS)
def test_a_network_comes_back_as_it_was_kept(kind: str, tmp_path: Path) -> None:
    network = made(kind)
    networks.save(tmp_path / "net", network, {"seed": 1})
    again, about = networks.load(tmp_path / "net")
    assert about["architecture"]["name"] == kind
    assert about["seed"] == 1
    assert (networks.forecast(again, raw()) == networks.forecast(network, raw())).all()


def test_networks_that_cannot_be_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    with pytest.raises(OSError, match=r"model\.json"):
        networks.load(folder)
    networks.save(folder, made("lstm"), {})
    about = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(about | {"architecture": {"name": "lstm", "units": 3}}))
    with pytest.raises(ValueError, match="net: not a network of rates: "):
        networks.load(folder)
    (folder / "model.json").write_text(json.dumps(about | {"schema_hash": "other"}))
    with pytest.raises(ValueError, match=r"model\.json: made for samples other, not "):
        networks.load(folder)
    (folder / "model.json").write_text(json.dumps(about))
    (folder / "model.safetensors").write_bytes(b"foreign")
    with pytest.raises(ValueError, match="net: not a network of rates: "):
        networks.load(folder)


def test_flows_without_a_forecast_are_named() -> None:
    network = made("lstm")
    with pytest.raises(ValueError, match="the flow has 3 samples; a forecast takes 5 to 35"):
        networks.forecast(network, raw(n=3))
    for bias in (1e4, -1e4, float("nan")):  # infinite, 0, none
        torch.nn.init.constant_(network.out.bias, bias)  # type: ignore[union-attr,arg-type]
        with pytest.raises(ValueError, match="not a rate; the sender goes on without it"):
            networks.forecast(network, raw())


@pytest.mark.parametrize("kind", networks.KINDS)
def test_fields_that_are_left_out_are_not_seen(kind: str, tmp_path: Path) -> None:
    rows = np.concatenate([inputs(raw(r)) for r in (1e6, 9e6)])
    features = networks.only(fit_scaling(rows), ["ts", "bbr_bw", "rtt"])
    network = networks.KINDS[kind](features).eval()
    x = torch.from_numpy(inputs(raw()))[None]
    hidden, seen = x.clone(), x.clone()
    hidden[..., NAMES.index("rto")] *= 7
    seen[..., NAMES.index("rtt")] *= 7
    torch.nn.init.normal_(network.out.weight)  # type: ignore[union-attr,arg-type]
    with torch.no_grad():
        assert torch.equal(network(hidden), network(x))
        assert not torch.allclose(network(seen), network(x), atol=1e-3)
    networks.save(tmp_path / "net", network, {})
    assert networks.load(tmp_path / "net")[0].features == features
    with pytest.raises(ValueError, match="there is no field 'rt'; did you mean rto"):
        networks.only(features, ["rt"])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("kind", networks.KINDS)
def test_training_learns_and_a_seed_fixes_it(kind: str, tmp_path: Path) -> None:
    write_flows(tmp_path)
    divided = split(load(tmp_path), 1)
    sizes = {"units": 16} if kind == "lstm" else {"width": 16, "layers": 1, "heads": 2}

    def train(epochs: int) -> tuple[RateNetwork, float]:
        how = {"epochs": epochs, "batch_size": 8, "learning_rate": 2e-3}
        return networks.train(kind, divided.train, divided.valid, sizes, 1, **how, say=lambda _line: None)

    first, _ = train(4)
    again, _ = train(4)
    _, error = train(40)
    for one, other in zip(first.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    shuffled = divided.seen.take(np.arange(len(divided.seen))[::-1])
    wrong = networks.Flows(**vars(divided.seen) | {"y_NH": shuffled.y_NH})
    learned, _ = train(40)
    assert error < 0.35
    assert networks.grid_error(learned, divided.seen) < 0.6 * networks.grid_error(learned, wrong)


def test_scaling_refuses_what_it_cannot_fit() -> None:
    with pytest.raises(ValueError, match="cannot fit the scaling"):
        fit_scaling(np.zeros((0, len(NAMES)), np.float32))
    with pytest.raises(ValueError, match="not finite"):
        fit_scaling(np.full((2, len(NAMES)), np.inf, np.float32))
