"""`config.pbtxt` for each way of serving a version; a configuration names one version and its one backend.

Triton mixes no backends within a model, so the configuration follows the version served: when the next one
needs another backend, Triton loads it beside the present one and swaps, as it does for a new version of
the same backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from swiftqueue.common.json_file import read_object
from swiftqueue.common.settings import settings
from swiftqueue.feature_store.events.definition import EVENTS

MAX_BATCH: Final = 64  # windows computed at once: 32 senders asking for both queues
LATENCY_OUTPUT: Final = "latency_us"  # output of artifacts, which name none
MODEL_SCRIPT: Final = "model.py"  # file in version folders for the Python backend, and only there
CONTENT_FILE: Final = (
    "content.sha256"  # the artifact's hash: the same number may come back with another model
)

_MODEL: Final = """\
name: "{name}"
{backend}
max_batch_size: {max_batch}
input [ {{ name: "window" data_type: TYPE_FP32 dims: [ {tokens}, {features} ]{optional} }} ]
output [ {{ name: "{output}" data_type: TYPE_FP32 dims: [ {horizon} ] }} ]
version_policy {{ specific {{ versions: [ {version} ] }} }}
instance_group [ {{ count: 1 kind: {kind} }} ]
parameters {{ key: "schema_hash" value {{ string_value: "{schema_hash}" }} }}
parameters {{ key: "content_sha256" value {{ string_value: "{content}" }} }}
"""
# A request has either a window, and whoever asks needs no state here, or what senders add to their sessions
# (docs/explanation/serving.md). The first parameter says that those of several may travel in one request.
_SESSIONS: Final = """\
input [
  {{ name: "session" data_type: TYPE_INT64 dims: [ -1 ] optional: true }},
  {{ name: "events" data_type: TYPE_FP32 dims: [ -1, {features} ] optional: true }},
  {{ name: "queries" data_type: TYPE_FP32 dims: [ -1, {features} ] optional: true }}
]
output [ {{ name: "resend" data_type: TYPE_INT64 dims: [ 1 ] }} ]
parameters {{ key: "sessions_together" value {{ string_value: "yes" }} }}
parameters {{ key: "sessions" value {{ string_value: "{sessions}" }} }}
parameters {{ key: "session_mib" value {{ string_value: "{mib}" }} }}
parameters {{ key: "session_idle_s" value {{ string_value: "{idle_s}" }} }}
parameters {{ key: "arithmetic" value {{ string_value: "{arithmetic}" }} }}
"""
# Limits of the sessions of all versions. A sender whose session went sends its last events again.
SESSIONS: Final = 1024
SESSION_MIB: Final = 128  # a session of the default network takes 26 KiB, and 64 KiB for each encoder
SESSION_IDLE_S: Final = 60
# The Python backend computes waiting requests together. The engine answers each request by itself, so there
# collecting requests would only add a thread to each one's way (docs/explanation/serving.md has the figures).
_BATCHING: Final = "dynamic_batching { }\n"
# TensorRT builds its kernels for the range of batch sizes seen so far, which takes seconds: the warm-up
# shows it the smallest and the largest before any client comes. FP32 is the precision of the checks. ONNX
# Runtime knows a kept engine by the graph and not by its weights (its issue 6455): a folder per content.
_GPU: Final = """\
dynamic_batching {{ max_queue_delay_microseconds: 50 }}
optimization {{
  execution_accelerators {{
    gpu_execution_accelerator: [ {{
      name: "tensorrt"
      parameters {{ key: "precision_mode" value: "FP32" }}
      parameters {{ key: "max_workspace_size_bytes" value: "268435456" }}
      parameters {{ key: "trt_engine_cache_enable" value: "true" }}
      parameters {{ key: "trt_engine_cache_path" value: "{cache}/{content}" }}
    }} ]
  }}
}}
{warmup}"""
_WARMUP: Final = """\
model_warmup {{
  name: "batch of {batch}" batch_size: {batch} count: 3
  inputs {{
    key: "window" value {{ data_type: TYPE_FP32 dims: [ {tokens}, {features} ] zero_data: true }}
  }}
}}
"""
# Cache folder in NVIDIA's container; a volume there keeps the built kernels over restarts.
GPU_CACHE: Final = "/tensorrt-cache"


class Backend(StrEnum):
    """The backend that runs a version in the embedded server; its value is Triton's name for it."""

    NATIVE = "swiftqueue"  # the C++ engine, serving/triton/native
    PYTHON = "python"  # ONNX Runtime, serving/triton/model.py

    @property
    def label(self) -> str:
        """Return the backend's name in messages."""
        return {"swiftqueue": "native backend", "python": "Python backend with ONNX Runtime"}[self.value]


@dataclass(frozen=True)
class Signature:
    """The fields of a version's `model.json` that Triton and its clients need."""

    tokens: int  # W
    features: int  # F, features of a row
    horizon: int  # H, horizon
    schema_hash: str
    output: str  # name of the output tensor

    @classmethod
    def read(cls, folder: Path) -> Signature:
        """Read the signature of an artifact or a version folder.

        Raises:
            OSError: the description is missing.
            ValueError: the description is malformed.
        """
        described = read_object(folder / "model.json")
        try:
            window = described["window"]
            output = str(window.get("output", LATENCY_OUTPUT))
            # A predictor of latencies may use some features of an event window's row only, and takes all.
            rows = EVENTS.features if output == LATENCY_OUTPUT else described["features"]
            return cls(
                int(window["tokens"]),
                len(rows),
                int(window["horizon"]),
                str(described["schema_hash"]),
                output,
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"{folder / 'model.json'}: malformed: {error}") from error


def backend_of(folder: Path) -> Backend:
    """Return the backend that a version folder was staged for."""
    return Backend.PYTHON if (folder / MODEL_SCRIPT).is_file() else Backend.NATIVE


def config_text(name: str, version: int, folder: Path) -> str:
    """Return `config.pbtxt` of model `name` in the embedded server; it serves `version` in `folder`."""
    backend = backend_of(folder)
    signature = Signature.read(folder)
    sessions = backend is Backend.NATIVE and signature.output == LATENCY_OUTPUT
    text = _model_text(name, version, folder, f'backend: "{backend}"', "KIND_CPU", optional=sessions)
    if sessions:
        text += _SESSIONS.format(
            features=signature.features,
            sessions=SESSIONS,
            mib=SESSION_MIB,
            idle_s=SESSION_IDLE_S,
            arithmetic=settings().arithmetic,
        )
    return text + (_BATCHING if backend is Backend.PYTHON else "")


def gpu_config_text(name: str, version: int, folder: Path) -> str:
    """Return `config.pbtxt` of model `name` in NVIDIA's container: ONNX Runtime with TensorRT on each GPU."""
    signature = Signature.read(folder)
    warmup = "".join(
        _WARMUP.format(batch=batch, tokens=signature.tokens, features=signature.features)
        for batch in (1, MAX_BATCH)
    )
    text = _model_text(name, version, folder, 'platform: "onnxruntime_onnx"', "KIND_GPU")
    return text + _GPU.format(cache=GPU_CACHE, content=_content(folder), warmup=warmup)


def _model_text(
    name: str, version: int, folder: Path, backend: str, kind: str, *, optional: bool = False
) -> str:
    signature = Signature.read(folder)
    return _MODEL.format(
        name=name,
        version=version,
        backend=backend,
        kind=kind,
        max_batch=MAX_BATCH,
        tokens=signature.tokens,
        features=signature.features,
        optional=" optional: true" if optional else "",
        horizon=signature.horizon,
        output=signature.output,
        schema_hash=signature.schema_hash,
        content=_content(folder),
    )


def _content(folder: Path) -> str:
    return (folder / CONTENT_FILE).read_text().strip()
