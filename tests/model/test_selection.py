"""`architecture.name: auto`: the choice stays within the training slices, follows its rule, and says why."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import pytest
import toy_world
import yaml

from swiftqueue.common.section import read
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.forecasters import forecaster as door
from swiftqueue.models.forecasters.forecaster import AutoParams, Forecaster, Variant, candidates
from swiftqueue.models.forecasters.selection import (
    AP_MARGIN,
    CLEAR,
    LEAST_LATE,
    MAE_MARGIN,
    Choice,
    Score,
    best_of,
    choose,
    walk_forward,
)
from swiftqueue.models.forecasters.traces import Trace, TracePart, decision_times, lessons
from swiftqueue.models.repeated.forecaster import RepeatedParams
from swiftqueue.models.training.protocol import EvaluationProtocol, divide

QUICK = {
    **{"epochs": 2, "segments": 2, "segment_events": 128, "width": 16, "feed_forward": 32, "heads": 2},
    **{"rounds": 10, "batch_size": 64},
}
PROTOCOL = EvaluationProtocol("toy", 10, 1, 2)
ALL = ("mlp", "event-stream-2", "event-stream-1", "trees", "virtual-queue")


class Guess(Forecaster):
    """A forecaster that guesses; every other one is better."""

    Params = RepeatedParams

    @classmethod
    def fit(cls, parts: Sequence[TracePart], params: Any, seed: int, say: door.Say) -> Self:
        return cls()

    def encode(self, part: TracePart, queue: int = -1) -> Any:
        return len(part)

    def answer(self, encoded: Any) -> Any:
        return np.random.default_rng(1).uniform(1, 1e7, (encoded, HORIZON)).astype(np.float32)

    def write(self, folder: Path) -> dict[str, Any]:
        return {}

    @classmethod
    def read(cls, folder: Path, described: Any) -> Self:
        return cls()


GUESS = Variant("guess", Guess, RepeatedParams(input="last_latency_us"))


@pytest.fixture(scope="module")
def params(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's parameters, small, with `auto`."""
    own = yaml.safe_load((project / "params.yaml").read_text())
    for sizes in own.values():
        sizes.update({key: value for key, value in QUICK.items() if key in sizes})
    own["architecture"]["name"] = "auto"
    own["auto"].update(steps=2, workers=1)
    path = tmp_path_factory.mktemp("params") / "params.yaml"
    path.write_text(yaml.safe_dump(own))
    return path


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    return toy_world.bottleneck_table("t", 13, packets_per_s=600, seed=3, swing_ms=40, episodes=True)


def trace_of(table: pl.DataFrame) -> Trace:
    return Trace("t", table, divide(decision_times(table), PROTOCOL, "t"))


def chosen(traces: list[Trace], among: Sequence[Variant], params: Path, said: list[str]) -> Choice:
    return choose(traces, among, read(params, AutoParams), said.append)


def named(params: Path, *names: str) -> list[Variant]:
    return [variant for variant in candidates(params) if variant.name in names]


def test_the_project_chooses_among_all_sizes(params: Path, project: Path) -> None:
    among = candidates(params)
    assert tuple(variant.name for variant in among) == ALL
    layers = [getattr(variant.params, "layers", None) for variant in among]
    assert layers == [2, 2, 1, None, None]
    (one,) = candidates(project / "params.yaml")
    assert one.name == "event-stream"
    own = yaml.safe_load(params.read_text())
    expected = {"architecture", "auto", "trees", "mlp", "event-stream", "virtual-queue"}
    assert set(door.sections_of_choice(own)) == expected


def score(precision: float | None, mae_ms: float, late: int = 500, seconds: int = 9) -> Score:
    return Score(precision, mae_ms, late, seconds)


@pytest.mark.parametrize(
    ("scores", "best", "why"),
    [
        ({"one": score(0.5, 9), "two": score(0.5 + AP_MARGIN, 5)}, "two", "the highest AP and the least MAE"),
        ({"one": score(0.5, 5 * (1 + 2 * MAE_MARGIN)), "two": score(0.51, 5)}, "two", "the highest AP and"),
        (
            {"one": score(0.5, 5 * (1 + MAE_MARGIN)), "two": score(0.49, 5)},
            "one",
            "as close to the .*as two$",
        ),
        ({"one": score(0.5, 9), "two": score(0.46, 5)}, "two", "the closest to the highest AP and"),
        ({"one": score(0.5, 5), "rule": score(0.5 + CLEAR * AP_MARGIN, 5)}, "one", "as close to .* as rule"),
        ({"one": score(0.5, 5), "rule": score(0.52 + (CLEAR + 1) * AP_MARGIN, 5)}, "rule", "the closest to"),
        ({"one": score(0.5, 9), "two": score(0.5, 5, LEAST_LATE - 1)}, "two", "are too few for AP"),
        ({"one": score(0.9, 9, LEAST_LATE - 1), "two": score(0.1, 5, LEAST_LATE - 1)}, "two", "too few"),
        (
            {"one": score(None, 5, 0), "two": score(None, 5, 0)},
            "one",
            r"the least MAE \(0 late packets in 9 s",
        ),
        ({"one": score(0.5, 0.0), "two": score(0.5, 0.0)}, "one", "the highest AP and the least MAE"),
        ({"only": score(0.5, 5)}, "only", "the highest AP and the least MAE"),
    ],
)
def test_the_rule(scores: dict[str, Score], best: str, why: str) -> None:
    name, reason = best_of(scores, {"rule"})
    assert name == best
    assert re.search(why, reason)


def test_nothing_after_the_training_slice_changes_the_choice(params: Path, table: pl.DataFrame) -> None:
    trace = trace_of(table)
    end = trace.slices.pretrain.hi * HORIZON
    now_ns = int(table["sent_ns"][end])
    known = (pl.col("acked_ns") <= now_ns).fill_null(False) & (pl.col("packet") < end)
    changed = table.with_columns(
        latency_us=pl.when(known).then("latency_us").otherwise(pl.lit(9e5, pl.Float32)),
        size_bytes=pl.when(pl.col("packet") < end).then("size_bytes").otherwise(pl.lit(77, pl.Int32)),
    )
    assert not changed.equals(table)
    other = trace_of(changed)
    for ours, theirs in zip(walk_forward([trace], 3), walk_forward([other], 3), strict=True):
        (one,), (two,) = ours, theirs
        assert one.packets.equals(two.packets)
        assert one.packets.height == end
        assert (one.packets["acked_ns"].drop_nulls() <= now_ns).all()
        assert one.slices.pretrain.hi == one.slices.rounds[0].test.lo < one.slices.rounds[0].test.hi
        assert one.slices.rounds[0].test.hi <= trace.slices.pretrain.hi
    among = named(params, "trees", "virtual-queue")
    results = [chosen([each], among, params, []).as_json() for each in (trace, other)]
    assert results[0] == results[1]


def test_each_step_learns_from_a_longer_part_and_forecasts_the_rest(table: pl.DataFrame) -> None:
    trace = trace_of(table)
    steps = [step[0].slices for step in walk_forward([trace], 3)]
    for slices in steps:
        assert slices.pretrain.lo == trace.slices.pretrain.lo
        assert slices.rounds[0].test.hi == trace.slices.pretrain.hi
    shares = [len(slices.pretrain) / len(trace.slices.pretrain) for slices in steps]
    assert shares == pytest.approx([0.4, 0.6, 0.8], abs=0.01)


def test_a_network_learns_as_long_on_a_part_as_on_all(params: Path, table: pl.DataFrame) -> None:
    taught = []

    class Counted(Guess):
        @classmethod
        def fit(cls, parts: Sequence[TracePart], params: Any, seed: int, say: door.Say) -> Self:
            taught.append((sum(map(len, parts)), params.epochs))
            return cls()

    (linear,) = named(params, "mlp")
    counted = Variant("counted", Counted, linear.params.model_copy(update={"epochs": 30}))
    trace = trace_of(table)
    chosen([trace], [counted], params, [])
    assert [decisions * epochs for decisions, epochs in taught] == pytest.approx(
        [len(trace.slices.pretrain) * 30] * 2, rel=0.02
    )


@pytest.mark.parametrize("name", ALL)
def test_each_candidate_can_be_chosen(name: str, params: Path, table: pl.DataFrame) -> None:
    """Beside a guess it is chosen, the line says why, and the scores are those of both."""
    said: list[str] = []
    traces = [trace_of(table)]
    (variant,) = named(params, name)
    choice = chosen(traces, [GUESS, variant], params, said)
    assert choice.variant is variant
    assert choice.line.startswith(f"chose {name}: AP 0.")
    assert "the highest AP and the least MAE; against guess AP 0." in choice.line
    assert choice.line.endswith("2 steps within the training slices")
    assert "\n" not in choice.line
    found = choice.as_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["candidates"][name]["steps"] == 2
    assert found["late"] >= LEAST_LATE
    assert 5 <= found["late_seconds"] <= 7  # in the last three fifths of ten seconds
    assert any(line.startswith("auto: step 1 of 2: guess AP") for line in said)


def test_a_hopeless_candidate_is_trained_once(params: Path, table: pl.DataFrame) -> None:
    (trees,) = named(params, "trees")
    choice = chosen([trace_of(table)], [GUESS, trees], params, [])
    assert choice.steps == {"guess": 1, "trees": 2}
    assert "(left out after step 1); 2 steps" in choice.line


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_choose_as_one_does(params: Path, table: pl.DataFrame) -> None:
    traces, among = [trace_of(table)], named(params, "trees", "virtual-queue")
    both = choose(traces, among, AutoParams(candidates=["trees"], steps=2, workers=2), print)
    assert both.as_json() == chosen(traces, among, params, []).as_json()


def test_a_candidate_that_cannot_be_trained_is_left_out(
    params: Path, table: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(*_: Any) -> Any:
        raise ValueError("training diverged")

    monkeypatch.setattr(Guess, "fit", diverge)
    traces, said = [trace_of(table)], list[str]()
    (trees,) = named(params, "trees")
    assert chosen(traces, [GUESS, trees], params, said).variant is trees
    assert "auto: step 1, guess: learning from t: training diverged; left out" in said
    with pytest.raises(ValueError, match=r"^none of the forecasters .*could be trained; guess: .*diverged$"):
        chosen(traces, [GUESS], params, [])


def test_slices_too_short_to_choose_on_are_one_clear_line(params: Path, table: pl.DataFrame) -> None:
    trace = trace_of(table)
    silent = table.with_columns(
        latency_us=pl.when(pl.col("packet") > trace.slices.pretrain.hi * HORIZON).then("latency_us")
    )
    with pytest.raises(ValueError, match=r"^architecture.name is auto, and [^\n]*: name a forecaster$"):
        chosen([trace_of(silent)], named(params, "trees"), params, [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": {"name": "otto"}}, "architecture.name is 'otto'; it must be .*auto"),
        ({"auto": {"candidates": ["tree"]}}, r"no forecaster 'tree'; did you mean trees\?"),
        ({"auto": {"candidates": ["trees-2"]}}, "trees-2: trees has no layers"),
        ({"auto": {"candidates": ["event-stream-17"]}}, "event-stream.layers is 17"),
        ({"auto": {"candidates": []}}, "it must name forecasters, each once"),
        ({"auto": {"candidates": ["mlp", "mlp"]}}, "it must name forecasters, each once"),
        ({"auto": {"candidates": ["bilstm"]}}, "section `bilstm` is missing"),
        ({"auto": {"steps": 0}}, "auto.steps is 0"),
    ],
)
def test_an_unknown_name_is_one_clear_line(
    params: Path, tmp_path: Path, changes: dict[str, dict[str, Any]], message: str
) -> None:
    own = yaml.safe_load(params.read_text())
    (section, values), *_ = changes.items()
    path = tmp_path / "params.yaml"
    path.write_text(yaml.safe_dump(own | {section: own[section] | values}))
    with pytest.raises(ValueError, match=message) as refused:
        candidates(path)
    assert "\n" not in str(refused.value)


def test_traces_that_only_teach_teach_in_each_step(table: pl.DataFrame) -> None:
    from dataclasses import replace

    from swiftqueue.models.training.protocol import Slice

    trace = trace_of(table)
    whole = Slice(0, table.height // HORIZON)
    teacher = replace(trace, name="teacher", slices=replace(trace.slices, pretrain=whole, rounds=()))
    for step in walk_forward([trace, teacher], 3):
        assert [len(part) for part in lessons(step)][1] == len(whole)
