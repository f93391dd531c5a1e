"""What `auto` chose goes on through gate and push: trees are served by ONNX Runtime in the real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import toy_world
import yaml
from test_native_backend import Native, native

from swiftqueue.common.section import read
from swiftqueue.feature_store.events.event_stream import INPUTS
from swiftqueue.models.forecasters import forecaster as door
from swiftqueue.models.forecasters.selection import choose
from swiftqueue.models.forecasters.traces import lessons, read_traces
from swiftqueue.models.networks import artifact
from swiftqueue.models.networks.prediction import predict
from swiftqueue.models.registry import gate
from swiftqueue.models.sharp import PAPERS
from swiftqueue.pipelines import register
from swiftqueue.serving.triton.config import Backend

__all__ = ["native"]
pytestmark = pytest.mark.slow


def test_chosen_trees_are_judged_pushed_and_asked(
    project: Path, tmp_path: Path, native: Native, make_artifact: Callable[..., Path]
) -> None:
    table = toy_world.bottleneck_table("t", 9, seed=3, swing_ms=40, episodes=True)
    world = toy_world.write_traces(tmp_path / "world", [table])
    trace = read_traces(world / "packets", world / "split.json", PAPERS)["t"]
    own = yaml.safe_load((project / "params.yaml").read_text())
    own["architecture"]["name"] = "auto"
    own["auto"].update(candidates=["trees", "virtual-queue"], workers=1)
    (params := tmp_path / "params.yaml").write_text(yaml.safe_dump(own))
    choice = choose([trace], door.candidates(params), read(params, door.AutoParams), print)
    assert choice.variant.name == "trees"
    fitted = choice.variant.fit(lessons([trace]), 1)
    tuned = fitted.tuned(trace.to_learn(trace.slices.rounds[-1].finetune), toy_world.TUNING)

    judging_B = register.judging(trace)
    held_out, otherwise_us = register.held_out_slices(trace, judging_B)
    scored = gate.score(register.predictions(tuned, trace, judging_B), held_out)
    assert gate.judge(scored, None, gate.score_naive(held_out, otherwise_us), "").passed

    (served := tmp_path / "served").mkdir()
    tuned.export(served, register.served_level(own, tuned))
    artifact.export_onnx(served)
    native.push(make_artifact(1), 1)
    pushed = native.push(served, 2, previous=1)
    assert pushed.backend is Backend.PYTHON
    assert "the engine knows no architecture 'trees'" in pushed.reason.replace('"', "'")
    x_BWF = np.zeros((4, 16, len(INPUTS) + 1), np.float32)
    x_BWF[:, -8:, :-1] = held_out.candidates_BHF[:4]
    answer = native.triton.infer(x_BWF)
    assert answer.version == 2
    np.testing.assert_allclose(answer.y_BH, predict(artifact.load(served).model, x_BWF), rtol=1e-4)
    np.testing.assert_allclose(
        answer.y_BH, register.predictions(tuned, trace, judging_B)[:4], rtol=1e-4
    )  # as offline, on packets
