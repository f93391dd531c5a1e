"""The laboratory's published results: they are found again, and gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import polars as pl
import pytest

from laboratory.learning.judged_models import models_by_profile
from laboratory.learning.train import settings
from laboratory.runs.canary import GUARDS, INSTEAD, RESPONSES, ROUTERS, RUNGS, canaries
from laboratory.runs.programs import Equals
from laboratory.runs.resolve import cells, control_of, identity, resolve
from laboratory.runs.results import COMPLETE, load
from laboratory.scenarios.controls import CONTROLS, Settings
from laboratory.scenarios.files import load as load_scenario
from laboratory.scenarios.files import path_of
from laboratory.scenarios.traffic import Group
from models.json_file import read_object
from models.networks.loop_network import named


@pytest.fixture(scope="module")
def published(project: Path) -> Path:
    return project / "docs" / "laboratory"


def test_published_runs_are_known_by_their_hashes(published: Path, tmp_path: Path) -> None:
    """Figure 8 resolved today, profile `uncoupled`, has the hashes under which its runs were published."""
    models = models_by_profile(str(published / "models" / "figure8"), tmp_path)
    rows = load(published).filter(pl.col("status") == COMPLETE, pl.col("scenario") == "figure8")
    (name,) = set(rows["program"])
    assert name == Equals.load().programs[0]
    moved = {
        (row["profile"], row["seed"]): row["moved_share"]
        for row in rows.filter(pl.col("control") == "model").iter_rows(named=True)
    }
    scenario, found = load_scenario(path_of("figure8")), {}
    for cell in cells("figure8", scenario):
        model, share = models[cell.profile], moved[cell.profile, cell.seed]
        control = control_of(scenario.environment, cell.control, model=model, share=share)
        found[cell.profile, cell.control, cell.seed] = identity(resolve(scenario, cell, control, []), name)
    published_as = {(r["profile"], r["control"], r["seed"]): r["run"] for r in rows.iter_rows(named=True)}
    assert len(published_as) > 60
    assert published_as.items() <= found.items()


def test_the_list_of_equals_is_whole(tmp_path: Path) -> None:
    equals = Equals.load()
    every = len(CONTROLS) + 1  # the model's by a second kernel
    one = len(RUNGS) + len(GUARDS) + len(INSTEAD) + len(RESPONSES)
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
    assert answers == {*get_args(Settings.model_fields["moved_response"].annotation)}


def test_the_models_are_those_that_were_judged(published: Path, tmp_path: Path) -> None:
    judged = load(published).filter(pl.col("status") == COMPLETE, pl.col("control") == "model")
    models = models_by_profile(str(published / "models" / "figure8"), tmp_path)
    found = judged.select("profile", "artifact").unique().sort("profile").rows()
    assert found == sorted((profile, model.content) for profile, model in models.items())


def test_training_makes_the_kind_of_model_that_was_judged(published: Path) -> None:
    params, _ = settings(load_scenario(path_of("figure8")), path_of("figure8"), "small", [])
    judged = read_object(published / "models" / "figure8" / "rfc9332" / "model.json")
    assert named(params["architecture"]["name"]).stored == judged["architecture"]["name"]
    assert params["windows"]["tokens"] == judged["window"]["tokens"]
    assert params["pretrain"]["anchor"] == judged["architecture"]["anchor"]
