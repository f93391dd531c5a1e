"""Baselines: by hand, against slow literal implementations, and no peeking past the decision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import toy_world
from hypothesis import given, settings
from hypothesis import strategies as st

from models.scoring import baselines, predictions
from models.scoring.baselines import BoostedTrees, Candidates
from models.training.protocol import Slice


def sent(seed: int, seconds: float) -> pl.DataFrame:
    return toy_world.bottleneck_table("toy", seconds, 400, seed=seed, flows=3, episodes=True)


def opened(folder: Path, packets: pl.DataFrame) -> predictions.EvaluatedTrace:
    toy_world.write_windows(folder, [packets])
    return predictions.load_traces(folder / "windows", folder / "split.json")[1]["toy"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> predictions.EvaluatedTrace:
    folder = tmp_path_factory.mktemp("windows")
    return opened(folder, sent(seed=3, seconds=8))


def tokens(**columns: list[list[float]]) -> Candidates:
    return Candidates(np.stack([np.float32(c) for c in columns.values()], axis=-1), tuple(columns))


def test_last_visible_falls_back_to_the_sender_then_to_the_constant() -> None:
    shown = tokens(
        last_latency_us=[[0, 7e3, 7e3]],
        last_latency_flow_us=[[0, 0, 9e3]],
        last_latency_queue_us=[[0, 8e3, 0]],
    )
    by_method = {m: baselines.last_visible(shown, m, 5e3).tolist()[0] for m in baselines.LAST_VISIBLE}
    assert by_method == {
        "last_sender": [5e3, 7e3, 7e3],
        "last_flow": [5e3, 7e3, 9e3],
        "last_queue": [5e3, 8e3, 7e3],
    }


def test_send_gap_of_20_ms_means_a_drop() -> None:
    shown = tokens(gap_us=[[19_999, 20_000, 0]])
    assert baselines.send_gap_direction(shown).tolist() == [[0, -1, 0]]


def test_a_missing_feature_is_named() -> None:
    with pytest.raises(ValueError, match="no feature 'gap_us'"):
        tokens(size_bytes=[[1]]).column("gap_us")


def test_ewma_by_hand() -> None:
    log = pl.DataFrame({"flow_id": [1, 1, 2], "at": [10, 20, 15], "latency_us": [8e3, 16e3, 1e3]})
    asked = pl.DataFrame({"flow_id": [1, 1, 1, 2, 3], "at": [9, 10, 25, 30, 30]})
    got = baselines.ewma(log, asked, np.full(5, 5e3))
    assert got.tolist() == [5e3, 8e3, 9e3, 1e3, 5e3]  # 7/8 · 8 + 1/8 · 16 = 9


events = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 9)), max_size=25)


@settings(max_examples=60)
@given(events, st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), min_size=1, max_size=10))
def test_ewma_is_the_literal_recursion(log: list[Any], asked: list[Any]) -> None:
    frame = pl.DataFrame(
        log, schema={"flow_id": pl.Int32, "at": pl.Int64, "latency_us": pl.Float32}, orient="row"
    )
    at = pl.DataFrame(asked, schema={"flow_id": pl.Int32, "at": pl.Int64}, orient="row")
    got = baselines.ewma(frame, at, np.full(len(asked), -1.0))
    for (flow, now), ours in zip(asked, got, strict=True):
        value = -1.0
        for _, _, latency in sorted((e for e in log if e[0] == flow and e[1] <= now), key=lambda e: e[1]):
            value = latency if value < 0 else value * 7 / 8 + latency / 8
        assert ours == pytest.approx(value)


def test_ewma_of_a_trace_uses_what_was_acknowledged(trace: predictions.EvaluatedTrace) -> None:
    """Window by window, with a loop over every packet and its acknowledgement time."""
    rows = np.arange(340, 370)
    got = predictions._ewma(trace, rows, np.full((30, 8), -1.0))
    y, acked, flow = (a.ravel() for a in (trace.windows.y_us_BH, trace.windows.y_acked_ns_BH, trace.flow_BH))
    order = np.argsort(acked, kind="stable")
    for row, ours in zip(rows, got, strict=True):
        value = dict.fromkeys(range(3), -1.0)
        for p in order:
            if acked[p] <= trace.windows.decision_ns_B[row] and np.isfinite(y[p]):
                f = flow[p]
                value[f] = y[p] if value[f] < 0 else value[f] * 7 / 8 + y[p] / 8
        assert ours == pytest.approx([value[f] for f in trace.flow_BH[row]])


def test_a_slice_in_which_the_sender_was_silent_leaves_the_trees_as_they_are(
    trace: predictions.EvaluatedTrace,
) -> None:
    trees, _ = predictions.fit_trees([trace], rounds=3, seed=1)
    silent = Slice(trace.windows.pretrain.hi, trace.windows.pretrain.hi)
    inputs = baselines.tree_inputs(trace.candidates(silent))
    assert inputs.shape == (0, baselines.tree_inputs(trace.candidates(Slice(0, 2))).shape[1])
    assert trees.continued(inputs, trace.known_by_slice_end(silent)) is trees


def with_changed_future(trace: predictions.EvaluatedTrace, at: int) -> predictions.EvaluatedTrace:
    """The same trace, where every latency that was not yet visible at decision `at` is another."""
    hidden = trace.windows.y_acked_ns_BH > trace.windows.decision_ns_B[at]
    y_us_BH = np.where(hidden, trace.windows.y_us_BH * 3 + 1e5, trace.windows.y_us_BH)
    return replace(trace, windows=replace(trace.windows, y_us_BH=y_us_BH))


def test_baselines_do_not_see_latencies_acknowledged_after_the_decision(
    trace: predictions.EvaluatedTrace,
) -> None:
    """Fails if visibility leaks: an unacknowledged latency must not move a prediction."""
    rows, otherwise = np.arange(350, 371), np.full((21, 8), 5e3)
    changed = with_changed_future(trace, at=370)
    both = [predictions._ewma(each, rows, otherwise) for each in (trace, changed)]
    np.testing.assert_array_equal(*both)
    later = [predictions._ewma(each, rows + 25, otherwise) for each in (trace, changed)]
    assert not np.array_equal(*later)  # once they are acknowledged, they count
    inputs = [baselines.tree_inputs(t.candidates(Slice(350, 371))) for t in (trace, changed)]
    np.testing.assert_array_equal(*inputs)


def test_trees_learn_only_from_labels_acknowledged_within_the_slice(
    trace: predictions.EvaluatedTrace,
) -> None:
    part, labels = Slice(100, 300), trace.windows
    known = trace.known_by_slice_end(part).reshape(-1, 8)
    seen = labels.y_acked_ns_BH[100:300] <= labels.decision_ns_B[300]
    np.testing.assert_array_equal(np.isfinite(known), seen & np.isfinite(labels.y_us_BH[100:300]))
    assert np.isfinite(labels.y_us_BH[299]).any()
    assert not np.isfinite(known[-1]).any()  # the last batch was in flight when the slice ended
    changed = with_changed_future(trace, at=300)
    np.testing.assert_array_equal(known.ravel(), changed.known_by_slice_end(part))


def test_tree_inputs_leave_out_the_answer_and_add_the_place() -> None:
    shown = tokens(size_bytes=[[100, 200]], latency_us=[[8, 9]], candidate=[[1, 1]], gap_us=[[5, 0]])
    assert baselines.tree_inputs(shown).tolist() == [[100, 5, 0], [200, 0, 1]]


def test_trees_learn_a_step_and_continuing_follows_a_shift() -> None:
    rng = np.random.default_rng(1)
    x = rng.random((4000, 3)).astype(np.float32)
    y = np.where(x[:, 0] > 0.5, 80e3, 20e3)
    y[::7] = np.nan
    trees = BoostedTrees.fit(x, y, rounds=60, seed=1)
    known = np.isfinite(y)
    assert np.quantile(np.abs(trees.predict(x)[known] / y[known] - 1), 0.99) < 0.05
    shifted = trees.continued(x, y * 1.5)
    error = [np.nanmean(np.abs(t.predict(x) - y * 1.5)) for t in (trees, shifted)]
    assert error[1] < 0.7 * error[0]
    again = BoostedTrees.fit(x, y, rounds=60, seed=1)
    np.testing.assert_array_equal(again.predict(x), trees.predict(x))


def test_trees_without_labels() -> None:
    x, y = np.zeros((5, 2), np.float32), np.arange(1.0, 6.0)
    with pytest.raises(ValueError, match="no packet of the training slice"):
        BoostedTrees.fit(x, np.full(5, np.nan), rounds=2, seed=1)
    trees = BoostedTrees.fit(x, y, rounds=2, seed=1)
    assert trees.continued(x, np.full(5, np.nan)) is trees
    assert trees.predict(x[:0]).shape == (0,)


def test_packets_that_do_not_belong_to_the_windows_are_refused(tmp_path: Path) -> None:
    toy_world.write_windows(tmp_path, [sent(seed=1, seconds=6.5)])
    features = tmp_path / "windows" / "toy" / "features.parquet"
    pl.read_parquet(features).head(80).write_parquet(features)
    with pytest.raises(ValueError, match=r"features.parquet: 80 packets, but the windows decide"):
        predictions.load_traces(tmp_path / "windows", tmp_path / "split.json")


class Constant:
    """Stands where the predictor does, so that only baselines are at work: says 30 ms of everything."""

    def heads(self, name: str, rounds: int) -> dict[int, Any]:
        return {}

    def predict(self, trace: Any, heads: Any, pieces: Any, queue: int) -> dict[str, Any]:
        us_BH = np.full((sum(len(each.part) for some in pieces for each in some), 8), 30e3)
        return dict.fromkeys((predictions.FINETUNED, predictions.AT_ONCE, predictions.PRETRAINED), us_BH)


def predicted(folder: Path, packets: pl.DataFrame) -> predictions.TracePredictions:
    toy_world.write_windows(folder, [packets])
    waits = {"classic_wait_us": 1.0, "l4s_wait_us": 2.0, "default_queue": pl.lit("l4s")}
    packets.select("sent_ns", **waits).write_parquet(folder / "toy.parquet")
    where = {"packets": folder / "packets", "truths": folder}
    toy = predictions.load_traces(folder / "windows", folder / "split.json", **where)[1]["toy"]
    trees, otherwise_us = predictions.fit_trees([toy], rounds=20, seed=1)
    constant: Any = Constant()
    return predictions.predict_trace(
        toy, models=constant, trees=trees, otherwise_us=otherwise_us, round_s=28.9
    )


def test_no_baseline_changes_when_what_is_not_yet_acknowledged_changes(tmp_path: Path) -> None:
    """The whole way from packets: labels, trees of both kinds, EWMA, last visible ones."""
    packets = sent(seed=5, seconds=8)
    before = predicted(tmp_path / "before", packets)
    row = 60  # of the first test slice
    hidden = pl.col("acked_ns") > int(before.decision_ns_B[row])
    later_us = pl.when(hidden).then(pl.col("latency_us") * 2 + 7e3).otherwise("latency_us")
    changed = packets.with_columns(
        latency_us=later_us.cast(pl.Float32),
        acked_ns=pl.when(hidden).then(pl.col("acked_ns") + 100_000_000).otherwise("acked_ns"),
    )
    after = predicted(tmp_path / "after", changed)
    assert not np.array_equal(before.y_BH[: row + 1], after.y_BH[: row + 1], equal_nan=True)
    for method in predictions.BASELINES:
        old, new = (p.us_BH[method] for p in (before, after))
        np.testing.assert_array_equal(old[: row + 1], new[: row + 1], err_msg=method)
        assert not np.array_equal(old, new), f"{method} does not read the latencies that become visible"
        old, new = (p.classic_BH[method] for p in (before, after))
        np.testing.assert_array_equal(old[: row + 1], new[: row + 1], err_msg=method)
    assert before.waits is not None
    assert before.waits.movable_N.all()
    assert not before.classic_BH["last_flow"].any()  # the flow's latency is the same in either queue
    assert before.classic_BH["last_queue"].mean() > 0.9  # the toy's classic queue is the shorter one


def test_last_visible_under_acked_is_the_last_acknowledged(tmp_path: Path) -> None:
    packets = sent(seed=6, seconds=7)
    got = predicted(tmp_path / "windows", packets).us_BH
    first = packets.filter(pl.col("sent_ns") >= int(packets["sent_ns"][0]) + 5 * 10**9)["packet"][0]
    start = -(-first // 8)  # the first window of the test slice
    y, acked, flow = (packets[c].to_numpy() for c in ("latency_us", "acked_ns", "flow_id"))
    acked = np.nan_to_num(acked, nan=np.inf)
    for row in range(0, 40, 3):
        now = packets["sent_ns"][(start + row) * 8]
        seen = [int(p) for p in np.argsort(acked, kind="stable") if acked[p] <= now and np.isfinite(y[p])]
        assert got["last_sender"][row].tolist() == [pytest.approx(y[seen[-1]])] * 8
        for place in range(8):
            own = [p for p in seen if flow[p] == flow[(start + row) * 8 + place]]
            assert got["last_flow"][row, place] == pytest.approx(y[own[-1]])
