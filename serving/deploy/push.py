"""Puts one version into Triton without a failed request: stage, validate, try, rename, load, check.

The version is tried under another model name first (`NAME_candidate`), so no client ever reaches a
version whose output has not been compared with the local one. Then Triton loads it beside the served
version and swaps. While it loads, and if the load fails, the served version answers. The native backend is
tried first. If the server cannot load the version there, it takes the Python backend, and one line says why.

Several servers, which read one repository, take each step together: a version that one of them does not load,
or answers otherwise than the others, is served by none.

Shapes: B windows, W tokens, F features, H horizon.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from swiftqueue.models.networks.files import ONNX_FILE, ONNX_INPUT
from swiftqueue.serving.deploy.checks import DeployError, SmokeWindows
from swiftqueue.serving.deploy.served_models import served_model
from swiftqueue.serving.triton.config import Backend, backend_of
from swiftqueue.serving.triton.endpoint import CALL_TIMEOUT_S, Triton, TritonError, first_line
from swiftqueue.serving.triton.repository import MODEL, ModelRepository
from swiftqueue.serving.triton.servers import each, try_each

LOWEST_PRIORITY: Final = 19  # nice(2)
WATCH_S: Final = 1.0  # seconds after which a load is watched
_SILENT: Final = "Deadline Exceeded"  # gRPC's words for no answer in time
_REFUSED: Final = "UNAVAILABLE state: "  # Triton's words before a backend's own


@dataclass(frozen=True)
class PushResult:
    """The result of a push: how the version is served."""

    backend: Backend
    reason: str  # why the backend is not the native one; empty if it is
    difference: float  # largest relative difference to the local output


def push(
    source: Path,
    version: int,
    servers: Sequence[Triton],
    repository: ModelRepository,
    previous: int | None,
    name: Callable[[], None] = lambda: None,
) -> PushResult:
    """Put an artifact in service as `version` on all servers, which read the same repository.

    `name` is called once all serve it. On any failure every server that answers serves `previous`, no trace
    of the new version is left. A thread of the lowest priority does it, so that requests on the machine come
    first. Ctrl-C does not interrupt a push.

    Raises:
        DeployError: the version is not served; the line says why, and names the server.
    """
    with ThreadPoolExecutor(1, "push", _give_way) as thread:
        pushing = thread.submit(_push, source, version, servers, repository, previous, name)
        try:
            return pushing.result()
        except KeyboardInterrupt:
            print(f"the push of version {version} has begun, and ends first", flush=True)
            return pushing.result()


def _give_way() -> None:
    """Give this thread the lowest priority (without rights it cannot be taken back), and no helpers.

    PyTorch's own threads may be older than this one and so have the priority of threads that want answers.
    """
    torch.set_num_threads(1)
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)


def _push(
    source: Path,
    version: int,
    servers: Sequence[Triton],
    repository: ModelRepository,
    previous: int | None,
    name: Callable[[], None],
) -> PushResult:
    try:
        checked = served_model(repository.kind).check(source)
        smoke = checked.smoke
        if (source / ONNX_FILE).is_file():
            _check_onnx(source / ONNX_FILE, smoke)
        reason = _try_candidate(source, checked.limits, version, servers, repository, smoke)
    except (ValueError, OSError, DeployError) as error:
        repository.drop_candidate()
        raise DeployError(f"version {version} is not deployed: {error}") from error
    try:
        repository.promote(version)
        repository.serve(version)
        difference = max(each(servers, lambda triton: _swap(triton, version, smoke, repository.model)))
        name()
    except (ValueError, OSError, DeployError) as error:
        after = put_back(previous, version, servers, repository)
        raise DeployError(f"version {version} is not deployed: {error}{after}") from error
    repository.settle()
    return PushResult(backend_of(repository.folder(version)), reason, difference)


def _check_onnx(file: Path, smoke: SmokeWindows) -> None:
    """Compare the ONNX network of the GPU container and the Python backend with the local answer."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the served version needs the other cores
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        (y_BH,) = session.run(None, {ONNX_INPUT: smoke.x_BWF})
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
    servers: Sequence[Triton],
    repository: ModelRepository,
    smoke: SmokeWindows,
) -> str:
    """Stage the version for a backend that loads it at all servers, and compare their answers.

    Return why that is not the native backend; empty if it is.
    """
    reason = ""
    try:
        repository.stage(source, limits, version, Backend.NATIVE)
        tried = try_each(servers, lambda triton: _load(triton, repository.candidate))
        failures = [error for error in tried if error is not None]
        if failures:
            # A server that is gone or slow is no reason to try another backend.
            fatal = [error for error in failures if _REFUSED not in str(error)]
            if fatal or not (source / ONNX_FILE).is_file():
                raise (fatal or failures)[0]
            each(servers, lambda triton: triton.unload(repository.candidate))
            repository.stage(source, limits, version, Backend.PYTHON)
            each(servers, lambda triton: _load(triton, repository.candidate))
            reason = _refusal(failures[0])
            print(f"version {version} goes to the {Backend.PYTHON.label}: {reason}")
        each(servers, lambda triton: _check(triton, smoke, repository.candidate))
    finally:
        # Where this fails the server does not answer, and the swap finds that out.
        try_each(servers, lambda triton: triton.unload(repository.candidate, CALL_TIMEOUT_S))
    return reason


def _load(triton: Triton, model: str) -> None:
    """Make one server load a model, as long as it answers meanwhile: a slow load is no silent server.

    Raises:
        TritonError: it did not load it, or fell silent.
    """
    with Triton(triton.address) as loader, ThreadPoolExecutor(1) as thread:
        loading = thread.submit(loader.load, model)
        while not wait([loading], WATCH_S).done:
            try:
                triton.infer(np.zeros((1, 1, 1), np.float32))  # any served version will do, and a refusal too
            except TritonError as error:
                if _SILENT in str(error):
                    loader.close()  # ends the call, for whose end the thread would be waited
                    raise
        loading.result()


def _refusal(error: Exception) -> str:
    """Return why Triton did not load a version natively, without Triton's words around it."""
    said = str(error).rpartition(_REFUSED)[2].rstrip("; ")
    if "unable to find backend library" in said:
        return "the server runs without the native backend"
    return said


def _check(triton: Triton, smoke: SmokeWindows, model: str) -> tuple[int, float]:
    """Return the version that answers smoke windows, and its largest relative difference to local output."""
    # One window a request: a batch would hold up the questions behind it until all its windows are computed.
    answers = [triton.infer(x_WF[np.newaxis], model) for x_WF in smoke.x_BWF]
    versions = {answer.version for answer in answers}
    if len(versions) > 1:
        raise DeployError(f"{triton.address} answers with several versions: {sorted(versions)}")
    try:
        return versions.pop(), smoke.check(np.concatenate([answer.y_BH for answer in answers]))
    except DeployError as error:
        raise DeployError(f"{triton.address}: {error}") from error


def _swap(triton: Triton, version: int, smoke: SmokeWindows, model: str) -> float:
    """Make one server serve the repository's version, and check that it answers."""
    _load(triton, model)
    answered, difference = _check(triton, smoke, model)
    if answered != version:
        raise DeployError(f"{triton.address} answers with version {answered} after loading {version}")
    return difference


def served_content(triton: Triton, model: str = MODEL) -> str:
    """Return the content hash of the artifact behind the served version."""
    return str(triton.config(model).parameters["content_sha256"].string_value)


def put_back(
    previous: int | None,
    failed: int,
    servers: Sequence[Triton],
    repository: ModelRepository,
) -> str:
    """Serve the previous version again on every server that answers, and remove the failed one.

    Return words to add to the line about the failure; empty if there are none.
    """

    def load(triton: Triton) -> int | None:
        _load(triton, repository.model)
        return triton.served_version(repository.model)

    back = previous if previous != failed or repository.take_back(failed) else None
    line = ""
    if back is None:
        repository.withdraw()
        try_each(servers, lambda triton: triton.unload(repository.model, CALL_TIMEOUT_S))
    else:
        with suppress(OSError):  # the old configuration may still be on a full disk
            repository.serve(back)
        served = try_each(servers, load)
        missing = [t.address for t, version in zip(servers, served, strict=True) if version != back]
        if len(missing) == len(servers):
            line = f"; no server answers with version {back} now"
        elif missing:
            line = f"; version {back} goes on, but not at {', '.join(missing)}"
        elif len(servers) > 1:
            line = f"; version {back} goes on"
    if back != failed:
        repository.take_back(failed)
    return line
