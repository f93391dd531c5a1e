"""`swiftqueue forecasts` keeps each run, repeats changed ones, and takes differences by seed."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import toy_world
import yaml
from typer.testing import CliRunner, Result

import swiftqueue
from swiftqueue.benchmarks.forecasts import fingerprint, judging_of, summarised, traces_of
from swiftqueue.benchmarks.results import forecasters as published
from swiftqueue.cli import experiments as cli_experiments
from swiftqueue.cli.app import app
from swiftqueue.feature_store.packets.schema import read_packets, scan_packets
from swiftqueue.feature_store.packets.truth import Waits, read_waits
from swiftqueue.models.forecasters.forecaster import load
from swiftqueue.models.forecasters.traces import TracePart, lessons
from swiftqueue.models.scoring.intervals import estimate, over_all
from swiftqueue.models.training.protocol import Slice

PARAMS = Path(__file__).resolve().parents[2] / "params.yaml"


@pytest.fixture(scope="module")
def world(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_world.write_forecasters(tmp_path_factory.mktemp("forecasts"), project / "forecasters.yaml", 2)


def invoked(world: Path, *more: str) -> Result:
    return CliRunner().invoke(
        app,
        [
            *("forecasts", str(world / "packets"), "-o", str(world / "runs"), "--protocol", "short"),
            *("--sections", str(world / "forecasters.yaml"), "--seeds", "2", "--against", "mlp", *more),
        ],
        catch_exceptions=True,
    )


def forecasts(world: Path, *more: str) -> str:
    result = invoked(world, *more)
    return result.output if result.exception is None else f"{result.exception}"


def with_params(world: Path, project: Path, **changes: dict[str, Any]) -> Path:
    """Write the project's parameters with other values, by section."""
    sections = yaml.safe_load((project / "params.yaml").read_text())
    for section, values in changes.items():
        sections[section] |= values
    path = world / "params.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


def summary(world: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((world / "runs" / "scores.json").read_text())
    return found


@pytest.mark.long
def test_runs_are_kept_and_those_that_changed_are_run_again(world: Path) -> None:
    first = forecasts(world)
    assert sorted(p.name for p in (world / "runs").iterdir()) == [
        *("fitted", "last-flow-1.json", "mlp-1.json", "mlp-2.json", "scores.json")
    ]
    assert "kept" not in first
    before = {p.name: p.read_bytes() for p in (world / "runs").glob("*.json")}
    again = forecasts(world)
    assert again.count("kept") == 3
    assert {p.name: p.read_bytes() for p in (world / "runs").glob("*.json")} == before

    path = world / "forecasters.yaml"
    sections = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**sections, "mlp": {**sections["mlp"], "dropout": 0.3}}))
    changed = forecasts(world)
    assert changed.count("kept") == 1
    assert (world / "runs/mlp-1.json").read_bytes() != before["mlp-1.json"]
    path.write_text(yaml.safe_dump(sections))
    (world / "runs/mlp-2.json").unlink()  # as after a run that was killed
    forecasts(world)
    scored = {name: json.loads(content) for name, content in before.items() if name.startswith("mlp")}
    for name, one in scored.items():
        now = json.loads((world / "runs" / name).read_text())
        assert now["tuned"] == one["tuned"]


def test_a_run_of_other_parameters_is_in_no_summary(world: Path) -> None:
    forecasts(world)
    path = world / "forecasters.yaml"
    sections = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**sections, "mlp": {**sections["mlp"], "dropout": 0.3}}))
    try:
        forecasts(world, "--only", "last-flow")
        assert list(summary(world)["variants"]) == ["last-flow"]
        one = forecasts(world, "--only", "mlp", "--seeds", "1")
        assert "mlp, seed 1: kept" not in one
        assert summary(world)["variants"]["mlp"]["seeds"] == 1, "the other one has the parameters before"
    finally:
        path.write_text(yaml.safe_dump(sections))


@pytest.mark.slow
def test_differences_are_paired_by_seed(world: Path) -> None:
    forecasts(world)
    runs = [json.loads((world / f"runs/mlp-{seed}.json").read_text()) for seed in (1, 2)]
    last = json.loads((world / "runs/last-flow-1.json").read_text())
    found = summary(world)["variants"]["last-flow"]["tuned"]["mae_ms"]
    by_hand = estimate([last["tuned"]["error"]["mae_ms"] - one["tuned"]["error"]["mae_ms"] for one in runs])
    assert by_hand is not None
    assert found["less_reference"]["mean"] == pytest.approx(by_hand.mean, abs=1e-4)
    assert found["less_reference"]["seeds_95"] == pytest.approx([by_hand.low, by_hand.high], abs=1e-4)
    draws, by_trace = (
        [np.array(last["tuned"][of]["mae_ms"]) - np.array(one["tuned"][of]["mae_ms"]) for one in runs]
        for of in ("draws", "by_trace")
    )
    seeds = [last["tuned"]["error"]["mae_ms"] - one["tuned"]["error"]["mae_ms"] for one in runs]
    ends = over_all(seeds, np.array(draws), last["tuned"]["blocks"], np.array(by_trace))
    assert found["less_reference"]["seconds_95"] == pytest.approx(ends, abs=1e-4)
    assert len(by_trace[0]) == 2  # traces
    assert "less_reference" not in summary(world)["variants"]["mlp"]["tuned"]["mae_ms"]


def test_a_choice_sees_the_training_slices_only(world: Path) -> None:
    forecasts(world)
    tested = summary(world)["n"]
    forecasts(world, "--choose", "--only", "last-flow")
    assert summary(world)["within_training"]
    assert list(summary(world)["variants"]) == ["last-flow"]
    assert 0 < summary(world)["n"] != tested


@pytest.mark.long
@pytest.mark.slow
def test_what_was_fitted_is_scored_anew_without_training(world: Path, project: Path) -> None:
    """Other scores of the same lessons; not where it was changed, or learned from other packets."""
    forecasts(world, "--only", "mlp")
    fitted = {path: path.read_bytes() for path in (world / "runs/fitted").glob("mlp-*/*")}
    runs = [json.loads((world / f"runs/mlp-{seed}.json").read_text()) for seed in (1, 2)]
    other = with_params(world, project, evaluate={"false_alarm_rate": 0.2})
    said = forecasts(world, "--only", "mlp", "--params", str(other))
    assert said.count("fitted before") == 2
    assert {path: path.read_bytes() for path in fitted} == fitted
    for seed, before in enumerate(runs, 1):
        now = json.loads((world / f"runs/mlp-{seed}.json").read_text())
        assert now["fit_cpu_s"] == before["fit_cpu_s"]
        assert now["tuned"]["error"] == before["tuned"]["error"]
        assert now["tuned"]["late"] != before["tuned"]["late"]
    (world / "runs/fitted/mlp-1/model.safetensors").write_bytes(b"half")
    again = forecasts(world, "--only", "mlp")
    assert again.count("fitted before") == 1, "what cannot be read is fitted anew"
    assert "fitted before" not in forecasts(world, "--only", "mlp", "--choose")


@pytest.mark.slow
def test_a_kept_forecaster_is_asked_with_the_knowledge_that_it_was_trained_for(
    world: Path, project: Path, tmp_path: Path
) -> None:
    """And a file of trees that was cut, which could end XGBoost's process, is not opened."""
    sections = tmp_path / "forecasters.yaml"
    trees = yaml.safe_load((project / "forecasters.yaml").read_text())["xgboost"]
    sections.write_text(yaml.safe_dump({"xgboost": trees | {"rounds": 20}}))
    asked = ("--sections", str(sections), "--against", "xgboost", "--seeds", "1", "--visibility")
    table = read_packets(world / "packets", "t1")
    where = world / "runs/fitted/xgboost-1"
    answers = []
    for visibility in ("acked", "previous"):
        forecasts(world, *asked, visibility)
        model = swiftqueue.load_model(where)
        assert model.description["visibility"] == visibility
        part = TracePart("t1", table, Slice(0, table.height // 8), visibility)
        answers.append(model.predict(table)["predicted_us"].to_numpy()[: table.height // 8 * 8])
        np.testing.assert_array_equal(answers[-1], load(where).predict(part).ravel())
    assert not np.array_equal(*answers)
    kept = where / "trees.ubj"
    kept.write_bytes(kept.read_bytes()[: kept.stat().st_size // 2])
    with pytest.raises(ValueError, match=f"{kept.name} has changed since it was written"):
        swiftqueue.load_model(where)
    (world / "runs/xgboost-1.json").unlink()
    again = forecasts(world, *asked, "previous")
    assert "xgboost, seed 1: AP" in again
    assert "fitted before" not in again


@pytest.mark.long
def test_tables_to_learn_from_besides_change_the_training_and_nothing_else(world: Path) -> None:
    forecasts(world)
    alone = json.loads((world / "runs/mlp-1.json").read_text())
    toy_world.write_table(world / "also", toy_world.bottleneck_table("t9", 2.2, seed=9, swing_ms=40))
    try:
        said = forecasts(world, "--also", str(world / "also"))
        assert "kept" not in said
        assert summary(world)["also"] == ["t9"]
        taught = json.loads((world / "runs/mlp-1.json").read_text())
        assert taught["tuned"]["n"] == alone["tuned"]["n"]
        assert taught["tuned"]["error"] != alone["tuned"]["error"]
        assert json.loads((world / "runs/last-flow-1.json").read_text())["tuned"]["error"]["mae_ms"] > 0
    finally:
        forecasts(world)


def test_no_packet_of_a_judged_trace_is_learned_from_besides(world: Path, tmp_path: Path) -> None:
    """Not under its own name, nor under another one, nor a part of it at another time of day."""
    judged = scan_packets(world / "packets", "t1").collect()
    toy_world.write_table(tmp_path / "own", judged)
    line = "has packets of t1, which is judged"
    assert line in forecasts(world, "--also", str(tmp_path / "own"))
    later = judged.with_columns(trace=pl.lit("other"), sent_ns=pl.col("sent_ns") + 10**12)
    toy_world.write_table(tmp_path / "renamed", later)
    assert line in forecasts(world, "--also", str(tmp_path / "renamed"))
    cut = judged.tail(judged.height // 3).with_columns(trace=pl.lit("tail"))
    toy_world.write_table(tmp_path / "cut", cut)
    assert line in forecasts(world, "--also", str(tmp_path / "cut"))


def test_a_trace_that_only_teaches_is_learned_from_as_a_whole_and_not_judged(
    world: Path, project: Path
) -> None:
    own = {"file": "t2.pcap", "sender": None, "latency": "acks", "protocol": "teach"}
    params = with_params(world, project, extract={"traces": {"t2": own}})
    [judged], [taught] = traces_of(world / "packets", [], "short", params)
    assert judged.name == "t1"
    assert taught.equals(scan_packets(world / "packets", "t2").collect())
    more = ("--only", "last-flow", "--params", str(params))
    assert f"t2: only learned from, as {params} says" in forecasts(world, *more)
    found = summary(world)
    assert (found["traces"], found["also"]) == (["t1"], ["t2"])
    assert found["n"] == judged.packets["latency_us"][judged.slices.rounds[0].test.lo * 8 :].count()
    assert f"t2: protocol teach in {params}, so nothing is judged" in forecasts(world, *more, "--trace", "t2")
    assert "--truth t2: no such trace is judged; known: t1" in forecasts(world, *more, "--truth", "t2=t2")
    again = toy_world.bottleneck_table("t2", 4.2, seed=2, swing_ms=40, episodes=True)
    toy_world.write_table(world / "again", again)
    line = "t2 has packets of t2, which teaches already"
    assert line in forecasts(world, *more, "--also", str(world / "again"))


def test_a_run_that_fails_is_named_and_the_others_are_scored(tmp_path: Path, project: Path) -> None:
    """The MLP learns from the training slice, of which hardly a latency is known here."""
    lame = toy_world.write_forecasters(tmp_path, project / "forecasters.yaml", 0)
    whole = toy_world.bottleneck_table("t1", 4.2, seed=1, swing_ms=40)
    toy_world.write_table(lame / "packets", toy_world.without_latencies(whole, 0.02, 2.6))
    result, line = invoked(lame), "runs failed, for the reasons above: mlp, seed 1; mlp, seed 2"
    assert str(result.exception) == line
    reason = "cannot fit the target: the pre-training slice holds no known latency"
    assert f"mlp, seed 2, learning from t1: {reason}; left out" in result.output
    assert list(summary(lame)["variants"]) == ["last-flow"]
    assert forecasts(lame, "--only", "mlp", "-o", str(lame / "alone")) == line
    assert not list((lame / "alone").glob("*"))


def test_lessons_hold_training_slices_and_whole_tables_besides(world: Path) -> None:
    traces, _ = traces_of(world / "packets", [], "short", PARAMS)
    more = toy_world.bottleneck_table("t9", 2.2, seed=9)
    *own, besides = lessons(traces, [more])
    for part, trace in zip(own, traces, strict=True):
        end = trace.slices.pretrain.hi * 8
        assert part.packets.height == end
        assert int(part.packets["acked_ns"].drop_nulls().max()) <= int(trace.packets["sent_ns"][end])
    assert besides.packets is more
    assert (besides.decisions.lo, besides.decisions.hi) == (0, more.height // 8)


def test_every_part_of_the_truth_names_the_work(world: Path) -> None:
    [trace], _ = traces_of(world / "packets", ["t1"], "short", PARAMS)
    count = trace.packets.height
    waits = Waits(np.zeros(count, np.float32), np.ones(count, np.float32), np.zeros(count, np.bool_))
    others = [
        replace(waits, classic_us_N=waits.classic_us_N + 1),
        replace(waits, l4s_us_N=waits.l4s_us_N + 1),
        replace(waits, movable_N=~waits.movable_N),
    ]
    judging = judging_of(PARAMS)
    names = {fingerprint([replace(trace, waits=each)], judging) for each in (None, waits, *others)}
    names.add(fingerprint([trace], replace(judging, false_alarm_rate=0.5)))
    assert len(names) == 6


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--trace", "t3"], "no packet table of trace 't3'"),
        (["--trace", "t1", "--trace", "t2", "--trace", "t1"], "--trace t1: it is named twice"),
        (["--only", "mpl"], "section `mpl` is missing; did you mean mlp?"),
        (["--protocol", "paper"], "trace t1 lasts 4.1 s, and protocol 'paper' needs at least"),
        (["--sections", "/nowhere.yaml"], "/nowhere.yaml: no such parameter file"),
        (["--also", "/nowhere"], "--also /nowhere: there are no packet tables"),
        (["--against", "mpl"], "--against mpl: there is no section of that name"),
        (["--truth", "t1=truth.parquet"], "--truth: trace t2 has none; give one of every trace, or of none"),
    ],
)
def test_what_cannot_be_is_one_line(world: Path, more: list[str], line: str) -> None:
    said = forecasts(world, *more)
    assert line in said
    assert "\n" not in said.strip()


def test_a_truth_of_another_kind_is_one_line(world: Path, tmp_path: Path) -> None:
    [trace], _ = traces_of(world / "packets", ["t1"], "short", PARAMS)
    other = tmp_path / "other.parquet"
    truth = trace.packets.select("sent_ns", classic_wait_us=1.0, l4s_wait_us=2.0, default_queue=1)
    truth.write_parquet(other)
    with pytest.raises(ValueError, match=r"other\.parquet: column default_queue is .* of a wrong type"):
        read_waits(other, trace.packets)


def test_a_damaged_table_is_one_line(tmp_path: Path, project: Path) -> None:
    damaged = toy_world.write_forecasters(tmp_path, project / "forecasters.yaml", 1)
    part = next(damaged.glob("packets/trace=*/minute=0/*.parquet"))
    part.write_bytes(b"damaged, and not a Parquet file")
    said = forecasts(damaged)
    assert said.startswith(f"{part} cannot be read: Parquet magic bytes not found")
    assert "\n" not in said.strip()


def test_scores_are_published_whole_or_refused(world: Path, tmp_path: Path) -> None:
    forecasts(world)
    path = tmp_path / "forecasters.json"
    published.take("toy", world / "runs" / "scores.json", path)
    one, scores = (json.loads(file.read_text()) for file in (path, world / "runs" / "scores.json"))
    assert one["toy"]["variants"].keys() == scores["variants"].keys()
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    with pytest.raises(ValueError, match="is no summary of `swiftqueue forecasts`"):
        published.take("toy", broken, path)


def test_differences_are_taken_from_the_network_that_the_loop_has(project: Path) -> None:
    against = inspect.signature(cli_experiments.forecasts).parameters["against"].default
    ours = yaml.safe_load((project / "forecasters.yaml").read_text())[against]
    loops = yaml.safe_load((project / "params.yaml").read_text())
    assert ours["name"] == loops["architecture"]["name"]
    shared = ours.keys() & loops[ours["name"]].keys()
    assert len(shared) > 10
    assert {key: ours[key] for key in shared} == {key: loops[ours["name"]][key] for key in shared}


def test_one_seed_beside_several_has_no_interval_over_seeds(world: Path) -> None:
    """Else the spread of the other variant's seeds would pass for that of the difference."""
    forecasts(world)
    runs = [json.loads((world / f"runs/mlp-{seed}.json").read_text()) for seed in (1, 2)]
    about = {"against": "mlp"}
    for alike, ends in ((set(), False), ({"other"}, True)):
        found = summarised({"mlp": runs, "other": runs[:1]}, about, alike)["variants"]["other"]["tuned"]
        assert (found["mae_ms"]["less_reference"]["seeds_95"] is not None) == ends


@pytest.mark.long
def test_under_previous_variants_are_trained_for_it_and_lateness_stays_the_same(world: Path) -> None:
    forecasts(world)
    acked = summary(world)
    forecasts(world, "--visibility", "previous")
    previous = summary(world)
    assert (previous["visibility"], acked["visibility"]) == ("previous", "acked")
    assert [previous[key] for key in ("n", "n_late")] == [acked[key] for key in ("n", "n_late")]
    for name in ("mlp", "last-flow"):
        known, seen = (each["variants"][name]["tuned"]["mae_ms"]["mean"] for each in (previous, acked))
        assert known != seen
    forecasts(world)
    assert "kept" not in forecasts(world, "--visibility", "previous", "--only", "last-flow")


@pytest.mark.long
def test_thresholds_and_seconds_of_a_round_come_from_the_parameter_file(world: Path, project: Path) -> None:
    def with_(change: str, value: float) -> dict[str, Any]:
        section, key = change.split(".")
        params = with_params(world, project, **{section: {key: value}})
        forecasts(world, "--params", str(params), "--only", "mlp")
        return summary(world)

    usual, rare = with_("change.least_ms", 20.0), with_("change.least_ms", 200.0)
    assert usual["n_late"] > 0 == rare["n_late"]
    f1 = usual["variants"]["mlp"]["tuned"]
    assert {name for name in f1 if name.startswith("f1_")} == {
        *("f1_prediction_change", "f1_truth_change"),
        *("f1_prediction_change_by_flow", "f1_truth_change_by_flow"),
    }
    assert rare["variants"]["mlp"]["tuned"]["average_precision"] is None
    often = with_("evaluate.false_alarm_rate", 0.5)["variants"]["mlp"]["tuned"]["recall_at_false_alarms"]
    assert often["mean"] > f1["recall_at_false_alarms"]["mean"]
    never = with_("evaluate.round_s", 1e6)["variants"]["mlp"]
    assert never["tuned"]["mae_ms"]["mean"] == never["pretrained"]["mae_ms"]["mean"]
    at_once = with_("evaluate.round_s", 0)["variants"]["mlp"]
    assert at_once["tuned"]["mae_ms"]["mean"] != at_once["pretrained"]["mae_ms"]["mean"]
