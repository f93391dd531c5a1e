"""A TCP sample's definition, its tables, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_golden_rate import GOLDEN, flow
from rate_flows import samples_of, write_flows

from studies.rate.model.flows import load, split
from studies.rate.samples.definition import FIELDS, HORIZONS, NAMES, PREFIXES, inputs, schema_hash
from studies.rate.samples.tables import paths_in, read_path, write_path


def test_the_definition_is_the_papers() -> None:
    assert (PREFIXES, HORIZONS, len(FIELDS)) == ((5, 15, 35), (62, 125, 250, 500, 1000, 2000), 28)
    counts = {field.name for field in FIELDS if field.kind != "value"}
    assert counts == {
        "ts", "total_retrans", "bytes_acked", "busy_time", "sndbuf_limited", "delivery_rate_app_limited",
        "rwnd_limited", "delivered", "bytes_sent", "segs_out",
    }  # fmt: skip


def test_inputs_are_the_golden_ones_bit_for_bit() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert golden["schema_hash"] == schema_hash(), "the definition changed: see make_golden_rate.py"
    for rows, made in zip(golden["samples"], golden["inputs"], strict=True):
        assert inputs(np.array(rows)).astype("<f4").tobytes().hex() == made


@given(seed=st.integers(0, 2**32), n=st.integers(1, 35))
def test_inputs_are_those_of_a_literal_reading(seed: int, n: int) -> None:
    rows = flow(seed, n)
    for i, x_F in enumerate(inputs(np.array(rows))):
        before = rows[i - 1] if i else [0] * len(FIELDS)
        for f, field in enumerate(FIELDS):
            change = 0 if field.name == "ts" and i == 0 else rows[i][f] - before[f]
            assert x_F[f] == np.float32(rows[i][f] if field.kind == "value" else change)


@given(cut=st.integers(1, 34))
def test_what_comes_later_changes_no_earlier_input(cut: int) -> None:
    rows = np.array(flow(3, 35))
    assert (inputs(rows)[:cut] == inputs(rows[:cut])).all()


@pytest.mark.parametrize(("name", "value"), [("rtt", -1), ("ts", 5), ("delivery_rate_app_limited", 2)])
def test_a_sample_that_cannot_be_is_named(name: str, value: int) -> None:
    rows = np.array([list(row.values()) for row in samples_of(1e6, 50_000, 5)])
    rows[3, NAMES.index(name)] = value
    with pytest.raises(ValueError, match="sample 3: a field is negative, a count falls, or a flag"):
        inputs(rows)
    with pytest.raises(ValueError, match="28 fields are needed"):
        inputs(rows[:, :4])


def test_flows_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_flows(tmp_path, short=1)
    flows = load(tmp_path)
    assert flows.x_NSF.shape == (96, 35, 28)
    assert (flows.samples_N == 3).sum() == 8
    assert flows.held_out_N.sum() == 24
    rows = np.array([list(row.values()) for row in samples_of(1e6, 50_000, 35)])
    assert (flows.x_NSF[1, :, NAMES.index("segs_out")] == inputs(rows)[:, NAMES.index("segs_out")]).all()
    one, other, again = split(flows, 1), split(flows, 2), split(flows, 1)
    assert (one.train.started_N == again.train.started_N).all()
    assert not np.array_equal(one.train.path_N, other.train.path_N)
    assert min(len(one.train), len(one.valid), len(one.seen)) > 0
    assert one.held_out.held_out_N.all()
    assert not one.train.held_out_N.any()
    assert all((part.samples_N >= 5).all() for part in vars(one).values())  # three ACKs: no forecast
    assert len(one.train) + len(one.valid) + len(one.seen) == 72 - 6


def altered(folder: Path, table: str, change: pl.Expr) -> None:
    file = folder / "path=p0" / f"{table}.parquet"
    pl.read_parquet(file).with_columns(change).write_parquet(file)


def test_tables_that_cannot_be_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"no flows under .*; .*rate simulate`, `rate collect` or `rate add` makes"
    ):
        paths_in(tmp_path)
    write_flows(tmp_path, train=1, held_out=0, flows=2)
    with pytest.raises(ValueError, match="no flow of 5 samples or more is left for the part `"):
        split(load(tmp_path), 1)
    samples, flows = read_path(tmp_path, "p0")
    rate = "rate_62_bytes_per_s"
    zero = flows.with_columns(pl.when(pl.col("flow") == 1).then(0).otherwise(rate).alias(rate))
    infinite = flows.with_columns(pl.lit(float("inf")).alias(rate))
    with pytest.raises(ValueError, match="path p0, flow 1: its rate at packet 62 must be above 0"):
        write_path(tmp_path, "p0", {}, samples, zero)
    with pytest.raises(ValueError, match="not a table of flows"):
        write_path(tmp_path, "p0", {}, samples, infinite)
    with pytest.raises(ValueError, match="path p0, flow 0: its samples and what the flow table says"):
        write_path(tmp_path, "p0", {}, samples[1:], flows)
    with pytest.raises(ValueError, match="path p0, flow 1: its samples and what the flow table says"):
        write_path(tmp_path, "p0", {}, samples, flows[:1])
    assert paths_in(tmp_path)["p0"]["kind"] == "train"  # as it was
    altered(tmp_path, "samples", pl.lit(-1, pl.Int64).alias("rtt"))
    with pytest.raises(ValueError, match="path p0, flow 0, sample 0: a field is negative"):
        load(tmp_path)
    (tmp_path / "path=p0" / "samples.parquet").write_bytes(b"PAR1 foreign")
    with pytest.raises(ValueError, match=r"path=p0/samples\.parquet cannot be read"):
        load(tmp_path)
    (tmp_path / "path=p0" / "path.json").write_text('{"kind": "other"}')
    with pytest.raises(ValueError, match=r"path\.json is damaged, or its `kind` is none of train, held-out"):
        load(tmp_path)
