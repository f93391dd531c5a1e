"""The native backend in the real server: parity, errors on one request alone, swaps under load, metrics."""

# Shapes: B windows, W tokens, F features, H horizon (8 packets).

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy_world
import tritonclient.grpc as grpc
from agent_program import AgentProgram, EngineSender, needs_agent
from waiting import wait_until

from swiftqueue.benchmarks.inference_references import typical_features
from swiftqueue.common.atomic import write_file
from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.native_backend import SOURCES, with_native_backend
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.infra.local.servers import triton_command
from swiftqueue.infra.local.triton_environment import find_environment
from swiftqueue.models.forecasters.queries import QUERY_INPUTS
from swiftqueue.models.mlp.network import QueryMlp
from swiftqueue.models.networks import artifact
from swiftqueue.models.networks.prediction import predict
from swiftqueue.models.networks.scaling import TargetScaling
from swiftqueue.serving.agent.io import frames
from swiftqueue.serving.agent.io.packet_log import open_log
from swiftqueue.serving.agent.replay import decide_all
from swiftqueue.serving.deploy.checks import SMOKE_WINDOWS, DeployError, smoke_windows
from swiftqueue.serving.deploy.push import PushResult, push
from swiftqueue.serving.engine import Engine
from swiftqueue.serving.triton.config import CONTENT_FILE, GPU_CACHE, Backend, gpu_config_text
from swiftqueue.serving.triton.endpoint import LOOPBACK, Triton, TritonError, control_headers
from swiftqueue.serving.triton.limits import limits_of
from swiftqueue.serving.triton.repository import MODEL, ModelRepository

pytestmark = pytest.mark.slow
PROJECT = Path(__file__).resolve().parents[2]
NAME = "triton-native"  # of the server's record
EVENT_SIZES, SESSION_MIB = (
    'name: "events" data_type: TYPE_FP32 dims: [ ',
    '"session_mib" value { string_value: "',
)


@dataclass(frozen=True)
class Native:
    """A running server with the native backend, and its repository."""

    triton: Triton
    repository: ModelRepository
    metrics_url: str

    def push(self, folder: Path, version: int, previous: int | None = None) -> PushResult:
        return push(folder, version, [self.triton], self.repository, previous)

    def metric(self, name: str, **labels: object) -> list[float]:
        """Values of the rows of a metric that have these labels."""
        with urllib.request.urlopen(self.metrics_url, timeout=5) as response:  # noqa: S310 - loopback http
            rows = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", response.read().decode(), re.M)
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        return [float(value) for row, value in rows if wanted <= set(row.split(","))]


@pytest.fixture(scope="module")
def native(serving_state: Path) -> Iterator[Native]:
    subprocess.run(["nice", "make", "-s", "-j2"], cwd=SOURCES, check=True)  # harmless when it is built
    root = serving_state / NAME
    environment = with_native_backend(find_environment(), root / "backends")
    repository = ModelRepository(root)
    repository.embedded.mkdir(parents=True, exist_ok=True)  # of another file of tests
    ports = dict(zip(("grpc", "metrics"), free_ports(2), strict=True))
    command = triton_command(environment, repository.embedded, ports)
    with Triton(f"{LOOPBACK}:{ports['grpc']}") as triton:
        processes.start(NAME, command, ports, environment.variables, triton.live, 60)
        yield Native(triton, repository, f"http://{LOOPBACK}:{ports['metrics']}/metrics")
        processes.stop(NAME)


@pytest.fixture(autouse=True)
def empty(native: Native) -> Iterator[None]:
    """Each test begins and ends with nothing served."""
    yield
    for model in (MODEL, native.repository.candidate):
        native.triton.unload(model)
        shutil.rmtree(native.repository.embedded / model, ignore_errors=True)


def windows(folder: Path, count: int, seed: int) -> np.ndarray:
    """Windows of plausible values, the first with padding."""
    loaded = artifact.load(folder)
    parts = [
        smoke_windows(loaded.model.features, loaded.description.tokens, seed + i)[1:]
        for i in range(-(-count // 15))
    ]
    x_BWF = np.concatenate(parts)[:count].copy()
    x_BWF[0, : loaded.description.tokens // 3] = 0
    return x_BWF


def predicted(folder: Path, x_BWF: np.ndarray) -> np.ndarray:
    """What PyTorch makes of windows with the artifact's weights."""
    return predict(artifact.load(folder).model, x_BWF)


def stage(native: Native, folder: Path, version: int, backend: Backend = Backend.NATIVE) -> Path:
    """Put an artifact into the candidate's folder."""
    limits = limits_of(EVENTS.features)
    return native.repository.stage(folder, limits, version, backend)


def served_folder(native: Native, folder: Path, version: int) -> Path:
    """Put an artifact in the repository as a version of the served model, unchecked by the push."""
    stage(native, folder, version)
    native.repository.promote(version)
    native.repository.serve(version)
    return native.repository.folder(version)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_answers_what_pytorch_answers(
    native: Native, make_artifact: Callable[..., Path], layers: int
) -> None:
    folder = make_artifact(1, layers=layers)
    native.push(folder, 7)
    for batch in (1, 2, 7, 64):
        x_BWF = windows(folder, batch, seed=batch)
        answer = native.triton.infer(x_BWF)
        assert answer.version == 7
        np.testing.assert_allclose(answer.y_BH, predicted(folder, x_BWF), rtol=1e-4)


def request(x_BWF: np.ndarray) -> grpc.InferInput:
    return grpc.InferInput("window", list(x_BWF.shape), "FP32").set_data_from_numpy(x_BWF)


def send_all(native: Native, inputs: list[np.ndarray]) -> list[np.ndarray | str]:
    """Send requests at once and wait: an answer or an error line for each."""
    answers: list[np.ndarray | str] = [""] * len(inputs)
    arrived = threading.Semaphore(0)

    def keep(i: int, result: Any, error: Any) -> None:
        answers[i] = str(error) if error else result.as_numpy("latency_us")
        arrived.release()

    with grpc.InferenceServerClient(native.triton.address) as client:
        for i, x_BWF in enumerate(inputs):
            client.async_infer(MODEL, [request(x_BWF)], lambda result, error, i=i: keep(i, result, error))
        for _ in inputs:
            assert arrived.acquire(timeout=20), "a request got no answer"
    return answers


def test_a_bad_request_gets_its_own_error_and_spoils_no_other(
    native: Native, make_artifact: Callable[..., Path]
) -> None:
    folder = make_artifact(1)
    native.push(folder, 1)
    # As served, a call has one request; a configuration may collect them, and then each is still its own.
    config = native.repository.embedded / MODEL / "config.pbtxt"
    waits = "dynamic_batching { max_queue_delay_microseconds: 50000 }\n"  # for others, on a busy machine too
    write_file(config, config.read_text() + waits)
    native.triton.load(MODEL)
    names = [feature.name for feature in artifact.load(folder).model.features]
    size = names.index("size_bytes")
    rng = np.random.default_rng(3)
    inputs, expected = [windows(folder, 64, seed=1)], [""]
    for i in range(120):
        x_BWF, error = windows(folder, 1 + int(rng.integers(0, 9)), seed=i), ""
        last = len(x_BWF) - 1
        if i % 10 == 1:
            x_BWF[last, 17, size] = np.nan
            error = f"window {last}, token 17: size_bytes is NaN or outside"
        elif i % 10 == 3:
            x_BWF[0, 63, size] = -1
            error = "window 0, token 63: size_bytes is NaN or outside"
        elif i % 10 == 5:
            x_BWF[last, 0, 0] = np.inf
            error = f"window {last}, token 0: {names[0]} is NaN or outside"
        elif i % 10 == 7:
            x_BWF, error = x_BWF[:, 1:], "unexpected shape"
        elif i % 10 == 9:
            x_BWF, error = np.zeros((65, *x_BWF.shape[1:]), np.float32), "batch-size must be <= 64"
        inputs.append(np.ascontiguousarray(x_BWF))
        expected.append(error)
    answers = send_all(native, inputs)
    for x_BWF, error, answer in zip(inputs, expected, answers, strict=True):
        if error:
            assert isinstance(answer, str)
            assert error in answer
        else:
            assert isinstance(answer, np.ndarray), answer
            np.testing.assert_allclose(answer, predicted(folder, x_BWF), rtol=1e-4)
    answered = [x for x, error in zip(inputs, expected, strict=True) if not error]
    refused = sum("outside" in error for error in expected)  # by the backend; shapes are refused by Triton
    statistics = _statistics(native, len(answered) + refused)
    assert statistics.inference_stats.success.count == len(answered)
    assert statistics.inference_stats.fail.count == refused
    assert statistics.inference_count == sum(len(x) for x in answered)
    # Several requests were computed in one call, of different sizes: else this test shows little.
    assert statistics.execution_count < len(answered)


def _statistics(native: Native, requests: int) -> Any:
    """Triton's statistics once `requests` are counted, which happens just after their answers are sent."""
    with grpc.InferenceServerClient(native.triton.address) as client:

        def counted() -> Any:
            statistics = client.get_inference_statistics(MODEL, headers=control_headers()).model_stats[0]
            stats = statistics.inference_stats
            computed = sum(batch.batch_size * batch.compute_infer.count for batch in statistics.batch_stats)
            all_of_them = stats.success.count + stats.fail.count >= requests
            return statistics if all_of_them and computed == statistics.inference_count else None

        return wait_until(counted)


def test_its_figures_are_counted(native: Native, make_artifact: Callable[..., Path]) -> None:
    folder = make_artifact(1)
    native.push(folder, 41)
    labels = {"model": MODEL, "version": 41}
    native.triton.infer(windows(folder, 9, seed=0))
    for _ in range(3):
        with pytest.raises(TritonError, match="NaN or outside"):
            native.triton.infer(np.full((2, *windows(folder, 1, 0).shape[1:]), np.nan, np.float32))
    statistics = _statistics(native, SMOKE_WINDOWS + 4)  # the push's requests, one answered, three refused
    assert native.metric("swiftqueue_windows_total", **labels) == [SMOKE_WINDOWS + 9]
    assert native.metric("swiftqueue_refused_requests_total", **labels) == [3]
    assert native.metric("nv_inference_request_failure", reason="BACKEND", **labels) == [3]
    assert native.metric("nv_inference_request_success", **labels) == [SMOKE_WINDOWS + 1]
    assert native.metric("swiftqueue_encoders") == [1]
    assert abs(native.metric("swiftqueue_head_loaded_seconds", **labels)[0] - time.time()) < 60
    assert statistics.inference_stats.fail.count == 3
    assert {b.batch_size for b in statistics.batch_stats} == {1, 9}, "a push asks one by one"
    assert 0 < statistics.inference_stats.compute_infer.ns < 1e9
    native.triton.unload(MODEL)
    wait_until(lambda: native.metric("swiftqueue_encoders") == [0])
    assert native.metric("swiftqueue_head_loaded_seconds") == []


def test_an_exception_while_predicting_ends_one_request_and_not_the_server(
    native: Native, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    """A valid artifact whose scaling makes the network overflow on values in range: the engine throws."""
    folder = shutil.copytree(make_artifact(1), tmp_path / "overflows")
    described = json.loads((folder / "model.json").read_text())
    flag = [feature["name"] for feature in described["features"]].index("size_bytes")
    described["features"][flag] |= {"transform": "identity", "shift": 0.0, "scale": 1e-36}
    (folder / "model.json").write_text(json.dumps(described))
    served_folder(native, folder, 1)
    native.triton.load(MODEL)
    good = np.zeros((2, described["window"]["tokens"], len(EVENTS.features)), np.float32)
    bad = good.copy()
    bad[1, 40:, flag] = 1e9
    answers = send_all(native, [good, bad] * 20)
    for first, second in zip(answers[::2], answers[1::2], strict=True):
        assert isinstance(first, np.ndarray)
        assert np.isfinite(first).all()
        assert isinstance(second, str)
        assert "window 1: its values are too large to predict from" in second


def truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def poison(folder: Path) -> None:
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-400:] = np.full(100, np.nan, np.float32).tobytes()
    (folder / "model.safetensors").write_bytes(weights)


def edit_config(old: str, new: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = folder.parent / "config.pbtxt"
        text = config.read_text()
        assert old in text
        write_file(config, text.replace(old, new))

    return edit


def test_products_of_bfloat16_are_served_where_they_are_asked_for(
    native: Native, make_artifact: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit what the engine answers in a process of its own."""
    folder = make_artifact(1)
    monkeypatch.setenv("SWIFTQUEUE_ARITHMETIC", "bf16")
    native.push(folder, 1)
    x_BWF = windows(folder, 3, seed=5)
    np.testing.assert_array_equal(native.triton.infer(x_BWF).y_BH, Engine(folder, "bf16").forward(x_BWF))


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (truncate, r"model\.safetensors: truncated"),
        (poison, r"model\.safetensors: .* NaN"),
        (lambda folder: (folder / "model.json").write_text("{"), r"model\.json: truncated or not JSON"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"model\.safetensors: No such file"),
        (lambda folder: (folder / "limits.json").unlink(), r"limits\.json: No such file"),
        (lambda folder: (folder / "limits.json").write_text("{}"), r"limits\.json: .*key .* is missing"),
        (edit_config("dims: [ 136,", "dims: [ 72,"), r"this version's window has dims \[136, "),
        (edit_config("dims: [ 136,", "dims: [ -1,"), r"this version's window has dims \[136, "),
        (edit_config('_hash" value { string_value: "', '_hash" value { string_value: "0'), "schema_hash"),
        (edit_config("max_batch_size: 64", "max_batch_size: 0"), "max_batch_size must be at least 1"),
        (edit_config('name: "window"', 'name: "packets"'), "this version has no input 'packets'"),
        (edit_config(EVENT_SIZES + "-", EVENT_SIZES), "this version's events has dims"),
        (edit_config(SESSION_MIB, SESSION_MIB + "-"), "session_mib must be a number from 1"),
        (edit_config('string_value: "fp32"', 'string_value: "f"'), "must be fp32 or bf16, not 'f'"),
    ],
)  # fmt: skip
def test_a_version_that_is_not_right_is_refused_and_the_old_one_goes_on(
    native: Native, make_artifact: Callable[..., Path], damage: Callable[[Path], None], line: str
) -> None:
    folder = make_artifact(1)
    native.push(folder, 1)
    x_BWF = windows(folder, 3, seed=5)
    damage(served_folder(native, make_artifact(1, head=1), 2))
    with pytest.raises(TritonError, match=line):
        native.triton.load(MODEL)
    answer = native.triton.infer(x_BWF)
    assert answer.version == 1
    np.testing.assert_allclose(answer.y_BH, predicted(folder, x_BWF), rtol=1e-4)


def test_an_architecture_the_engine_does_not_know_is_refused_by_name(
    native: Native, make_artifact: Callable[..., Path]
) -> None:
    with pytest.raises(
        DeployError, match="width is 16, the engine knows only 64; serve this model with ONNX"
    ):
        native.push(make_artifact(1, width=16), 1)


@contextmanager
def asking(native: Native, answer_of: dict[int, np.ndarray], x_BWF: np.ndarray) -> Iterator[list[Any]]:
    """A client that asks without pause; every answer must be that of the version it names."""
    seen: list[Any] = []
    stop = threading.Event()

    def ask() -> None:
        with Triton(native.triton.address) as triton:
            while not stop.is_set():
                try:
                    answer = triton.infer(x_BWF)
                    np.testing.assert_allclose(answer.y_BH, answer_of[answer.version], rtol=1e-4)
                    seen.append(answer.version)
                except (OSError, AssertionError, KeyError) as error:
                    seen.append(error)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        try:
            yield seen
        finally:
            stop.set()
        asked.result()


@pytest.mark.long
def test_twenty_heads_are_swapped_under_a_client_without_a_failure_and_with_one_encoder(
    native: Native, make_artifact: Callable[..., Path]
) -> None:
    folders = {version: make_artifact(1, head=version) for version in range(1, 22)}
    x_BWF = windows(folders[1], 2, seed=9)
    answers = {version: predicted(folder, x_BWF) for version, folder in folders.items()}
    assert not np.allclose(answers[1], answers[2], rtol=1e-2)  # else versions could not be told apart
    native.push(folders[1], 1)
    most_encoders = 0.0
    with asking(native, answers, x_BWF) as seen:
        for version in range(2, 22):
            native.push(folders[version], version, version - 1)
            most_encoders = max(most_encoders, *native.metric("swiftqueue_encoders"))
    assert [error for error in seen if not isinstance(error, int)] == []
    assert seen == sorted(seen)
    assert set(seen) >= {2, 10, 21}
    assert most_encoders == 1
    encoder_2 = make_artifact(2)
    with asking(native, answers | {22: predicted(encoder_2, x_BWF)}, x_BWF) as seen:
        native.push(encoder_2, 22, 21)
    assert [error for error in seen if not isinstance(error, int)] == []
    assert native.metric("swiftqueue_head_loaded_seconds", version=22) != []


def test_the_same_number_with_another_head_is_another_model(
    native: Native, make_artifact: Callable[..., Path]
) -> None:
    """A registry made anew counts from 1 again: what was served under that number must not answer."""
    first, second = make_artifact(1), make_artifact(1, head=1)
    x_BWF = windows(first, 2, seed=4)
    native.push(first, 1)
    native.push(second, 1, previous=1)
    np.testing.assert_allclose(native.triton.infer(x_BWF).y_BH, predicted(second, x_BWF), rtol=1e-4)
    for name in ("swiftqueue_windows_total", "swiftqueue_head_loaded_seconds"):
        assert len(native.metric(name, model=MODEL, version=1)) == 1
    assert native.metric("swiftqueue_encoders") == [1]


def test_several_instances_over_the_same_weights(native: Native, make_artifact: Callable[..., Path]) -> None:
    """Each has scratch memory of its own."""
    folder = make_artifact(1)
    served_folder(native, folder, 1)
    text = native.repository.embedded / MODEL / "config.pbtxt"
    write_file(text, text.read_text().replace("count: 1", "count: 2"))
    native.triton.load(MODEL)
    asked = [windows(folder, 1 + i % 3, seed=i) for i in range(40)]
    for x_BWF, answer in zip(asked, send_all(native, asked), strict=True):
        assert isinstance(answer, np.ndarray), answer
        np.testing.assert_allclose(answer, predicted(folder, x_BWF), rtol=1e-4)


def test_both_backends_serve_side_by_side_and_agree(
    native: Native, make_artifact: Callable[..., Path]
) -> None:
    folder, candidate = make_artifact(3, onnx=True), native.repository.candidate
    assert native.push(folder, 1).backend is Backend.NATIVE
    stage(native, folder, 1, Backend.PYTHON)
    native.triton.load(candidate)
    x_BWF = windows(folder, 32, seed=11)
    theirs, ours = native.triton.infer(x_BWF, candidate), native.triton.infer(x_BWF)
    assert str(native.triton.config(candidate).backend) == "python"
    assert str(native.triton.config().backend) == "swiftqueue"
    np.testing.assert_allclose(ours.y_BH, theirs.y_BH, rtol=1e-4)
    # And the version folder carries what the GPU container's repository is made of.
    assert (native.repository.gpu / MODEL / "1" / "model.onnx").is_file()
    assert "onnxruntime" in (native.repository.gpu / MODEL / "config.pbtxt").read_text()


def test_the_configuration_for_the_gpu_container_is_one_that_triton_takes(
    native: Native, make_artifact: Callable[..., Path]
) -> None:
    """All of it but the ONNX Runtime backend and the GPU, which this server has not."""
    folder, candidate = stage(native, make_artifact(1), 1), native.repository.candidate
    text = gpu_config_text(candidate, 1, folder)
    config = native.repository.embedded / candidate / "config.pbtxt"
    here = text.replace('platform: "onnxruntime_onnx"', 'backend: "swiftqueue"')
    write_file(config, here)
    with pytest.raises(TritonError, match="has kind KIND_GPU but no GPUs are available"):
        native.triton.load(candidate)
    write_file(config, here.replace("KIND_GPU", "KIND_CPU"))
    native.triton.load(candidate)  # runs the warm-up
    taken = native.triton.config(candidate)
    (accelerator,) = taken.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    assert accelerator.parameters["precision_mode"] == "FP32"
    # Kernels kept of another version's weights would be used unseen: the graph is the same.
    content = (folder / CONTENT_FILE).read_text().strip()
    assert accelerator.parameters["trt_engine_cache_path"] == f"{GPU_CACHE}/{content}"
    assert [warmup.batch_size for warmup in taken.model_warmup] == [1, taken.max_batch_size]
    assert taken.dynamic_batching.max_queue_delay_microseconds > 0
    x_BWF = windows(folder, 64, seed=1)
    np.testing.assert_allclose(
        native.triton.infer(x_BWF, candidate).y_BH, predicted(folder, x_BWF), rtol=1e-4
    )
    # A word that Triton does not know is an error there: the parser above would have found a wrong one.
    write_file(config, here.replace("KIND_GPU", "KIND_CPU").replace("gpu_execution", "gpu_executive"))
    with pytest.raises(TritonError, match="failed to poll from model repository"):
        native.triton.load(candidate)


def test_a_backend_that_is_not_built_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swiftqueue.infra.local.native_backend.LIBRARY", tmp_path / "libtriton_swiftqueue.so")
    with pytest.raises(OSError, match="the native backend is not built; run `make -C "):
        with_native_backend(find_environment(), tmp_path / "backends")


def test_what_the_engine_does_not_compute_takes_its_place_by_onnx_runtime(
    native: Native, make_artifact: Callable[..., Path]
) -> None:
    folder, narrow = make_artifact(1), make_artifact(1, onnx=True, width=32)
    pushed = native.push(folder, 1)
    assert (pushed.backend, pushed.reason) == (Backend.NATIVE, "")
    assert list(native.triton.config().input[0].dims) == [136, len(EVENTS.features)]
    pushed = native.push(narrow, 2, previous=1)
    assert pushed.backend is Backend.PYTHON
    assert "the engine knows only 64" in pushed.reason
    x_BWF = windows(folder, 64, seed=64)
    np.testing.assert_allclose(native.triton.infer(x_BWF).y_BH, predicted(narrow, x_BWF), rtol=1e-4)
    native.push(folder, 3, previous=2)
    assert native.triton.served_version() == 3


def test_a_version_that_sees_some_features_takes_whole_rows(native: Native, project: Path) -> None:
    folder = served_folder(native, project / "tests/data/artifacts/some-features", 1)
    native.triton.load(MODEL)
    assert list(native.triton.config().input[0].dims) == [72, len(EVENTS.features)]
    x_BWF = np.ones((2, 72, len(EVENTS.features)), np.float32)
    ours = Engine(folder).forward(x_BWF)
    np.testing.assert_array_equal(native.triton.infer(x_BWF).y_BH, ours)
    x_BWF[1, 3, [feature.name for feature in EVENTS.features].index("send_rate")] = -1
    with pytest.raises(TritonError, match="window 1, token 3: send_rate is NaN or outside"):
        native.triton.infer(x_BWF)  # a row that no sender makes, whoever looks at it


def test_the_old_form_is_refused_in_one_line(
    native: Native, make_artifact: Callable[..., Path], project: Path
) -> None:
    """By the push, and by the backend where it lies in the repository already."""
    old = project / "tests/data/artifacts/v1-tiny"
    line = r"model\.json: is of the old form, a network over windows of packets; .* ebbf31e4 is the last one"
    native.push(make_artifact(1), 1)
    with pytest.raises(DeployError, match=r"^version 2 is not deployed: .*of the old form.* ebbf31e4 .*$"):
        native.push(old, 2, previous=1)
    folder = served_folder(native, make_artifact(1), 3)
    for file in ("model.json", "model.safetensors"):
        shutil.copyfile(old / file, folder / file)
    with pytest.raises(TritonError, match=line):
        native.triton.load(MODEL)
    assert native.triton.served_version() == 1


@pytest.mark.long
def test_linear_layers_are_served_by_onnx_runtime(
    native: Native, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    model = QueryMlp((), typical_features(QUERY_INPUTS), TargetScaling("log", 9.0, 0.5))
    torch.nn.init.normal_(model.head[2].weight, std=0.1)  # else it says what it is given
    artifact.save(tmp_path, model.eval(), {"name": "short"})
    artifact.export_onnx(tmp_path)
    native.push(make_artifact(1), 1)
    pushed = native.push(tmp_path, 2, previous=1)
    assert pushed.backend is Backend.PYTHON
    assert "the engine knows no architecture 'mlp'" in pushed.reason.replace('"', "'")
    x_BWF = windows(tmp_path, 7, seed=1)
    answer = native.triton.infer(x_BWF)
    assert answer.version == 2
    np.testing.assert_allclose(answer.y_BH, predicted(tmp_path, x_BWF), rtol=1e-4)


@needs_agent
def test_the_agent_asks_an_event_stream_what_a_local_engine_says(
    native: Native, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    """Bit by bit over Triton's stream what it says in its own process, and what a window gets."""
    folder, packets, file = make_artifact(1), tmp_path / "packets", tmp_path / "frames"
    native.push(folder, 2)
    toy_world.write_table(packets, toy_world.bottleneck_table("t", 2))
    log = open_log(str(packets), 0, None)
    file.write_bytes(b"".join(frames.replay_frames(log)))
    said = []
    for source in (("--server", native.triton.address), ("--local", folder)):
        record = tmp_path / source[0].strip("-")
        arguments = ("--replay", file, "--record", record, "--speed", 0, "--deadline-us", 10_000_000)
        with AgentProgram(*arguments, *source) as agent:
            counts = agent.end(None)
        said.append(frames.read_decisions(record))
        assert counts["decided"] == len(said[-1]) == len(log.sent_ns) // 8
    decisions, local = said
    assert set(decisions["version"]) == {2}
    for column in ("first_packet", "queues", "classic_us", "default_us"):
        np.testing.assert_array_equal(decisions[column], local[column])
    sender = EngineSender(folder)
    for (_, expected, _), decision in zip(decide_all(log, sender, speed=0), decisions, strict=True):  # type: ignore[arg-type]
        assert expected.predicted_us is not None
        np.testing.assert_allclose(decision["classic_us"], expected.predicted_us[0], rtol=1e-5)
        np.testing.assert_allclose(decision["default_us"], expected.predicted_us[1], rtol=1e-5)
