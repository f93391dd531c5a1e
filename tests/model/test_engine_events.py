"""The engine computes what the event stream's served form computes, on every instruction set."""

# Shapes: B batch, W window tokens, F features.

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PROJECT
from safetensors.torch import load_file, save_file
from test_engine_parity import ISAS, RELATIVE, engine, worst
from test_event_window import (
    LEVELS,
    PART,
    change_described,
    forecaster,
    quantile_forecaster,
    save,
    windows,
)

from models.networks import artifact
from models.networks.event_window import EventWindowPredictor, of_level, served
from models.networks.prediction import encode, predict, quantiles
from serving.engine import Engine, Isa


def exact(model: EventWindowPredictor, x_BWF: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Latencies and what the head reads, by PyTorch in float64."""
    double = copy.deepcopy(model).double()
    with torch.no_grad():
        x = torch.from_numpy(x_BWF).double()
        return double(x).numpy(), double.encode(x).numpy()


@pytest.mark.parametrize("isa", ISAS)
def test_a_level_is_served_as_any_latency_is(tmp_path: Path, isa: Isa) -> None:
    """The engine's answer is the forecaster's quantile; it need not know which."""
    trained = quantile_forecaster()
    spread = trained.spread(PART)
    assert spread is not None
    ours = engine(save(tmp_path / "m", served(trained.model, 0.99)), isa)
    np.testing.assert_allclose(ours.forward(windows()), spread.us_BHL[..., LEVELS.index(0.99)], rtol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_all_levels_are_served_ascending(tmp_path: Path, isa: Isa) -> None:
    """They are PyTorch's, and the forecaster's; sorted where they cross. One alone is what it was."""
    trained = quantile_forecaster()
    model = served(trained.model, "all")
    with torch.no_grad():
        model.head[2].bias[0] += 1.5  # the lowest level is above others now
    x_BWF = windows()
    folder = save(tmp_path / "m", model)
    ours = engine(folder, isa)
    assert ours.levels == tuple(LEVELS)
    got_BHL = ours.quantiles(x_BWF)
    wanted_BHL = np.sort(exact(model, x_BWF)[0])
    assert got_BHL.shape == (*x_BWF.shape[:1], 8, len(LEVELS))
    assert worst(got_BHL, wanted_BHL) <= RELATIVE
    assert (exact(model, x_BWF)[0] != wanted_BHL).any()
    [said] = [quantiles(artifact.load(folder).model, part) for part in encode(model, x_BWF, len(x_BWF))]
    np.testing.assert_allclose(got_BHL, said, rtol=1e-4)
    np.testing.assert_array_equal(ours.forward(x_BWF), got_BHL[..., LEVELS.index(0.5)])
    np.testing.assert_array_equal(ours.forward_versioned(x_BWF)[0], ours.forward(x_BWF))
    alone = engine(save(tmp_path / "one", of_level(model, 0.99)), isa)
    assert (alone.levels, alone.quantiles(x_BWF).shape[2]) == ((), 1)
    assert (alone.forward(x_BWF)[..., None] == got_BHL).any(-1).all()
    with torch.no_grad():
        model.head[2].bias += 0.3
    ours.swap_head(save(tmp_path / "b", model), 2)
    assert (ours.quantiles(x_BWF) > got_BHL).all()
    with pytest.raises(ValueError, match="differs from the served model in more than its head"):
        ours.swap_head(tmp_path / "one", 3)


def test_what_cannot_serve_all_levels_says_so_in_one_line(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", served(quantile_forecaster().model, "all"))
    with pytest.raises(ValueError, match=r"gives \d quantiles of each latency .*, and Triton serves one"):
        artifact.export_onnx(folder)
    for levels, line in (
        ([0.5], "levels (must be 2 to 16|are)"),
        ([0.5, 0.25], "levels (must ascend|are)"),
        ([0.25, 0.75], "levels (must be 2 to 16, 0.5 among them|are)"),
        ([0.25, 0.5], r"weight head\.2\.(weight|bias) "),
    ):
        change_described(folder, "levels", levels)
        for read in (Engine, artifact.load):
            with pytest.raises(ValueError, match=line) as refused:
                read(folder)
            assert "\n" not in str(refused.value)
    with pytest.raises(ValueError, match="level all cannot be served"):
        served(forecaster().model, "all")


@pytest.mark.long
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"band": 192, "feed_forward": 256, "anchor": None},
        {"layers": 2},
        {"layers": 3, "band": 128},
    ],
)
def test_the_answers_are_pytorchs(tmp_path: Path, isa: Isa, changes: dict[str, object]) -> None:
    """From an empty log, over one half full, to a full one; windows of fewer events, too."""
    model = served(forecaster(**changes).model)
    reach = model.sizes.reach
    x_BWF = windows(reach)
    ours = engine(save(tmp_path / "m", model), isa)
    wanted_BH, read_BHD = exact(model, x_BWF)
    assert worst(ours.forward(x_BWF), wanted_BH) <= RELATIVE
    np.testing.assert_allclose(ours.features(x_BWF), read_BHD, atol=1e-5)
    for events in (0, 1, 15, 17, 63, reach - 64, reach - 1):
        shorter_BWF = x_BWF[-20:, reach - events :]
        assert worst(ours.forward(shorter_BWF), exact(model, shorter_BWF)[0]) <= RELATIVE
    assert ours.shape == (reach + 8, x_BWF.shape[2])


@pytest.mark.parametrize("name", ["figure8/rfc9332", "bed-figure8-flows/rfc9332"])
def test_published_models_are_still_read_and_answered(name: str) -> None:
    """Event streams as they were committed: what a later version reads, too."""
    folder = PROJECT / "docs/laboratory/models" / name
    read, ours = artifact.load(folder), engine(folder, "auto")
    x_BWF = windows(ours.shape[0] - 8)
    with torch.no_grad():
        wanted_BH = copy.deepcopy(read.model).double()(torch.from_numpy(x_BWF).double()).numpy()
    assert worst(ours.forward(x_BWF), wanted_BH) <= RELATIVE


def asked_in_turn() -> list[np.ndarray]:
    """Windows as an engine is asked: full ones of senders by turns, growing logs, shorter ones, old ones."""
    rows = windows(4 * 64)
    found = []
    for n in range(0, 120, 4):  # a sender's decisions in time order, each for two queues
        found += [rows[n, -136:], rows[n, -136:]]
        found += [rows[number, -136:] for number in range(n % 11, len(rows), 23)]  # more than are kept
    for n in (40, 41, 40, 90):  # an earlier decision again, and one that shares only some events
        found += [rows[n, -136:], rows[n, -100:], rows[n, -136:], rows[n, -20:], rows[n, -8:]]
    changed = rows[60, -136:].copy()
    changed[70] = rows[61, 9]
    return [*found, rows[60, -136:], changed, rows[60, -136:], rows[61, -136:]]


@pytest.mark.parametrize("isa", ISAS)
def test_no_bit_of_an_answer_depends_on_what_was_kept(tmp_path: Path, isa: Isa) -> None:
    """Whatever was asked before: each window alone is asked of an engine that has kept nothing."""
    folder = save(tmp_path / "m", served(forecaster(layers=2).model))
    ours = engine(folder, isa)
    for x_WF in asked_in_turn():
        np.testing.assert_array_equal(ours.forward(x_WF[None]), engine(folder, isa).forward(x_WF[None]))


def test_a_head_is_swapped_and_another_encoder_refused(tmp_path: Path) -> None:
    model = served(forecaster().model)
    ours, x_BWF = Engine(save(tmp_path / "a", model), version=1), windows()[-30:]
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.head[2].bias += 0.3
    ours.swap_head(save(tmp_path / "b", other), 2)
    got_BH, version = ours.forward_versioned(x_BWF)
    assert version == 2
    assert worst(got_BH, predict(other, x_BWF)) <= RELATIVE
    with torch.no_grad():
        other.send.bias += 0.3
    with pytest.raises(ValueError, match="differs from the served model in more than its head"):
        ours.swap_head(save(tmp_path / "c", other), 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 32}, "width is 32, the engine knows only 64; serve this model with ONNX Runtime"),
        ({"heads": 2}, "heads is 2, the engine knows only 4; serve this model with ONNX Runtime"),
        ({"feed_forward": 48}, "feed_forward is 48, the engine knows only multiples of 64; serve this model"),
    ],
)
def test_other_sizes_are_for_onnx_runtime(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    folder = save(tmp_path / "m", served(forecaster(**changes).model))
    with pytest.raises(ValueError, match=message):
        Engine(folder)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "architecture.name",
            "lstm",
            "unknown architecture 'lstm' .known: .*event-stream",
        ),
        ("architecture.name", "transformer-encoder", "unknown key 'queries'|'queries'"),
        ("format", "swiftqueue-artifact/1", "format 'swiftqueue-artifact/1' knows no 'event-stream'"),
        ("architecture.layers", 2, r"the window must be 128 events \(a band for each layer\) and 8 queries"),
        ("architecture.layers", 17, "layers is 17, must be in 1..16"),
        ("architecture.band", 192, "the window must be 192 events"),
        ("queries", None, "queries"),
        ("queries", [], "queries must name the features, in their order"),
    ],
)
def test_a_description_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    folder = save(tmp_path / "m", served(forecaster().model))
    change_described(folder, key, value)
    with pytest.raises(ValueError, match=message) as refused:
        Engine(folder)
    assert len(str(refused.value).splitlines()) == 1


def test_weights_and_values_that_cannot_be_are_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", served(forecaster().model))
    x_BWF = windows()[-2:]
    x_BWF[1, 70, 12] = np.inf
    with pytest.raises(ValueError, match="window 1: in_flight of token 70 is NaN or infinite"):
        Engine(folder).forward(x_BWF)
    x_BWF[1] = x_BWF[0]
    x_BWF[1, 30] = 0
    with pytest.raises(ValueError, match="window 1: token 30 is padding, and events are before it"):
        Engine(folder).forward(x_BWF)
    state = load_file(folder / "model.safetensors")
    save_file({**state, "layers.0.sink": torch.zeros(2, 64)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"weight layers\.0\.sink has shape"):
        Engine(folder)
