"""The files of a version: the artifact's own, and what MLflow keeps beside them; no pickle."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from models.registry.decision import CONTENT_TAG, FILES_TAG
from models.registry.lineage import content_hash

ARTIFACT_FILES: Final = ("model.safetensors", "model.json", "model.onnx")
INPUTS_FILE: Final = (
    "inputs.npy"  # beside them: a sample (N, F) of the inputs that the encoder was trained on
)


def save_model(artifact: Path, folder: Path, model: Any, run_id: str, tags: Mapping[str, str]) -> str:
    """Write what MLflow keeps of a version: the network with its signature, and our own files beside it.

    Returns:
        What the network takes and gives, in a sentence.
    """
    import mlflow.onnx
    import onnx
    import onnxruntime
    from mlflow.models import Model

    network = onnx.load(str(artifact / "model.onnx"))
    signature = _signature(network)
    mlflow.onnx.save_model(
        network,
        str(folder),
        mlflow_model=Model(
            artifact_path=model.artifact_location,
            model_uuid=model.model_id,
            run_id=run_id,
            model_id=model.model_id,
        ),
        signature=signature,
        pip_requirements=[f"onnxruntime=={onnxruntime.__version__}"],
        onnx_execution_providers=["CPUExecutionProvider"],
        save_as_external_data=False,
        metadata=dict(tags),
    )
    for name in _files(artifact):
        shutil.copyfile(artifact / name, folder / name)
    takes, gives = (", ".join(f"`{one.name}`" for one in of) for of in (signature.inputs, signature.outputs))
    return f"It takes {takes} and gives {gives}."


def _files(artifact: Path) -> list[str]:
    """Names of the files of an artifact that a version keeps."""
    return [*ARTIFACT_FILES, *([INPUTS_FILE] if (artifact / INPUTS_FILE).is_file() else [])]


def hashes(artifact: Path) -> dict[str, str]:
    """Tags that say what an artifact's files are."""
    files = {name: sha256(artifact / name) for name in _files(artifact)}
    return {CONTENT_TAG: content_hash(artifact), FILES_TAG: json.dumps(files)}


def sha256(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _signature(network: Any) -> Any:
    """MLflow's signature of an ONNX network; a free dimension is -1."""
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
