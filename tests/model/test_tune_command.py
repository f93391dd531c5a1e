"""`swiftqueue tune` (Ray Tune, Optuna) gives one result for a seed, and keeps finished trials."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_world
import yaml
from typer.testing import CliRunner

from swiftqueue.benchmarks.results import tuning as published
from swiftqueue.cli.app import app
from swiftqueue.common.local_ray import ray_cluster


@pytest.fixture(scope="module")
def world(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_world.write_forecasters(tmp_path_factory.mktemp("tune"), project / "forecasters.yaml", 1)


def tune(world: Path, output: str, *more: str) -> str:
    result = CliRunner().invoke(
        app,
        [
            *("tune", str(world / "packets"), "-o", str(world / output), "--protocol", "short"),
            *("--sections", str(world / "forecasters.yaml"), *more),
        ],
        catch_exceptions=True,
    )
    return result.output if result.exception is None else f"{result.exception}{result.output}"


def summary(world: Path, output: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((world / output / "tuning.json").read_text())
    return found


def tried(world: Path, output: str) -> list[tuple[Any, float]]:
    return [(one["values"], one["log_mae"]) for one in summary(world, output)["variants"]["mlp"]["trials"]]


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """Start one cluster, which all searches join."""
    with ray_cluster(1):
        yield


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("ray")
def test_a_search_goes_on_where_it_stopped_and_ends_as_one_that_did_not(world: Path, tmp_path: Path) -> None:
    first = tune(world, "stopped", "--only", "mlp", "--trials", "2")
    assert "mlp, trial 2 of 2: log error " in first
    assert "kept" not in first
    before = {path: path.read_bytes() for path in (world / "stopped").glob("*/*.json")}
    assert len(before) == 2
    lost = next(iter(before))
    lost.unlink()  # as after a search that was killed

    again = tune(world, "stopped", "--only", "mlp", "--trials", "6")
    assert again.count("kept") == 1
    for path in before.keys() - {lost}:
        assert path.read_bytes() == before[path]
    whole = tune(world, "whole", "--only", "mlp", "--trials", "6")
    assert "kept" not in whole
    assert tried(world, "stopped") == tried(world, "whole")
    assert len({json.dumps(values) for values, _ in tried(world, "whole")}) > 3
    assert not list(world.glob("*/*/ray"))

    found = summary(world, "whole")
    assert {one["n_late"] > 0 for one in found["variants"]["mlp"]["trials"]} == {True}
    assert found["budget"] == {"trials": 6, "cpu_seconds": 1800, "seed": 1, "training_seed": 1}
    sections = yaml.safe_load((world / "forecasters.yaml").read_text())
    tuned = yaml.safe_load((world / "whole/tuned.yaml").read_text())
    assert list(tuned) == ["mlp"]
    for name, one in found["variants"].items():
        assert one["best"]["log_mae"] == min(trial["log_mae"] for trial in one["trials"])
        assert one["default"] == one["trials"][0]
        assert all(sections[name].get(key, value) == value for key, value in one["default"]["values"].items())
        assert tuned[name] == {**sections[name], **one["best"]["values"]}

    path = tmp_path / "tuning.json"
    published.take(world / "whole/tuning.json", path)
    assert json.loads(path.read_text())["variants"] == found["variants"]

    scored = CliRunner().invoke(
        app,
        [
            *("forecasts", str(world / "packets"), "-o", str(world / "runs"), "--protocol", "short"),
            *("--sections", str(world / "whole/tuned.yaml"), "--seeds", "1", "--against", "mlp", "--choose"),
        ],
    )
    assert scored.exit_code == 0, scored.output
    run = json.loads((world / "runs/mlp-1.json").read_text())  # the same run as the trial that was chosen
    assert run["tuned"]["error"]["log_mae"] == pytest.approx(found["variants"]["mlp"]["best"]["log_mae"])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("ray")
def test_no_trial_begins_after_the_seconds_are_spent_and_late_is_as_the_parameters_say(
    world: Path, project: Path
) -> None:
    params = yaml.safe_load((project / "params.yaml").read_text())
    params["change"]["least_ms"] = 200.0
    (world / "params.yaml").write_text(yaml.safe_dump(params))
    more = ("--params", str(world / "params.yaml"))
    tune(world, "short", "--only", "mlp", "--trials", "6", "--seconds", "1", *more)
    assert {one["n_late"] for one in summary(world, "short")["variants"]["mlp"]["trials"]} == {0}
    assert summary(world, "short")["change"]["least_ms"] == 200
    spent = [one["cpu_s"] for one in summary(world, "short")["variants"]["mlp"]["trials"]]
    assert sum(spent[:-1]) < 1 <= sum(spent) or len(spent) == 6
    assert len(spent) < 6


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--only", "mpl"], "section `mpl` is missing; did you mean mlp?"),
        (["--only", "last-flow"], "--only last-flow: it has nothing to tune"),
        (["--trials", "0"], "Invalid value for '--trials': Input should be greater than or equal to 1"),
        (["--trace", "t3"], "no packet table of trace 't3'"),
        (["--sections", "/nowhere.yaml"], "/nowhere.yaml: no such parameter file"),
        (["--params", "/nowhere.yaml"], "/nowhere.yaml: no such parameter file"),
    ],
)
def test_what_cannot_be_is_a_line_that_names_it(world: Path, more: list[str], line: str) -> None:
    assert line in tune(world, "wrong", *more)
    assert not (world / "wrong").exists()


def test_where_no_trial_can_be_judged_no_search_begins(tmp_path: Path, project: Path) -> None:
    lame = toy_world.write_forecasters(tmp_path, project / "forecasters.yaml", 0)
    whole = toy_world.bottleneck_table("t1", 4.2, seed=1, swing_ms=40)
    toy_world.write_table(lame / "packets", toy_world.without_latencies(whole, 1.6, 2.6))
    assert tune(lame, "none") == "t1: no latency is known in the last third of training, to judge a trial by"
    assert not (lame / "none").exists()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("ray")
def test_a_variant_that_cannot_be_trained_does_not_end_the_others(tmp_path: Path, project: Path) -> None:
    lame = toy_world.write_forecasters(tmp_path, project / "forecasters.yaml", 0)
    whole = toy_world.bottleneck_table("t1", 4.2, seed=1, swing_ms=40)
    toy_world.write_table(lame / "packets", toy_world.without_latencies(whole, 1.4, 1.72))
    sections = yaml.safe_load((lame / "forecasters.yaml").read_text())
    sections["xgboost"] = yaml.safe_load((project / "forecasters.yaml").read_text())["xgboost"] | {
        "rounds": 20
    }
    (lame / "forecasters.yaml").write_text(yaml.safe_dump(sections, sort_keys=False))
    said = tune(lame, "half", "--trials", "1")
    assert said.startswith("not tuned, for the reasons above: mlp")
    assert "no trial of mlp could be trained: " in said
    assert list(summary(lame, "half")["variants"]) == ["xgboost"]
    assert list(yaml.safe_load((lame / "half/tuned.yaml").read_text())) == ["xgboost"]


def test_a_file_without_sections_is_one_line(world: Path, tmp_path: Path) -> None:
    (tmp_path / "none.yaml").touch()
    assert "none.yaml: no section has anything to tune" in tune(
        world, "wrong", "--sections", str(tmp_path / "none.yaml")
    )
