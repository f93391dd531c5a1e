"""What `bench inference` compares the engine with: the same weights in PyTorch, ONNX Runtime, OpenVINO.

Shapes: B windows, W window tokens, F features, D model width, H horizon.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from feature_store.events.window_library import Feature
    from models.networks.artifact import Description
    from models.networks.event_window import EventWindowPredictor
    from models.networks.scaling import ScaledFeature
    from models.networks.transformer import Predictor, Readout

TOKENS: Final = 64  # W of the published measurements
BILSTM_WIDTH: Final = 88  # as in params.yaml
WINDOWS: Final = 16  # different ones, taken in turn

Windows = npt.NDArray[np.float32]
Call = Callable[[Windows], Any]


def typical_features(features: Sequence[Feature] | None = None) -> list[ScaledFeature]:
    """Return features (default: today's windows'), scaled to fit most traces: for models nobody trained."""
    from feature_store.events.windows import FEATURES
    from models.networks.scaling import ScaledFeature, transform_of

    return [
        ScaledFeature(f.name, f.unit, "log1p", 6.0, 2.0)
        if transform_of(f.unit) == "log1p"
        else ScaledFeature(f.name, f.unit)
        for f in (FEATURES if features is None else features)
    ]


def make_model(readout: Readout = "last", anchor: str | None = None, bilstm: bool = False) -> Predictor:
    """Return random weights for the features of today's windows, scaled so that they vary the answers.

    Args:
        readout: what the head reads.
        anchor: what it corrects.
        bilstm: the BiLSTM with as many parameters instead of the Transformer.
    """
    import torch

    from models.loop.bilstm import BiLstm
    from models.networks.scaling import Target
    from models.networks.transformer import Architecture, Predictor

    torch.manual_seed(0)
    sizes = Architecture(readout=readout, anchor=anchor, width=BILSTM_WIDTH if bilstm else Architecture.width)
    network = BiLstm if bilstm else Predictor
    model = network(typical_features(), Target("log", 9.0, 1.0), sizes).eval()
    with torch.no_grad():
        model.head[2].get_parameter("weight").normal_(std=0.1)  # an anchored head begins at 0
    return model


def event_stream() -> tuple[EventWindowPredictor, Description]:
    """An event stream of the sizes in params.yaml that nobody trained."""
    from feature_store.events.definition import EVENTS
    from feature_store.packets.schema import HORIZON
    from models.networks.artifact import Description
    from models.networks.event_transformer import EventArchitecture
    from models.networks.event_window import EventWindowPredictor
    from models.networks.scaling import Target

    sizes = EventArchitecture(anchor="expected_latency_us")
    features = typical_features(EVENTS.features)
    model = EventWindowPredictor(features, features, Target("log", 9.0, 1.0), sizes).eval()
    return model, Description(sizes.reach + HORIZON, EVENTS.schema_hash, "acked")


def make_windows(batch: int = WINDOWS) -> Windows:
    """Return windows full of real tokens, in raw units."""
    from feature_store.events.windows import FEATURES

    x_BWF = np.random.default_rng(0).lognormal(6, 2, (batch, TOKENS, len(FEATURES)))
    for f, feature in enumerate(FEATURES):
        if feature.unit in ("flag", "sign"):
            x_BWF[..., f] = x_BWF[..., f] > np.exp(6)
    return x_BWF.astype(np.float32)


def full_graph(model: Predictor) -> Any:
    """Put torch's own `nn.TransformerEncoder` into the predictor: every token of every layer.

    In inference mode it takes its fused fast path. It gets no padding mask, which these windows do not
    need: that is the faster case.
    """
    from torch import Tensor, nn

    class FullGraph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = model.sizes
            layer = nn.TransformerEncoderLayer(
                sizes.width, sizes.heads, sizes.feed_forward, sizes.dropout, batch_first=True
            )
            self.predictor = model
            self.encoder = nn.TransformerEncoder(layer, sizes.layers, enable_nested_tensor=False)
            self.encoder.layers.load_state_dict(model.layers.state_dict())

        def forward(self, x_BWF: Tensor) -> Tensor:
            predictor = self.predictor
            encoded_BWD = self.encoder(predictor.embedding(predictor.scale(x_BWF)))
            return predictor.to_us(predictor.head(encoded_BWD[:, -1:]))

    return FullGraph().eval()


def export(module: Any, path: Path) -> Path:
    """Write a module of one window as ONNX; the fused kernel has no ONNX form, its parts have."""
    import torch

    from feature_store.events.windows import FEATURES
    from models.networks.files import ONNX_OPSET

    for name in ("torch.onnx", "torch.utils.flop_counter"):  # they warn of packages we do not use
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.inference_mode(False), torch.no_grad():
        program = torch.onnx.export(
            module,
            (torch.ones(1, TOKENS, len(FEATURES)),),
            dynamo=True,
            opset_version=ONNX_OPSET,
            verbose=False,
        )
    torch.backends.mha.set_fastpath_enabled(True)
    if program is None:
        raise ValueError("bench inference: torch.onnx.export gave no program for the full graph")
    program.save(str(path), external_data=False)
    return path


def onnx_runtime(path: Path) -> Call:
    """Return ONNX Runtime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x_BWF: session.run(None, {name: x_BWF})[0]


def openvino_call(path: Path) -> Call:
    """Return OpenVINO in float32 on one thread, its input shape fixed to one window."""
    openvino: Any = importlib.import_module("openvino")  # not one of the project's packages
    core = openvino.Core()
    model = core.read_model(str(path))
    model.reshape([1, TOKENS, make_windows(1).shape[2]])
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
