"""The networks that forecast rates: how each is trained, kept, read, asked and put into ONNX.

Shapes: B flows, S samples in order (35 or fewer), F fields of a sample (28), H horizons (6), N flows.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from swiftqueue.common.atomic import new_folder
from swiftqueue.common.json_file import read_object
from swiftqueue.common.section import near
from swiftqueue.models.networks.files import DESCRIPTION_FILE, WEIGHTS_FILE, check_finite, write_onnx
from swiftqueue.models.networks.scaling import ScaledFeature
from swiftqueue.studies.rate.model.flows import Flows
from swiftqueue.studies.rate.model.lstm import RateLstm
from swiftqueue.studies.rate.model.network import RateNetwork, fit_scaling
from swiftqueue.studies.rate.model.transformer import RateTransformer
from swiftqueue.studies.rate.samples.definition import (
    HORIZONS,
    LARGEST_RATE,
    MOST_SAMPLES,
    NAMES,
    PREFIXES,
    inputs,
    schema_hash,
)

FORMAT: Final = "swiftqueue-rate/2"
OUTPUT: Final = "rate_bytes_per_s"
PADDING_FIELD: Final = NAMES.index("snd_cwnd")  # no connection has a window of 0: such a row is padding
KINDS: Final[dict[str, type[RateNetwork]]] = {"lstm": RateLstm, "transformer": RateTransformer}
PAPERS_STEPS: Final = (1e-2, 1e-3, 1e-4, 1e-5)  # learning rates, a quarter of the epochs each
HIDDEN: Final = 1e30  # scale of a field that is not to be seen: what is left of it is 0
EVERY_PAIR: Final = tuple(itertools.product(PREFIXES, HORIZONS))
Pairs = Sequence[tuple[int, int]]
Say = Callable[[str], None]


def percentage_errors(log_BSH: Tensor, y_BH: Tensor) -> Tensor:
    """|forecast / truth - 1| (B, S, H), the forecast as its logarithm; 0 where there is no truth (NaN)."""
    known_BH = torch.isfinite(y_BH)
    log_y_BH = torch.where(known_BH, y_BH, torch.ones_like(y_BH)).log()
    # A forecast a thousand times the truth, in the first steps, must not be all that a step learns from.
    away = (log_BSH - log_y_BH[:, None]).clamp(max=math.log(1000))
    return torch.expm1(away).abs() * known_BH[:, None]


def train(
    kind: str,
    own: Flows,
    chosen_on: Flows,
    sizes: dict[str, Any],
    seed: int,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    say: Say,
    fields: Sequence[str] = (),
    pairs: Pairs = EVERY_PAIR,
) -> tuple[RateNetwork, float]:
    """Train a network on the mean absolute percentage error after each sample from the fifth on.

    Args:
        kind: `lstm` (the paper's, with its steps of the learning rate) or `transformer` (ours, cosine).
        own: flows to learn from; the scaling is fitted on their samples.
        chosen_on: the epoch that errs least on these, mean over the cells of the grid, is kept.
        sizes: sizes of the network.
        seed: seed of weights, dropout and order.
        epochs: how often all flows are seen.
        batch_size: flows of a step.
        learning_rate: the highest, of the Transformer.
        say: hears a line an epoch.
        fields: fields that its layers see; none: all. `path_guess` takes the fields that it needs.
        pairs: pairs of prefix and horizon that choose it; if they are not all, it learns from these alone.

    Returns the network, for inference, and its error on `chosen_on`.
    """
    torch.manual_seed(seed)
    there_NS = np.arange(MOST_SAMPLES) < own.samples_N[:, None]
    features = only(fit_scaling(own.x_NSF[there_NS]), fields)
    known = own.y_NH[np.isfinite(own.y_NH)]
    if kind == "lstm":
        sizes = {**sizes, "center": round(float(np.log(known).mean()), 4)}
    network = KINDS[kind](features, **sizes)
    optimizer = torch.optim.Adam(network.parameters())
    x, y = torch.from_numpy(own.x_NSF), torch.from_numpy(own.y_NH).float()
    weight_NSH = torch.from_numpy(there_NS[..., None] & _asked_SH(pairs)).float()
    order = torch.Generator().manual_seed(seed)
    best, kept = math.inf, network.state_dict()
    for epoch in range(epochs):
        rate = PAPERS_STEPS[4 * epoch // epochs]
        if kind == "transformer":
            rate = learning_rate * (1 + math.cos(math.pi * epoch / epochs)) / 2
        for group in optimizer.param_groups:
            group["lr"] = rate
        network.train()
        for rows in torch.randperm(len(x), generator=order).split(batch_size):  # type: ignore[no-untyped-call]
            weight = weight_NSH[rows] * torch.isfinite(y[rows])[:, None]
            errors = percentage_errors(network(x[rows]), y[rows])
            loss = (errors * weight).sum() / weight.sum().clamp(min=1)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
        error = grid_error(network, chosen_on, pairs)
        say(f"seed {seed}, epoch {epoch + 1} of {epochs}: {100 * error:.1f} % on what it is chosen on")
        if error < best:
            best, kept = error, {name: value.clone() for name, value in network.state_dict().items()}
    if not math.isfinite(best):
        raise ValueError(f"{kind}, seed {seed}: no epoch has a finite error; is there a rate to learn?")
    network.load_state_dict(kept)
    return network.eval(), best


def only(features: Sequence[ScaledFeature], fields: Sequence[str]) -> tuple[ScaledFeature, ...]:
    """Scaling that hides all fields but some from a network's layers; none: hides nothing.

    Raises:
        ValueError: there is no such field.
    """
    if missing := [field for field in fields if field not in NAMES]:
        raise ValueError(f"there is no field {missing[0]!r}; {near(missing[0], list(NAMES))}")
    if not fields:
        return tuple(features)
    return tuple(
        one if one.name in fields else ScaledFeature(one.name, one.unit, scale=HIDDEN) for one in features
    )


def _asked_SH(pairs: Pairs) -> NDArray[np.bool_]:
    """After which samples a network learns which horizons."""
    if set(pairs) == set(EVERY_PAIR):  # then the samples between the prefixes teach, too
        return np.tile(np.arange(MOST_SAMPLES)[:, None] >= min(PREFIXES) - 1, (1, len(HORIZONS)))
    asked_SH = np.zeros((MOST_SAMPLES, len(HORIZONS)), np.bool_)
    for n, k in pairs:
        asked_SH[n - 1, HORIZONS.index(k)] = True
    return asked_SH


def grid_error(network: RateNetwork, flows: Flows, pairs: Pairs = EVERY_PAIR) -> float:
    """Mean over pairs of prefix and horizon of the mean absolute percentage error."""
    log_NSH = predict_all(network, flows)
    errors = []
    for n, k in pairs:
        h = HORIZONS.index(k)
        some = flows.known_NH(n)[:, h]
        if some.any():
            ratio = np.exp(log_NSH[some, n - 1, h]) / flows.y_NH[some, h]
            errors.append(float(np.abs(ratio - 1).mean()))
    return float(np.mean(errors)) if errors else math.nan


def predict_all(network: RateNetwork, flows: Flows) -> NDArray[np.float64]:
    """Log of bytes/s (N, S, H) after each sample."""
    network.eval()
    with torch.no_grad():
        parts = [network(rows).double().numpy() for rows in torch.split(torch.from_numpy(flows.x_NSF), 256)]
    return np.concatenate(parts)


def forecast(network: RateNetwork, raw_NF: NDArray[np.int64]) -> NDArray[np.float64]:
    """Bytes/s at each horizon (H,) from the first samples of one flow, in their order.

    Raises:
        ValueError: the flow has too few samples or too many, one cannot be, or the forecast is wild; a sender
            goes on without one.
    """
    if not min(PREFIXES) <= len(raw_NF) <= MOST_SAMPLES:
        raise ValueError(
            f"the flow has {len(raw_NF)} samples; a forecast takes {min(PREFIXES)} to {MOST_SAMPLES}"
        )
    x = torch.from_numpy(inputs(raw_NF))[None]
    with torch.no_grad():
        rate_H: NDArray[np.float64] = network.eval()(x)[0, -1].double().exp().numpy()
    return checked(rate_H)


def checked(rate_H: NDArray[np.float64]) -> NDArray[np.float64]:
    """A forecast, if a sender may use it.

    Raises:
        ValueError: it is 0, infinite, none at all, or LARGEST_RATE and more.
    """
    if not (np.isfinite(rate_H).all() and (rate_H >= 1).all() and (rate_H < LARGEST_RATE).all()):
        raise ValueError(
            f"the forecast is {rate_H.tolist()} bytes/s: not a rate; the sender goes on without it"
        )
    return rate_H


class AfterLastSample(nn.Module):
    """A network as it is served: samples padded with rows of zeros in, rates after the last sample out."""

    def __init__(self, network: RateNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x_BSF: Tensor) -> Tensor:
        """Bytes/s at each horizon (B, H); of padding alone it says nothing that means anything."""
        last_B = ((x_BSF[..., PADDING_FIELD] > 0).sum(1) - 1).clamp(min=0)
        log_BSH: Tensor = self.network(x_BSF)
        return log_BSH.gather(1, last_B[:, None, None].expand(-1, 1, log_BSH.shape[2]))[:, 0].exp()


def padded(x_NF: NDArray[np.float32]) -> NDArray[np.float32]:
    """Inputs of one flow's samples (N, F) as a served network takes them (S, F)."""
    x_SF = np.zeros((MOST_SAMPLES, x_NF.shape[1]), np.float32)
    x_SF[: len(x_NF)] = x_NF
    return x_SF


def served_rates(network: RateNetwork, x_BSF: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the answers (B, H) that a served network must give, in bytes/s, computed here."""
    with torch.no_grad():
        rate_BH: NDArray[np.float32] = AfterLastSample(network.eval())(torch.from_numpy(x_BSF)).numpy()
    return rate_BH


def export_onnx(folder: Path) -> Path:
    """Write `model.onnx` beside the weights: input `window` (B, S, F), output `rate_bytes_per_s` (B, H)."""
    network, _ = load(folder)
    example = torch.zeros(2, MOST_SAMPLES, len(NAMES))
    return write_onnx(folder, AfterLastSample(network).eval(), example, OUTPUT)


def save(folder: Path, network: RateNetwork, about: dict[str, Any]) -> None:
    """Write weights and description, whole or not at all.

    Raises:
        ValueError: a weight is NaN or infinite.
    """
    state = {name: value.contiguous() for name, value in network.state_dict().items()}
    check_finite(state, str(folder))
    kind = next(name for name, made in KINDS.items() if type(network) is made)
    described = {
        "format": FORMAT,
        "architecture": {"name": kind, **network.sizes()},
        "window": {"tokens": MOST_SAMPLES, "horizon": len(HORIZONS), "output": OUTPUT},
        "features": [asdict(feature) for feature in network.features],
        "target": {"name": "bbr_bw", "unit": "bytes_per_s", "transform": "log", "horizons": list(HORIZONS)},
        "schema_hash": schema_hash(),
        **about,
    }
    with new_folder(folder) as partial:
        save_file(state, str(partial / WEIGHTS_FILE))
        (partial / DESCRIPTION_FILE).write_text(json.dumps(described, indent=1) + "\n")


def load(folder: Path) -> tuple[RateNetwork, dict[str, Any]]:
    """Read a network and its description.

    Raises:
        OSError: a file is missing.
        ValueError: it is damaged, foreign, or made for other samples; the line names it.
    """
    path = folder / DESCRIPTION_FILE
    about = read_object(path)
    if about.get("format") != FORMAT:
        raise ValueError(f"{path}: format {about.get('format')!r} is not {FORMAT!r}; train again")
    if about.get("schema_hash") != schema_hash():
        raise ValueError(
            f"{path}: made for samples {about.get('schema_hash')}, not {schema_hash()}; train again"
        )
    try:
        sizes = dict(about["architecture"])
        network = KINDS[sizes.pop("name")]([ScaledFeature(**each) for each in about["features"]], **sizes)
        state = load_file(str(folder / WEIGHTS_FILE))
        network.load_state_dict(state)
    except OSError:
        raise
    except Exception as error:  # whatever a damaged file makes of these libraries
        raise ValueError(f"{folder}: not a network of rates: {str(error).splitlines()[0][:200]}") from None
    check_finite(state, str(folder))
    return network.eval(), about
