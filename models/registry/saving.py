"""Write the files of a version: the artifact's own, and MLflow's beside them, without pickle."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from swiftqueue.models.registry import packet_model
from swiftqueue.models.registry.decision import CONTENT_TAG, FILES_TAG
from swiftqueue.models.registry.lineage import content_hash

ARTIFACT_FILES: Final = ("model.safetensors", "model.json", "model.onnx")
INPUTS_FILE: Final = "inputs.npy"  # a sample (N, F) of the inputs that the encoder was trained on


def save_model(artifact: Path, folder: Path, model: Any, run_id: str, tags: Mapping[str, str]) -> str:
    """Write MLflow's files of a version: its loader with a signature, and our own files beside it.

    `mlflow.pyfunc.load_model` gives a model that predicts from a packet table or, for a network with other
    inputs, the exported network.

    Returns:
        A sentence about the version's inputs and outputs.
    """
    import mlflow.onnx
    import mlflow.pyfunc
    import onnx
    import onnxruntime
    from mlflow.models import Model

    common: dict[str, Any] = {
        "path": str(folder),
        "mlflow_model": Model(
            artifact_path=model.artifact_location,
            model_uuid=model.model_id,
            run_id=run_id,
            model_id=model.model_id,
        ),
        "metadata": dict(tags),
    }
    if predicts_packets(artifact):
        mlflow.pyfunc.save_model(
            **common,
            loader_module=packet_model.__name__,
            signature=packet_model.signature(),
            input_example=packet_model.example(),
            pip_requirements=["swiftqueue"],
        )
        said = f"It takes a packet table and gives each packet's `{packet_model.PREDICTED}`."
    else:
        network = onnx.load(str(artifact / "model.onnx"))
        signature = _signature(network)
        mlflow.onnx.save_model(
            onnx_model=network,
            **common,
            signature=signature,
            pip_requirements=[f"onnxruntime=={onnxruntime.__version__}"],
            onnx_execution_providers=["CPUExecutionProvider"],
            save_as_external_data=False,
        )
        takes, gives = (
            ", ".join(f"`{one.name}`" for one in of) for of in (signature.inputs, signature.outputs)
        )
        said = f"It takes {takes} and gives {gives}."
    for name in _files(artifact):
        shutil.copyfile(artifact / name, folder / name)
    return said


def predicts_packets(artifact: Path) -> bool:
    """Return whether an artifact belongs to a forecaster, which predicts from a packet table."""
    from swiftqueue.models.forecasters.forecaster import kind_named
    from swiftqueue.models.networks.artifact import architecture_in

    try:
        kind_named(architecture_in(artifact))
    except ValueError:
        return False
    return True


def _files(artifact: Path) -> list[str]:
    """Return the names of the files of an artifact that a version keeps."""
    return [*ARTIFACT_FILES, *([INPUTS_FILE] if (artifact / INPUTS_FILE).is_file() else [])]


def hashes(artifact: Path) -> dict[str, str]:
    """Return the tags with the hashes of an artifact's files."""
    files = {name: sha256(artifact / name) for name in _files(artifact)}
    return {CONTENT_TAG: content_hash(artifact), FILES_TAG: json.dumps(files)}


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _signature(network: Any) -> Any:
    """Return MLflow's signature of an ONNX network; a free dimension is -1."""
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    def specs(values: Any) -> Any:
        described = []
        for value in values:
            dims = value.type.tensor_type.shape.dim
            shape = tuple(int(d.dim_value) if d.HasField("dim_value") else -1 for d in dims)
            described.append(TensorSpec(np.dtype("float32"), shape, value.name))
        return Schema(described)

    return ModelSignature(inputs=specs(network.graph.input), outputs=specs(network.graph.output))
