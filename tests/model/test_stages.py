"""The stages work with any forecaster: split, training, heads, evaluation, gate, bad input."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mutants
import numpy as np
import polars as pl
import pytest
import torch
import toy_world
import yaml
from mlflow import MlflowClient

from swiftqueue.models.event_stream.parameters import EventStreamParams
from swiftqueue.models.event_stream.training import EventStreamCourse
from swiftqueue.models.forecasters import forecaster as door
from swiftqueue.models.forecasters.forecaster import Variant, candidates, kind_named
from swiftqueue.models.forecasters.jobs import StageData, pretrain
from swiftqueue.models.forecasters.traces import Trace, lessons
from swiftqueue.models.forecasters.walk import tune_heads
from swiftqueue.models.mlp.parameters import MlpParams
from swiftqueue.models.mlp.training import MlpCourse
from swiftqueue.models.registry import gate
from swiftqueue.models.sharp import PAPERS
from swiftqueue.pipelines import evaluate as evaluate_stage
from swiftqueue.pipelines import register as register_stage

PROTOCOL = toy_world.PROTOCOL


def section(project: Path, **changes: object) -> EventStreamParams:
    own = yaml.safe_load((project / "params.yaml").read_text())["event-stream"]
    quick = {"epochs": 2, "segments": 2, "segment_events": 128, "width": 16, "feed_forward": 32}
    return EventStreamParams(**{**own, **quick, **changes})


def linear(project: Path, **changes: object) -> MlpParams:
    own = yaml.safe_load((project / "params.yaml").read_text())["mlp"]
    return MlpParams(**{**own, "epochs": 2, "width": 16, **changes})


def world(folder: Path, table: pl.DataFrame) -> StageData:
    """Write the packets and the division of one trace."""
    toy_world.write_traces(folder, [table])
    return StageData(folder / "packets", folder / "split.json", folder / "var", PAPERS)


def only(data: StageData) -> Trace:
    (trace,) = data.traces().values()
    return trace


def walked(data: StageData, folder: Path, variant: Variant) -> dict[int, door.Forecaster]:
    """Do the work of the stages `pretrain` and `finetune` in this process, and return the heads."""
    base = variant.fit(lessons([only(data)]), 1)
    door.save(folder / "pretrained", base)

    def keep(k: int, _: door.Forecaster, head: door.Forecaster) -> None:
        door.save(folder / "finetuned" / "t" / f"round-{k}", head)

    return tune_heads(door.load(folder / "pretrained"), only(data), toy_world.TUNING, keep)


def evaluated(data: StageData, folder: Path, rounds: int = 5) -> tuple[dict[str, Any], list[Any]]:
    params = evaluate_stage.EvaluateParams(seed=1, xgboost_rounds=rounds, false_alarm_rate=0.01)
    paths = {name: folder / name for name in ("pretrained", "finetuned")}
    return evaluate_stage.evaluate(params, PAPERS, packets=data.packets, split=data.split, **paths)


@pytest.fixture(scope="module")
def table() -> pl.DataFrame:
    return toy_world.bottleneck_table("t", 9, seed=3, swing_ms=40, episodes=True)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory, project: Path, table: pl.DataFrame) -> Path:
    """Return a folder with everything up to the fine-tuned heads."""
    folder = tmp_path_factory.mktemp("events")
    data = world(folder, table)
    walked(data, folder, Variant("event-stream", kind_named("event-stream"), section(project)))
    return folder


def data_of(folder: Path) -> StageData:
    return StageData(folder / "packets", folder / "split.json", folder / "var", PAPERS)


@pytest.mark.parametrize(("of", "own"), [(EventStreamCourse, section), (MlpCourse, linear)])
def test_a_resumed_training_ends_with_the_same_bits(
    toy: Path, project: Path, tmp_path: Path, of: Any, own: Any
) -> None:
    params, parts = own(project, epochs=3), lessons([only(data_of(toy))])
    straight, first, second = (of(parts, params, 1).trainer for _ in range(3))
    for _ in range(3):
        straight.run_epoch()
    first.run_epoch()
    first.save(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}
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
    ("name", "own", "uneven"),
    [("event-stream", section, {"segments": 3}), ("mlp", linear, {"batch_size": 63})],
)
def test_two_workers_learn_what_one_does(
    project: Path,
    tmp_path: Path,
    ray_cluster: None,
    table: pl.DataFrame,
    name: str,
    own: Any,
    uneven: dict[str, int],
) -> None:
    """Without dropout the sum of their gradients is one worker's, but for the order of sums."""
    params = own(project, dropout=0.0, workers=2, **uneven)  # one has more of a step
    variant, data = Variant(name, kind_named(name), params), world(tmp_path, table)
    said: list[dict[str, Any]] = []
    both = pretrain(data, variant, print, said.append)
    course = variant.kind.course()(lessons([only(data)]), params, params.seed)
    course.trainer.run(print)
    assert [each["epoch"] for each in said] == [1, 2]
    assert said == both.epochs
    for mine, theirs in zip(course.trainer.epochs, said, strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-3)
        assert theirs["validation_log_mse"] == pytest.approx(mine["validation_log_mse"], rel=1e-2)
    found: Any = both.forecaster
    for weight, value in course.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[weight], value, rtol=1e-2, atol=1e-3)
    assert found.protocol["name"] == PROTOCOL.name
    assert both.checkpoints is not None
    assert both.checkpoints.is_dir()  # the stage removes it


def test_what_is_no_network_is_fitted_without_ray(toy: Path, project: Path) -> None:
    own = yaml.safe_load((project / "params.yaml").read_text())["trees"]
    kind = kind_named("trees")
    trained = pretrain(data_of(toy), Variant("trees", kind, kind.Params(**own | {"rounds": 3})), print)
    assert (trained.epochs, trained.checkpoints) == ([], None)
    assert trained.forecaster.predict(only(data_of(toy)).to_predict(only(data_of(toy)).slices.pretrain)).all()


def test_only_the_head_is_tuned(toy: Path) -> None:
    before: Any = door.load(toy / "pretrained")
    after: Any = door.load(toy / "finetuned" / "t" / "round-1")
    assert before.same_but_head(after)
    assert (before.model.head[2].weight != after.model.head[2].weight).any()


def test_evaluation_has_it_beside_the_baselines(toy: Path) -> None:
    """No figure is NaN."""
    metrics, predictions = evaluated(data_of(toy), toy)
    json.dumps(metrics, allow_nan=False)
    assert {"finetuned", "xgboost", "last_flow"} <= set(predictions[0].us_BH)
    ours, last = (metrics["all"][name]["acked"]["error"]["mae_ms"] for name in ("finetuned", "last_flow"))
    assert ours < 1.2 * last


def test_one_walk_gives_the_stage_and_the_comparison_the_same_forecasts(toy: Path) -> None:
    """The same lines compute the forecasts that `evaluate` and `swiftqueue forecasts` score."""
    from swiftqueue.models.forecasters.walk import FORMS, forecasts

    trace = only(data_of(toy))
    heads = evaluate_stage.heads_of(door.load(toy / "pretrained"), toy / "finetuned", trace)
    said = forecasts(heads, trace, round_s=60.0)
    _, (predicted,) = evaluated(data_of(toy), toy)
    assert set(said) == set(FORMS)
    for form, method in (("at_once", "finetuned_at_once"), ("pretrained", "pretrained")):
        np.testing.assert_array_equal(said[form].us_BH, predicted.us_BH[method])
    late = np.concatenate([trace.to_predict(each.test).latencies_us() for each in trace.slices.rounds])
    np.testing.assert_array_equal(late.astype(np.float64), predicted.y_BH)


@pytest.mark.parametrize("kind", ["event-stream", "mlp", "trees", "virtual-queue", "repeated"])
def test_the_gate_compares_versions_of_any_kind_on_packets(toy: Path, project: Path, kind: str) -> None:
    """Trees and rules pass the same gate; a rule cannot be served."""
    trace = only(data_of(toy))
    own = yaml.safe_load((project / "params.yaml").read_text())
    sizes: dict[str, Any] = {
        "event-stream": section(project).model_dump(),
        "mlp": linear(project).model_dump(),
        "trees": own["trees"] | {"rounds": 5},
        "virtual-queue": {"rates": "fitted"},
        "repeated": {"input": "last_latency_flow_us"},
    }
    made = kind_named(kind).fit(lessons([trace]), kind_named(kind).Params(**sizes[kind]), 1, print)
    judging_B = register_stage.judging(trace)
    held_out, otherwise_us = register_stage.held_out_slices(trace, judging_B)
    champion = door.load(toy / "finetuned" / "t" / "round-1")
    scored = [
        gate.score(register_stage.predictions(each, trace, judging_B), held_out) for each in (made, champion)
    ]
    verdict = gate.judge(scored[0], scored[1], gate.score_naive(held_out, otherwise_us), "")
    assert verdict.reason
    assert all(np.isfinite(each.figures.log_mae) for each in scored if each.figures.log_mae is not None)
    whole = made.predict(trace.to_predict(register_stage.Slice(0, trace.packets.height // 8)))
    np.testing.assert_array_equal(
        register_stage.predictions(made, trace, judging_B), whole[judging_B].astype(np.float32)
    )
    if kind in ("virtual-queue", "repeated"):
        with pytest.raises(ValueError, match=f"^{kind} has no form that Triton serves; .* mlp, trees$"):
            made.export(toy)


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
    what: str, change: dict[str, pl.Expr], tmp_path: Path, project: Path, table: pl.DataFrame
) -> None:
    """Constant latency: no packet is late. 99 % unknown: what is known teaches. No NaN anywhere."""
    data = world(tmp_path, table.with_columns(**change))
    walked(data, tmp_path, Variant("event-stream", kind_named("event-stream"), section(project, epochs=1)))
    metrics, _ = evaluated(data, tmp_path, rounds=2)
    json.dumps(metrics, allow_nan=False)
    figures = metrics["all"]["finetuned"]["acked"]
    assert figures["error"]["mae_ms"] is not None
    if what == "constant latency":
        assert figures["late"]["average_precision"] is None
        assert figures["error"]["mae_ms"] < 2


def test_no_known_latency_is_one_clear_line(tmp_path: Path, project: Path) -> None:
    from swiftqueue.pipelines.split import SplitParams, split

    table = toy_world.bottleneck_table("t", 9, seed=3)
    early = pl.col("sent_ns") < table["sent_ns"][0] + int(PROTOCOL.pretrain_s * 1e9)
    data = world(tmp_path, table.with_columns(latency_us=pl.when(~early).then("latency_us")))
    with pytest.raises(ValueError, match=r"no known latency|no latency is known"):
        EventStreamCourse(lessons([only(data)]), section(project), 1)
    with pytest.raises(ValueError, match=r"^trace t: no latency is known in the time to train on$"):
        split(SplitParams(protocol="short"), data.packets)


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        (None, "no such file; run the stage `split` first"),
        ("{", "split.json"),
        ('{"traces": {"t": {}}}', r"malformed \(KeyError: .*\); run the stage `split` again"),
        ('{"traces": {"gone": {}}}', "no packet table of trace 'gone'"),
    ],
)
def test_a_division_that_does_not_fit_is_one_clear_line(
    toy: Path, tmp_path: Path, broken: str | None, line: str
) -> None:
    split = tmp_path / "split.json"
    if broken is not None:
        split.write_text(broken)
    with pytest.raises((ValueError, FileNotFoundError), match=line) as refused:
        StageData(toy / "packets", split, tmp_path, PAPERS).traces()
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"architecture": {"name": "lstm"}}, "architecture.name is 'lstm'; it must be .*event-stream"),
        ({"event-stream": {}, "architecture": {}}, "parameter architecture.name is missing"),
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
    given |= {name: values for name, values in sections.items() if name != "event-stream"}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(given))
    with pytest.raises(ValueError, match=message) as refused:
        candidates(tmp_path / "params.yaml")
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.slow
@pytest.mark.skipif(not mutants.ALL, reason="minutes: make test-all")
@pytest.mark.parametrize("name", ["event-stream", "mlp", "auto"])
def test_the_programs_of_all_stages_run_through_with_it(name: str, tmp_path: Path, project: Path) -> None:
    """From packets to a registered version, each stage as DVC starts it."""
    own = yaml.safe_load((project / "params.yaml").read_text())
    quick = section(project) if name == "event-stream" else linear(project)
    params = {
        **own,
        "architecture": {"name": name},
        **({} if name == "auto" else {name: quick.model_dump()}),
        "auto": {"candidates": ["trees", "virtual-queue"], "steps": 2, "workers": 2},
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
        command = [
            sys.executable,
            "-m",
            f"swiftqueue.pipelines.{name}",
            "--params",
            str(tmp_path / "params.yaml"),
        ]
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

    assert "rounds of short" in stage("split", "split", "packets")
    assert "expectations met" in stage("validate", "validation", "packets", "split")
    said = stage("pretrain", "pretrained", "packets", "split")
    assert f"pretrain: {name.replace('auto', 'trees')} on 1 trace\n" in said
    if name == "auto":
        choice = json.loads((tmp_path / "pretrained" / "choice.json").read_text())
        assert (choice["chosen"], set(choice["candidates"])) == ("trees", {"trees", "virtual-queue"})
        assert f"auto: {choice['why']}" in said
        assert re.search(r"^auto: the choice took \d+ s, the training \d+ s$", said, re.M)
    epochs = pl.read_csv(tmp_path / "pretrained" / "epochs.csv")
    assert name == "auto" or {"epoch", "loss", "validation_log_mse"} <= set(epochs.columns)
    stage("finetune", "finetuned", "packets", "split", "pretrained")
    stage("evaluate", "evaluation", "packets", "split", "pretrained", "finetuned")
    if name == "auto":
        assert (
            f"<code>auto</code> {html.escape(choice['why'])}"
            in (tmp_path / "evaluation/report/report.html").read_text()
        )
        client = MlflowClient(f"sqlite:///{tmp_path}/var/mlflow/mlflow.db")
        where = client.get_experiment_by_name("swiftqueue-training").experiment_id
        runs = client.search_runs([where], "tags.architecture = 'auto:trees'")
        assert {run.info.run_name for run in runs} == {
            f"{each} t auto:trees seed 1" for each in ("pretrain", "finetune", "evaluate")
        }
    said = stage("register", "registered.json", "packets", "split", "finetuned", "evaluation")
    assert "passed the gate: no champion yet" in said
    registered = json.loads((tmp_path / "registered.json").read_text())
    assert registered["gate"]["figures"]["challenger"]["log_mae"] > 0
