"""Define LFQ's network, which limits the waiting packets of a flow by what a fair queue knows of the flow.

The queue disc reads the weight file, which is `model.safetensors` of an artifact in the registry.

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
from swiftqueue.models.networks.files import DESCRIPTION_FILE, WEIGHTS_FILE, load_weights, write_onnx
from swiftqueue.models.networks.scaling import ScaledFeature
from swiftqueue.studies.lfq.weight_file import (
    AVERAGES,
    INPUTS,
    LEAST_LIMIT,
    MOST_LIMIT,
    PACKETS,
    SIGNALS,
    content_of,
    said_of,
)

FORMAT: Final = "swiftqueue-lfq/1"
OUTPUT: Final = "limit_packets"
UNIT: Final = "usual"  # unit of every input: a signal divided by its usual value
WIDTH: Final = 256
LAYERS: Final = 4


def make_network(inputs: int = INPUTS) -> nn.Sequential:
    """Return an untrained network: 60 inputs, three layers of 256, one answer in hundreds of packets."""
    sizes = [inputs, *[WIDTH] * (LAYERS - 1), 1]
    layers: list[nn.Module] = []
    for i in range(LAYERS):
        layers += [nn.Linear(sizes[i], sizes[i + 1]), nn.LeakyReLU()]
    return nn.Sequential(*layers[:-1])


class LimitNetwork(nn.Module):
    """The network with its weight file's names; `low` and `high` (F,) bound the inputs it learned from."""

    def __init__(self, network: nn.Sequential | None = None) -> None:
        super().__init__()
        made = network or make_network()
        self.layers = nn.ModuleList(layer for layer in made if isinstance(layer, nn.Linear))
        self.inputs = nn.Module()
        for end in ("low", "high"):
            self.inputs.register_buffer(end, torch.zeros(INPUTS))

    def forward(self, x_BF: Tensor) -> Tensor:
        """Return unbounded answers (B, 1) in hundreds of packets."""
        for layer in self.layers[:-1]:
            x_BF = nn.functional.leaky_relu(layer(x_BF))
        answer_B1: Tensor = self.layers[-1](x_BF)
        return answer_B1


class ServedLimitNetwork(nn.Module):
    """The network as it is served: from one token, the limit in packets, which the queue rounds."""

    def __init__(self, network: LimitNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, x_BTF: Tensor) -> Tensor:
        """Return limits (B, 1) between the least and the most that a queue takes."""
        answer_B1: Tensor = self.network(x_BTF[:, -1])
        return (answer_B1 * PACKETS).clamp(LEAST_LIMIT, MOST_LIMIT)


def features() -> list[ScaledFeature]:
    """Return the inputs in their order: each signal's averages, the fastest first."""
    return [ScaledFeature(f"{signal}_{k}", UNIT) for signal in SIGNALS for k in range(AVERAGES)]


def schema_hash() -> str:
    """Return the hash of the definition of the inputs."""
    return hashlib.sha256(json.dumps([one.name for one in features()]).encode()).hexdigest()


def save(path: Path, network: nn.Sequential, x_NF: NDArray[np.float32], said: Mapping[str, Any]) -> Path:
    """Write the weight file that the disc reads, and beside it a JSON about its origin.

    `x_NF` holds all inputs that the network learned from; beyond their range the disc falls back.
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
    """Make the registry's artifact from a weight file and the JSON beside it.

    Raises:
        ValueError: the JSON is missing or incomplete, or the network has another form.
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
    """Return the answers (B, 1), in packets, that a served network must give."""
    with torch.no_grad():
        limit_B1: NDArray[np.float32] = ServedLimitNetwork(network.eval())(torch.from_numpy(x_BTF)).numpy()
    return limit_B1


def export_onnx(folder: Path) -> Path:
    """Write `model.onnx` beside the weights: input `window` (B, 1, F), output `limit_packets` (B, 1)."""
    network, _ = load(folder)
    return write_onnx(folder, ServedLimitNetwork(network).eval(), torch.zeros(2, 1, INPUTS), OUTPUT)
