"""What `make` builds, with which Python, and in which order."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ENGINE_USERS = {"serving/triton/native", "serving/agent", "simulation"}


def prerequisites(project: Path) -> dict[str, set[str]]:
    """Each target of the Makefile, and what is made before it, of any line of it."""
    command = ["make", "--print-data-base", "--question", "--no-print-directory", "--file=Makefile", "help"]
    said = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False).stdout
    found: dict[str, set[str]] = {}
    for target, before in re.findall(r"^([\w./-]+):(?!=)[ ]?(.*)$", said, re.M):
        found.setdefault(target, set()).update(before.replace("|", " ").split())
    return found


def test_setup_builds_the_loops_rooms_alone_and_after_what_they_link(project: Path) -> None:
    before = prerequisites(project)
    rooms = {name.removeprefix("native-") for name in before["native"]}
    assert rooms >= ENGINE_USERS | {"common", "feature_store", "models/networks", "serving/engine"}
    assert not {"testbed", "serving/triton/identity", "udp", "suites"} & rooms
    rest = {name.removeprefix("native-") for name in before["native-all"]}
    assert {"native", "testbed", "serving/triton/identity", "udp", "suites"} == rest
    assert all((project / room / "Makefile").is_file() for room in rooms)
    for room in ENGINE_USERS:
        assert "native-serving/engine" in before[f"native-{room}"], room
    assert "native-feature_store" in before["native-serving/engine"]


def test_make_in_every_room_is_in_one_of_both_lists(project: Path) -> None:
    """But in a study, which builds its own when it is asked."""
    before = prerequisites(project)
    known = {name.removeprefix("native-") for name in before["native"] | before["native-all"]}
    listed = subprocess.run(
        ["git", "ls-files", "*/Makefile", ":!studies"], cwd=project, capture_output=True, text=True
    )
    assert {str(Path(name).parent) for name in listed.stdout.split()} <= known


@pytest.mark.parametrize("version", [(3, 10), (3, 14)])
def test_another_python_is_refused_with_what_to_do(
    project: Path, tmp_path: Path, version: tuple[int, int]
) -> None:
    ran = setup_with(project, tmp_path, version)
    assert ran.returncode != 0
    [line] = [line for line in ran.stderr.splitlines() if not line.startswith("make")]
    assert f"Python 3.11, 3.12 or 3.13 is needed, {version[0]}.{version[1]} was found" in line
    assert "apt-get install python3.11-venv, then make PYTHON=python3.11" in line
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("version", [(3, 11), (3, 13)])
def test_the_pythons_of_the_wheels_are_taken(project: Path, tmp_path: Path, version: tuple[int, int]) -> None:
    assert "is needed" not in setup_with(project, tmp_path, version).stderr
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert about["requires-python"] == ">=3.11,<3.14"
    assert "Python 3.11 to 3.13" in (project / "README.md").read_text()


def test_the_python_that_setup_is_given_makes_the_environment_and_builds_nothing(project: Path) -> None:
    """The rooms ask the environment for ns-3, since another Python has none."""
    command = ["make", "--dry-run", "--no-print-directory", "PYTHON=/nowhere/python", "native-simulation"]
    said = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True).stdout
    asked = re.findall(r"wheel is not installed for (\S+):", said)
    assert asked == [str(project / ".venv/bin/python")]


def setup_with(project: Path, folder: Path, version: tuple[int, int]) -> subprocess.CompletedProcess[str]:
    """Make the environment's first file with an interpreter of that version, which makes no environment."""
    python = folder / "python"
    patched = f"import sys; sys.version_info = {(*version, 0)}; exec(sys.argv[1])"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] || exit 3\nexec {sys.executable} -c "{patched}" "$2"\n')
    python.chmod(0o755)
    venv = folder / "venv"
    command = ["make", "--no-print-directory", f"PYTHON={python}", f"VENV={venv}", f"{venv}/bin/uv"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
