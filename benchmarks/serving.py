"""Measure one question through Triton over gRPC, beside the identity model and ONNX Runtime.

Triton serves the default network, the event stream of two layers, three ways: `identity` computes nothing
and takes windows of its size (the reference: what gRPC and Triton cost), the native backend, and the Python
backend with ONNX Runtime, asked as serving/agent/predictors/reference_client.py asks.
Contestants take turns over several rounds, one question at a time; each figure is the median over the rounds
of a round's p50 or p99.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import tritonclient.grpc as grpc

from swiftqueue.benchmarks.inference_references import make_windows, save
from swiftqueue.benchmarks.rows import Row
from swiftqueue.benchmarks.served_models import IDENTITY, build, served, write_model
from swiftqueue.serving.agent.predictors.reference_client import CHANNEL
from swiftqueue.serving.triton.config import Backend
from swiftqueue.serving.triton.endpoint import Triton, connect

QUESTIONS: Final = 2_000  # questions per round and contestant
PYTHON_QUESTIONS: Final = 500
WARM_UP: Final = 50
ANSWER_S: Final = 10.0
PARITY: Final = 1e-4
NATIVE: Final = "event stream"
ONNX: Final = "ONNX in the Python backend, Python client"

Figures = dict[str, float]  # figures of one round: p50_us, p99_us


def measure(rounds: int) -> list[Row]:
    """Ask every contestant in turn, `rounds` times.

    Raises:
        OSError: the native backends or the C++ client are not built.
        ValueError: two models that should answer alike do not.
        RuntimeError: Triton does not start, or an answer is an error.
    """
    program = build("round_trip") / "round_trip"
    with tempfile.TemporaryDirectory() as folder, _served(Path(folder)) as (tcp, unix):
        _check_parity(tcp)

        def ask(address: str, model: str) -> Callable[[], Figures]:
            return lambda: _ask(program, address, model)

        contestants: dict[str, Callable[[], Figures]] = {
            "identity": ask(tcp, "identity"),
            NATIVE: ask(tcp, "events"),
            "identity, unix socket": ask(unix, "identity"),
            f"{NATIVE}, unix socket": ask(unix, "events"),
            f"{NATIVE}, Python client": lambda: _ask_from_python(tcp, "events"),
            ONNX: lambda: _ask_from_python(tcp, "onnx"),
        }
        samples: dict[str, list[Figures]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, contestant in contestants.items():
                samples[name].append(contestant())
    return _rows(samples, rounds)


def _rows(samples: dict[str, list[Figures]], rounds: int) -> list[Row]:
    def figure(name: str, key: str) -> float:
        return statistics.median(figures[key] for figures in samples[name])

    def row(name: str, key: str, reference: str, reference_key: str) -> Row:
        ours, theirs = figure(name, key), figure(reference, reference_key)
        reference = f"{reference}, {reference_key.removesuffix('_us')}"
        return Row(f"{name}, {key.removesuffix('_us')}", ours, theirs, reference, theirs / ours, "us", rounds)

    rows = []
    for key in ("p50_us", "p99_us"):
        rows += [row(NATIVE, key, "identity", "p50_us"), row(NATIVE, key, ONNX, key)]
    return [
        *rows,
        row("identity", "p99_us", "identity", "p50_us"),
        row(f"{NATIVE}, unix socket", "p50_us", "identity, unix socket", "p50_us"),
        row(f"{NATIVE}, unix socket", "p50_us", NATIVE, "p50_us"),
        row(f"{NATIVE}, Python client", "p50_us", ONNX, "p50_us"),
    ]


@contextmanager
def _served(root: Path) -> Iterator[tuple[str, str]]:
    """Serve every model on loopback and, by a second server, on a Unix socket; yield both addresses."""
    from swiftqueue.models.networks import artifact

    repository, source = root / "repository", save(root / "artifact")
    artifact.export_onnx(source)
    write_model(repository, "events", source, Backend.NATIVE)
    write_model(repository, "onnx", source, Backend.PYTHON)
    write_model(repository, "identity", source, IDENTITY)
    native = ("identity", "events")
    socket_path = root / "triton.sock"
    with (
        served(root, (*native, "onnx")) as tcp,
        served(root, native, name="bench-triton-unix", socket_path=socket_path) as unix,
    ):
        yield tcp, unix


def _check_parity(address: str) -> None:
    """Check that the compared models answer alike: another answer would be no reference.

    Raises:
        ValueError: they do not.
    """
    with Triton(address) as triton:
        ours, theirs = (triton.infer(make_windows(), model).y_BH for model in ("events", "onnx"))
    if not np.allclose(ours, theirs, rtol=PARITY):
        raise ValueError("bench serving: the native backend answers otherwise than ONNX Runtime")


def _ask(program: Path, address: str, model: str) -> Figures:
    """Return the round trips of the C++ client."""
    command = [str(program), "--server", address, "--model", model, "--questions", str(QUESTIONS)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if ran.returncode:
        raise RuntimeError(f"bench serving: {ran.stderr.strip()}")
    found = json.loads(ran.stdout.splitlines()[-1])
    if found["in_time"] != QUESTIONS:
        raise RuntimeError(f"bench serving: {model} answered {found['in_time']} of {QUESTIONS} questions")
    return {key: float(found[key]) for key in ("p50_us", "p99_us")}


def _ask_from_python(address: str, model: str) -> Figures:
    """Return the round trips of the reference client: an asynchronous call and a wait for its answer."""
    x_BWF = make_windows()
    us = np.empty(PYTHON_QUESTIONS)
    with connect(address, CHANNEL) as client:
        for i in range(-WARM_UP, PYTHON_QUESTIONS):
            done, outcome = threading.Event(), list[Any]()

            def answered(result: Any, error: Any, outcome: list[Any] = outcome, done: Any = done) -> None:
                outcome.extend((result, error))
                done.set()

            start_ns = time.perf_counter_ns()
            x_1WF = x_BWF[i % len(x_BWF)][None]
            tensor = grpc.InferInput("window", list(x_1WF.shape), "FP32").set_data_from_numpy(x_1WF)
            client.async_infer(model, [tensor], answered, client_timeout=ANSWER_S)
            if not done.wait(ANSWER_S) or outcome[1] is not None:
                raise RuntimeError(f"bench serving: {model}: {outcome[1] if outcome else 'no answer'}")
            outcome[0].as_numpy("latency_us")
            if i >= 0:
                us[i] = (time.perf_counter_ns() - start_ns) / 1000
    return {"p50_us": float(np.percentile(us, 50)), "p99_us": float(np.percentile(us, 99))}
