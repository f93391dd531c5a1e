"""Quantiles are moved to their levels by what they missed."""

# Shapes: B decisions, H horizon, N known latencies, L levels, D width.

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftqueue.models.forecasters.spread import Spread
from swiftqueue.models.mlp.network import MlpArchitecture, QueryMlp
from swiftqueue.models.networks.prediction import HeadInputs, answers, quantiles
from swiftqueue.models.networks.scaling import ScaledFeature, TargetScaling
from swiftqueue.models.training.calibration import SLICES, calibrated, missed, shifts

LEVELS = (0.05, 0.25, 0.5, 0.9, 0.99)
TARGET = TargetScaling("log", 10.0, 0.5)


def network() -> QueryMlp:
    torch.manual_seed(1)
    model = QueryMlp(
        (),
        [ScaledFeature("size_bytes", "bytes")],
        TARGET,
        MlpArchitecture(layers=1, width=8, dropout=0.0, anchor=None),
        LEVELS,
    )
    return model.eval()


def lesson(seed: int) -> tuple[HeadInputs, np.ndarray]:
    """What a head reads, and latencies that have to do with it; some are unknown."""
    random = np.random.default_rng(seed)
    read_BHD = random.normal(size=(60, 8, 8)).astype(np.float32)
    came_BH = np.exp(10 + read_BHD[..., 0] + random.normal(size=read_BHD.shape[:2])).astype(np.float32)
    came_BH[random.random(came_BH.shape) < 0.2] = np.nan
    return HeadInputs(torch.from_numpy(read_BHD), torch.zeros(read_BHD.shape[:2])), came_BH


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=400, unique=True),
    st.lists(st.floats(0.01, 0.99), min_size=1, max_size=5, unique=True),
)
def test_each_level_covers_its_share_of_what_it_is_calibrated_on(
    missed_N: list[float], some: list[float]
) -> None:
    """At least the level, and no more than a latency above it: by rank, so whatever the distribution is."""
    levels, count = sorted(some), len(missed_N)
    missed_NL = np.repeat(np.array(missed_N)[:, None], len(levels), axis=1)
    moved_L = shifts(missed_NL, levels)
    share_L, level_L = (missed_NL <= moved_L).mean(0), np.array(levels)
    assert (share_L >= level_L - 1e-12).all()
    assert (share_L <= level_L + (1 + level_L) / count + 1e-12).all()
    assert (np.diff(moved_L) >= 0).all()  # levels that had one value ascend
    np.testing.assert_array_equal(shifts(missed_NL[:0], levels), np.zeros(len(levels)))


def test_the_head_itself_is_moved_and_covers() -> None:
    model, (encoded, came_BH) = network(), lesson(1)
    known_BH = np.isfinite(came_BH)
    found = calibrated(model, [missed(model, encoded, came_BH)])
    said_NL = answers(found, encoded).numpy()[known_BH]
    target_N = TARGET.apply(came_BH)[known_BH]
    share_L = (target_N[:, None] <= said_NL + 1e-5).mean(0)
    count = len(target_N)
    assert (share_L >= np.array(LEVELS)).all()
    assert (share_L <= np.array(LEVELS) + 3 / count).all()
    before_L = (target_N[:, None] <= answers(model, encoded).numpy()[known_BH]).mean(0)
    assert (np.abs(before_L - LEVELS) > 0.03).any()  # it had something to do
    assert (np.diff(quantiles(found, encoded), axis=-1) >= 0).all()
    for (name, was), now in zip(model.state_dict().items(), found.state_dict().values(), strict=True):
        assert torch.equal(was, now) == (name != "head.2.bias"), name


def test_nothing_known_leaves_the_head_as_it_is() -> None:
    model, (encoded, came_BH) = network(), lesson(1)
    nothing = missed(model, encoded, np.full_like(came_BH, np.nan))
    assert nothing.shape == (0, len(LEVELS))
    assert calibrated(model, [nothing]) is model
    assert calibrated(model, []) is model


def test_the_newest_slices_count() -> None:
    model = network()
    each = [missed(model, *lesson(seed)) + seed for seed in range(SLICES + 2)]
    newest, of_newest = calibrated(model, each), calibrated(model, each[-SLICES:])
    assert torch.equal(newest.head[2].bias, of_newest.head[2].bias)
    assert not torch.equal(newest.head[2].bias, calibrated(model, each[-1:]).head[2].bias)


def spread(us: list[float], levels: tuple[float, ...] = LEVELS) -> Spread:
    return Spread(levels, np.array(us, np.float32)[None, None])
