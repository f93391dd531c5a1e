"""Make an event stream that sees some features of a row, and its windows, the same on any machine.

Run as a program, it writes the committed artifact and its answers, PyTorch's in float64, anew.
"""

# Shapes: B batch, W window rows, F features of a row.

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.models.event_stream.network import EventArchitecture, EventPredictor
from swiftqueue.models.networks import artifact
from swiftqueue.models.networks.scaling import ScaledFeature, TargetScaling, transform_of

COMMITTED = Path(__file__).resolve().parent.parent / "data" / "artifacts" / "some-features"
SIZES = EventArchitecture(layers=1, band=64, feed_forward=64, anchor="last_latency_queue_us")
ROW = [feature.name for feature in EVENTS.features]
EVENTS_SEEN = ["size_bytes", "queue_l4s", "hole_us", "in_flight", "latency_us"]
QUERIES_SEEN = ["place", "last_latency_queue_us", "queue_l4s", "gap_us", "last_latency_us", "flow_code_0"]


def scaled(names: Sequence[str]) -> list[ScaledFeature]:
    """Return features of a row, scaled to fit most traces."""
    units = {feature.name: feature.unit for feature in EVENTS.features}
    logs = {"log1p": (5.0, 2.5), "identity": (0.0, 1.0)}
    sorts = {name: transform_of(units[name]) for name in names}
    return [ScaledFeature(name, units[name], sorts[name], *logs[sorts[name]]) for name in names]


def make_model() -> EventPredictor:
    """Return a network whose weights are sines, which no library draws."""
    model = EventPredictor(
        scaled(EVENTS_SEEN), scaled(QUERIES_SEEN), TargetScaling("log", 9.25, 1.125), SIZES
    ).eval()
    with torch.no_grad():
        for k, (name, value) in enumerate(model.state_dict().items()):
            wave = np.sin(np.arange(1, value.numel() + 1) * (1.37 + 0.61803 * k)) * 1.4
            size = 0.3 if value.dim() == 1 else 1.0 / np.sqrt(value.shape[-1])
            centre = 1.0 if name.endswith(("norm.weight", "norm1.weight", "norm2.weight")) else 0.0
            value.copy_(torch.from_numpy(centre + size * wave).reshape(value.shape))
    return model


def save_whole(folder: Path, model: EventPredictor) -> Path:
    """Save it with all features of a row, as older artifacts were, with weight 0 for unseen ones."""
    return save_part(folder, model, ROW, ROW)


def save_part(folder: Path, model: EventPredictor, events: Sequence[str], queries: Sequence[str]) -> Path:
    """Save it with these features in this order, with weight 0 for those it does not see."""
    artifact.save(folder, model, {"name": "short"})
    described = json.loads((folder / "model.json").read_text())
    state = load_file(folder / "model.safetensors")
    for key, names, layers in (("features", events, ("send", "ack")), ("queries", queries, ("ask_about",))):
        seen = [each["name"] for each in described[key]]
        described[key] = [asdict(feature) for feature in scaled(names)]
        for layer in layers:
            before = state[f"{layer}.weight"]
            state[f"{layer}.weight"] = np.stack(
                [before[:, seen.index(n)] if n in seen else np.zeros_like(before[:, 0]) for n in names], 1
            )
    (folder / "model.json").write_text(json.dumps(described, indent=1) + "\n")
    save_file(state, folder / "model.safetensors")
    return folder


def windows(batch: int = 6) -> np.ndarray:
    """Return windows of whole numbers by their units, the first ones with padding."""
    tokens = SIZES.reach + 8
    wave = np.abs(np.sin(np.arange(1, batch * tokens * len(ROW) + 1) * 0.7548))
    x_BWF = wave.reshape(batch, tokens, len(ROW))
    most = {"us": 60_000, "bytes": 1_448, "packets": 400}
    for f, feature in enumerate(EVENTS.features):
        if feature.unit in most:
            x_BWF[..., f] = np.round(x_BWF[..., f] * most[feature.unit])
        else:
            x_BWF[..., f] = (x_BWF[..., f] > 0.6) * (2.0 if feature.unit == "sign" else 1.0)
            x_BWF[..., f] -= feature.unit == "sign"
    x_BWF[..., ROW.index("size_bytes")] += 52
    for window, x_WF in enumerate(x_BWF):
        x_WF[: max(0, tokens - 8 - 20 * window)] = 0
    return x_BWF.astype(np.float32)


def exact(model: EventPredictor, x_BWF: np.ndarray) -> np.ndarray:
    """Return PyTorch's latencies in us, computed in float64."""
    with torch.no_grad():
        return np.asarray(copy.deepcopy(model).double()(torch.from_numpy(x_BWF).double()).numpy())


if __name__ == "__main__":
    save_part(COMMITTED, make_model(), EVENTS_SEEN[::-1], QUERIES_SEEN)
    answers = [[float(f"{us:.9g}") for us in us_H] for us_H in exact(make_model(), windows())]
    (COMMITTED / "answers.json").write_text(json.dumps(answers) + "\n")
