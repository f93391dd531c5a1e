"""LFQ's network: from what a fair queue knows of a flow, how many packets of it may wait.

The weight file is what the queue disc reads. In the registry it is `model.safetensors` of an artifact.

Shapes: B flows, T tokens (1), F inputs (60), N samples.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save as packed
from torch import Tensor, nn

from swiftqueue.common.atomic import new_file, new_folder
from swiftqueue.common.json_file import read_object
from swiftqueue.models.limit.weight_file import (
    AVERAGES,
    INPUTS,
    LEAST_LIMIT,
    MOST_LIMIT,
    PACKETS,
    SIGNALS,
    content_of,
    said_of,
)
from swiftqueue.models.networks.files import DESCRIPTION_FILE, WEIGHTS_FILE, load_weights, write_onnx
from swiftqueue.models.networks.scaling import ScaledFeature

FORMAT: Final = "swiftqueue-lfq/1"
OUTPUT: Final = "limit_packets"
UNIT: Final = "usual"  # of every input: a signal over what is usual of it
WIDTH: Final = 256
LAYERS: Final = 4


def make_network(inputs: int = INPUTS) -> nn.Sequential:
    """60 inputs, three layers of 256, one answer: hundreds of packets."""
    sizes = [inputs, *[WIDTH] * (LAYERS - 1), 1]
    layers: list[nn.Module] = []
    for i in range(LAYERS):
        layers += [nn.Linear(sizes[i], sizes[i + 1]), nn.LeakyReLU()]
    return nn.Sequential(*layers[:-1])


class LimitNetwork(nn.Module):
    """The network as its weight file names it; `low` and `high` are the ends of what it learned from (F,)."""

    def __init__(self, network: nn.Sequential | None = None) -> None:
        super().__init__()
        made = network or make_network()
        self.layers = nn.ModuleList(layer for layer in made if isinstance(layer, nn.Linear))
        self.inputs = nn.Module()
        for end in ("low", "high"):
            self.inputs.register_buffer(end, torch.zeros(INPUTS))

    def forward(self, x_BF: Tensor) -> Tensor:
        """Answers (B, 1), in hundreds of packets, with no ends."""
        for layer in self.layers[:-1]:
            x_BF = nn.functional.leaky_relu(layer(x_BF))
        answer_B1: Tensor = self.layers[-1](x_BF)
        return answer_B1


class Served(nn.Module):
    """The network as it is served: the limit in packets, of one token; the queue rounds it."""

    def __init__(self, network: LimitNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x_BTF: Tensor) -> Tensor:
        """Limits (B, 1), between the least and the most that a queue takes."""
        answer_B1: Tensor = self.network(x_BTF[:, -1])
        return (answer_B1 * PACKETS).clamp(LEAST_LIMIT, MOST_LIMIT)


def features() -> list[ScaledFeature]:
    """The inputs in their order: each signal's averages, the fastest first."""
    return [ScaledFeature(f"{signal}_{k}", UNIT) for signal in SIGNALS for k in range(AVERAGES)]


def schema_hash() -> str:
    """Hash of what the inputs are."""
    return hashlib.sha256(json.dumps([one.name for one in features()]).encode()).hexdigest()


def save(path: Path, network: nn.Sequential, x_NF: NDArray[np.float32], said: Mapping[str, Any]) -> Path:
    """Write the weight file that the disc reads, and beside it a JSON that says where it comes from.

    `x_NF` is all that the network has seen: beyond it the disc falls back.
    """
    known = x_NF[x_NF.any(axis=1)]
    made = LimitNetwork(network).state_dict()
    tensors = {name: value.numpy().astype("<f4") for name, value in made.items()}
    tensors["inputs.low"], tensors["inputs.high"] = known.min(0), known.max(0)
    with new_file(path) as partial:
        partial.write_bytes(packed(tensors))
    with new_file(path.with_suffix(".json")) as partial:
        partial.write_text(json.dumps({**said, "content": content_of(path)}, indent=1) + "\n")
    return path


def to_artifact(weights: Path, folder: Path) -> Path:
    """Make the registry's artifact of a weight file and the JSON beside it.

    Raises:
        ValueError: nothing says how the network learned, or it is of another form.
    """
    said = said_of(weights)
    described = {
        "format": FORMAT,
        "architecture": {"name": "lfq"},
        "window": {"tokens": 1, "horizon": 1, "output": OUTPUT},
        "features": [{"name": one.name, "unit": one.unit} for one in features()],
        "schema_hash": schema_hash(),
        **said,
    }
    with new_folder(folder) as partial:
        shutil.copyfile(weights, partial / WEIGHTS_FILE)
        (partial / DESCRIPTION_FILE).write_text(json.dumps(described, indent=1) + "\n")
    load(folder)
    return folder


def load(folder: Path) -> tuple[LimitNetwork, dict[str, Any]]:
    """Read a network and its description from an artifact.

    Raises:
        OSError: a file is missing.
        ValueError: it is damaged, foreign, or takes other inputs; the line names it.
    """
    path = folder / DESCRIPTION_FILE
    about = read_object(path)
    for key, wanted in (("format", FORMAT), ("schema_hash", schema_hash())):
        if about.get(key) != wanted:
            raise ValueError(f"{path}: {key} {about.get(key)!r} is not {wanted!r}; train again")
    network = LimitNetwork()
    load_weights(folder, network)
    return network, about


def served_limits(network: LimitNetwork, x_BTF: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a served network is to answer (B, 1), in packets, computed here."""
    with torch.no_grad():
        limit_B1: NDArray[np.float32] = Served(network.eval())(torch.from_numpy(x_BTF)).numpy()
    return limit_B1


def export_onnx(folder: Path) -> Path:
    """Write `model.onnx` beside the weights: input `window` (B, 1, F), output `limit_packets` (B, 1)."""
    network, _ = load(folder)
    return write_onnx(folder, Served(network).eval(), torch.zeros(2, 1, INPUTS), OUTPUT)
