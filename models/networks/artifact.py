"""Write and read artifacts: folders of `model.safetensors`, `model.json` and perhaps `model.onnx`.

An artifact holds a network over queries for serving, and nothing that can run code. Every fault is refused
with one line that names it: a model that was half written, made for other inputs or trained to NaN must never
reach a sender.

Shapes: B batch, W rows (events, then 8 queries), F inputs of a row.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from swiftqueue import models
from swiftqueue.common.atomic import new_folder
from swiftqueue.common.json_file import read_object
from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.feature_store.events.event_stream import INPUTS
from swiftqueue.models.networks.files import (
    DESCRIPTION_FILE,
    ONNX_OUTPUT,
    WEIGHTS_FILE,
    check_finite,
    check_state,
    read_tensors,
    write_onnx,
)
from swiftqueue.models.networks.parameters import MEDIAN, MOST_LEVELS, OLD_SCHEMA_HASH, why_old
from swiftqueue.models.networks.query_network import QueryNetwork
from swiftqueue.models.networks.scaling import ScaledFeature, TargetScaling

FORMAT: Final = "swiftqueue-artifact/2"
VISIBILITY: Final = "acked"  # visibility of the latencies that served networks learned from
_KEYS: Final = {
    *("format", "architecture", "window", "features", "queries"),
    *("target", "schema_hash", "visibility", "protocol"),
}
# Key of the only quantile that a model outputs; without it the output is the mean. It is in `protocol`, the
# record of the training, which no reader in C++ looks into.
_LEVEL: Final = "level"
# Key of all quantiles that a model outputs, for the engine, which must know how many each latency has.
LEVELS: Final = "levels"
# Largest sizes of a network; memory for it, 1 GB at most, is allocated before its weights are read.
_MOST: Final = {
    "width": 1024,
    "heads": 64,
    "feed_forward": 4096,
    "layers": 16,
    "band": 65_536,
    "tokens": 65_536,
    "horizon": 256,
    "features": 256,
    "trees": 65_536,
    "nodes": 131_072,
    "depth": 64,
}
NETWORKS: Final = "models/*/network.py"  # import_closure.py follows it
FORMER_FORMAT: Final = "swiftqueue-artifact/1"
EMBEDDINGS: Final = {"send.weight": "features", "ack.weight": "features", "ask_about.weight": "queries"}


@dataclass(frozen=True)
class Description:
    """The content of `model.json` beyond the network's inputs, target and sizes."""

    tokens: int  # W, rows of a served question
    schema_hash: str  # hash of the definition of rows
    visibility: str  # `acked` or `previous`
    protocol: Mapping[str, Any] = field(default_factory=dict)  # name, and slice lengths in seconds


@dataclass(frozen=True)
class Artifact:
    """A loaded network, in eval mode, with its description."""

    model: QueryNetwork
    description: Description


def save(folder: Path, model: QueryNetwork, protocol: Mapping[str, Any]) -> None:
    """Write the artifact; `folder` appears or changes only once it is complete.

    Raises:
        ValueError: a weight is NaN or infinite.
    """
    with new_folder(folder) as partial:
        write(partial, model, protocol)


def write(folder: Path, model: QueryNetwork, protocol: Mapping[str, Any]) -> None:
    """Write the artifact's files into an existing folder; raises as `save`."""
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    check_finite(state, str(folder))
    save_file(state, str(folder / WEIGHTS_FILE))
    (folder / DESCRIPTION_FILE).write_text(json.dumps(_to_json(model, protocol), indent=1) + "\n")


def read_files(folder: Path) -> dict[str, bytes]:
    """Return an artifact's files by name, for sending them elsewhere."""
    return {name: (folder / name).read_bytes() for name in (WEIGHTS_FILE, DESCRIPTION_FILE)}


def load(folder: Path) -> Artifact:
    """Read an artifact; the network is in eval mode.

    Raises:
        FileNotFoundError: a file of the artifact is missing.
        ValueError: the artifact has another schema hash, a former network, unknown or missing keys or
            weights, wrong shapes, weights that are NaN, or a truncated file.
    """
    path = folder / DESCRIPTION_FILE
    described = _read_json(path)
    _check_served(path, described)
    try:
        model, description, sliced = _from_json(described)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path}: malformed: {error}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    _load_weights(folder / WEIGHTS_FILE, model, sliced)
    return Artifact(model, description)


def architecture_in(folder: Path) -> str:
    """Return the name of the network in a folder.

    Raises:
        FileNotFoundError: the folder holds no artifact.
        ValueError: the artifact is malformed, or its network is not served any more.
    """
    described = _read_json(folder / DESCRIPTION_FILE)
    _check_served(folder / DESCRIPTION_FILE, described)
    return str(described["architecture"]["name"])


def export_onnx(folder: Path) -> Path:
    """Write `model.onnx` beside the weights: input `window` (B, W, F), output `latency_us` (B, H).

    Returns:
        The path of the ONNX file. B is free; W comes from the artifact, F from a row.

    Raises:
        ValueError: the network outputs several quantiles of each latency.
    """
    loaded = load(folder)
    if (levels := len(loaded.model.quantiles)) > 1:
        raise ValueError(
            f"{folder}: gives {levels} quantiles of each latency (served_level: all), and Triton serves one; "
            "only the laboratory's senders act on several"
        )
    x_BWF = torch.zeros(2, loaded.description.tokens, len(EVENTS.features))
    return write_onnx(folder, loaded.model, x_BWF, ONNX_OUTPUT)


def of_level(model: QueryNetwork, level: float | str | None) -> QueryNetwork:
    """Return the same network with a single quantile as its output, the median by default.

    A forecaster sorts levels that cross; this network does not.

    Raises:
        ValueError: there is no such level.
    """
    levels = model.quantiles
    if level is not None and level not in levels:
        known = ", ".join(map(str, levels)) or "none: it gives the mean"
        raise ValueError(f"level {level} cannot be served; the network's are {known}")
    if not levels:
        return model
    one = MEDIAN if level is None else float(level)
    kind: Any = type(model)
    found: QueryNetwork = kind(model.event_inputs, model.query_inputs, model.target, model.sizes)
    state, row = model.state_dict(), list(levels).index(one)
    last = {name: state[name][row : row + 1] for name in ("head.2.weight", "head.2.bias")}
    found.load_state_dict({**state, **last})
    found.quantiles = (one,)
    found.eval()
    return found


def same_but_head(ours: QueryNetwork, theirs: QueryNetwork) -> bool:
    """Return whether two networks have one encoder, one scaling and one form."""
    described = ((model.scalings(), model.target, model.sizes, model.rows) for model in (ours, theirs))
    if len(set(described)) > 1:
        return False
    other = theirs.encoder_state()
    return all(torch.equal(value, other[name]) for name, value in ours.encoder_state().items())


def _networks() -> dict[str, tuple[type[Any], type[Any]]]:
    """Return sizes and class of each served network by its name in `model.json`.

    A folder of `models/` adds one by `NETWORK` in its `network.py`; the name is the folder's, with hyphens.
    """
    found = {}
    for path in sorted(each for place in models.__path__ for each in Path(place).parent.glob(NETWORKS)):
        module = importlib.import_module(f"swiftqueue.models.{path.parent.name}.network")
        if hasattr(module, "NETWORK"):
            found[path.parent.name.replace("_", "-")] = module.NETWORK
    return found


def _name_of(model: QueryNetwork) -> str:
    for name, (_, network) in _networks().items():
        if network is type(model):
            return name
    raise ValueError(f"a {type(model).__name__} cannot be saved: no file {NETWORKS} names it as its NETWORK")


def _to_json(model: QueryNetwork, protocol: Mapping[str, Any]) -> dict[str, Any]:
    levels = model.quantiles
    return {
        "format": FORMAT,
        "architecture": {"name": _name_of(model), **asdict(model.sizes)},
        "window": {"tokens": model.rows, "horizon": model.horizon},
        "features": [asdict(each) for each in model.event_inputs],
        "queries": [asdict(each) for each in model.query_inputs],
        "target": asdict(model.target),
        "schema_hash": EVENTS.schema_hash,
        "visibility": VISIBILITY,
        "protocol": {**protocol, **({_LEVEL: levels[0]} if len(levels) == 1 else {})},
        **({LEVELS: list(levels)} if len(levels) > 1 else {}),
    }


def _check_served(path: Path, described: Mapping[str, Any]) -> None:
    """Refuse an artifact of the old form, or of other inputs, in one line."""
    architecture = described["architecture"]
    name = str(architecture.get("name")) if isinstance(architecture, dict) else ""
    if old := why_old(name, "" if "queries" in described else OLD_SCHEMA_HASH):
        raise ValueError(f"{path} {old}; train again (dvc repro)")
    if described["schema_hash"] != EVENTS.schema_hash:
        raise ValueError(
            f"{path}: made for features {described['schema_hash']}, but this code computes "
            f"{EVENTS.schema_hash}; train again (dvc repro) or check out the commit that made it"
        )
    _exact_keys(str(path), {key: described[key] for key in described if key != LEVELS}, _KEYS)


def _from_json(described: dict[str, Any]) -> tuple[QueryNetwork, Description, dict[str, list[int]]]:
    sizes, window = dict(described["architecture"]), described["window"]
    known = _networks()
    if (name := sizes.pop("name")) not in known:
        raise ValueError(f"unknown architecture {name!r} (known: {', '.join(known)})")
    form, network = known[name]
    levels = _levels_of(described[LEVELS]) if LEVELS in described else ()
    _exact_keys("window", window, {"tokens", "horizon"})
    _exact_keys("architecture", sizes, {f.name for f in fields(form)})
    _exact_keys("target", described["target"], {f.name for f in fields(TargetScaling)})
    for feature in (*described["features"], *described["queries"]):
        _exact_keys("feature", feature, {f.name for f in fields(ScaledFeature)})
    counts = {"features": len(described["queries"])} | ({"events": 1} if described["features"] else {})
    for key, value in {**sizes, **window, **counts}.items():
        if key in _MOST and not (type(value) is int and 1 <= value <= _MOST[key]):
            raise ValueError(f"{key} is {value!r}; it must be a whole number from 1 to {_MOST[key]}")
    sliced, inputs = {}, {}
    for rows, other in (("features", "queries"), ("queries", "events")):
        every = [ScaledFeature(**each) for each in described[rows]]
        kept = _seen(every, other)
        sliced[rows], inputs[rows] = kept, [every[place] for place in kept]
    model: QueryNetwork = network(
        inputs["features"], inputs["queries"], TargetScaling(**described["target"]), form(**sizes), levels
    )
    if window != {"tokens": model.rows, "horizon": model.horizon}:
        raise ValueError(f"the window must be {model.events} events and {model.horizon} queries")
    rest = {key: described[key] for key in ("schema_hash", "visibility", "protocol")}
    for key, wanted in (("schema_hash", str), ("visibility", str), ("protocol", dict)):
        if not isinstance(rest[key], wanted):
            raise ValueError(f"{key} is {rest[key]!r}; it must be a {wanted.__name__}")
    rest["protocol"] = dict(rest["protocol"])
    if (level := rest["protocol"].pop(_LEVEL, None)) is not None:
        if not (isinstance(level, float) and 0 < level < 1):
            raise ValueError(f"protocol: {_LEVEL} is {level!r}; it must be a number between 0 and 1")
        model.quantiles = (level,)
    return model, Description(tokens=window["tokens"], **rest), sliced


def _seen(every: Sequence[ScaledFeature], other: str) -> list[int]:
    """Return the places of a row's inputs that the network sees.

    Older artifacts listed all inputs of both kinds of rows, with weights of 0 for those of the `other`.
    """
    rows = {each.name: each.rows for each in INPUTS}
    return [place for place, each in enumerate(every) if rows.get(each.name, other) != other]


def _load_weights(path: Path, model: QueryNetwork, kept: Mapping[str, list[int]]) -> None:
    state = read_tensors(path)
    for layer, rows in EMBEDDINGS.items():
        if layer in state and state[layer].dim() == 2 and state[layer].shape[1] > len(kept[rows]):
            dropped = sorted(set(range(state[layer].shape[1])) - set(kept[rows]))
            if bool(state[layer][:, dropped].any()):
                raise ValueError(f"{path}: weight {layer} is not 0 for an input that its rows do not have")
            state[layer] = state[layer][:, kept[rows]].contiguous()
    check_state(state, model.state_dict(), path)
    try:
        model.load_state_dict(state)
    except ValueError as error:  # weights that are places (models/trees/network.py)
        raise ValueError(f"{path}: {error}") from None
    model.eval()


def _levels_of(given: list[Any]) -> tuple[float, ...]:
    sound = {each for each in given if isinstance(each, float) and 0 < each < 1}
    if given != sorted(sound) or MEDIAN not in sound or not 2 <= len(sound) <= MOST_LEVELS:
        raise ValueError(f"{LEVELS} are {given}; 2 to {MOST_LEVELS} must ascend, {MEDIAN} among them")
    return tuple(given)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; not an artifact, or incomplete")
    described = read_object(path)
    if described.get("format") not in (FORMAT, FORMER_FORMAT):
        raise ValueError(f"{path}: format {described.get('format')!r} is not {FORMAT!r}")
    for key in ("architecture", "schema_hash"):
        if key not in described:
            raise ValueError(f"{path}: key {key!r} is missing")
    return described


def _exact_keys(what: str, found: Mapping[str, Any], expected: set[str]) -> None:
    if missing := sorted(expected - set(found)):
        raise ValueError(f"{what}: key {missing[0]!r} is missing")
    if unknown := sorted(set(found) - expected):
        raise ValueError(f"{what}: unknown key {unknown[0]!r}")
