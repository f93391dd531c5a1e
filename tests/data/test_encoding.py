"""Windows encoded on several cores are those that one engine encodes at once, in any portions."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from toy_world import bottleneck_table

from benchmarks.inference_references import save
from feature_store.packets.schema import HORIZON
from pipelines.live import encoding
from pipelines.live.encoding import Encoding
from serving.engine import Engine

TOKENS = 136
FIRST = 37


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine(save(tmp_path_factory.mktemp("artifact") / "model"))


@pytest.fixture(scope="module")
def packets() -> pl.DataFrame:
    return bottleneck_table("live", seconds=6)


@pytest.mark.parametrize("portion", [1, 7, 100, 10_000])
def test_in_portions_it_is_what_one_engine_gives(
    engine: Engine, packets: pl.DataFrame, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "CHUNK", 16)
    x_BWF = np.concatenate(list(encoding.event_windows(packets, TOKENS, FIRST)))
    with Encoding(packets, engine, TOKENS, FIRST) as running:
        parts, left = [], len(x_BWF)
        while left:
            parts.append(running.take(min(portion, left)))
            left -= len(parts[-1].features_BRD)
        for _ in range(2):
            with pytest.raises(ValueError, match="there are not so many windows"):
                running.take(1)
    whole = encoding.joined(parts)
    assert np.array_equal(whole.features_BRD, engine.features(x_BWF))
    assert np.array_equal(whole.candidates_BHF, x_BWF[:, -HORIZON:])


def test_it_may_end_early(engine: Engine, packets: pl.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK", 4)  # so that much is left, and no room for it
    with Encoding(packets, engine, TOKENS, 0) as running:
        assert len(running.take(3).features_BRD) == 3
    with pytest.raises(KeyError), Encoding(packets, engine, TOKENS, 0):
        raise KeyError


def test_a_packet_that_cannot_be_is_named(engine: Engine, packets: pl.DataFrame) -> None:
    size = pl.when(pl.col("packet") == 500).then(0).otherwise("size_bytes").cast(pl.Int32)
    bad = packets.with_columns(size_bytes=size)
    named = pytest.raises(ValueError, match="packet 500: size_bytes 0 must be at least 1")
    with Encoding(bad, engine, TOKENS, 0) as running, named:
        running.take(len(packets) // HORIZON)
