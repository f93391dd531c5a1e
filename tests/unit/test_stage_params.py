"""Each stage refuses parameters that cannot be, in one line that names them, before it does any work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.register import read_params
from pipelines.stage import StageError, check_number, load_params


def write(folder: Path, project: Path, section: str, **changes: Any) -> Path:
    params = yaml.safe_load((project / "params.yaml").read_text())
    params[section].update(changes)
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(params))
    return path


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"keep_versions": 0}, "register.keep_versions is 0"),
        ({"keep_versions": "x"}, "register.keep_versions is 'x'"),
        ({"keep_versions": True}, "register.keep_versions is True"),
        ({"model_name": ""}, "register.model_name is ''"),
        ({"model_name": 3}, "register.model_name is 3"),
        ({"trace": None}, "register.trace is None"),
        ({"surprise": 1}, "unknown parameter register.surprise"),
    ],
)
def test_register_refuses_by_name(tmp_path: Path, project: Path, change: dict[str, Any], line: str) -> None:
    with pytest.raises(StageError, match=line):
        read_params(write(tmp_path, project, "register", **change))


@pytest.mark.parametrize("value", [None, "x", True, -0.1, 1.1, float("nan")])
def test_a_number_must_be_one_and_in_its_range(value: Any) -> None:
    with pytest.raises(StageError, match=r"validate\.share is .*; it must be a number from 0 to 1"):
        check_number("validate", {"share": value}, "share", 0, 1)


def test_a_number_in_its_range_passes() -> None:
    for value in (0, 0.5, 1):
        check_number("validate", {"share": value}, "share", 0, 1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [", "not valid YAML"),
        ("- 1", "section `extract` is missing"),
        ("", "section `extract` is missing"),
        ("extract: {}", r"parameter extract\.traces is missing"),
        ("extract: {traces: {}, more: 1}", r"unknown parameter extract\.more"),
    ],
)
def test_a_parameter_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(StageError, match=line):
        load_params(path, "extract", {"traces"})


@pytest.mark.parametrize("traces", [[1], "x", 3])
def test_extract_wants_a_mapping_of_traces(tmp_path: Path, project: Path, traces: Any) -> None:
    path = write(tmp_path, project, "extract", traces=traces)
    command = [
        sys.executable,
        "-m",
        "pipelines.extract",
        "--params",
        str(path),
        "--output",
        str(tmp_path / "o"),
    ]
    result = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert result.stderr.strip().splitlines() == [
        f"extract: extract.traces is {traces!r}; it must map each trace's name to its file"
    ]
    assert not (tmp_path / "o").exists()
