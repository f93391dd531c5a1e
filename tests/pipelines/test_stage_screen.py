"""What a stage and a run leave on the screen."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from swiftqueue.common.json_file import read_object
from swiftqueue.pipelines.experiments.dvc_command import call_dvc, reproduce_side_by_side, where_pushed

WARNING_STAGE = """
import subprocess, sys, warnings
from swiftqueue.pipelines.stage import run_stage
def main() -> None:
    warnings.warn("the library has not converged")
    subprocess.run([sys.executable, "-c", "import warnings; warnings.warn('nor has its worker')"], check=True)
    print("done")
run_stage("warns", main)
"""


@pytest.mark.parametrize(("asked", "shown"), [(None, False), ("default", True)])
def test_librarys_warnings_are_shown_to_whoever_asks_for_them(
    project: Path, asked: str | None, shown: bool
) -> None:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    own |= {"PYTHONPATH": str(project)} | ({"PYTHONWARNINGS": asked} if asked else {})
    command = [sys.executable, "-c", WARNING_STAGE]
    ran = subprocess.run(command, env=own, capture_output=True, text=True, check=True)
    assert ran.stdout == "done\n"
    assert ("the library has not converged" in ran.stderr) is shown
    assert ("nor has its worker" in ran.stderr) is shown
    assert bool(ran.stderr) is shown


@pytest.mark.slow
def test_what_is_pushed_where_is_said(tmp_path: Path) -> None:
    call_dvc(["init", "--no-scm"], tmp_path)
    assert "No DVC remote is set" in where_pushed(tmp_path)
    call_dvc(["remote", "add", "--default", "store", "https://me:secret@example.org/dvc"], tmp_path)
    said = where_pushed(tmp_path)
    assert "the remote store, https://" in said
    assert "example.org/dvc" in said
    assert "secret" not in said


@pytest.mark.slow
def test_stages_that_need_nothing_of_each_other_run_side_by_side(tmp_path: Path) -> None:
    """Each waits until the other one has begun; the third is of the shown half, and comes after the first."""
    meet = "touch {0}.on; for i in $(seq 600); do [ -e {1}.on ] && break; sleep 0.1; done; cp {1}.on {0}"
    commands = {"one": meet.format("one", "two"), "two": meet.format("two", "one"), "three": "cp one three"}
    stages = {name: {"cmd": command, "outs": [name]} for name, command in commands.items()}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    call_dvc(["init", "--no-scm"], tmp_path)
    assert reproduce_side_by_side(list(stages), tmp_path) == 0
    assert all((tmp_path / name).is_file() for name in stages)
    assert reproduce_side_by_side(["absent", "two"], tmp_path) != 0, "the shown half failed"


@pytest.mark.parametrize("page", ["docs/EXPERIMENTS.md", "docs/tutorials/sweep-and-compare.md"])
def test_the_table_of_experiments_fits_a_screen(project: Path, tmp_path: Path, page: str) -> None:
    """The command of the page, on our parameters and figures, with two variants that differ."""
    (found,) = re.findall(r"dvc (exp show (?:.*\\\n)?.*)", (project / page).read_text())
    words = shlex.split(found.replace("\\\n", " "))
    env = os.environ | {"COLUMNS": "120", "DVC_NO_ANALYTICS": "1"}

    def run(*command: str) -> str:
        ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        return ran.stdout

    dvc = str(Path(sys.executable).with_name("dvc"))
    (tmp_path / "data/evaluation").mkdir(parents=True)
    for name in ("params.yaml", "data/evaluation/metrics.json"):
        shutil.copyfile(project / name, tmp_path / name)
    (tmp_path / "dvc.yaml").write_text("params: [params.yaml]\nmetrics: [data/evaluation/metrics.json]\n")
    run("git", "init", "--quiet", ".")
    for key, value in (("user.name", "n"), ("user.email", "n@example.org")):
        run("git", "config", key, value)
    run(dvc, "init", "--quiet")
    run("git", "add", "--all")
    run("git", "commit", "--quiet", "--message=first")
    for name, line in (("one-layer", "  layers: 1 "), ("wide", "  width: 128 ")):
        params = (tmp_path / "params.yaml").read_text()
        begin = params.index("\nevent-stream:")
        key = line.split(":")[0]
        changed = re.sub(rf"^{key}: \S+ ", line, params[begin:], count=1, flags=re.M)
        (tmp_path / "params.yaml").write_text(params[:begin] + changed)
        metrics = tmp_path / "data/evaluation/metrics.json"
        metrics.write_text(metrics.read_text().replace("0.", "0.0"))
        run(dvc, "exp", "save", "--quiet", f"--name={name}")
        run("git", "checkout", "--quiet", ".")
    shown = run(dvc, *words, *(() if "--no-pager" in words else ("--no-pager",)))
    ours = read_object(project / "data/evaluation/metrics.json")["finetuned"]
    assert "…" not in shown, shown  # DVC hides what does not fit
    assert max(map(len, shown.splitlines())) <= 120
    for word in ("one-layer", "wide", "event-stream.layers", "event-stream.width", "average_precision"):
        assert word in shown
    assert str(ours["average_precision"]) in shown
