"""What dvc.yaml says that a stage reads of params.yaml."""

from __future__ import annotations

from pathlib import Path

import yaml


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
