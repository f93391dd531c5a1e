"""Puts one version into Triton without a failed request: stage, validate, try, rename, load, check.

The version is tried under another model name first (`swiftqueue_candidate`), so no client ever reaches a
version whose output has not been compared with the local one. Then Triton loads it beside the served
version and swaps; while it loads, and if that fails, the served version answers. It is tried with the native
backend; where the server cannot load it there, with the Python backend, and one line says why.

Shapes: B windows, W tokens, F features, H horizon.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feature_store.windows import schema_hash
from models import artifact, gate
from models.scaling import Feature
from serving.endpoint import Triton, TritonError, first_line
from serving.limits import limits_of
from serving.triton_config import Backend, backend_of
from serving.triton_repository import CANDIDATE, MODEL, ModelRepository

TOLERANCE: Final = 1e-4  # relative; float32 through two implementations of the same network
SMOKE_WINDOWS: Final = 16
LOWEST_PRIORITY: Final = 19  # nice(2)
_REFUSED: Final = "UNAVAILABLE state: "  # in Triton's words before a backend's own, of a version not loaded


class DeployError(RuntimeError):
    """A version was not put in service; the message says why, and what is served instead."""


@dataclass(frozen=True)
class Smoke:
    """Windows and what the artifact's own weights make of them."""

    x_BWF: NDArray[np.float32]
    y_BH: NDArray[np.float32]

    def check(self, y_BH: NDArray[np.float32]) -> float:
        """Largest relative difference to the local output.

        Raises:
            DeployError: it is above the tolerance, or the shapes differ.
        """
        if y_BH.shape != self.y_BH.shape:
            raise DeployError(f"it answers with shape {y_BH.shape} instead of {self.y_BH.shape}")
        difference = float(np.max(np.abs(y_BH - self.y_BH) / np.abs(self.y_BH)))
        if not difference <= TOLERANCE:  # NaN fails as well
            raise DeployError(
                f"its latencies differ from the local ones by {difference:.2g} (limit {TOLERANCE})"
            )
        return difference


def smoke_windows(features: Sequence[Feature], tokens: int, seed: int = 1) -> NDArray[np.float32]:
    """Windows of plausible values, after the scaling in the artifact; the first one is all padding."""
    rng = np.random.default_rng(seed)
    x_BWF = np.zeros((SMOKE_WINDOWS, tokens, len(features)), dtype=np.float32)
    limits = limits_of(features)
    for f, feature in enumerate(features):
        values = feature.shift + feature.scale * rng.standard_normal(x_BWF.shape[:2])
        values = np.expm1(values) if feature.transform == "log1p" else np.round(values)
        x_BWF[..., f] = np.clip(values, limits[feature.name]["low"], limits[feature.name]["high"])
    x_BWF[0] = 0
    return x_BWF


def local_smoke(loaded: artifact.Artifact) -> Smoke:
    """Compute an artifact's own answer to the smoke windows."""
    x_BWF = smoke_windows(loaded.model.features, loaded.description.tokens)
    return Smoke(x_BWF, gate.predict(loaded.model, x_BWF))


@dataclass(frozen=True)
class Pushed:
    """How a version is served."""

    backend: Backend
    reason: str  # why it is not the native one; empty if it is
    difference: float  # largest relative difference to the local output


def push(
    source: Path, version: int, triton: Triton, repository: ModelRepository, previous: int | None
) -> Pushed:
    """Put an artifact in service as `version`.

    On any failure `previous` is what Triton serves, and nothing of the new version is left. A thread of the
    lowest priority does it: a request that is to be answered on the same machine comes first.

    Raises:
        DeployError: the version is not served; the line says why.
    """
    with ThreadPoolExecutor(1, "push", _give_way) as thread:
        return thread.submit(_push, source, version, triton, repository, previous).result()


def _give_way() -> None:
    """Give this thread the lowest priority; without rights it cannot be taken back."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)


def _push(
    source: Path, version: int, triton: Triton, repository: ModelRepository, previous: int | None
) -> Pushed:
    try:
        loaded = artifact.load(source, schema_hash())
        smoke = local_smoke(loaded)
        if (source / artifact.ONNX_FILE).is_file():
            _check_onnx(source / artifact.ONNX_FILE, smoke)
        limits = limits_of(loaded.model.features)
        reason = _try_candidate(source, limits, version, triton, repository, smoke)
    except (ValueError, OSError, DeployError) as error:
        repository.drop_candidate()
        raise DeployError(f"version {version} is not deployed: {error}") from error
    try:
        repository.promote(version)
        difference = serve(version, triton, repository, smoke)
    except (OSError, DeployError) as error:
        _restore(previous, version, triton, repository)
        raise DeployError(f"version {version} is not deployed: {error}") from error
    return Pushed(backend_of(repository.folder(version)), reason, difference)


def _check_onnx(file: Path, smoke: Smoke) -> None:
    """Judge the network that the GPU container and the Python backend run, whoever serves this version."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the served version needs the other cores
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        (y_BH,) = session.run([artifact.ONNX_OUTPUT], {artifact.ONNX_INPUT: smoke.x_BWF})
    except Exception as error:  # ONNX Runtime's own classes, none of them documented
        raise DeployError(f"{file.name}: {first_line(str(error))}") from error
    try:
        smoke.check(y_BH)
    except DeployError as error:
        raise DeployError(f"{file.name}: {error}") from error


def _try_candidate(
    source: Path,
    limits: dict[str, dict[str, float]],
    version: int,
    triton: Triton,
    repository: ModelRepository,
    smoke: Smoke,
) -> str:
    """Stage the version for a backend that loads it, and compare its answer there with the local one.

    Returns why that is not the native backend; empty if it is.
    """
    reason = ""
    try:
        repository.stage(source, limits, version, Backend.NATIVE)
        try:
            triton.load(CANDIDATE)
        except TritonError as error:
            refused = _REFUSED in str(error)  # not: the server is gone, or takes too long
            if not refused or not (source / artifact.ONNX_FILE).is_file():
                raise
            triton.unload(CANDIDATE)
            repository.stage(source, limits, version, Backend.PYTHON)
            triton.load(CANDIDATE)
            reason = _refusal(error)
            print(f"version {version} goes to the {Backend.PYTHON.label}: {reason}")
        smoke.check(triton.infer(smoke.x_BWF, CANDIDATE).latency_us)
    finally:
        triton.unload(CANDIDATE)
    return reason


def _refusal(error: TritonError) -> str:
    """Return why Triton did not load a version natively, without Triton's words around it."""
    said = str(error).rpartition(_REFUSED)[2].rstrip("; ")
    if "unable to find backend library" in said:
        return "the server runs without the native backend"
    return said


def serve(version: int, triton: Triton, repository: ModelRepository, smoke: Smoke) -> float:
    """Make Triton serve a version that lies in the repository, and check that it is the one that answers."""
    repository.serve(version)
    triton.load(MODEL)
    answer = triton.infer(smoke.x_BWF)
    if answer.version != version:
        raise DeployError(f"Triton answers with version {answer.version} after loading {version}")
    return smoke.check(answer.latency_us)


def served_version(triton: Triton) -> int | None:
    """The version that answers, judged by a real inference; None when none does."""
    try:
        tokens, features = triton.config().input[0].dims
        return triton.infer(np.zeros((1, tokens, features), dtype=np.float32)).version
    except TritonError:
        return None


def served_content(triton: Triton) -> str:
    """Content hash of the artifact behind the served version."""
    return str(triton.config().parameters["content_sha256"].string_value)


def _restore(previous: int | None, failed: int, triton: Triton, repository: ModelRepository) -> None:
    """Back to what was served: its configuration, its load, and no trace of the failed version."""
    if previous is None or previous == failed:
        triton.unload(MODEL)
        repository.withdraw()
    else:
        repository.serve(previous)
        triton.load(MODEL)
    repository.remove(failed)
