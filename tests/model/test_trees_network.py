"""Boosted trees as a network: XGBoost's answers, in the forecaster, its artifact and its ONNX form."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest
import torch
import toy_world
from safetensors.torch import load_file, save_file

from swiftqueue.models.forecasters import forecaster as door
from swiftqueue.models.forecasters.jobs import figures, round_line, round_record
from swiftqueue.models.forecasters.traces import Trace, lessons, read_traces
from swiftqueue.models.networks import artifact
from swiftqueue.models.networks.prediction import predict
from swiftqueue.models.sharp import PAPERS
from swiftqueue.models.trees.forecaster import Trees, TreesParams
from swiftqueue.serving.deploy.checks import check_latency

PARAMS = TreesParams(rounds=20, depth=5, leaf_share=0.002)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    table = toy_world.bottleneck_table("t", 9, seed=3, swing_ms=40, episodes=True)
    world = toy_world.write_traces(tmp_path_factory.mktemp("world"), [table])
    return read_traces(world / "packets", world / "split.json", PAPERS)["t"]


@pytest.fixture(scope="module")
def trees(trace: Trace) -> Trees:
    return Trees.fit(lessons([trace]), PARAMS, 1, print)


def rows_of(trees: Trees, trace: Trace) -> Any:
    encoded = trees.encode(trace.to_predict(trace.slices.rounds[0].test))
    return encoded.read_BRD.numpy().reshape(-1, encoded.read_BRD.shape[-1])


def test_it_answers_as_xgboost_does(trees: Trees, trace: Trace) -> None:
    part = trace.to_predict(trace.slices.rounds[0].test)
    tuned = trees.tuned(trace.to_learn(trace.slices.rounds[0].finetune), toy_world.TUNING)
    for each in (trees, tuned):
        assert each.grown is not None
        expected = each.grown.predict(rows_of(each, trace)).reshape(-1, 8)
        np.testing.assert_allclose(each.predict(part), expected, rtol=2e-5)
    assert tuned.model.sizes.trees == 22
    assert tuned.same_but_head(trees)
    assert np.abs(tuned.predict(part) / trees.predict(part) - 1).max() > 0.01


def test_a_round_says_what_it_added_or_why_nothing(trees: Trees, trace: Trace) -> None:
    tuned = trees.tuned(trace.to_learn(trace.slices.rounds[0].finetune), toy_world.TUNING)
    record = round_record(trace, 0, trees, tuned)
    assert record["decisions"] == len(trace.slices.rounds[0].finetune)
    assert record["loss_after"] < record["loss_before"]
    assert "  2 trees added (22) " in round_line(record)
    assert "changed" not in figures(record)
    served = Trees(trees.model)
    assert "nothing to tune" in round_line(round_record(trace, 0, served, served))
    nothing = trace.packets.with_columns(latency_us=pl.lit(None, pl.Float64), acked_ns=pl.lit(None, pl.Int64))
    silent = replace(trace, packets=nothing)
    # The head before it was tuned, which does not make this round's record.
    assert "no latency is known" in round_line(round_record(silent, 0, tuned, tuned))


def test_a_value_at_a_threshold_goes_where_xgboost_sends_it(trees: Trees, trace: Trace) -> None:
    assert trees.grown is not None
    x_NP = rows_of(trees, trace)[:400].copy()
    head = trees.model.head
    split = head.left_TN != head.right_TN
    places, values = head.input_TN[split].numpy(), head.below_TN[split].detach().numpy()
    assert len(places) > 100
    for n, (place, value) in enumerate(zip(places, values, strict=True)):
        x_NP[n % len(x_NP), place] = value
    answers = np.exp(head(torch.from_numpy(x_NP)).detach().numpy())
    np.testing.assert_allclose(answers, trees.grown.predict(x_NP), rtol=2e-5)


def test_what_is_saved_exported_and_read_answers_alike(trees: Trees, trace: Trace, tmp_path: Path) -> None:
    part = trace.to_predict(trace.slices.rounds[0].test)
    door.save(tmp_path / "saved", trees)
    saved = door.load(tmp_path / "saved")
    (served := tmp_path / "served").mkdir()
    saved.export(served)
    read = door.load(served)
    for each in (saved, read):
        np.testing.assert_array_equal(each.predict(part), trees.predict(part))
        assert each.same_but_head(trees)
    taught = trace.to_learn(trace.slices.rounds[0].finetune)
    assert read.tuned(taught, toy_world.TUNING) is read  # a served one has no head to tune
    assert saved.tuned(taught, toy_world.TUNING) is not saved
    door.save(tmp_path / "again", read)
    np.testing.assert_array_equal(door.load(tmp_path / "again").predict(part), trees.predict(part))

    artifact.export_onnx(served)
    smoke = check_latency(served).smoke
    assert np.unique(smoke.y_BH).size > 20  # the rows of the check fall on both sides of the splits
    session = onnxruntime.InferenceSession(str(served / "model.onnx"), providers=["CPUExecutionProvider"])
    (answers,) = session.run(None, {"window": smoke.x_BWF})
    np.testing.assert_allclose(answers, predict(artifact.load(served).model, smoke.x_BWF), rtol=1e-5)


@pytest.mark.parametrize(
    ("weight", "sizes", "line"),
    [
        ({"head.left_TN": 10**6}, {}, r"model.safetensors: weight head.left_TN has a place beyond"),
        ({"head.right_TN": -1}, {}, "weight head.right_TN has a place beyond"),
        ({"head.input_TN": 500}, {}, "weight head.input_TN has a place beyond"),
        ({"head.leaf_TN": float("nan")}, {}, "head.leaf_TN holds NaN"),
        ({}, {"trees": 65_536, "nodes": 131_072}, "is not possible"),
        ({}, {"depth": 65}, "depth is 65; it must be a whole number from 1 to 64"),
        ({}, {"depth": 2.5}, "depth is 2.5"),
        ({}, {"nodes": 3, "depth": 4}, "deeper than they have nodes"),
    ],
)
def test_damaged_trees_are_one_clear_line(
    trees: Trees, tmp_path: Path, weight: dict[str, float], sizes: dict[str, float], line: str
) -> None:
    trees.export(tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    for name, value in weight.items():
        state[name][0, 0] = value
    save_file(state, path)
    described = json.loads((tmp_path / "model.json").read_text())
    described["architecture"] |= sizes
    (tmp_path / "model.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match=line) as refused:
        artifact.load(tmp_path)
    assert "\n" not in str(refused.value)
