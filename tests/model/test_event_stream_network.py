"""The event stream's network gives one answer in both its forms: over a whole log, and from its last rows."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import engine_models
import numpy as np
import pytest
import torch
import toy_world
import yaml
from safetensors.torch import load_file, save_file
from torch import nn

import swiftqueue
from swiftqueue.models.event_stream.forecaster import EventStreamForecaster
from swiftqueue.models.event_stream.network import EventPredictor
from swiftqueue.models.event_stream.parameters import EventStreamParams
from swiftqueue.models.event_stream.training import _untrained
from swiftqueue.models.forecasters.traces import TracePart
from swiftqueue.models.mlp.forecaster import Mlp
from swiftqueue.models.mlp.parameters import MlpParams
from swiftqueue.models.mlp.training import MlpCourse
from swiftqueue.models.networks import artifact
from swiftqueue.models.networks.prediction import HeadInputs, encode, predict
from swiftqueue.models.sharp import PAPERS
from swiftqueue.models.training.head import FinetuneParams, train_head
from swiftqueue.models.training.protocol import Slice
from swiftqueue.pipelines.live.encoding import event_windows

TABLE = toy_world.bottleneck_table("t", 1.2, seed=3, swing_ms=40, episodes=True)
PART = TracePart("t", TABLE, Slice(0, TABLE.height // 8))
SIZES = {
    "layers": 1,
    "band": 64,
    "width": 64,
    "heads": 4,
    "feed_forward": 128,
    "dropout": 0.1,
    "anchor": "last_latency_flow_us",
    "left_out": [],
    "segments": 4,
    "segment_events": 128,
    "epochs": 1,
    "learning_rate": 1e-3,
    "weight_decay": 0.01,
    "sharp_weight": 1,
}


def forecaster(**changes: object) -> EventStreamForecaster:
    """Return a forecaster of random weights, in the head too, scaled to the table."""
    params = EventStreamParams(**{**SIZES, **changes})
    torch.manual_seed(2)
    model = _untrained([PART], params)
    nn.init.normal_(model.head[2].weight, std=0.3)
    return EventStreamForecaster(model, {"name": "toy"})


def windows(events: int = 64) -> np.ndarray:
    return np.concatenate(list(event_windows(TABLE, events + 8)))


def save(folder: Path, model: EventPredictor) -> Path:
    artifact.save(folder, model, {"name": "toy"})
    return folder


def exported(folder: Path, trained: EventStreamForecaster, level: Any = None) -> Path:
    folder.mkdir()
    trained.export(folder, level)
    return folder


def change_described(folder: Path, key: str, value: object) -> None:
    """Put another value into `model.json` under PARENT.KEY; None removes the key."""
    described = json.loads((folder / "model.json").read_text())
    *parents, last = key.split(".")
    inner = described[parents[0]] if parents else described
    inner[last] = value
    if value is None:
        del inner[last]
    (folder / "model.json").write_text(json.dumps(described))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layers": 2},
        {"layers": 3, "band": 128, "width": 32, "heads": 2, "feed_forward": 48, "anchor": None},
        {"left_out": ["flow_age_us", "flow_code_0", "place", "ack_rate_queue"], "sharp_weight": 2},
    ],
)
def test_its_answers_are_the_forecasters(changes: dict[str, object]) -> None:
    """From an empty log on: the first windows are padding but for their queries."""
    trained = forecaster(**changes)
    x_BWF = windows(trained.model.events)
    assert not x_BWF[0, :-8].any()
    assert x_BWF[-1, 0].any()
    wanted_BH = trained.predict(PART)
    np.testing.assert_allclose(predict(trained.model, x_BWF), wanted_BH, rtol=1e-5)
    assert np.ptp(wanted_BH) > 1000


LEVELS = [0.05, 0.5, 0.9, 0.99]


def quantile_forecaster() -> EventStreamForecaster:
    """Return a forecaster whose levels are so far apart that none cross."""
    trained = forecaster(quantiles=LEVELS)
    with torch.no_grad():
        trained.model.head[2].weight *= 0.1
        trained.model.head[2].bias += torch.linspace(-1, 1, len(LEVELS))
    return trained


@pytest.mark.parametrize("level", [None, *LEVELS])
def test_a_level_that_is_served_is_the_forecasters_quantile(level: float | None) -> None:
    trained = quantile_forecaster()
    spread = trained.spread(trained.encode(PART))
    assert spread is not None
    wanted_BH = spread.us_BHL[..., LEVELS.index(0.5 if level is None else level)]
    model = artifact.of_level(trained.model, level)
    np.testing.assert_allclose(predict(model, windows()), wanted_BH, rtol=1e-5)
    assert model.quantiles == (0.5 if level is None else level,)


@pytest.mark.parametrize(
    "changes", [{}, {"anchor": None, "left_out": ["flow_age_us", "place"]}, {"quantiles": LEVELS}]
)
def test_linear_layers_answer_as_their_forecaster_does(changes: dict[str, Any], project: Path) -> None:
    """From the fewest rows of events, or more: they read the queries alone."""
    own = yaml.safe_load((project / "forecasters.yaml").read_text())["mlp"]
    del own["name"]
    params = MlpParams(**{**own, **changes, "layers": 1, "width": 16})
    course = MlpCourse([PART], params, 1)
    with torch.no_grad():
        nn.init.normal_(course.model.head[2].weight, std=0.03)
        course.model.head[2].bias += torch.linspace(-1, 1, len(params.quantiles) or 1)
    wanted_BH = Mlp(course.model).predict(PART)
    model = artifact.of_level(course.model.eval(), None)
    assert model.quantiles == ((0.5,) if params.quantiles else ())
    for events in (8, 64):
        np.testing.assert_allclose(predict(model, windows(events)), wanted_BH, rtol=1e-5)
    assert np.ptp(wanted_BH) > 1000


def test_a_level_that_there_is_not_is_refused_in_a_line() -> None:
    there_are = "level 0.8 cannot be served; the network's are 0.05, 0.5, 0.9, 0.99"
    with pytest.raises(ValueError, match=f"^{re.escape(there_are)}$"):
        artifact.of_level(quantile_forecaster().model, 0.8)
    with pytest.raises(
        ValueError, match=r"^level 0\.5 cannot be served; the network's are none: it gives the mean$"
    ):
        artifact.of_level(forecaster().model, 0.5)


@pytest.mark.slow
def test_the_head_of_a_level_is_tuned_for_it(tmp_path: Path) -> None:
    """Also once it was read from its artifact: a head that was tuned for the mean would forget the level."""
    found = artifact.load(exported(tmp_path / "m", quantile_forecaster(), 0.9))
    assert found.model.quantiles == (0.9,)
    assert found.description.protocol == {"name": "toy"}
    came_BH = PART.latencies_us()
    known_BH = np.isfinite(came_BH)
    parts = list(encode(found.model, windows()))
    encoded = HeadInputs(torch.cat([p.read_BRD for p in parts]), torch.cat([p.anchor_BH for p in parts]))
    how = FinetuneParams(seed=1, workers=1, epochs=60, batch_size=64, learning_rate=3e-3, sharp_weight=1)

    def covered(levels: tuple[float, ...]) -> float:
        start = copy.deepcopy(found.model)
        start.quantiles = levels
        tuned, _ = train_head(start, encoded, came_BH, PAPERS, how)
        assert tuned.quantiles == levels
        return float((came_BH <= predict(tuned, windows()))[known_BH].mean())

    assert covered((0.9,)) > 0.8
    assert covered(()) < 0.65


def test_a_level_of_calibrated_quantiles_is_served(tmp_path: Path) -> None:
    """The artifact gives the forecaster's quantile, which what was held out has moved."""
    trained = quantile_forecaster()
    moved = EventStreamForecaster(trained.model, {}, "before", [np.full((9, len(LEVELS)), 0.25)])
    found = artifact.load(exported(tmp_path / "m", moved, 0.9))
    plain = artifact.of_level(trained.model, 0.9)
    [shift] = (found.model.head[2].bias - plain.head[2].bias).detach()  # type: ignore[index]
    assert float(shift) == pytest.approx(0.25, abs=1e-5)
    spread = moved.spread(moved.encode(PART))
    assert spread is not None
    np.testing.assert_allclose(predict(found.model, windows()), spread.us_BHL[..., 2], rtol=1e-5)


@pytest.mark.parametrize("level", ["0.9", 1.0, 0, True])
def test_an_artifacts_level_that_cannot_be_is_named(tmp_path: Path, level: object) -> None:
    folder = save(tmp_path / "m", forecaster().model)
    described = json.loads((folder / "model.json").read_text())
    described["protocol"]["level"] = level
    (folder / "model.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match=r"^.*protocol: level is .*; it must be a number between 0 and 1"):
        artifact.load(folder)


def test_an_artifact_of_before_that_lists_all_inputs_gives_the_same_answers(tmp_path: Path) -> None:
    """Its weights of inputs that a row does not have are 0; any other number there is an error."""
    model, x_BWF = engine_models.make_model(), engine_models.windows()
    folder = engine_models.save_whole(tmp_path / "model", model)
    found = artifact.load(folder).model
    assert {each.name for each in found.event_inputs} == set(engine_models.ROW) - {"place", "ack"}
    np.testing.assert_allclose(predict(found, x_BWF), predict(model, x_BWF), rtol=1e-5)
    state = load_file(folder / "model.safetensors")
    state["ask_about.weight"][:, engine_models.ROW.index("latency_us")] = 0.1
    save_file(state, folder / "model.safetensors")
    line = r"ask_about\.weight is not 0 for an input that its rows do not have"
    with pytest.raises(ValueError, match=line):
        artifact.load(folder)


@pytest.mark.parametrize("level", ["all", 0.9])
def test_the_library_forecasts_with_it(tmp_path: Path, level: float | str) -> None:
    """With all quantiles it takes the median."""
    trained = quantile_forecaster()
    loaded = swiftqueue.load_model(str(exported(tmp_path / "model", trained, level)))
    forecasts = loaded.predict(TABLE)
    decided = TABLE.height // 8 * 8
    got_BH = forecasts["predicted_us"].to_numpy()[:decided].reshape(-1, 8)
    wanted = trained.model if level == "all" else artifact.of_level(trained.model, level)
    np.testing.assert_allclose(got_BH, predict(wanted, windows()), rtol=1e-5)
    assert forecasts["predicted_us"].null_count() == TABLE.height - decided
    assert loaded.predict(TABLE[:7])["predicted_us"].null_count() == 7
