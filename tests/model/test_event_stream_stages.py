"""The event stream through the stages: windows, pre-training, head, evaluation, gate; and bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mutants
import numpy as np
import polars as pl
import pytest
import torch
import toy_world
import yaml

from feature_store.events.definition import EVENTS, WINDOW
from models.architecture import EventStreamLoop, MlpLoop
from models.forecasters import query_mlp
from models.forecasters.event_stream import Course
from models.forecasters.query_job import parts_of, pretrain
from models.networks import artifact
from models.networks.artifact import Artifact
from models.networks.event_window import EventWindowPredictor
from models.networks.loop_network import Data, chosen
from models.networks.prediction import predict
from models.networks.window_network import WindowNetwork
from models.registry import gate
from models.sharp import PAPERS
from models.training.calibration import shifts
from models.training.examples import finetuning_examples
from models.training.finetuning import FinetuneParams, finetune_head
from models.training.protocol import divide
from models.training.windows import WindowSet, load_windows
from pipelines import evaluate as evaluate_stage
from pipelines import register as register_stage
from pipelines.windows import WindowsParams, make_windows

WINDOWS: dict[str, Any] = {"visibility": ["acked"], "tokens": "auto", "tokens_min": 16, "tokens_max": 64}
HEAD = FinetuneParams(seed=1, workers=1, epochs=3, batch_size=64, learning_rate=1e-3, sharp_weight=1)
PROTOCOL = toy_world.PROTOCOL


def section(project: Path, **changes: object) -> EventStreamLoop:
    own = yaml.safe_load((project / "params.yaml").read_text())["event-stream"]
    quick = {"epochs": 2, "segments": 2, "segment_events": 128, "width": 16, "feed_forward": 32}
    return EventStreamLoop(**{**own, **quick, **changes})


def linear(project: Path, **changes: object) -> MlpLoop:
    own = yaml.safe_load((project / "params.yaml").read_text())["mlp"]
    return MlpLoop(**{**own, "epochs": 2, "width": 16, **changes})


def world(folder: Path, table: pl.DataFrame, events: int | None = 128) -> WindowSet:
    """Windows of one trace, by the stages' own functions."""
    name = str(table["trace"][0])
    if not (folder / "packets").exists():
        toy_world.write_table(folder / "packets", table)
    rows = {} if events is None else {"definition": EVENTS, "tokens": events + 8}
    make_windows(folder / "packets", folder / "windows", WindowsParams(**WINDOWS), **rows)
    divided = divide(np.load(folder / "windows" / name / "decision_ns.npy"), PROTOCOL, name).as_json()
    (folder / "split.json").write_text(json.dumps({"traces": {name: divided}}))
    return load_windows(folder / "windows", folder / "split.json")


def data_of(folder: Path) -> Data:
    """The stages' files in that folder."""
    return Data(folder / "packets", folder / "windows", folder / "split.json", folder / "var", PAPERS)


def trained(folder: Path, params: Any, of: type[Any] = Course) -> tuple[WindowNetwork, list[dict[str, Any]]]:
    """As the stage `pretrain` does it, in this process."""
    course = of(parts_of(data_of(folder), params), params, params.seed)
    course.trainer.run(print)
    return course.served(params.served_level), course.trainer.epochs


def described(windows: WindowSet) -> artifact.Description:
    """As the stage `pretrain` describes what it was trained on."""
    return artifact.Description(windows.tokens, windows.schema_hash, windows.visibility, windows.protocol)


def walked(folder: Path, windows: WindowSet, start: Artifact) -> Path:
    """Fine-tuned heads of all rounds, as the stage `finetune` makes them in its workers."""
    for name, trace in windows.traces.items():
        current = start
        for index in range(len(trace.rounds)):
            examples = finetuning_examples(trace, index)
            if examples is not None:
                tuned = finetune_head(current.model, examples, HEAD).model
                current = Artifact(tuned, current.description)
            artifact.save(folder / name / f"round-{index}", current.model, current.description)
    return folder


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Path:
    """Everything up to the fine-tuned heads."""
    folder = tmp_path_factory.mktemp("events")
    windows = world(folder, toy_world.bottleneck_table("t", 9, seed=3, swing_ms=40, episodes=True))
    model, epochs = trained(folder, section(project))
    artifact.save(folder / "pretrained", model, described(windows))
    walked(folder / "finetuned", windows, artifact.load(folder / "pretrained", windows.schema_hash))
    (folder / "epochs.json").write_text(json.dumps(epochs))
    return folder


@pytest.mark.slow
def test_the_stages_make_event_windows_and_an_artifact_for_them(toy: Path) -> None:
    windows = load_windows(toy / "windows", toy / "split.json")
    assert (windows.schema_hash, windows.tokens) == (EVENTS.schema_hash, 128 + 8)
    found = artifact.load(toy / "pretrained", windows.schema_hash)
    assert type(found.model) is EventWindowPredictor
    epochs = json.loads((toy / "epochs.json").read_text())
    assert [each["epoch"] for each in epochs] == [1, 2]
    assert all(np.isfinite(each["loss"] + each["validation_log_mse"]) for each in epochs)
    features = pl.read_parquet(toy / "windows" / "t" / "features.parquet")
    assert {"send_rate", "mean8_latency_flow_us"} < set(features.columns)
    assert not EVENTS.not_of_candidates - {"latency_us"} & set(features.columns)


@pytest.mark.slow
def test_a_level_of_calibrated_quantiles_is_served(toy: Path, project: Path) -> None:
    """The stage's artifact gives the forecaster's quantile, which what was held out has moved."""
    params = section(project, quantiles=[0.5, 0.9], calibration="before", served_level=0.9)
    course = Course(parts_of(data_of(toy), params), params, params.seed)
    course.trainer.run(print)
    model = course.served(params.served_level)
    assert model.quantiles == (0.9,)
    [moved] = (model.head[2].bias - course.model.head[2].bias[1:]).detach()
    assert float(moved) == pytest.approx(shifts(course.past()[0], [0.5, 0.9])[1], abs=1e-5)
    assert float(moved) != 0


@pytest.mark.parametrize(("of", "own"), [(Course, section), (query_mlp.Course, linear)])
def test_a_resumed_training_ends_with_the_same_bits(
    toy: Path, project: Path, tmp_path: Path, of: type[Any], own: Callable[..., Any]
) -> None:
    params, parts = own(project, epochs=3), parts_of(data_of(toy), section(project))
    straight, first, second = (of(parts, params, 1).trainer for _ in range(3))
    for _ in range(3):
        straight.run_epoch()
    first.run_epoch()
    first.save(tmp_path)
    second.resume(tmp_path)
    for _ in range(2):
        second.run_epoch()
    figures = [[{**each, "targets_per_s": 0} for each in one.epochs] for one in (straight, second)]
    assert figures[0] == figures[1]
    for name, value in straight.best.items():
        assert torch.equal(value, second.best[name]), name
        assert torch.equal(straight.model.state_dict()[name], second.model.state_dict()[name]), name


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "own", "uneven"),
    [(Course, section, {"segments": 3}), (query_mlp.Course, linear, {"batch_size": 63})],
)
def test_two_workers_learn_what_one_does(
    project: Path,
    tmp_path: Path,
    ray_cluster: None,
    of: type[Any],
    own: Callable[..., Any],
    uneven: dict[str, int],
) -> None:
    """Without dropout the sum of their gradients is one worker's, but for the order of sums."""
    params = own(project, dropout=0.0, workers=2, **uneven)  # one has more of a step
    table = toy_world.bottleneck_table("t", 9, seed=3, swing_ms=40, episodes=True)
    world(tmp_path, table, events=params.reach)
    said: list[dict[str, Any]] = []
    both = pretrain(data_of(tmp_path), params, of, said.append)
    one, epochs = trained(tmp_path, params, of)
    assert [each["epoch"] for each in said] == [1, 2]
    assert said == both.epochs
    for mine, theirs in zip(epochs, said, strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-3)
        assert theirs["validation_log_mse"] == pytest.approx(mine["validation_log_mse"], rel=1e-2)
    for name, value in one.state_dict().items():
        torch.testing.assert_close(both.model.state_dict()[name], value, rtol=1e-2, atol=1e-3)
    assert both.checkpoints is not None
    assert both.checkpoints.is_dir()  # the stage removes it


def test_only_the_head_is_tuned(toy: Path) -> None:
    before = artifact.load(toy / "pretrained").model
    after = artifact.load(toy / "finetuned" / "t" / "round-1").model
    for name, value in before.encoder_state().items():
        assert (value == after.encoder_state()[name]).all(), name
    assert (before.head[2].weight != after.head[2].weight).any()  # type: ignore[index]


def test_evaluation_has_it_beside_the_baselines(toy: Path) -> None:
    """Trees get the new inputs as well; no figure is NaN."""
    params = evaluate_stage.EvaluateParams(seed=1, xgboost_rounds=5, false_alarm_rate=0.01)
    paths = {name: toy / name for name in ("windows", "pretrained", "finetuned")}
    metrics, predictions = evaluate_stage.evaluate(params, PAPERS, split=toy / "split.json", **paths)
    text = json.dumps(metrics, allow_nan=False)
    assert '"finetuned"' in text
    assert {"finetuned", "xgboost", "last_flow"} <= set(predictions[0].us_BH)
    ours, last = (metrics["all"][name]["acked"]["error"]["mae_ms"] for name in ("finetuned", "last_flow"))
    assert ours < 1.2 * last


def test_the_gate_compares_versions_of_both_architectures_on_packets(toy: Path, tmp_path: Path) -> None:
    """What judges is the same whichever windows the stages made, and so is each version's forecast."""
    events = load_windows(toy / "windows", toy / "split.json")
    table = pl.read_parquet(sorted((toy / "packets").rglob("*.parquet")))
    windows = world(tmp_path, table, events=None)
    toy_world.write_artifacts(tmp_path)
    of_events = artifact.load(toy / "finetuned" / "t" / "round-1")
    of_windows = artifact.load(tmp_path / "finetuned" / "t" / "round-1")
    assert of_windows.description.schema_hash == WINDOW.schema_hash
    judging_B = register_stage.judging(events, "t")
    np.testing.assert_array_equal(judging_B, register_stage.judging(windows, "t"))
    held = [register_stage.held_out_slices(each, "t", judging_B)[0] for each in (events, windows)]
    np.testing.assert_array_equal(held[0].last_N, held[1].last_N)
    naive = [gate.score_naive(each, 1e4) for each in held]
    assert {k: v.figures for k, v in naive[0].items()} == {k: v.figures for k, v in naive[1].items()}
    for found in (of_events, of_windows):
        first, second = (
            register_stage.predictions(found, each, "t", toy / "packets", judging_B)
            for each in (events, windows)
        )
        np.testing.assert_array_equal(first, second)
        own = events if found is of_events else windows
        np.testing.assert_array_equal(first, predict(found.model, own.traces["t"].x_BWF[judging_B]))


def test_an_artifact_of_another_architecture_is_refused_in_one_line(toy: Path, tmp_path: Path) -> None:
    windows = world(tmp_path, toy_world.bottleneck_table("t", 9, seed=3), events=None)
    with pytest.raises(ValueError, match=r"made for features .*, but this code computes"):
        artifact.load(toy / "pretrained", windows.schema_hash)


def test_windows_of_another_definition_or_band_are_not_trained_on(
    toy: Path, tmp_path: Path, project: Path
) -> None:
    line = "the windows are not of its .* rows; run the stages `windows` and `split` again"
    world(tmp_path, toy_world.bottleneck_table("t", 9, seed=3), events=None)
    for folder, params in ((toy, section(project, band=128)), (tmp_path, section(project))):
        with pytest.raises(ValueError, match=line):
            pretrain(data_of(folder), params, Course, print)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("constant latency", {"latency_us": pl.lit(2e4, pl.Float32)}),
        ("one flow", {"flow_id": pl.lit(0, pl.Int32), "receiver_id": pl.lit(0, pl.Int32)}),
        ("most unknown", {"latency_us": pl.when(pl.col("packet") % 100 == 0).then("latency_us")}),
    ],
)
def test_odd_traces_give_a_defined_result(
    what: str, change: dict[str, pl.Expr], tmp_path: Path, project: Path
) -> None:
    """Constant latency: no packet is late. 99 % unknown: what is known teaches. No NaN anywhere."""
    table = toy_world.bottleneck_table("t", 9, seed=3, swing_ms=40, episodes=True).with_columns(**change)
    windows = world(tmp_path, table)
    model, _ = trained(tmp_path, section(project, epochs=1))
    artifact.save(tmp_path / "pretrained", model, described(windows))
    walked(tmp_path / "finetuned", windows, artifact.load(tmp_path / "pretrained"))
    params = evaluate_stage.EvaluateParams(seed=1, xgboost_rounds=2, false_alarm_rate=0.01)
    paths = {name: tmp_path / name for name in ("windows", "pretrained", "finetuned")}
    metrics, _ = evaluate_stage.evaluate(params, PAPERS, split=tmp_path / "split.json", **paths)
    json.dumps(metrics, allow_nan=False)
    figures = metrics["all"]["finetuned"]["acked"]
    assert figures["error"]["mae_ms"] is not None
    if what == "constant latency":
        assert figures["late"]["average_precision"] is None
        assert figures["error"]["mae_ms"] < 2


def test_no_known_latency_is_one_clear_line(tmp_path: Path, project: Path) -> None:
    table = toy_world.bottleneck_table("t", 9, seed=3)
    early = pl.col("sent_ns") < table["sent_ns"][0] + int(PROTOCOL.pretrain_s * 1e9)
    blind = table.with_columns(latency_us=pl.when(~early).then("latency_us"))
    world(tmp_path, blind)
    with pytest.raises(ValueError, match=r"no known latency|no latency is known"):
        trained(tmp_path, section(project))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"architecture": {"name": "lstm"}}, "architecture.name is 'lstm'; it must be .*event-stream"),
        ({"architecture": {"name": "event-stream"}}, "section `event-stream` is missing"),
        ({"event-stream": {"layers": 17}}, "event-stream.layers is 17"),
        ({"event-stream": {"band": 65}}, "event-stream.band is 65; it must be .* a multiple of 64"),
        ({"event-stream": {"bands": 64}}, "unknown parameter event-stream.bands; did you mean band?"),
        ({"event-stream": {"served_level": 0.9}}, "is 0.9; it must be null or one of quantiles: none"),
        (
            {"event-stream": {"quantiles": [0.5, 0.9], "served_level": 0.99}},
            "event-stream.served_level is 0.99; it must be null or one of quantiles: 0.5, 0.9$",
        ),
        (
            {"event-stream": {"calibration": "split"}},
            "event-stream.calibration is 'split'; it must be null where there are no quantiles",
        ),
        (
            {"event-stream": {"quantiles": [0.5, 0.9], "calibration": "online"}},
            "event-stream.calibration is 'online'; it must be",
        ),
    ],
)
def test_an_unknown_name_or_size_is_one_clear_line(
    tmp_path: Path, project: Path, sections: dict[str, dict[str, object]], message: str
) -> None:
    own = yaml.safe_load((project / "params.yaml").read_text())
    given = {"architecture": {"name": "event-stream"}}
    if "event-stream" in sections:
        given["event-stream"] = {**own["event-stream"], **sections["event-stream"]}
    else:
        given |= sections
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(given))
    with pytest.raises(ValueError, match=message) as refused:
        chosen(tmp_path / "params.yaml").tokens(tmp_path / "params.yaml")
    assert len(str(refused.value).splitlines()) == 1


def test_parameters_without_a_choice_mean_the_window_and_ours_the_event_stream(
    tmp_path: Path, project: Path
) -> None:
    old, own = tmp_path / "params.yaml", project / "params.yaml"
    old.write_text(yaml.safe_dump({"windows": WINDOWS}))
    assert (chosen(old).name, chosen(old).tokens(old)) == ("window", None)
    assert (chosen(own).name, chosen(own).tokens(own)) == ("event-stream", 128 + 8)


@pytest.mark.slow
@pytest.mark.skipif(not mutants.ALL, reason="minutes: make test-all")
def test_the_programs_of_all_stages_run_through_with_it(tmp_path: Path, project: Path) -> None:
    """From packets to a registered version, each stage as DVC starts it."""
    own = yaml.safe_load((project / "params.yaml").read_text())
    quick = section(project, width=64, feed_forward=128).model_dump()
    params = {
        **own,
        "architecture": {"name": "event-stream"},
        "event-stream": quick,
        "windows": {**own["windows"], "visibility": ["acked"]},
        "extract": {"traces": {"t": {"file": "t.pcap", "sender": None, "latency": "acks"}}},
        "split": {"protocol": "short"},
        "validate": {**own["validate"], "max_shift_psi": 100},
        "register": {**own["register"], "trace": "t"},
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    toy_world.write_table(
        tmp_path / "packets", toy_world.bottleneck_table("t", 9, seed=3, swing_ms=40, episodes=True)
    )
    environment = {**os.environ, "SWIFTQUEUE_STATE": str(tmp_path / "var"), "RAY_ADDRESS": ""}

    def stage(name: str, output: str, *inputs: str) -> str:
        command = [sys.executable, "-m", f"pipelines.{name}", "--params", str(tmp_path / "params.yaml")]
        for each in inputs:
            command += [f"--{each}", str(tmp_path / each)]
        done = subprocess.run(
            [*command, "--output", str(tmp_path / output)],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{name}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    assert "windows of 136 tokens" in stage("windows", "windows", "packets")
    stage("split", "split", "windows")
    assert "expectations met" in stage("validate", "validation", "packets", "windows", "split")
    said = stage("pretrain", "pretrained", "packets", "windows", "split")
    assert "event-stream, 2 Ray Train workers" in said
    epochs = pl.read_csv(tmp_path / "pretrained" / "epochs.csv")
    assert {"epoch", "loss", "validation_log_mse"} <= set(epochs.columns)
    stage("finetune", "finetuned", "windows", "split", "pretrained")
    stage("evaluate", "evaluation", "windows", "split", "pretrained", "finetuned")
    said = stage("register", "registered.json", "packets", "windows", "split", "finetuned", "evaluation")
    assert "passed the gate: no champion yet" in said
    registered = json.loads((tmp_path / "registered.json").read_text())
    assert registered["gate"]["figures"]["challenger"]["log_mae"] > 0
