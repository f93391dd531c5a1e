"""Triton's model repositories: one for the embedded server, one for the official GPU container.

Each model has a folder of its name in both, with the same files.

    var/triton/repository/swiftqueue/config.pbtxt
        N/{model.safetensors,model.json,limits.json,content.sha256[,model.onnx]}    for the native backend
        N/{model.py,model.onnx,model.json,limits.json,content.sha256}               for the Python backend
    var/triton/repository-gpu/swiftqueue/config.pbtxt, N/model.onnx

Each version folder is whole for the one backend that it was staged for, appears by one rename, and stays
as it is. The version policy names the served version, so a client that asks for no version gets the
champion even when a higher number lies beside it (after a rollback).

Several servers read the same folder (a volume that all of them mount). A server that starts, or that carries
out a load late, takes the version that the configuration names by then.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

from swiftqueue.common import studies
from swiftqueue.common.atomic import write_file
from swiftqueue.common.state import state_dir
from swiftqueue.models.registry.lineage import content_hash
from swiftqueue.serving.triton.config import CONTENT_FILE, MODEL_SCRIPT, Backend, config_text, gpu_config_text

LATENCY: Final = "latency"
# Names of the models in Triton, by what they predict: the word that `deploy --model` takes.
MODELS: Final = {
    LATENCY: "swiftqueue",
    **{kind: name for kind, (name, _) in studies.served().items()},
}
MODEL: Final = MODELS[LATENCY]
_SCRIPT_SOURCE: Final = Path(__file__).parent / MODEL_SCRIPT
_FILES: Final = {
    Backend.NATIVE: ("model.safetensors", "model.json"),
    Backend.PYTHON: ("model.onnx", "model.json"),
}


class ModelRepository:
    """The two repositories of one model under one folder (`var/triton` by default)."""

    def __init__(self, root: Path | None = None, kind: str = LATENCY) -> None:
        root = root or state_dir() / "triton"
        self.kind = kind
        self.model = MODELS[kind]
        # A version is tried under this name before clients can see it.
        self.candidate = f"{self.model}_candidate"
        self.embedded = root / "repository"
        self.gpu = root / "repository-gpu"
        # A promoted version's predecessor of the same number is put aside here.
        self._replaced = root / "replaced" / self.model

    def stage(
        self, artifact: Path, limits: dict[str, dict[str, float]], version: int, backend: Backend
    ) -> Path:
        """Put a version into the candidate's folder, where no client looks; return its version folder.

        The Python backend needs `model.onnx`. For the native one it is taken along if it is there:
        the GPU container serves it.
        """
        self.drop_candidate()
        folder = self.embedded / self.candidate / str(version)
        folder.mkdir(parents=True)
        for name in _FILES[backend]:
            shutil.copyfile(artifact / name, folder / name)
        if backend is Backend.PYTHON:
            shutil.copyfile(_SCRIPT_SOURCE, folder / MODEL_SCRIPT)
        elif (artifact / "model.onnx").is_file():
            shutil.copyfile(artifact / "model.onnx", folder / "model.onnx")
        (folder / "limits.json").write_text(json.dumps(limits, indent=1) + "\n")
        (folder / CONTENT_FILE).write_text(content_hash(artifact) + "\n")
        text = config_text(self.candidate, version, folder)
        write_file(self.embedded / self.candidate / "config.pbtxt", text)
        return folder

    def promote(self, version: int) -> None:
        """Move the tried candidate to its place as a version of the served model, in both repositories.

        A version of the same number is put aside, for `take_back`, until `settle`.
        """
        self.settle()
        target = self.folder(version)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            self._replaced.mkdir(parents=True)
            target.rename(self._replaced / str(version))
        (self.embedded / self.candidate / str(version)).rename(target)
        self.drop_candidate()
        self._copy_for_gpu(version)

    def take_back(self, version: int) -> bool:
        """Remove a version that was promoted; return whether its predecessor of the same number is back."""
        self.remove(version)
        before = self._replaced / str(version)
        if not before.is_dir():
            return False
        before.rename(self.folder(version))
        self._copy_for_gpu(version)
        return True

    def settle(self) -> None:
        """Remove the version that was put aside, because the one in its place is served."""
        shutil.rmtree(self._replaced, ignore_errors=True)

    def _copy_for_gpu(self, version: int) -> None:
        """Put a version's ONNX network into the GPU container's repository, if it has one."""
        network = self.folder(version) / "model.onnx"
        gpu = self.gpu / self.model / str(version)
        shutil.rmtree(gpu, ignore_errors=True)  # the same number may come back with another model
        if not network.is_file():
            return
        partial = self.gpu / f".{version}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        shutil.copyfile(network, partial / "model.onnx")
        gpu.parent.mkdir(exist_ok=True)
        partial.rename(gpu)

    def serve(self, version: int) -> None:
        """Name `version` as the served one in both configurations; Triton acts at its next load."""
        folder = self.folder(version)
        write_file(self.embedded / self.model / "config.pbtxt", config_text(self.model, version, folder))
        gpu = self.gpu / self.model / "config.pbtxt"
        if (self.gpu / self.model / str(version)).is_dir():
            write_file(gpu, gpu_config_text(self.model, version, folder))
        else:  # without an ONNX network nothing is better there than another version under this one's name
            gpu.unlink(missing_ok=True)

    def drop_candidate(self) -> None:
        """Remove the candidate, whatever state it is in."""
        shutil.rmtree(self.embedded / self.candidate, ignore_errors=True)

    def remove(self, version: int) -> None:
        """Remove a version from both repositories."""
        for root in (self.embedded, self.gpu):
            shutil.rmtree(root / self.model / str(version), ignore_errors=True)

    def withdraw(self) -> None:
        """Serve no version any more: without a configuration there is nothing to load."""
        for root in (self.embedded, self.gpu):
            (root / self.model / "config.pbtxt").unlink(missing_ok=True)

    def versions(self) -> list[int]:
        """Return the versions whose folders lie in the repository, ascending."""
        return sorted(int(p.name) for p in (self.embedded / self.model).glob("[0-9]*") if p.is_dir())

    def folder(self, version: int) -> Path:
        """Return the folder of a version of the served model."""
        return self.embedded / self.model / str(version)
