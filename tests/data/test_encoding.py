"""The engine on several cores encodes the same decisions as one engine, and as PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from toy_world import bottleneck_table

from swiftqueue.benchmarks.inference_references import save
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.event_stream.forecaster import EventStreamForecaster
from swiftqueue.models.forecasters.traces import TracePart
from swiftqueue.models.networks import artifact
from swiftqueue.models.training.protocol import Slice
from swiftqueue.pipelines.live import encoding
from swiftqueue.serving.engine import Engine

TOKENS = 136
FIRST = 37


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("artifact") / "model")


@pytest.fixture(scope="module")
def packets() -> pl.DataFrame:
    return bottleneck_table("live", seconds=6)


def test_it_is_what_one_engine_and_pytorch_give(
    folder: Path, packets: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "STRETCH", 16)
    part = TracePart("live", packets, Slice(FIRST, packets.height // HORIZON))
    found, replayed, replays = encoding.load(artifact.read_files(folder)), encoding.replayed, []
    monkeypatch.setattr(encoding, "replayed", lambda *args: replays.append(args) or replayed(*args))
    ours = encoding.Decisions.of(found, part)
    assert len(replays) == 1
    x_BWF = np.concatenate(list(encoding.event_windows(packets, TOKENS, FIRST)))
    logs = [(x_WF[:-HORIZON][x_WF[:-HORIZON].any(1)], x_WF[None, -HORIZON:]) for x_WF in x_BWF]
    engine = Engine(folder)
    alone = [engine.features(x_EF, np.array([len(x_EF)]), x_1HF) for x_EF, x_1HF in logs]
    np.testing.assert_allclose(ours.read_BRD, np.concatenate(alone), atol=1e-5)
    assert np.array_equal(ours.candidates_BHF, x_BWF[:, -HORIZON:])
    by_pytorch = EventStreamForecaster.read(folder, {}).encode(part)
    np.testing.assert_allclose(ours.read_BRD, by_pytorch.read_BRD.numpy(), atol=1e-4)
    np.testing.assert_array_equal(ours.anchor_BH, by_pytorch.anchor_BH.numpy())
    assert found.tuned_on(ours.encoded, part.latencies_us() * np.nan, part.change, None) is found  # type: ignore[arg-type]


def test_of_no_decisions_there_is_nothing(folder: Path, packets: pl.DataFrame) -> None:
    found = encoding.load(artifact.read_files(folder))
    assert len(encoding.Decisions.of(found, TracePart("live", packets, Slice(3, 3)))) == 0


def test_a_packet_that_cannot_be_is_named(folder: Path, packets: pl.DataFrame) -> None:
    size = pl.when(pl.col("packet") == 500).then(0).otherwise("size_bytes").cast(pl.Int32)
    part = TracePart("live", packets.with_columns(size_bytes=size), Slice(0, packets.height // HORIZON))
    with pytest.raises(ValueError, match="packet 500: size_bytes 0 must be at least 1"):
        encoding.Decisions.of(encoding.load(artifact.read_files(folder)), part)
