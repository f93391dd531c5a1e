"""The engine computes what the event stream's served form computes, on every instruction set."""

# Shapes: B batch, W window tokens, F features.

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PROJECT
from engine_models import (
    COMMITTED,
    EVENTS_SEEN,
    QUERIES_SEEN,
    ROW,
    make_model,
    save_part,
    save_whole,
)
from engine_models import exact as exact_of_part
from engine_models import windows as windows_of_part
from safetensors.torch import load_file, save_file
from test_event_stream_network import (
    LEVELS,
    PART,
    change_described,
    forecaster,
    quantile_forecaster,
    save,
    windows,
)

from swiftqueue.models.event_stream.network import EventPredictor
from swiftqueue.models.networks import artifact
from swiftqueue.models.networks.prediction import encode, quantiles
from swiftqueue.serving.engine import Engine, Isa

ISAS: tuple[Isa, ...] = ("avx512", "avx2", "portable")
EVERY: tuple[Isa, ...] = (*ISAS, "amx")  # the last one multiplies bfloat16
RELATIVE = 1e-5


def engine(folder: Path, isa: Isa) -> Engine:
    """Return an engine for an instruction set, or skip the test if this CPU lacks it."""
    try:
        return Engine(folder, isa)
    except ValueError as error:
        if "this CPU lacks" not in str(error):
            raise
        pytest.skip(f"this CPU lacks {isa}")


def worst(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.max(np.abs(ours - theirs) / np.abs(theirs)))


def of_a_log(ours: Engine, x_BWF: np.ndarray) -> np.ndarray:
    """Return the encoder's outputs (B, H, D), with each window as a log of its own."""
    size = ROW.index("size_bytes")
    logs = [(x_WF[:-8][x_WF[:-8, size] > 0], x_WF[None, -8:]) for x_WF in x_BWF]
    return np.concatenate([ours.features(x_EF, np.array([len(x_EF)]), x_1HF) for x_EF, x_1HF in logs])


def exact(model: EventPredictor, x_BWF: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return PyTorch's latencies and head inputs, computed in float64."""
    double = copy.deepcopy(model).double()
    with torch.no_grad():
        x = torch.from_numpy(x_BWF).double()
        return double(x).numpy(), double.encode(x).numpy()


@pytest.mark.parametrize("isa", ISAS)
def test_a_level_is_served_as_any_latency_is(tmp_path: Path, isa: Isa) -> None:
    """The engine's answer is the forecaster's quantile; it need not know which."""
    trained = quantile_forecaster()
    spread = trained.spread(trained.encode(PART))
    assert spread is not None
    ours = engine(save(tmp_path / "m", artifact.of_level(trained.model, 0.99)), isa)
    np.testing.assert_allclose(ours.forward(windows()), spread.us_BHL[..., LEVELS.index(0.99)], rtol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_all_levels_are_served_ascending(tmp_path: Path, isa: Isa) -> None:
    """They are PyTorch's, and the forecaster's; sorted where they cross. One alone is what it was."""
    trained = quantile_forecaster()
    model = trained.model
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
    alone = engine(save(tmp_path / "one", artifact.of_level(model, 0.99)), isa)
    assert (alone.levels, alone.quantiles(x_BWF).shape[2]) == ((), 1)
    assert (alone.forward(x_BWF)[..., None] == got_BHL).any(-1).all()
    with torch.no_grad():
        model.head[2].bias += 0.3
    ours.swap_head(save(tmp_path / "b", model), 2)
    assert (ours.quantiles(x_BWF) > got_BHL).all()
    with pytest.raises(ValueError, match="differs from the served model in more than its head"):
        ours.swap_head(tmp_path / "one", 3)


def test_what_cannot_serve_all_levels_says_so_in_one_line(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", quantile_forecaster().model)
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
    model = forecaster(**changes).model
    reach = model.sizes.reach
    x_BWF = windows(reach)
    ours = engine(save(tmp_path / "m", model), isa)
    wanted_BH, read_BHD = exact(model, x_BWF)
    assert worst(ours.forward(x_BWF), wanted_BH) <= RELATIVE
    np.testing.assert_allclose(of_a_log(ours, x_BWF), read_BHD, atol=1e-5)
    for events in (0, 1, 15, 17, 63, reach - 64, reach - 1):
        shorter_BWF = x_BWF[-20:, reach - events :]
        assert worst(ours.forward(shorter_BWF), exact(model, shorter_BWF)[0]) <= RELATIVE
    assert ours.shape == (reach + 8, x_BWF.shape[2])


@pytest.mark.parametrize("changes", [{}, {"layers": 3, "band": 128}, {"feed_forward": 256, "anchor": None}])
def test_products_of_bfloat16_answer_nearly_alike(tmp_path: Path, changes: dict[str, object]) -> None:
    """A bfloat16 has 8 bits: an answer is within 1 % and is another one."""
    model = forecaster(**changes).model
    x_BWF, folder = windows(model.sizes.reach), save(tmp_path / "m", model)
    rounded, wanted_BH = engine(folder, "amx"), exact(model, x_BWF)[0]
    assert RELATIVE < worst(rounded.forward(x_BWF), wanted_BH) < 1e-2
    np.testing.assert_array_equal(rounded.forward(x_BWF), Engine(folder, "bf16").forward(x_BWF))


def test_bfloat16_is_float32_where_the_cpu_lacks_it(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", forecaster().model)
    assert Engine(folder, "bf16").isa in {"amx", Engine(folder).isa}
    assert Engine(folder).isa != "amx"


@pytest.mark.parametrize("isa", ISAS)
def test_an_artifact_may_name_some_features_in_any_order(isa: Isa) -> None:
    """Committed answers of PyTorch in float64 (`python tests/model/engine_models.py` writes them)."""
    ours = engine(COMMITTED, isa)
    described = json.loads((COMMITTED / "model.json").read_text())
    assert [each["name"] for each in described["features"]] == EVENTS_SEEN[::-1]
    assert ours.shape == (72, len(ROW))
    assert (
        worst(ours.forward(windows_of_part()), np.array(json.loads((COMMITTED / "answers.json").read_text())))
        <= RELATIVE
    )


@pytest.mark.parametrize("isa", ISAS)
def test_features_with_weight_0_and_features_that_are_not_named_are_the_same_bit_for_bit(
    tmp_path: Path, isa: Isa
) -> None:
    """Where both name theirs in the order of a row."""
    model, x_BWF = make_model(), windows_of_part(20)
    in_order = sorted(QUERIES_SEEN, key=ROW.index)
    whole = engine(save_whole(tmp_path / "whole", model), isa)
    part = engine(save_part(tmp_path / "part", model, EVENTS_SEEN, in_order), isa)
    np.testing.assert_array_equal(part.forward(x_BWF), whole.forward(x_BWF))
    np.testing.assert_array_equal(of_a_log(part, x_BWF), of_a_log(whole, x_BWF))
    assert worst(part.forward(x_BWF), exact_of_part(model, x_BWF)) <= RELATIVE


@pytest.mark.parametrize("name", ["figure8/rfc9332", "bed-figure8-flows/rfc9332"])
def test_a_published_event_stream_is_read_and_answered(name: str) -> None:
    """As it was committed: what a later version reads, too."""
    folder = PROJECT / "docs/laboratory/models" / name
    ours, model = Engine(folder), artifact.load(folder).model
    assert isinstance(model, EventPredictor)
    x_BWF = windows(ours.shape[0] - 8)
    assert worst(ours.forward(x_BWF), exact(model, x_BWF)[0]) <= RELATIVE


def changed(**changes: Any) -> EventPredictor:
    """Return a network of random weights with another target."""
    trained = forecaster().model
    trained.target = replace(trained.target, **changes)
    return trained


@pytest.mark.parametrize("isa", ISAS)
def test_raw_latencies(tmp_path: Path, isa: Isa) -> None:
    model = changed(transform="raw", shift=5_000.0, scale=15_000.0)
    x_BWF = windows()
    ours_BH, theirs_BH = engine(save(tmp_path / "m", model), isa).forward(x_BWF), exact(model, x_BWF)[0]
    assert (theirs_BH == 0).any()  # the lower clamp is at work
    np.testing.assert_allclose(ours_BH, theirs_BH, rtol=RELATIVE, atol=RELATIVE * 15_000)


def test_latencies_are_clamped(tmp_path: Path) -> None:
    model = changed(shift=17.0, scale=50.0)
    x_BWF = windows()
    ours_BH = Engine(save(tmp_path / "m", model)).forward(x_BWF)
    assert ours_BH.min() == 1
    assert ours_BH.max() == pytest.approx(60e6)
    # A scale of 50 in the exponent makes 1e-6 of the network's output 5e-5 of the latency.
    np.testing.assert_allclose(ours_BH, exact(model, x_BWF)[0], rtol=1e-3)


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_values(tmp_path: Path, isa: Isa) -> None:
    """Zeros, tiny, negative and huge inputs; queries without a size, an anchor that is not known."""
    model = forecaster().model
    x_BWF = windows()[-9:]
    age, size = ROW.index("flow_age_us"), ROW.index("size_bytes")
    x_BWF[0] = 0
    x_BWF[1, :, age] = 1e-7
    x_BWF[2, :, age] = np.linspace(0, 1, x_BWF.shape[1])
    x_BWF[3, :, age] = -5
    x_BWF[4, :, age] = 3e38
    x_BWF[5, -8:, size] = 0
    x_BWF[6, -8:, [ROW.index("last_latency_flow_us"), ROW.index("last_latency_us")]] = 0
    x_BWF[7, -8:, ROW.index("last_latency_flow_us")] = 0
    x_BWF[8] = x_BWF[8, -1]
    ours_BH = engine(save(tmp_path / "m", model), isa).forward(x_BWF)
    assert worst(ours_BH, exact(model, x_BWF)[0]) <= RELATIVE


def asked_in_turn() -> list[np.ndarray]:
    """Return windows as an engine gets them: full ones of senders in turn, growing, shorter and old ones."""
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


@pytest.mark.parametrize("isa", EVERY)
def test_no_bit_of_an_answer_depends_on_what_was_kept(tmp_path: Path, isa: Isa) -> None:
    """Whatever was asked before: each window alone is asked of an engine that has kept nothing."""
    folder = save(tmp_path / "m", forecaster(layers=2).model)
    ours = engine(folder, isa)
    for x_WF in asked_in_turn():
        np.testing.assert_array_equal(ours.forward(x_WF[None]), engine(folder, isa).forward(x_WF[None]))


def test_weights_and_values_that_cannot_be_are_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", forecaster().model)
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
