"""Writes Triton's model repositories: one for the embedded server, one for the official GPU container.

    var/triton/repository/swiftqueue/config.pbtxt, N/{model.py,model.onnx,model.json,limits.json}
    var/triton/repository-gpu/swiftqueue/config.pbtxt, N/model.onnx

A version folder appears by one rename, complete. The version policy names the served version, so a client
that asks for no version gets the champion even when a higher number lies beside it (after a rollback).
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from models.lineage import content_hash
from models.state import state_dir

MODEL: Final = "swiftqueue"
CANDIDATE: Final = "swiftqueue_candidate"  # a version is tried under this name before clients can see it
MODEL_FILE: Final = Path(__file__).parent / "triton" / "model.py"
CONTENT_FILE: Final = "content.sha256"  # of the artifact: the same number may come back with another model
MAX_BATCH: Final = 64  # windows computed at once: 32 senders asking for both queues

_CONFIG: Final = """\
name: "{name}"
{engine}
max_batch_size: {max_batch}
input [ {{ name: "window" data_type: TYPE_FP32 dims: [ {tokens}, {features} ] }} ]
output [ {{ name: "latency_us" data_type: TYPE_FP32 dims: [ {horizon} ] }} ]
version_policy {{ specific {{ versions: [ {version} ] }} }}
instance_group [ {{ count: 1 kind: {kind} }} ]
dynamic_batching {{ }}
parameters {{ key: "schema_hash" value {{ string_value: "{schema_hash}" }} }}
parameters {{ key: "content_sha256" value {{ string_value: "{content}" }} }}
"""
_ENGINES: Final = {
    "KIND_CPU": 'backend: "python"',
    "KIND_GPU": 'platform: "onnxruntime_onnx"',
}


@dataclass(frozen=True)
class Signature:
    """What a version's `model.json` says that Triton and its clients must know."""

    tokens: int  # W
    features: int  # F
    horizon: int  # H
    schema_hash: str

    @classmethod
    def read(cls, folder: Path) -> Signature:
        """Read it from an artifact or a version folder."""
        described = json.loads((folder / "model.json").read_text())
        window = described["window"]
        return cls(
            int(window["tokens"]),
            len(described["features"]),
            int(window["horizon"]),
            str(described["schema_hash"]),
        )


def config_text(name: str, version: int, folder: Path, kind: str = "KIND_CPU") -> str:
    """`config.pbtxt` of model `name` that serves exactly `version`, which lies in `folder`."""
    signature = Signature.read(folder)
    return _CONFIG.format(
        name=name,
        version=version,
        engine=_ENGINES[kind],
        kind=kind,
        max_batch=MAX_BATCH,
        tokens=signature.tokens,
        features=signature.features,
        horizon=signature.horizon,
        schema_hash=signature.schema_hash,
        content=(folder / CONTENT_FILE).read_text().strip(),
    )


class ModelRepository:
    """The two repositories under one folder (`var/triton` by default)."""

    def __init__(self, root: Path | None = None) -> None:
        root = root or state_dir() / "triton"
        self.embedded = root / "repository"
        self.gpu = root / "repository-gpu"

    def stage(self, artifact: Path, limits: dict[str, dict[str, float]], version: int) -> Path:
        """Put a version into the candidate's folder, where no client looks; return its version folder."""
        self.drop_candidate()
        folder = self.embedded / CANDIDATE / str(version)
        folder.mkdir(parents=True)
        for name in ("model.onnx", "model.json"):
            shutil.copyfile(artifact / name, folder / name)
        shutil.copyfile(MODEL_FILE, folder / "model.py")
        (folder / "limits.json").write_text(json.dumps(limits, indent=1) + "\n")
        (folder / CONTENT_FILE).write_text(content_hash(artifact) + "\n")
        write_text(self.embedded / CANDIDATE / "config.pbtxt", config_text(CANDIDATE, version, folder))
        return folder

    def promote(self, version: int) -> None:
        """Move the tried candidate to its place as a version of the served model, in both repositories."""
        target = self.embedded / MODEL / str(version)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        (self.embedded / CANDIDATE / str(version)).rename(target)
        self.drop_candidate()
        partial = self.gpu / f".{version}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        shutil.copyfile(target / "model.onnx", partial / "model.onnx")
        gpu = self.gpu / MODEL / str(version)
        gpu.parent.mkdir(exist_ok=True)
        shutil.rmtree(gpu, ignore_errors=True)
        partial.rename(gpu)

    def serve(self, version: int) -> None:
        """Name `version` as the one to serve in both configurations; Triton acts at its next load."""
        folder = self.embedded / MODEL / str(version)
        for root, kind in ((self.embedded, "KIND_CPU"), (self.gpu, "KIND_GPU")):
            write_text(root / MODEL / "config.pbtxt", config_text(MODEL, version, folder, kind))

    def drop_candidate(self) -> None:
        """Remove the candidate, whatever state it is in."""
        shutil.rmtree(self.embedded / CANDIDATE, ignore_errors=True)

    def remove(self, version: int) -> None:
        """Remove a version from both repositories."""
        for root in (self.embedded, self.gpu):
            shutil.rmtree(root / MODEL / str(version), ignore_errors=True)

    def withdraw(self) -> None:
        """Serve no version any more: without a configuration there is nothing to load."""
        for root in (self.embedded, self.gpu):
            (root / MODEL / "config.pbtxt").unlink(missing_ok=True)

    def versions(self) -> list[int]:
        """Versions whose folders lie in the repository, ascending."""
        return sorted(int(p.name) for p in (self.embedded / MODEL).glob("[0-9]*") if p.is_dir())

    def folder(self, version: int) -> Path:
        """Folder of a version of the served model."""
        return self.embedded / MODEL / str(version)


def write_text(path: Path, text: str) -> None:
    """Replace a small file in one step."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    os.replace(partial, path)
