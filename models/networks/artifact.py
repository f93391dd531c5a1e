"""The artifact: a folder of `model.safetensors` + `model.json` (+ `model.onnx`); nothing in it can run code.

Whatever is not exactly right is refused with one line naming it: a model that was half written, made for
other features or trained to NaN must never reach a sender.

Shapes: B batch, W window tokens, F features, H horizon.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from feature_store.atomic import new_folder
from models.architecture import MEDIAN, MOST_LEVELS
from models.json_file import read_object
from models.networks import loop_network
from models.networks.files import (
    DESCRIPTION_FILE,
    ONNX_OUTPUT,
    WEIGHTS_FILE,
    check_finite,
    load_weights,
    write_onnx,
)
from models.networks.loop_network import LoopNetwork
from models.networks.scaling import ScaledFeature, Target
from models.networks.window_network import WindowNetwork

FORMAT: Final = "swiftqueue-artifact/2"
# Format 1 knew the paper's readout only; its files say nothing of readout and anchor.
FORMAT_1: Final = "swiftqueue-artifact/1"
_SINCE_2: Final = {"readout", "anchor"}
# Found by name, not imported; import_closure.py follows it to what a model is made of.
NETWORKS: Final = "models.loop"
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
# Of all the quantiles that a model gives: the engine must know how many a latency has.
LEVELS: Final = "levels"
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


def export_onnx(folder: Path) -> Path:
    """Write `model.onnx` beside the weights: input `window` (B, W, F), output `latency_us` (B, H).

    Returns:
        Path of the ONNX file. B is free; W and F are those of the artifact.

    Raises:
        ValueError: it gives several quantiles of each latency.
    """
    loaded = load(folder)
    if (levels := len(loaded.model.quantiles)) > 1:
        raise ValueError(
            f"{folder}: gives {levels} quantiles of each latency (served_level: all), and Triton serves one; "
            "only the laboratory's senders act on several"
        )
    x_BWF = torch.zeros(2, loaded.description.tokens, len(loaded.model.features))
    return write_onnx(folder, loaded.model, x_BWF, ONNX_OUTPUT)


def networks() -> dict[str, LoopNetwork]:
    """Networks of the loop by their name in `model.json`."""
    return {one.stored: one for one in map(loop_network.named, loop_network.names())}


def network_of(model: WindowNetwork) -> LoopNetwork:
    """Return the loop's network that a model is one of.

    Raises:
        ValueError: it is none of the loop's.
    """
    for one in networks().values():
        if one.network() is type(model):
            return one
    raise ValueError(f"a {type(model).__name__} cannot be kept: no file of {NETWORKS} has it")


def _to_json(model: WindowNetwork, description: Description) -> dict[str, Any]:
    network = network_of(model)
    sizes = {key: value for key, value in asdict(model.sizes).items() if key != "horizon"}
    levels = model.quantiles
    return {
        "format": FORMAT,
        "architecture": {"name": network.stored, **sizes},
        "window": {"tokens": description.tokens, "horizon": model.horizon},
        "features": [asdict(feature) for feature in model.features],
        "target": asdict(model.target),
        "schema_hash": description.schema_hash,
        "visibility": description.visibility,
        "protocol": {**description.protocol, **({_LEVEL: levels[0]} if len(levels) == 1 else {})},
        **({LEVELS: list(levels)} if len(levels) > 1 else {}),
        **{key: [asdict(each) for each in getattr(model, key)] for key in network.scalings},
    }


def _from_json(described: dict[str, Any]) -> tuple[WindowNetwork, Description]:
    sizes, window = dict(described["architecture"]), described["window"]
    known = networks()
    if (name := sizes.pop("name")) not in known:
        raise ValueError(f"unknown architecture {name!r} (known: {', '.join(known)})")
    network = known[name]
    own = {key: described[key] for key in set(described) - _KEYS}
    levels = _levels_of(own.pop(LEVELS)) if network.several and LEVELS in own else ()
    _exact_keys(f"of {name}", own, set(network.scalings))
    _exact_keys("window", window, {"tokens", "horizon"})
    expected = {f.name for f in fields(network.sizes())} - {"horizon"}
    _exact_keys("architecture", sizes, expected - _SINCE_2 if described["format"] == FORMAT_1 else expected)
    _exact_keys("target", described["target"], {f.name for f in fields(Target)})
    scaled = {key: described[key] for key in ("features", *network.scalings)}
    for feature in (each for some in scaled.values() for each in some):
        _exact_keys("feature", feature, {f.name for f in fields(ScaledFeature)})
    for key, value in {**sizes, **window, "features": len(described["features"])}.items():
        if key in _MOST and not (type(value) is int and 1 <= value <= _MOST[key]):
            raise ValueError(f"{key} is {value!r}; it must be a whole number from 1 to {_MOST[key]}")
    if window["tokens"] < window["horizon"]:
        raise ValueError(f"window of {window['tokens']} tokens is shorter than its horizon")
    inputs = {key: [ScaledFeature(**each) for each in some] for key, some in scaled.items()}
    model = network.build(
        inputs.pop("features"), Target(**described["target"]), sizes, window, inputs, levels
    )
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


def _levels_of(given: list[Any]) -> tuple[float, ...]:
    sound = {each for each in given if isinstance(each, float) and 0 < each < 1}
    if given != sorted(sound) or MEDIAN not in sound or not 2 <= len(sound) <= MOST_LEVELS:
        raise ValueError(f"{LEVELS} are {given}; 2 to {MOST_LEVELS} must ascend, {MEDIAN} among them")
    return tuple(given)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; not an artifact, or incomplete")
    described = read_object(path)
    if described.get("format") not in (FORMAT, FORMAT_1):
        raise ValueError(f"{path}: format {described.get('format')!r} is not {FORMAT!r}")
    _exact_keys(str(path), {key: described[key] for key in described if key in _KEYS}, _KEYS)
    return described


def _exact_keys(what: str, found: Mapping[str, Any], expected: set[str]) -> None:
    if missing := sorted(expected - set(found)):
        raise ValueError(f"{what}: key {missing[0]!r} is missing")
    if unknown := sorted(set(found) - expected):
        raise ValueError(f"{what}: unknown key {unknown[0]!r}")
