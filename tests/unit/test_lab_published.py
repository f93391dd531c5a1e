"""The laboratory's published results: they are found again, and gone on with."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import get_args

import polars as pl
import pytest

from swiftqueue.common.json_file import read_object
from swiftqueue.laboratory.learning.judged_models import model_at, models_by_profile, trees_at
from swiftqueue.laboratory.learning.train import settings
from swiftqueue.laboratory.runs import experience
from swiftqueue.laboratory.runs.canary import INSTEAD, ROUTERS, RUNGS, SCENARIO, canaries
from swiftqueue.laboratory.runs.programs import Equals
from swiftqueue.laboratory.runs.resolve import Cell, Model, control_of, identity, resolve
from swiftqueue.laboratory.runs.results import COMPLETE, KEY, load
from swiftqueue.laboratory.scenarios.controls import ControlSettings
from swiftqueue.laboratory.scenarios.files import environment_at, names, path_of
from swiftqueue.laboratory.scenarios.files import load as load_scenario
from swiftqueue.laboratory.scenarios.schema import PROFILES, Scenario
from swiftqueue.laboratory.scenarios.traffic import Group

WINDOW_MODELS = {  # content of those of docs/laboratory/models/figure8 in commit ebbf31e4
    "rfc9332": "654094badddfa231b611c4dd6eb1b6e6243d45975cf1fcf2d309333a934a5378",
    "uncoupled": "8afee80f713a5c16c331b3ad2c7bebb5d39fe74b8fc23cc67f21aca5cc5734f0",
}


UPLINKS = tuple(f"uplinks-{name}" for name in ("equal", "periodic", "unequal", "varying"))


@cache
def scenario_of(name: str) -> Scenario:
    return load_scenario(path_of(name))


@pytest.fixture(scope="module")
def published(project: Path) -> Path:
    return project / "docs" / "laboratory"


@pytest.mark.slow
def test_published_runs_are_known_by_their_hashes(published: Path) -> None:
    """What is resolved today has the hash under which it was published: one seed of each place and control.

    Not so where a head is tuned during the run, by code that has changed since, and not to be seen where
    packet tables are replayed.
    """
    replays = pl.col("parameters").str.contains(r'"kind": "replay"')
    is_here = pl.col("scenario").is_in(names())  # others: commit 90f01641 has their scenarios
    rows = load(published).filter(pl.col("status") == COMPLETE, ~replays, is_here)
    places = rows.unique(KEY[:4], keep="first", maintain_order=True)
    unknown = set()
    for row in places.iter_rows(named=True):
        name, ran = row["scenario"], json.loads(row["parameters"])
        scenario = scenario_of(name).model_copy(update={"seconds": row["seconds"]})
        control = control_of(
            environment_at(scenario, row["point"], name),
            row["control"],
            model=Model(Path(), row["artifact"]) if row["artifact"] else None,
            share=ran["control"].get("share", 0),
            record=ran["control"].get("by", {}).get("decisions", ""),
        )
        if "sums" not in ran["control"]:  # the engine's former order of sums: published before d6730baf
            control.pop("sums", None)
        cell = Cell(name, row["point"], row["at"], row["profile"], row["control"], row["seed"])
        if identity(resolve(scenario, cell, control, []), Equals.load().programs[0]) != row["run"]:
            unknown.add((name, row["control"]))
    assert unknown == {("figure8-finetuned", "model")}
    assert len(places) > 300


def test_published_runs_have_the_name_of_what_they_ran(published: Path) -> None:
    """Each row is found again by what it says that it ran, under the program's name in the list."""
    rows = load(published).filter(pl.col("status") == COMPLETE)
    assert set(rows["program"]) == {Equals.load().programs[0]}
    for run, program, parameters in rows.select("run", "program", "parameters").rows():
        assert identity(json.loads(parameters), program) == run


@pytest.mark.slow
@pytest.mark.parametrize("study", ["confucius", "who_picks"])
def test_what_users_noticed_is_of_runs_that_are_known_and_of_one_length(project: Path, study: str) -> None:
    """The tables of pages and calls have rows of no result: one seed of each place and control."""
    data = project / "studies" / study / "data"
    if not data.is_dir():
        pytest.skip(f"the study {study} is not there")
    table = experience.load(data)
    assert table.group_by("scenario").agg(pl.col("seconds").n_unique())["seconds"].max() == 1
    unknown = set()
    told = pl.col("point").str.contains("; told ")  # which commit 90f01641 can run
    for row in table.filter(~told).unique(KEY[:4], keep="first", maintain_order=True).iter_rows(named=True):
        name = row["scenario"]
        scenario = scenario_of(name).model_copy(update={"seconds": row["seconds"]})
        environment = environment_at(scenario, row["point"], name)
        share = environment.controls.random.share or 0
        model = Model(Path(), WINDOW_MODELS[row["profile"]])
        control = control_of(environment, row["control"], model=model, share=share)
        control.pop("sums", None)  # as above
        cell = Cell(name, row["point"], None, row["profile"], row["control"], row["seed"])
        if identity(resolve(scenario, cell, control, []), Equals.load().programs[0]) != row["run"]:
            unknown.add((name, row["point"], row["control"]))
    assert not unknown


def test_the_list_of_equals_is_whole(tmp_path: Path) -> None:
    equals = Equals.load()
    every = len(load_scenario(SCENARIO).controls)
    one = len(RUNGS) + len(INSTEAD) + 3  # guarded, with another response, the model's decisions
    assert len(equals.canaries) == 2 * 2 * every + 2 * one + len(ROUTERS)  # points, profiles
    assert len(set(equals.programs)) == len(equals.programs)
    (tmp_path / "programs.json").write_text('{"programs": []')
    with pytest.raises(ValueError, match=r"programs\.json is damaged: restore it with git"):
        Equals.load(tmp_path / "programs.json")


def test_every_congestion_control_and_every_answer_to_moved_packets_has_a_canary() -> None:
    """A program whose Copa or GCC is another one must not go by the published one's name."""
    runs = [job.run for job in canaries().values()]
    groups = [group for run in runs for sender in run["senders"] for group in sender["groups"]]
    assert {group["tcp"] for group in groups} == {*get_args(Group.model_fields["tcp"].annotation)}
    answers = {run.get("moved_response", "scalable") for run in runs}
    assert answers == {*get_args(ControlSettings.model_fields["moved_response"].annotation)}
    assert {group.get("paced", "off") for group in groups} == {"on", "off"}


def test_the_network_that_is_served_has_a_canary() -> None:
    driven = {job.artifact for job in canaries().values()} - {None}
    kinds = {read_object(artifact / "model.json")["architecture"]["name"] for artifact in driven}
    assert kinds == {"event-stream"}


def test_rows_of_models_are_of_the_networks_over_windows_or_of_what_is_served(
    published: Path, tmp_path: Path
) -> None:
    judged = load(published).filter(pl.col("status") == COMPLETE, pl.col("control") == "model")
    models = models_by_profile(str(published / "models" / "figure8"), tmp_path)
    served = {profile: model.content for profile, model in models.items()}
    over_uplinks = pl.col("scenario").str.starts_with("uplinks-")
    for row in judged.filter(~over_uplinks).select("scenario", "profile", "artifact").unique().to_dicts():
        of_it = served if row["scenario"].startswith("fresh-") else WINDOW_MODELS
        assert row["artifact"] == of_it[row["profile"]], row["scenario"]


def test_rows_over_uplinks_are_of_the_models_beside_them(published: Path, tmp_path: Path) -> None:
    models = models_by_profile(str(published / "models" / "uplinks"), tmp_path)
    judged = load(published).filter(status=COMPLETE).filter(pl.col("scenario").str.starts_with("uplinks-"))
    learned = judged.drop_nulls("artifact").select("scenario", "control", "profile", "artifact").unique()
    for row in learned.to_dicts():
        found = {
            "model": model_at(models, "", row["profile"], row["scenario"]),
            "trees": trees_at(models, row["profile"], row["scenario"]),
        }
        assert (model := found[row["control"]]) is not None
        assert model.content == row["artifact"], row
    assert set(learned.filter(control="model")["scenario"]) == {*UPLINKS}


def test_training_makes_the_kind_of_model_that_was_judged(published: Path) -> None:
    params, _ = settings(load_scenario(path_of("figure8")), path_of("figure8"), "small", [])
    for profile in PROFILES:
        judged = read_object(published / "models" / "figure8" / profile / "model.json")["architecture"]
        assert params["architecture"]["name"] == judged.pop("name")
        assert judged.items() <= params["event-stream"].items()
