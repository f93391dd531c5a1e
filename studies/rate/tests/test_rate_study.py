"""The study: baselines, scores, intervals, and the command and stages around them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rate_flows import write_flows
from typer.testing import CliRunner

from swiftqueue.cli.app import app
from swiftqueue.studies.rate.model import networks, predictors
from swiftqueue.studies.rate.model.flows import Flows, load, split
from swiftqueue.studies.rate.model.study import Score, cell, scores_alone, summary
from swiftqueue.studies.rate.results import published as rates
from swiftqueue.studies.rate.results.pages import drawn as drawn_pages
from swiftqueue.studies.rate.results.pages import tables
from swiftqueue.studies.rate.stages.evaluate import RateEvaluateParams, evaluate
from swiftqueue.studies.rate.stages.train import RateTrainParams, train_all

SMALL = {
    "seeds": [1, 2], "epochs": 2, "batch_size": 16, "lstm_units": 8, "width": 8, "layers": 1, "heads": 2,
    "dropout": 0.0, "learning_rate": 2e-3, "fields": [], "pairs": [[5, 2000]],
}  # fmt: skip


def test_the_best_constant_is_the_best_of_all() -> None:
    y = np.random.default_rng(1).lognormal(10, 2, 301)
    best = predictors.best_constant(y)
    errors = [np.abs(c / y - 1).mean() for c in y]
    assert np.abs(best / y - 1).mean() == pytest.approx(min(errors))


@pytest.mark.slow
def test_rules_that_see_the_path_forecast_it(tmp_path: Path) -> None:
    write_flows(tmp_path, train=10, flows=16)
    every = load(tmp_path)
    divided = split(every, 1)
    errors = {}
    for name, fit in predictors.baselines(20).items():
        rates_NH = fit(divided.train, every, 5, 1)(divided.held_out)
        assert rates_NH.shape == (len(divided.held_out), 6)
        errors[name] = np.abs(rates_NH / divided.held_out.y_NH - 1).mean(0)
    assert errors["dispersion"][-1] < 0.05  # by construction: at packet 2000 every path is full
    assert errors["dispersion"][0] > errors["capped-dispersion"][0]
    assert errors["last-estimate"][-1] > 0.5  # it is n packets a round trip
    assert errors["previous-flow"][-1] < 0.15
    assert errors["xgboost"][-1] < errors["constant"][-1]
    assert errors["mlp"][-1] < errors["constant"][-1]


def test_the_previous_flow_is_one_that_had_come_so_far(tmp_path: Path) -> None:
    write_flows(tmp_path, train=1, held_out=1, flows=6)
    every = load(tmp_path)
    own = every.take(~every.held_out_N)
    found = predictors.previous_flow(own, every, 5, 1)(own)
    assert (found[2:] == own.y_NH[:-2]).all()  # two receivers in turn
    assert (found[:2] == predictors.dispersion(own, every, 5, 1)(own)[:2]).all()
    late = own.at_NH + 1e13  # whatever was reached, it was later than all
    unknown = predictors.Flows(**vars(every) | {"at_NH": np.concatenate([late, late])})
    alone = predictors.previous_flow(own, unknown, 5, 1)(own)
    assert (alone == predictors.dispersion(own, every, 5, 1)(own)).all()


def test_intervals_are_students() -> None:
    found = cell([1.0, 2.0, 3.0])
    assert (found["mean"], found["n"]) == (2.0, 3)
    assert found["high"] - 2 == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert cell([1.0])["low"] is None


def scored(ours: list[float], theirs: list[float]) -> list[Score]:
    names = ("transformer", "last-estimate", "min-rtt", "linear")
    return [
        Score(name, part, n, k, seed, 10, (ours if name == "transformer" else theirs)[seed], 0.1, 0.5)
        for name in names
        for part in ("seen", "held_out")
        for n in (5, 15, 35)
        for k in (62, 125, 250, 500, 1000, 2000)
        for seed in range(len(ours))
    ]


def test_one_seed_settles_nothing_and_agreeing_seeds_do() -> None:
    settled = summary(scored([0.2, 0.21, 0.22], [0.5, 0.52, 0.53]))["headline"]["held_out"]
    assert settled["reached"]
    assert all(settled["settled_better_than"].values())
    alone = summary(scored([0.2], [0.5]))["headline"]["held_out"]
    assert not any(alone["settled_better_than"].values())
    spread = summary(scored([0.2, 0.6, 0.5], [0.5, 0.52, 0.53]))["headline"]["held_out"]
    assert not spread["reached"]
    assert not any(spread["settled_better_than"].values())


@pytest.mark.long
def test_a_pair_that_no_flow_has_is_named(tmp_path: Path) -> None:
    write_flows(tmp_path, train=2, held_out=1, flows=6)
    divided = split(load(tmp_path), 1)
    sizes: dict[str, object] = {"units": 4}
    how = {"epochs": 1, "batch_size": 8, "learning_rate": 2e-3}
    network, _ = networks.train("lstm", divided.train, divided.valid, sizes, 1, **how, say=lambda _line: None)
    assert len(scores_alone(divided, {(5, 2000): network}, 1)) == 2
    never = Flows(**vars(divided.held_out) | {"y_NH": np.full_like(divided.held_out.y_NH, np.nan)})
    with pytest.raises(ValueError, match="no flow of the held-out paths has 5 samples and a rate at 2000"):
        scores_alone(replace(divided, held_out=never), {(5, 2000): network}, 1)


@pytest.mark.long
@pytest.mark.slow
def test_the_study_goes_on_where_it_was_stopped(tmp_path: Path, project: Path) -> None:
    flows, models = tmp_path / "flows", tmp_path / "models"
    write_flows(flows, train=8)
    said: list[str] = []
    params = RateTrainParams(**SMALL)  # type: ignore[arg-type]
    made = train_all(params, flows, models, said.append)
    kinds = ("lstm", "transformer", "lstm-5-2000")
    assert [folder.name for folder in made] == [f"{kind}-{seed}" for seed in (1, 2) for kind in kinds]
    said.clear()
    train_all(params, flows, models, said.append)
    assert all(line.endswith("is there") for line in said)
    found = evaluate(RateEvaluateParams(xgboost_rounds=5), flows, made)
    assert found["seeds"] == [1, 2]
    assert set(found["grid"]) == {"lstm", "transformer", *predictors.baselines(1)}
    assert len(found["grid"]["lstm"]["held_out"]) == 18
    alone = found["alone"]["5-2000"]["held_out"]
    assert alone["all"] == {key: found["grid"]["lstm"]["held_out"]["5-2000"][key] for key in alone["all"]}
    assert alone["difference"]["mean"] == pytest.approx(alone["alone"]["mean"] - alone["all"]["mean"])
    assert alone["difference"]["mean"] != 0

    # published, and drawn
    study = tmp_path / "study.json"
    for fields in ([], ["ts", "rtt"], ["ts"], ["ts", "rtt"]):
        study.write_text(json.dumps(found | {"fields": fields}))
        (tmp_path / rates.FILE).parent.mkdir(parents=True, exist_ok=True)
        rates.take(study, tmp_path)
    drawn = tables(rates.load(tmp_path))
    assert any("**Transformer (ours)**" in line for line in drawn["rate-headline"]())
    for told in ("all", "`ts`, `rtt`", "`ts`"):
        assert sum(f"| {told} |" in line for line in drawn["rate-fields"]()) == 2
    head = "| ours, all | ours, `ts`, `rtt` | ours, `ts` | LSTM, all |"
    assert any(head in line for line in drawn["rate-pairs"]())
    assert sum(line.startswith("From ") for line in drawn["rate-held_out"]()) == 3
    assert any(line.startswith("| 5 to 2000 | held-out |") for line in drawn["rate-alone"]())
    assert found["source"] == "ns3"
    for wrong in ({"source": "added"}, {"source": "kernel", "fields": ["ts"]}):
        study.write_text(json.dumps(found | wrong))
        with pytest.raises(ValueError, match=rf"its flows are of source {wrong['source']}; there is a page"):
            rates.take(study, tmp_path)
    study.write_text("{}")
    with pytest.raises(ValueError, match=r"study\.json is no study\.json of `swiftqueue rate study`: alone"):
        rates.take(study, tmp_path)
    assert tables({})["rate-headline"]()[0].startswith("Nothing is published yet: ")

    shutil.rmtree(flows / "path=p0")  # other flows than the networks'
    with pytest.raises(ValueError, match="lstm-1 was trained on other flows than"):
        evaluate(RateEvaluateParams(xgboost_rounds=5), flows, made)


@pytest.mark.long
@pytest.mark.slow
def test_the_command_prints_one_object_or_one_line(tmp_path: Path) -> None:
    write_flows(tmp_path / "flows", short=2)
    (tmp_path / "params.yaml").write_text(
        json.dumps({"rate_train": SMALL | {"seeds": [3]}, "rate_evaluate": {"xgboost_rounds": 3}})
    )
    where = [str(tmp_path / "flows"), "-o", str(tmp_path / "out"), "--params", str(tmp_path / "params.yaml")]
    ran = CliRunner().invoke(app, ["rate", "study", *where, "--seeds", "1", "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["headline"]["pair"] == "5-2000"
    assert json.loads((tmp_path / "out" / "study.json").read_text())["seeds"] == [1]
    nothing = CliRunner().invoke(app, ["rate", "study", str(tmp_path / "none"), *where[1:]])
    assert nothing.exit_code != 0
    assert "no flows under" in str(nothing.exception)


def test_every_page_and_picture_is_drawn_from_the_data(project: Path) -> None:
    for path, content in drawn_pages(project).items():
        assert (project / path).read_bytes() == content, f"{path}; to draw it: swiftqueue rate results"
