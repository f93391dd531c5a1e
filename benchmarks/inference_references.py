"""The default network, untrained, in PyTorch, ONNX Runtime and OpenVINO, for the benches of serving.

Shapes: B windows, W window rows, F features of a row.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from feature_store.events.event_stream import EventInput
    from models.event_stream.network import EventPredictor
    from models.networks.scaling import ScaledFeature

WINDOWS: Final = 16  # different windows, taken in turn

Windows = npt.NDArray[np.float32]
Call = Callable[[Windows], Any]


def typical_features(inputs: Sequence[EventInput]) -> list[ScaledFeature]:
    """Return scalings of inputs that fit most traces: for models nobody trained."""
    from models.networks.scaling import ScaledFeature, transform_of

    return [
        ScaledFeature(f.name, f.unit, "log1p", 6.0, 2.0)
        if transform_of(f.unit) == "log1p"
        else ScaledFeature(f.name, f.unit)
        for f in inputs
    ]


def event_stream(head: int | None = None) -> EventPredictor:
    """Return an event stream of the sizes in params.yaml with random weights.

    Args:
        head: seed of the head's weights; models that differ only in it share their encoder.
    """
    import torch

    from models.event_stream.network import EventArchitecture, EventPredictor
    from models.forecasters.queries import EVENT_INPUTS, QUERY_INPUTS
    from models.networks.scaling import TargetScaling

    sizes = EventArchitecture(anchor="expected_latency_us")
    torch.manual_seed(0)
    inputs = typical_features(EVENT_INPUTS), typical_features(QUERY_INPUTS)
    model = EventPredictor(*inputs, TargetScaling("log", 9.0, 1.0), sizes).eval()
    torch.manual_seed(0 if head is None else head)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.normal_(std=0.1)  # the initial head would give the anchor alone
    return model


def save(folder: Path, head: int | None = None) -> Path:
    """Save the artifact of `event_stream`; return its folder."""
    from models.networks import artifact

    artifact.save(folder, event_stream(head), {})
    return folder


def make_windows(batch: int = WINDOWS) -> Windows:
    """Return windows full of real events, no two of which have any in common, in raw units."""
    rows = event_stream().rows
    return make_rows(batch * rows).reshape(batch, rows, -1)


def make_rows(count: int) -> Windows:
    """Return rows of events or queries, in raw units."""
    from feature_store.events.definition import EVENTS

    x_NF = np.random.default_rng(0).lognormal(6, 2, (count, len(EVENTS.features)))
    for f, feature in enumerate(EVENTS.features):
        if feature.unit in ("flag", "sign"):
            x_NF[:, f] = x_NF[:, f] > np.exp(6)
    return x_NF.astype(np.float32)


def onnx_runtime(path: Path) -> Call:
    """Return ONNX Runtime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x_BWF: session.run(None, {name: x_BWF})[0]


def openvino_call(path: Path, windows: int) -> Call:
    """Return OpenVINO in float32 on one thread, its input shape fixed to so many windows."""
    openvino: Any = importlib.import_module("openvino")  # OpenVINO is not one of the project's packages
    core = openvino.Core()
    model = core.read_model(str(path))
    model.reshape([windows, *make_windows(1).shape[1:]])
    compiled = core.compile_model(
        model,
        "CPU",
        {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"},
    )
    request = compiled.create_infer_request()

    def call(x_BWF: Windows) -> Any:
        request.set_input_tensor(openvino.Tensor(x_BWF, shared_memory=True))
        request.infer()
        return request.get_output_tensor().data

    return call
