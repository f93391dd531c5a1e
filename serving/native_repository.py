"""Writes Triton's repository for the native backend: same model, inputs and outputs, the artifact as weights.

    var/triton/repository/swiftqueue/config.pbtxt, N/{model.safetensors,model.json,limits.json,model.onnx}

`config.pbtxt` differs from the Python backend's in its `backend` line alone. `model.onnx` is kept when the
artifact has one: the GPU container's repository is written from it (docs/SERVING.md, "Native backend").
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

from models.lineage import content_hash
from serving.triton_repository import (
    CANDIDATE,
    CONTENT_FILE,
    MODEL,
    ModelRepository,
    config_text,
    write_text,
)

BACKEND: Final = "swiftqueue"
_PYTHON_LINE: Final = 'backend: "python"\n'


def native_config_text(name: str, version: int, folder: Path) -> str:
    """`config.pbtxt` of model `name` that serves exactly `version`, which lies in `folder`, natively.

    Raises:
        ValueError: the configuration to start from names no Python backend.
    """
    text = config_text(name, version, folder)
    if text.count(_PYTHON_LINE) != 1:
        raise ValueError(f"the configuration of {name} has no line {_PYTHON_LINE.strip()}")
    return text.replace(_PYTHON_LINE, f'backend: "{BACKEND}"\n')


class NativeRepository(ModelRepository):
    """The repositories of `ModelRepository`, the embedded one for the native backend."""

    def stage(self, artifact: Path, limits: dict[str, dict[str, float]], version: int) -> Path:
        """Put a version into the candidate's folder, where no client looks; return its version folder."""
        self.drop_candidate()
        folder = self.embedded / CANDIDATE / str(version)
        folder.mkdir(parents=True)
        for name in ("model.safetensors", "model.json"):
            shutil.copyfile(artifact / name, folder / name)
        if (artifact / "model.onnx").is_file():
            shutil.copyfile(artifact / "model.onnx", folder / "model.onnx")
        (folder / "limits.json").write_text(json.dumps(limits, indent=1) + "\n")
        (folder / CONTENT_FILE).write_text(content_hash(artifact) + "\n")
        write_text(self.embedded / CANDIDATE / "config.pbtxt", native_config_text(CANDIDATE, version, folder))
        return folder

    def promote(self, version: int) -> None:
        """Move the tried candidate to its place as a version of the served model."""
        staged = self.embedded / CANDIDATE / str(version)
        if (staged / "model.onnx").is_file():
            super().promote(version)
            return
        target = self.folder(version)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        staged.rename(target)
        self.drop_candidate()

    def serve(self, version: int) -> None:
        """Name `version` as the one to serve; Triton acts at its next load."""
        folder = self.folder(version)
        write_text(self.embedded / MODEL / "config.pbtxt", native_config_text(MODEL, version, folder))
        if (self.gpu / MODEL / str(version)).is_dir():
            write_text(self.gpu / MODEL / "config.pbtxt", config_text(MODEL, version, folder, "KIND_GPU"))
