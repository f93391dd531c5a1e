"""The artifact: a folder of `model.safetensors` + `model.json` (+ `model.onnx`); nothing in it can run code.

Whatever is not exactly right is refused with one line naming it: a model that was half written, made for
other features or trained to NaN must never reach a sender.

Shapes: B batch, W window tokens, F features, H horizon.
"""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save_file

from feature_store.atomic import new_file, new_folder
from feature_store.packets.schema import HORIZON
from models.json_file import read_object
from models.networks.event_transformer import EventArchitecture
from models.networks.event_window import EventWindowPredictor
from models.networks.scaling import ScaledFeature, Target
from models.networks.transformer import Architecture, Predictor
from models.networks.window_network import WindowNetwork

FORMAT: Final = "swiftqueue-artifact/2"
# Format 1 knew the paper's readout only; its files say nothing of readout and anchor.
FORMAT_1: Final = "swiftqueue-artifact/1"
_SINCE_2: Final = {"readout", "anchor"}
# By the name in `model.json`; the form of a network's sizes, and the network.
ARCHITECTURES: Final[dict[str, tuple[type[Any], Any]]] = {
    "transformer-encoder": (Architecture, Predictor),
    "event-stream": (EventArchitecture, EventWindowPredictor),
}
WEIGHTS_FILE: Final = "model.safetensors"
DESCRIPTION_FILE: Final = "model.json"
ONNX_FILE: Final = "model.onnx"
# Triton's ONNX Runtime of the embedded server and the official containers of the last years load it.
ONNX_OPSET: Final = 18
ONNX_INPUT: Final = "window"
ONNX_OUTPUT: Final = "latency_us"

_KEYS: Final = {
    "format",
    "architecture",
    "window",
    "features",
    "target",
    "schema_hash",
    "visibility",
    "protocol",
}
# Of the quantile that a model gives, where it is not the mean: its head is tuned for it. In `protocol`, which
# says how a model was taught and no reader in C++ looks into.
_LEVEL: Final = "level"
_QUERIES: Final = "queries"  # of the event stream: scaling of the packets about to be sent
# Memory is taken for a network of these sizes before its weights are looked at: 1 GB at most.
_MOST: Final = {
    "width": 1024,
    "heads": 64,
    "feed_forward": 4096,
    "layers": 16,
    "band": 65_536,
    "tokens": 65_536,
    "horizon": 256,
    "features": 256,
}


@dataclass(frozen=True)
class Description:
    """What `model.json` says beyond what the model itself knows (features, target, sizes)."""

    tokens: int  # W
    schema_hash: str  # of the feature definition the windows were made with
    visibility: str  # acked | previous
    protocol: Mapping[str, Any] = field(default_factory=dict)  # name and slice lengths in seconds


@dataclass(frozen=True)
class Artifact:
    """A loaded model, in eval mode, with its description."""

    model: WindowNetwork
    description: Description


def save(folder: Path, model: WindowNetwork, description: Description) -> None:
    """Write the artifact; `folder` appears, or changes, only once everything in it is written.

    Raises:
        ValueError: a weight is NaN or infinite.
    """
    with new_folder(folder) as partial:
        write(partial, model, description)


def write(folder: Path, model: WindowNetwork, description: Description) -> None:
    """Write the artifact's files into a folder that is there; raises as `save`."""
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    check_finite(state, str(folder))
    save_file(state, str(folder / WEIGHTS_FILE))
    (folder / DESCRIPTION_FILE).write_text(json.dumps(_to_json(model, description), indent=1) + "\n")


def read_files(folder: Path) -> dict[str, bytes]:
    """Return an artifact's files by name, as they travel to where it is needed."""
    return {name: (folder / name).read_bytes() for name in (WEIGHTS_FILE, DESCRIPTION_FILE)}


def load(folder: Path, schema_hash: str | None = None) -> Artifact:
    """Read an artifact; the model is in eval mode.

    `schema_hash` is that of the caller's windows; leave it out only to look at an artifact.

    Raises:
        FileNotFoundError: a file of the artifact is missing.
        ValueError: another schema hash, unknown or missing keys or weights, wrong shapes, weights that are
            NaN, or a truncated file.
    """
    described = _read_json(folder / DESCRIPTION_FILE)
    if schema_hash is not None and described["schema_hash"] != schema_hash:
        raise ValueError(
            f"{folder}: made for features {described['schema_hash']}, but this code computes {schema_hash}; "
            "train again (dvc repro) or check out the commit that made it"
        )
    try:
        model, description = _from_json(described)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{folder / DESCRIPTION_FILE}: malformed: {error}") from error
    except ValueError as error:
        raise ValueError(f"{folder / DESCRIPTION_FILE}: {error}") from error
    load_weights(folder, model)
    return Artifact(model, description)


def load_weights(folder: Path, model: torch.nn.Module) -> None:
    """Read the weights in a folder into a network of the same form, and switch its dropout off.

    Raises:
        FileNotFoundError: they are not there.
        ValueError: they are damaged, of another form, or not finite.
    """
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; what is there is incomplete")
    try:
        state = parse_tensors(path.read_bytes())
    except SafetensorError as error:
        raise ValueError(f"{path}: truncated or not a safetensors file ({error})") from error
    check_state(state, model.state_dict(), path)
    model.load_state_dict(state)
    model.eval()


def export_onnx(folder: Path) -> Path:
    """Write `model.onnx` beside the weights: input `window` (B, W, F), output `latency_us` (B, H).

    Returns:
        Path of the ONNX file. B is free; W and F are those of the artifact.
    """
    loaded = load(folder)
    x_BWF = torch.zeros(2, loaded.description.tokens, len(loaded.model.features))
    return write_onnx(folder, loaded.model, x_BWF, ONNX_OUTPUT)


def write_onnx(folder: Path, model: torch.nn.Module, x_BWF: torch.Tensor, output: str) -> Path:
    """Write `model.onnx` of any network over windows, of which `x_BWF` has the shape; B is free.

    Raises:
        ValueError: the exporter gave nothing.
    """
    import onnx

    with _quiet("torch.onnx", "torch.utils.flop_counter"):
        program = torch.onnx.export(
            model,
            (x_BWF,),
            dynamo=True,
            opset_version=ONNX_OPSET,
            input_names=[ONNX_INPUT],
            output_names=[output],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    if program is None:
        raise ValueError(f"{folder}: torch.onnx.export gave no program")
    with new_file(folder / ONNX_FILE) as partial:
        program.save(str(partial), external_data=False)
        onnx.checker.check_model(str(partial), full_check=True)
    return folder / ONNX_FILE


@contextlib.contextmanager
def _quiet(*loggers: str) -> Iterator[None]:
    """Keep the exporter's notes on packages we do not use (torchvision, triton) off the screen."""
    levels = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():  # of what PyTorch itself calls and will change
            warnings.simplefilter("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", "The tensor attributes .* were assigned during export")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _to_json(model: WindowNetwork, description: Description) -> dict[str, Any]:
    name = next(name for name, (_, kind) in ARCHITECTURES.items() if type(model) is kind)
    sizes = {key: value for key, value in asdict(model.sizes).items() if key != "horizon"}
    described = {
        "format": FORMAT,
        "architecture": {"name": name, **sizes},
        "window": {"tokens": description.tokens, "horizon": model.horizon},
        "features": [asdict(feature) for feature in model.features],
        "target": asdict(model.target),
        "schema_hash": description.schema_hash,
        "visibility": description.visibility,
        "protocol": {**description.protocol, **({_LEVEL: model.quantiles[0]} if model.quantiles else {})},
    }
    if isinstance(model, EventWindowPredictor):
        described[_QUERIES] = [asdict(query) for query in model.queries]
    return described


def _from_json(described: dict[str, Any]) -> tuple[WindowNetwork, Description]:
    sizes, window = dict(described["architecture"]), described["window"]
    if (name := sizes.pop("name")) not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {name!r} (known: {', '.join(ARCHITECTURES)})")
    form, kind = ARCHITECTURES[name]
    events = kind is EventWindowPredictor
    if events != (_QUERIES in described):
        raise ValueError(f"key {_QUERIES!r} is {'missing' if events else 'unknown'}")
    _exact_keys("window", window, {"tokens", "horizon"})
    expected = {f.name for f in fields(form)} - {"horizon"}
    _exact_keys("architecture", sizes, expected - _SINCE_2 if described["format"] == FORMAT_1 else expected)
    _exact_keys("target", described["target"], {f.name for f in fields(Target)})
    scaled = {key: described[key] for key in ("features", _QUERIES) if key in described}
    for feature in (each for some in scaled.values() for each in some):
        _exact_keys("feature", feature, {f.name for f in fields(ScaledFeature)})
    for key, value in {**sizes, **window, "features": len(described["features"])}.items():
        if key in _MOST and not (type(value) is int and 1 <= value <= _MOST[key]):
            raise ValueError(f"{key} is {value!r}; it must be a whole number from 1 to {_MOST[key]}")
    if window["tokens"] < window["horizon"]:
        raise ValueError(f"window of {window['tokens']} tokens is shorter than its horizon")
    features, *queries = ([ScaledFeature(**each) for each in some] for some in scaled.values())
    target = Target(**described["target"])
    model: WindowNetwork
    if events:
        if window != {"tokens": sizes["band"] + HORIZON, "horizon": HORIZON}:
            raise ValueError(f"the window must be {sizes['band']} events (the band) and {HORIZON} queries")
        model = EventWindowPredictor(features, queries[0], target, EventArchitecture(**sizes))
    else:
        model = kind(features, target, form(**sizes, horizon=window["horizon"]))
    rest = {key: described[key] for key in ("schema_hash", "visibility", "protocol")}
    for key, wanted in (("schema_hash", str), ("visibility", str), ("protocol", dict)):
        if not isinstance(rest[key], wanted):
            raise ValueError(f"{key} is {rest[key]!r}; it must be a {wanted.__name__}")
    rest["protocol"] = dict(rest["protocol"])
    if (level := rest["protocol"].pop(_LEVEL, None)) is not None:
        if not (isinstance(level, float) and 0 < level < 1):
            raise ValueError(f"protocol: {_LEVEL} is {level!r}; it must be a number between 0 and 1")
        model.quantiles = (level,)
    return model, Description(tokens=window["tokens"], **rest)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; not an artifact, or incomplete")
    described = read_object(path)
    if described.get("format") not in (FORMAT, FORMAT_1):
        raise ValueError(f"{path}: format {described.get('format')!r} is not {FORMAT!r}")
    _exact_keys(str(path), {key: described[key] for key in described if key != _QUERIES}, _KEYS)
    return described


def _exact_keys(what: str, found: Mapping[str, Any], expected: set[str]) -> None:
    if missing := sorted(expected - set(found)):
        raise ValueError(f"{what}: key {missing[0]!r} is missing")
    if unknown := sorted(set(found) - expected):
        raise ValueError(f"{what}: unknown key {unknown[0]!r}")


def check_state(state: dict[str, torch.Tensor], expected: Mapping[str, torch.Tensor], path: Path) -> None:
    """Refuse weights of other names, shapes or types than expected, or not finite; the line says which."""
    if missing := sorted(set(expected) - set(state)):
        raise ValueError(f"{path}: weight {missing[0]} is missing")
    if unknown := sorted(set(state) - set(expected)):
        raise ValueError(f"{path}: unknown weight {unknown[0]}")
    for name, value in state.items():
        if value.shape != expected[name].shape or value.dtype != expected[name].dtype:
            raise ValueError(
                f"{path}: weight {name} is {value.dtype} {tuple(value.shape)}, "
                f"expected {expected[name].dtype} {tuple(expected[name].shape)}"
            )
    check_finite(state, str(path))


def check_finite(state: Mapping[str, torch.Tensor], what: str) -> None:
    """Refuse a weight that is NaN or infinite; the line names it."""
    for name, value in state.items():
        if not torch.isfinite(value).all():
            raise ValueError(f"{what}: weight {name} holds NaN or infinity")
