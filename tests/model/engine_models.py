"""Models and windows for the tests of the inference engine, deterministic on any machine.

Run as a program, it writes the golden vectors anew: the predictor's answers in float64.
"""

# Shapes: B batch, W window tokens, F features.

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from models.networks import artifact
from models.networks.artifact import Description
from models.networks.scaling import ScaledFeature, Target, transform_of
from models.networks.transformer import Architecture, Predictor, Readout

GOLDEN = Path(__file__).resolve().parent.parent / "data" / "engine" / "golden.json"
UNITS = {
    "flow_age_us": "us",
    "latency_us": "us",
    "latency_visible": "flag",
    "size_bytes": "bytes",
    "flow_code_0": "sign",
    "in_flight": "packets",
    "gap_us": "us",
    "last_latency_us": "us",
    "last_latency_flow_us": "us",
}
SIZE = list(UNITS).index("size_bytes")


def features(count: int) -> list[ScaledFeature]:
    """Of the sorts that windows hold, log1p and identity; `count` may be more than there are names."""
    named = list(UNITS.items()) + [(f"more_{i}", ("us", "flag")[i % 2]) for i in range(count - len(UNITS))]
    return [
        ScaledFeature(name, unit, transform_of(unit), *((5.0, 2.5) if transform_of(unit) == "log1p" else ()))
        for name, unit in named[:count]
    ]


def make_model(
    count: int = 24,
    target: Target | None = None,
    layers: int = 2,
    horizon: int = 8,
    readout: Readout = "last",
    anchor: str | None = None,
) -> Predictor:
    """Predictor whose weights are sines: the same numbers whatever generator a library has."""
    sizes = Architecture(layers=layers, horizon=horizon, readout=readout, anchor=anchor)
    model = Predictor(features(count), target or Target("log", 9.25, 1.125), sizes).eval()
    with torch.no_grad():
        for k, (name, value) in enumerate(model.state_dict().items()):
            wave = np.sin(np.arange(1, value.numel() + 1) * (1.37 + 0.61803 * k)) * 1.4
            size = 0.3 if value.dim() == 1 else 1.0 / np.sqrt(value.shape[1])
            centre = 1.0 if name.endswith(("norm1.weight", "norm2.weight")) else 0.0
            value.copy_(torch.from_numpy(centre + size * wave).reshape(value.shape))
    return model


def save(folder: Path, model: Predictor, tokens: int = 64, schema_hash: str = "a" * 64) -> Path:
    artifact.save(folder, model, Description(tokens, schema_hash, "acked", {"name": "short"}))
    return folder


def windows(
    batch: int, tokens: int, model: Predictor, padding: int = 0, seed: int = 0
) -> npt.NDArray[np.float32]:
    """Random windows in raw units, each left-padded by 0..padding tokens."""
    rng = np.random.default_rng(seed)
    x_BWF = np.empty((batch, tokens, len(model.features)), np.float32)
    draw: dict[str, Any] = {
        "us": lambda shape: rng.lognormal(8, 2.5, shape) * (rng.random(shape) > 0.1),
        "bytes": lambda shape: rng.integers(52, 1501, shape),
        "packets": lambda shape: rng.integers(0, 400, shape),
        "flag": lambda shape: rng.integers(0, 2, shape),
        "sign": lambda shape: rng.choice([-1, 1], shape),
    }
    for f, feature in enumerate(model.features):
        x_BWF[..., f] = draw[feature.unit]((batch, tokens))
    for window, pad in zip(x_BWF, rng.integers(0, padding + 1, batch), strict=True):
        window[:pad] = 0
    return x_BWF


def write_golden() -> None:
    model = make_model()
    x_BWF = np.round(windows(4, 20, model, 10, seed=7))
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        latency_BH = exact(torch.from_numpy(x_BWF).double())
        feature_BD = exact.encode(torch.from_numpy(x_BWF).double())[:, 0]
    cases = [
        {
            "window": x_WF.astype(int).tolist(),
            "latency_us": [float(f"{v:.9g}") for v in latency_H],
            "features": [float(f"{v:.9g}") for v in feature_D],
        }
        for x_WF, latency_H, feature_D in zip(x_BWF, latency_BH, feature_BD, strict=True)
    ]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    GOLDEN.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    write_golden()
