"""What dvc.yaml says that a stage reads: the rooms of its code, and the sections of params.yaml."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from swiftqueue.common.import_closure import files_of

ENTRANCE = {"pipelines/run", "pipelines/stage.py"}
BY_HAND = ("data", "$", "simulation", "testbed")  # what a stage reads and starts, and imports nothing of


def stages_of(project: Path) -> dict[str, Any]:
    stages = yaml.safe_load((project / "dvc.yaml").read_text())["stages"]
    return {name: stage.get("do", stage) for name, stage in stages.items()}


@pytest.mark.slow
def test_a_stage_depends_on_the_rooms_that_it_imports_from_and_on_no_other(project: Path) -> None:
    """Lazy imports counted, C++ sources and templates too."""
    for name, stage in stages_of(project).items():
        needed = files_of(f"swiftqueue.pipelines.{name}")
        named = [Path(dep) for dep in stage["deps"] if not dep.startswith(BY_HAND)]
        alone = {Path("feature_store/__init__.py")}  # where the room lies, and nothing else
        left_out = [file for file in needed if not any(file.is_relative_to(room) for room in named)]
        assert set(left_out) <= alone, f"{name}: name the rooms of these in its deps"
        unused = [room for room in named if not any(file.is_relative_to(room) for file in needed)]
        assert set(map(str, unused)) <= {"pipelines/run", "feature_store/Makefile"}, name
        assert set(stage["deps"]) >= ENTRANCE, name
        fixed = [dep for dep in stage["deps"] if not dep.startswith(("data", "$"))]
        assert [dep for dep in fixed if not (project / dep).exists()] == [], name


def test_a_stage_that_loads_a_library_depends_on_its_makefile(project: Path) -> None:
    for name, stage in stages_of(project).items():
        loads = any(path.suffix == ".cc" for path in files_of(f"swiftqueue.pipelines.{name}"))
        assert loads <= ("feature_store/Makefile" in stage["deps"]), name


def test_a_reader_sees_the_pipeline_on_three_screens(project: Path) -> None:
    lines = (project / "dvc.yaml").read_text().splitlines()
    assert len(lines) <= 150
    assert list((project / "data").rglob("dvc.yaml")) == [], "`dvc status` would list its stages"


@pytest.mark.slow
def test_the_command_of_contributing_draws_the_stages_on_one_screen(project: Path) -> None:
    """A box for all traces: with one for each, six readers of six traces are a thousand columns."""
    page = (project / "CONTRIBUTING.md").read_text()
    words = re.findall(r"\.venv/bin/(dvc dag [^`]*)`", page)[0].split()
    drawn = subprocess.run(
        [sys.executable, "-m", *words], cwd=project, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    stages = yaml.safe_load((project / "dvc.yaml").read_text())["stages"]
    assert [name for name in stages if f"| {name} |" not in "\n".join(drawn)] == []
    assert max(map(len, drawn)) <= 200
    assert len(drawn) <= 60


def test_a_stage_that_reads_section_change_says_so(project: Path) -> None:
    stages = yaml.safe_load((project / "dvc.yaml").read_text())["stages"]
    reads = [name for name in stages if "change_of(" in (project / "pipelines" / f"{name}.py").read_text()]
    assert {"pretrain", "finetune"} <= set(reads)
    assert [name for name in reads if "change" not in stages[name]["params"]] == []


def test_a_stage_that_reads_the_traces_own_protocols_says_so(project: Path) -> None:
    stages = yaml.safe_load((project / "dvc.yaml").read_text())["stages"]
    code = {name: project / "pipelines" / f"{name}.py" for name in stages}
    reads = [name for name, path in code.items() if path.is_file() and "own_protocols(" in path.read_text()]
    assert reads == ["split"]
    assert [name for name in reads if "extract.traces" not in stages[name]["params"]] == []
