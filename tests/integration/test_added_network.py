"""The network of docs/add-a-network.md, taken from the page: fitted, tuned, judged, pushed, and asked."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy_world
import yaml
from test_native_backend import Native, native

from swiftqueue import models
from swiftqueue.common.section import read
from swiftqueue.feature_store.events.event_stream import INPUTS
from swiftqueue.models.forecasters import forecaster as door
from swiftqueue.models.forecasters.forecaster import Forecaster
from swiftqueue.models.forecasters.traces import lessons, read_traces
from swiftqueue.models.networks import artifact
from swiftqueue.models.networks.prediction import predict
from swiftqueue.models.registry import gate
from swiftqueue.models.sharp import PAPERS
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.pipelines import register
from swiftqueue.pipelines.params import sections
from swiftqueue.serving.engine import Engine
from swiftqueue.serving.triton.config import Backend

__all__ = ["native"]
NAME = "recurrent"
HEAD = FinetuneParams(seed=1, workers=1, epochs=3, batch_size=64, learning_rate=1e-3, sharp_weight=1)


def blocks(project: Path, language: str) -> list[str]:
    """The page's blocks of that language."""
    page = (project / "docs/add-a-network.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.M | re.S)


@pytest.fixture
def kind(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Forecaster]]:
    """The page's two files, where forecasters are found."""
    folder = tmp_path / "models" / NAME
    folder.mkdir(parents=True)
    for name, code in zip(("network", "forecaster"), blocks(project, "python"), strict=True):
        (folder / f"{name}.py").write_text(code)
    (folder / "__init__.py").touch()
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(folder.parent)])
    importlib.invalidate_caches()
    yield door.kind_named(NAME)
    for module in [name for name in sys.modules if name.startswith(f"swiftqueue.models.{NAME}")]:
        del sys.modules[module]
    delattr(models, NAME)


@pytest.fixture
def params(project: Path, tmp_path: Path, kind: type[Forecaster]) -> Path:
    """The project's parameters with the page's section, small; the network is chosen."""
    own = yaml.safe_load((project / "params.yaml").read_text())
    (page,) = blocks(project, "yaml")
    quick = yaml.safe_load(page)[NAME] | {"width": 16, "epochs": 2}
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(own | {"architecture": {"name": NAME}, NAME: quick}))
    return path


def test_its_folder_and_its_section_are_all_that_is_asked_for(
    project: Path, params: Path, kind: type[Forecaster]
) -> None:
    assert [variant.kind for variant in door.candidates(params)] == [kind]
    assert NAME in sections.sections()
    sections.check(yaml.safe_load(params.read_text()))
    (page,) = blocks(project, "yaml")
    assert set(yaml.safe_load(page)[NAME]) == set(kind.Params.model_fields)
    own = yaml.safe_load(params.read_text())
    params.write_text(yaml.safe_dump(own | {NAME: own[NAME] | {"layers": 0}}))
    with pytest.raises(ValueError, match=r"^[^\n]*recurrent.layers is 0; it must be a whole number from 1"):
        read(params, kind.Params)


def test_it_is_fitted_tuned_judged_pushed_and_asked(
    params: Path, tmp_path: Path, native: Native, make_artifact: Callable[..., Path]
) -> None:
    table = toy_world.bottleneck_table("t", 9, seed=3, swing_ms=40, episodes=True)
    world = toy_world.write_traces(tmp_path / "world", [table])
    traces = read_traces(world / "packets", world / "split.json", PAPERS)
    trace = traces["t"]
    said: list[str] = []
    fitted = door.candidates(params)[0].fit(lessons(list(traces.values())), 1, said.append)
    assert [line.split()[1] for line in said] == ["1/2", "2/2"]
    tuned: Any = fitted.tuned(trace.to_learn(trace.slices.rounds[0].finetune), HEAD)
    assert tuned.same_but_head(fitted)
    assert (tuned.model.head[2].weight != fitted.model.head[2].weight).any()
    door.save(tmp_path / "kept", tuned)

    judging_B = register.judging(trace)
    held_out, otherwise_us = register.held_out_slices(trace, judging_B)
    scored = gate.score(register.predictions(door.load(tmp_path / "kept"), trace, judging_B), held_out)
    verdict = gate.judge(scored, None, gate.score_naive(held_out, otherwise_us), "")
    assert np.isfinite(scored.figures.log_mae)
    assert verdict.reason

    served = tmp_path / "served"
    served.mkdir()
    tuned.export(served)
    artifact.export_onnx(served)
    with pytest.raises(ValueError, match=f"the engine knows no architecture '{NAME}', only 'event-stream'"):
        Engine(served)
    native.push(make_artifact(1), 1)
    pushed = native.push(served, 2, previous=1)
    assert pushed.backend is Backend.PYTHON
    assert f"the engine knows no architecture '{NAME}'" in pushed.reason.replace('"', "'")
    x_BWF = np.zeros((4, tuned.model.rows, len(INPUTS) + 1), np.float32)
    x_BWF[:, -8:, :-1] = held_out.candidates_BHF[:4]
    answer = native.triton.infer(x_BWF)
    assert answer.version == 2
    np.testing.assert_allclose(answer.y_BH, predict(artifact.load(served).model, x_BWF), rtol=1e-4)
