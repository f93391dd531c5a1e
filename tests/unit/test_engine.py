"""The engine around its arithmetic: what it refuses, swapping the head, threads."""

# Shapes: B batch, W window rows, F features of a row.

from __future__ import annotations

import json
import shutil
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.serving.engine import Engine

ROW = [feature.name for feature in EVENTS.features]
FEATURES = ["ack", "latency_us", "latency_visible", "size_bytes"]  # that the network sees of an event
QUERIES = ["queue_l4s", "size_bytes", "last_latency_us"]  # and of a query
TOKENS = 24
OLD_FORM = (
    "is of the old form, a network over windows of packets; commit ebbf31e4 is the last one that serves it"
)


def shapes() -> dict[str, tuple[int, ...]]:
    named: dict[str, tuple[int, ...]] = {
        "send.weight": (64, len(FEATURES)),
        "ack.weight": (64, len(FEATURES)),
        "ask_about.weight": (64, len(QUERIES)),
        "head.0.weight": (64, 64),
        "head.2.weight": (1, 64),
    }
    for i in range(2):
        inner = {"query": (64, 64), "key_value": (128, 64), "out": (64, 64), "linear1": (64, 64)}
        named |= {f"layers.{i}.{name}.weight": shape for name, shape in inner.items()}
        named |= {f"layers.{i}.linear2.weight": (64, 64), f"layers.{i}.sink": (2, 1, 64)}
    named |= {name.replace("weight", "bias"): shape[:1] for name, shape in named.items() if "weight" in name}
    norms = ("norm", *(f"layers.{i}.norm{n}" for i in range(2) for n in (1, 2)))
    return named | {f"{norm}.{part}": (64,) for norm in norms for part in ("weight", "bias")}


def write_artifact(folder: Path, head_seed: int = 0) -> Path:
    folder.mkdir()
    encoder, head = np.random.default_rng(0), np.random.default_rng(100 + head_seed)
    weights = {
        name: ((head if name.startswith("head.") else encoder).normal(0, 0.1, shape)).astype(np.float32)
        for name, shape in shapes().items()
    }
    save_file(weights, folder / "model.safetensors")

    def scaled(names: list[str]) -> list[dict[str, object]]:
        units = {feature.name: feature.unit for feature in EVENTS.features}
        return [
            {"name": name, "unit": units[name], "transform": "log1p" if units[name] != "flag" else "identity"}
            | {"shift": 1.5, "scale": 2.0}
            for name in names
        ]

    description = {
        "format": "swiftqueue-artifact/2",
        "architecture": {
            "name": "event-stream",
            "width": 64,
            "heads": 4,
            "feed_forward": 64,
            "layers": 2,
            "band": 8,
            "dropout": 0.2,
            "anchor": None,
        },
        "window": {"tokens": TOKENS, "horizon": 8},
        "features": scaled(FEATURES),
        "queries": scaled(QUERIES),
        "target": {"transform": "log", "shift": 9.0, "scale": 1.0},
        "schema_hash": EVENTS.schema_hash,
        "visibility": "acked",
        "protocol": {"name": "short", "note": 'µ \u2013 \\ "quoted" \U0001f600'},
    }
    (folder / "model.json").write_text(json.dumps(description, indent=1))
    return folder


def windows(batch: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(1, 1500, (batch, TOKENS, len(ROW))).astype(np.float32)


def edit_json(folder: Path, path: str, value: object) -> None:
    file = folder / "model.json"
    described = json.loads(file.read_text())
    *parents, key = path.split("/")
    place = described
    for parent in parents:
        place = place[int(parent) if parent.isdigit() else parent]
    at = int(key) if key.isdigit() else key
    if value is None:
        del place[at]
    else:
        place[at] = value
    file.write_text(json.dumps(described))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_artifact(tmp_path / "model")


def features_of(engine: Engine, x_BWF: np.ndarray) -> np.ndarray:
    """Return the encoder's outputs for the queries of windows, all of them after the first one's events."""
    x_EF = x_BWF[0, :-8]
    return engine.features(x_EF, np.full(len(x_BWF), len(x_EF)), x_BWF[:, -8:])


def test_what_it_says_of_itself(folder: Path) -> None:
    engine = Engine(folder, version=7)
    said = engine.version, engine.schema_hash, engine.shape
    assert said == (7, EVENTS.schema_hash, (TOKENS, len(ROW)))
    assert engine.isa in {"avx512", "avx2", "portable"}
    assert Engine(folder, "portable").isa == "portable"
    y_BH, version = engine.forward_versioned(windows(3))
    assert y_BH.shape == (3, 8)
    assert version == 7
    assert features_of(engine, windows(3)).shape == (3, 8, 64)
    assert np.array_equal(engine.forward(windows(3)[1]), y_BH[1:2])  # one window, and not the others


def test_an_unknown_instruction_set_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown instruction set 'sse' \(known: auto, bf16, amx, avx512"):
        Engine(folder, "sse")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(2, TOKENS, 4), (2, TOKENS + 1, 52), (2, 7, 52), (0, TOKENS, 52), (4,)])
def test_wrong_shapes_are_refused(folder: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="this model takes"):
        Engine(folder).forward(np.ones(shape, np.float32))


@pytest.mark.parametrize("isa", ["auto", "portable"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [(0, 0, 0), (2, 23, 51), (1, 11, 1)])
def test_a_value_that_is_not_finite_is_named(
    folder: Path, isa: str, value: float, at: tuple[int, int, int]
) -> None:
    engine, x_BWF = Engine(folder, isa), windows(3)  # type: ignore[arg-type]
    expected_BH = engine.forward(x_BWF)
    x_BWF[at] = value
    message = f"window {at[0]}: {ROW[at[2]]} of token {at[1]} is NaN or infinite"
    with pytest.raises(ValueError, match=message):
        engine.forward(x_BWF)
    assert np.array_equal(engine.forward(windows(3)), expected_BH)  # and nothing stays behind


@pytest.mark.parametrize("isa", ["auto", "portable"])
@pytest.mark.parametrize("token", [8, 15, 22, 23])
def test_values_too_large_to_predict_from_are_refused(folder: Path, isa: str, token: int) -> None:
    for key, place in (("features", 2), ("queries", 0)):
        edit_json(folder, f"{key}/{place}/scale", 1e-3)
    x_BWF = windows(2)
    x_BWF[1, token, [ROW.index("latency_visible"), ROW.index("queue_l4s")]] = 3e38
    with pytest.raises(ValueError, match="window 1: its values are too large"):
        Engine(folder, isa).forward(x_BWF)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "swiftqueue-artifact/9", "format 'swiftqueue-artifact/9' is not"),
        ("target", None, "key 'target' is missing"),
        ("extra", 1, "unknown key 'extra'"),
        ("architecture/name", "lstm", "the engine knows no architecture 'lstm', only 'event-stream'; serve"),
        ("architecture/name", "mlp", "architecture 'mlp', only 'event-stream'; serve this model with ONNX"),
        ("architecture/width", 128, "width is 128, the engine knows only 64; serve this model with ONNX"),
        ("architecture/heads", 8, "heads is 8, the engine knows only 4; serve this model with ONNX Runtime"),
        ("architecture/feed_forward", 96, "feed_forward is 96, the engine knows only multiples of 64"),
        ("architecture/layers", 0, r"layers is 0, must be in 1\.\.16"),
        ("architecture/layers", 17, r"layers is 17, must be in 1\.\.16"),
        ("architecture/layers", 1.5, "layers is not a whole number"),
        ("architecture/layers", "2", "layers is not a number"),
        ("architecture/layers", 3, r"the window must be 24 events \(a band for each layer\) and 8 queries"),
        ("architecture/band", 16, "the window must be 32 events"),
        ("architecture/anchor", "nothing_us", "feature 'nothing_us' is none of an event window's row"),
        ("architecture/anchor", 3, "anchor is not a string"),
        ("architecture/readout", "last", "unknown key 'readout'"),
        ("window/tokens", 4, r"tokens is 4, must be in 8\.\.4096"),
        ("window/tokens", 1e9, "tokens is 1000000000"),
        ("window/horizon", 17, "the window must be 16 events .* and 8 queries"),
        ("features", 7, "features is not a list"),
        ("features", [], "features names no feature"),
        ("features/3/name", "ack", "feature 'ack' stands twice"),
        ("features/3/name", "sizes", "feature 'sizes' is none of an event window's row"),
        ("features/3", None, r"weight ack\.weight has shape \(64, 4\), expected \(64, 3\)"),
        ("features/1/transform", "sqrt", "feature 'latency_us': unknown transform 'sqrt'"),
        ("features/1/scale", 0, "feature 'latency_us': the scale must be above zero"),
        ("features/0/shift", 1e300, "shift is out of range"),
        ("features/0/unit", None, "feature 0: key 'unit' is missing"),
        ("queries", None, "key 'queries' is missing"),
        ("queries", [], "queries names no feature"),
        ("queries/2", None, r"weight ask_about\.weight has shape \(64, 3\), expected \(64, 2\)"),
        ("queries/0/name", "age_us", "feature 'age_us' is none of an event window's row"),
        ("target/transform", "sqrt", "target: unknown transform 'sqrt'"),
        ("target/scale", -1, "target: the scale must be above zero"),
        ("schema_hash", 5, "schema_hash is not a string"),
        (
            "schema_hash",
            "ab" * 32,
            f"made for features 'abababababab', this engine reads {EVENTS.schema_hash[:12]}",
        ),
    ],
)
def test_a_wrong_description_is_refused(folder: Path, path: str, value: object, message: str) -> None:
    edit_json(folder, path, value)
    with pytest.raises(ValueError, match=message) as caught:
        Engine(folder)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("architecture/name", "transformer-encoder"),
        ("architecture/name", "bilstm"),
        ("schema_hash", "ed5cfb08984c5aee135616b101e817c99cfe962ea8aaabdd3d98516674f4bed3"),
    ],
)
def test_the_old_form_is_refused_in_one_line(folder: Path, path: str, value: str) -> None:
    edit_json(folder, path, value)
    with pytest.raises(ValueError, match=f"^{folder}/model.json: {OLD_FORM}$"):
        Engine(folder)


def test_an_artifact_of_the_old_form_as_it_was_committed_is_refused(project: Path) -> None:
    folder = project / "tests/data/artifacts/v1-tiny"
    with pytest.raises(ValueError, match=f"^{folder}/model.json: {OLD_FORM}$"):
        Engine(folder)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1,]",
        '{"a":1,}',
        '{"a":1 "b":2}',
        "nul",
        "01",
        "1.",
        "1e999",
        "NaN",
        '"\\x"',
        '"\\ud800"',
        "{} x",
        '"\t"',
        "\ufeff{}",
    ],
)
def test_what_is_not_json_is_refused(folder: Path, text: str) -> None:
    (folder / "model.json").write_text(text)
    with pytest.raises(ValueError, match=r"model\.json: truncated or not JSON: .* at byte \d+$"):
        Engine(folder)


@pytest.mark.parametrize(
    ("text", "message"), [("[" * 100, "nested too deep"), ('{"a":1,"a":2}', "key 'a' stands twice")]
)
def test_json_that_no_artifact_has_is_refused(folder: Path, text: str, message: str) -> None:
    (folder / "model.json").write_text(text)
    with pytest.raises(ValueError, match=rf"model\.json: truncated or not JSON: {message}$"):
        Engine(folder)


def rewrite_weights(folder: Path, header: dict[str, object], data: bytes) -> None:
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F64", "shape": [8], "data_offsets": [0, 64]}, "type 'F64', expected 'F32'"),
        ({"dtype": "F32", "shape": [8], "data_offsets": [0, 16]}, r"do not fit its shape \(8\)"),
        ({"dtype": "F32", "shape": [8], "data_offsets": [32, 0]}, r"do not fit its shape \(8\)"),
        ({"dtype": "F32", "shape": [8], "data_offsets": [16, 48]}, "overlaps another, or follows a gap"),
        ({"dtype": "F32", "shape": [8], "data_offsets": [0, -32]}, "not a whole number"),
        ({"dtype": "F32", "shape": [8], "data_offsets": [0]}, "not 2 numbers"),
        ({"dtype": "F32", "shape": [2**33, 2**33], "data_offsets": [0, 32]}, "too large"),
        ({"dtype": "F32", "shape": [2**31, 0], "data_offsets": [0, 0]}, "bytes follow the last tensor"),
        ({"dtype": "F32", "shape": [100], "data_offsets": [0, 400]}, "truncated: .* is cut off"),
        ({"dtype": "F32", "shape": [8]}, "key 'data_offsets' is missing"),
        (7, "is not a JSON object"),
    ],
)
def test_a_hostile_weight_header_is_refused(folder: Path, entry: object, message: str) -> None:
    rewrite_weights(folder, {"head.2.bias": entry}, bytes(32))
    with pytest.raises(ValueError, match=rf"model\.safetensors: .*{message}"):
        Engine(folder)


@pytest.mark.parametrize("length", [0, 1, 7, 2**20 + 1, 2**32, 2**63, 2**64 - 1])
def test_a_hostile_header_length_is_refused(folder: Path, length: int) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + b" " * 4096)
    with pytest.raises(ValueError, match=r"model\.safetensors: "):
        Engine(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
@pytest.mark.parametrize("keep", [0.0, 0.001, 0.5, 0.99])
def test_a_truncated_file_is_refused(folder: Path, name: str, keep: float) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(ValueError, match=rf"{name}: truncated"):
        Engine(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(OSError, match=f"{name}: No such file"):
        Engine(folder)
    (folder / name).mkdir()
    with pytest.raises(OSError, match=f"{name}: Is a directory"):
        Engine(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("head.0.bias", lambda w: w[:9], r"weight head\.0\.bias has shape \(9\), expected \(64\)"),
        ("head.0.bias", lambda w: w * np.float32(np.nan), r"'head\.0\.bias' holds NaN"),
        ("stranger", lambda _: np.zeros(1, np.float32), "unknown weight 'stranger'"),
    ],
)
def test_wrong_weights_are_refused(folder: Path, name: str, change: object, message: str) -> None:
    weights = load_file(folder / "model.safetensors")
    weights[name] = change(weights.get(name))  # type: ignore[operator]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ValueError, match=message):
        Engine(folder)


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    """Features in another order, their weights too, are the same network; other columns change nothing."""
    folder, x_BWF = write_artifact(tmp_path / "a"), windows(3)
    expected_BH = Engine(folder).forward(x_BWF)
    other = shutil.copytree(folder, tmp_path / "b")
    described, weights = (
        json.loads((folder / "model.json").read_text()),
        load_file(folder / "model.safetensors"),
    )
    for key, layers in (("features", ("send", "ack")), ("queries", ("ask_about",))):
        described[key] = described[key][::-1]
        for layer in layers:
            weights[f"{layer}.weight"] = np.ascontiguousarray(weights[f"{layer}.weight"][:, ::-1])
    (other / "model.json").write_text(json.dumps(described))
    save_file(weights, other / "model.safetensors")
    np.testing.assert_allclose(Engine(other).forward(x_BWF), expected_BH, rtol=1e-5)
    seen = {*FEATURES, *QUERIES}
    x_BWF[..., [name not in seen for name in ROW]] = 3
    assert np.array_equal(Engine(folder).forward(x_BWF), expected_BH)
    x_BWF[..., ROW.index("latency_us")] += 100
    assert not np.array_equal(Engine(folder).forward(x_BWF), expected_BH)


def test_swapping_the_head(tmp_path: Path) -> None:
    first, second = write_artifact(tmp_path / "1"), write_artifact(tmp_path / "2", head_seed=1)
    x_BWF = windows(4)
    engine = Engine(first, version=1)
    other = engine.share()
    first_BH, second_BH = engine.forward(x_BWF), Engine(second).forward(x_BWF)
    feature_BHD = features_of(engine, x_BWF)
    assert not np.array_equal(first_BH, second_BH)
    engine.swap_head(second, version=2)
    for served in (engine, other):
        assert served.version == 2
        assert np.array_equal(served.forward(x_BWF), second_BH)
        assert np.array_equal(features_of(served, x_BWF), feature_BHD)
    engine.swap_head(first, version=3)
    y_BH, version = other.forward_versioned(x_BWF)
    assert version == 3
    assert np.array_equal(y_BH, first_BH)


def test_a_head_that_does_not_fit_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    engine = Engine(write_artifact(tmp_path / "1"), version=1)
    expected_BH = engine.forward(windows(2))
    bad = write_artifact(tmp_path / "2", head_seed=1)
    shutil.copytree(bad, tmp_path / "encoder")
    weights = load_file(bad / "model.safetensors")
    weights["layers.1.linear2.bias"][3] += 1e-6
    save_file(weights, tmp_path / "encoder" / "model.safetensors")
    shutil.copytree(bad, tmp_path / "target")
    edit_json(tmp_path / "target", "target/shift", 8.5)
    shutil.copytree(bad, tmp_path / "scaling")
    edit_json(tmp_path / "scaling", "features/1/shift", 1.25)
    shutil.copytree(bad, tmp_path / "cut")
    whole = (bad / "model.safetensors").read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(whole[:-4])
    for name in ("encoder", "target", "scaling"):
        with pytest.raises(ValueError, match="differs from the served model in more than its head"):
            engine.swap_head(tmp_path / name, 2)
    with pytest.raises(ValueError, match="truncated"):
        engine.swap_head(tmp_path / "cut", 2)
    with pytest.raises(OSError, match="No such file"):
        engine.swap_head(tmp_path / "nowhere", 2)
    y_BH, version = engine.forward_versioned(windows(2))
    assert version == 1
    assert np.array_equal(y_BH, expected_BH)


def test_every_answer_is_of_one_head_while_it_is_swapped(tmp_path: Path) -> None:
    """Three threads predict, one swaps: each answer is exactly that of the version it names."""
    folders = [write_artifact(tmp_path / str(i), head_seed=i) for i in range(2)]
    x_BWF = windows(2)
    expected = [Engine(folder).forward(x_BWF) for folder in folders]
    engine = Engine(folders[0], version=0)
    done, wrong, seen = threading.Event(), [], set()

    def predict(mine: Engine) -> None:
        while not done.is_set():
            y_BH, version = mine.forward_versioned(x_BWF)
            seen.add(version)
            if not np.array_equal(y_BH, expected[version % 2]):
                wrong.append(version)

    threads = [threading.Thread(target=predict, args=(engine.share(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for version in range(1, 101):
        engine.swap_head(folders[version % 2], version)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(seen) > 2


def test_a_shared_engine_outlives_the_first(folder: Path) -> None:
    first = Engine(folder)
    expected_BH, other = first.forward(windows(2)), first.share()
    del first
    assert np.array_equal(other.forward(windows(2)), expected_BH)
