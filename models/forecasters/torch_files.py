"""How a forecaster that is a network is kept: weights as safetensors; scaling and schema hash as JSON.

Normalisation travels with the weights, and a forecaster made for other inputs is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from models.forecasters.forecaster import check_made_for
from models.networks.files import WEIGHTS_FILE, check_finite
from models.networks.scaling import ScaledFeature, Target


def write_network(
    folder: Path,
    model: nn.Module,
    target: Target,
    inputs: Mapping[str, Sequence[ScaledFeature]],
    schema_hash: str,
) -> dict[str, Any]:
    """Write weights; return what describes them: inputs by row, target, schema hash.

    Raises:
        ValueError: a weight is NaN or infinite.
    """
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    check_finite(state, str(folder))
    save_file(state, str(folder / WEIGHTS_FILE))
    return {
        "inputs": {row: [asdict(each) for each in features] for row, features in inputs.items()},
        "target": asdict(target),
        "schema_hash": schema_hash,
    }


def read_inputs(
    described: Mapping[str, Any], schema_hash: str
) -> tuple[dict[str, list[ScaledFeature]], Target]:
    """Read what `write_network` described.

    Raises:
        ValueError: it was made for another definition of inputs.
    """
    check_made_for(described, schema_hash)
    inputs = {
        str(row): [ScaledFeature(**each) for each in features]
        for row, features in described["inputs"].items()
    }
    return inputs, Target(**described["target"])
